"""How the bytes of a snapshot look, and that damaged ones are refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flamecore.codec import Codec
from flamecore.errors import CorruptError
from flamecore.snapshot import (
    FORMAT,
    EpochRecord,
    FrontState,
    Manifest,
    Part,
    Section,
    commit_blob,
    decode_epoch,
    decode_manifest,
    decode_part,
    encode_part,
    encode_record,
    encode_section,
    epoch_blob,
    journal_blob,
    part_blob,
    seal,
    unseal,
)
from flamecore.store import check_name

FRONTS = (FrontState("lines", 0, "a.txt", 1, ("a.txt", 17), 18, False), FrontState("lines", 1, "b", 2, None, 0, True))
MANIFEST = Manifest(
    "mine", 3, 7, 40, 1.5, {"count": {"kind": "drift"}}, 2, FRONTS, (Part("part/1", 10, ("count",), (0, 63), 7, 3),)
)
EPOCH = EpochRecord("mine", 4, 2.5, (commit_blob(3, 7),), False, (journal_blob(3, 0, 1),), FRONTS)


@given(st.binary(max_size=200))
def test_what_is_sealed_is_unsealed(data: bytes) -> None:
    assert unseal(seal(data), "blob") == data


@given(st.binary(max_size=60), st.integers(0, 10**6), st.integers(1, 255))
def test_a_blob_that_was_changed_anywhere_is_refused(data: bytes, place: int, flip: int) -> None:
    blob = bytearray(seal(data))
    blob[place % len(blob)] ^= flip
    with pytest.raises(CorruptError, match="blob part/1/2/3"):
        unseal(bytes(blob), "part/1/2/3")


@given(st.binary(max_size=60), st.integers(0, 10**6))
def test_a_blob_that_was_cut_short_is_refused(data: bytes, size: int) -> None:
    blob = seal(data)
    with pytest.raises(CorruptError):
        unseal(blob[: size % len(blob)], "b")


def test_why_a_blob_is_refused_is_told() -> None:
    with pytest.raises(CorruptError, match="missing"):
        unseal(None, "b")
    newer = bytearray(seal(b"x"))
    newer[4] = FORMAT + 1
    with pytest.raises(CorruptError, match=f"format {FORMAT + 1}, and format {FORMAT} is read"):
        unseal(bytes(newer), "b")
    with pytest.raises(CorruptError, match="checksum") as caught:
        unseal(seal(b"x")[:-1] + b"y", "commit/1/2")
    assert caught.value.blob == "commit/1/2"


def test_records_come_back_as_they_were() -> None:
    assert decode_manifest(encode_record(MANIFEST), "m") == MANIFEST
    assert decode_epoch(encode_record(EPOCH), "e") == EPOCH
    assert MANIFEST.blob == commit_blob(3, 7)


def test_one_kind_of_record_is_not_taken_for_another() -> None:
    with pytest.raises(CorruptError, match="holds a EpochRecord and no Manifest"):
        decode_manifest(encode_record(EPOCH), "m")
    with pytest.raises(CorruptError, match="holds a Manifest and no EpochRecord"):
        decode_epoch(encode_record(MANIFEST), "e")
    with pytest.raises(CorruptError):
        decode_manifest(seal(b"\xc1nothing"), "m")


def test_sections_come_back_as_they_were() -> None:
    codec = Codec()
    sections = [
        Section("count", ["a", ("b", 2)], [1, (2, 3)], ["c"]),
        Section("group", [1.5], [((b"order", 7, "payload"),)], []),
    ]
    blob = encode_part(codec, [(section.vertex, encode_section(codec, section)) for section in sections])
    assert decode_part(codec, blob, "p", ("count", "group")) == sections
    assert decode_part(codec, blob, "p", ("group",)) == sections[1:]
    for wrong in ([("count", codec.encode((1, 2)))], [codec.encode((1, 2))], [3]):
        with pytest.raises(CorruptError, match="blob p"):
            decode_part(codec, seal(codec.encode(wrong)), "p", ("count",))


def test_names_of_blobs_are_names_and_sort_as_their_numbers() -> None:
    names = [epoch_blob(12), commit_blob(1, 2), part_blob(1, 2, 3), journal_blob(1, 2, 3)]
    for name in names:
        check_name(name, "any")
    assert epoch_blob(9) < epoch_blob(10)
    assert commit_blob(9, 10**6) < commit_blob(10, 1)
    assert commit_blob(1, 99) < commit_blob(1, 100)
    assert part_blob(1, 5, 127) < part_blob(1, 6, 0) < part_blob(1, 6, 0, 1)
