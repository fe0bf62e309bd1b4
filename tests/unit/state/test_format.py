"""The bytes of a snapshot, and the refusal of damaged ones."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flamecore.abc.store import check_name
from flamecore.errors import CorruptError
from flamecore.runtime.codec.codec import Codec
from flamecore.runtime.state.format import (
    FORMAT,
    Binding,
    EpochRecord,
    FrontState,
    Manifest,
    Part,
    Section,
    SinkState,
    commit_blob,
    decode_epoch,
    decode_manifest,
    decode_part,
    digest_of,
    encode_part,
    encode_record,
    encode_section,
    epoch_blob,
    journal_blob,
    part_blob,
    seal,
    unseal,
)

HERE = Binding("mine", "run")
FRONTS = (FrontState("lines", 0, "a.txt", 1, ("a.txt", 17), 18, False), FrontState("lines", 1, "b", 2, None, 0, True))
MANIFEST = Manifest(
    "mine", 3, 7, 40, 1.5, {"count": {"kind": "drift"}}, 2, FRONTS, (Part("part/1", 10, ("count",), (0, 63), 7, 3),)
)._replace(run="run")
EPOCH = EpochRecord("mine", 4, 2.5, (commit_blob(3, 7),), False, (journal_blob(3, 0, 1),), FRONTS, "run")


@given(st.binary(max_size=200))
def test_blobs_are_unsealed_as_they_were_sealed(data: bytes) -> None:
    assert unseal(seal(data, "blob", HERE), "blob", HERE) == data


@given(st.binary(max_size=60), st.integers(0, 10**6), st.integers(1, 255))
def test_a_blob_that_was_changed_anywhere_is_refused(data: bytes, place: int, flip: int) -> None:
    blob = bytearray(seal(data, "part/1/2/3", HERE))
    blob[place % len(blob)] ^= flip
    with pytest.raises(CorruptError, match="blob part/1/2/3"):
        unseal(bytes(blob), "part/1/2/3", HERE)


@given(st.binary(max_size=60), st.integers(0, 10**6))
def test_a_blob_that_was_cut_short_is_refused(data: bytes, size: int) -> None:
    blob = seal(data, "b", HERE)
    with pytest.raises(CorruptError):
        unseal(blob[: size % len(blob)], "b", HERE)


def test_the_error_says_why_a_blob_is_refused() -> None:
    with pytest.raises(CorruptError, match="missing"):
        unseal(None, "b", HERE)
    for other, hint in ((FORMAT + 1, "A newer flamestream has written it"), (FORMAT - 1, "Bring the state back")):
        blob = bytearray(seal(b"x", "b", HERE))
        blob[4] = other
        with pytest.raises(CorruptError, match=f"format {other}, and format {FORMAT} is read") as refused:
            unseal(bytes(blob), "b", HERE)
        assert hint in refused.value.hint
    with pytest.raises(CorruptError, match="checksum") as caught:
        unseal(seal(b"x", "commit/1/2", HERE)[:-1] + b"y", "commit/1/2", HERE)
    assert caught.value.blob == "commit/1/2"


def test_records_come_back_as_they_were() -> None:
    assert decode_manifest(encode_record(MANIFEST), MANIFEST.blob, HERE) == MANIFEST
    assert decode_epoch(encode_record(EPOCH), EPOCH.blob, HERE) == EPOCH
    assert MANIFEST.blob == commit_blob(3, 7)


def test_records_have_names_in_bytes_that_no_module_is_part_of() -> None:
    manifest = MANIFEST._replace(sinks=(SinkState("out"),))
    for record, names in (
        (manifest, {b"!Manifest", b"!FrontState", b"!Part", b"!SinkState"}),
        (EPOCH, {b"!EpochRecord", b"!FrontState"}),
    ):
        blob = encode_record(record)
        assert b"flamecore" not in blob
        assert all(name in blob for name in names)


def test_one_kind_of_record_is_not_taken_for_another() -> None:
    with pytest.raises(CorruptError, match="holds a EpochRecord and no Manifest"):
        decode_manifest(encode_record(EPOCH), EPOCH.blob, HERE)
    with pytest.raises(CorruptError, match="holds a Manifest and no EpochRecord"):
        decode_epoch(encode_record(MANIFEST), MANIFEST.blob, HERE)
    with pytest.raises(CorruptError):
        decode_manifest(seal(b"\xc1nothing", "m", HERE), "m", HERE)


def test_sections_come_back_as_they_were() -> None:
    codec = Codec()
    sections = [
        Section("count", ["a", ("b", 2)], [1, (2, 3)], ["c"]),
        Section("group", [1.5], [((b"order", 7, "payload"),)], []),
    ]
    blob = encode_part(codec, [(section.vertex, encode_section(codec, section)) for section in sections], "p", HERE)
    assert decode_part(codec, blob, "p", HERE, ("count", "group")) == sections
    assert decode_part(codec, blob, "p", HERE, ("group",)) == sections[1:]
    for wrong in ([("count", codec.encode((1, 2)))], [codec.encode((1, 2))], [3]):
        with pytest.raises(CorruptError, match="blob p"):
            decode_part(codec, seal(codec.encode(wrong), "p", HERE), "p", HERE, ("count",))


def test_names_of_blobs_are_names_and_sort_as_their_numbers() -> None:
    names = [epoch_blob(12), commit_blob(1, 2), part_blob(1, 2, 3), journal_blob(1, 2, 3)]
    for name in names:
        check_name(name, "any")
    assert epoch_blob(9) < epoch_blob(10)
    assert commit_blob(9, 10**6) < commit_blob(10, 1)
    assert commit_blob(1, 99) < commit_blob(1, 100)
    assert part_blob(1, 5, 127) < part_blob(1, 6, 0) < part_blob(1, 6, 0, 1)


ELSEWHERE = {
    "its bytes are those of blob part/1": (seal(b"x", "part/1", HERE), HERE),
    "it belongs to state theirs, and this is state mine": (
        seal(b"x", "part/2", HERE._replace(identity="theirs")),
        HERE,
    ),
    "it was written by another epoch of that number": (seal(b"x", "part/2", HERE._replace(run="another")), HERE),
    "another one than was written here": (seal(b"x", "part/2", HERE), Binding("mine", digest=bytes(16))),
}


@pytest.mark.parametrize("why", ELSEWHERE)
def test_a_blob_that_is_whole_and_belongs_elsewhere_is_refused(why: str) -> None:
    blob, expected = ELSEWHERE[why]
    with pytest.raises(CorruptError, match=why) as caught:
        unseal(blob, "part/2", expected)
    assert caught.value.foreign
    assert caught.value.blob == "part/2"


def test_what_is_not_known_of_a_place_is_not_compared() -> None:
    blob = seal(b"x", "part/2", HERE)
    for expected in (Binding(), Binding("mine"), Binding(run="run"), Binding(digest=digest_of(blob))):
        assert unseal(blob, "part/2", expected) == b"x"
