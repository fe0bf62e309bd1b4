"""Frames, against arbitrary bytes: those that are no frame raise only FrameError."""

from __future__ import annotations

import struct
import tracemalloc

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from flamecore.errors import FrameError
from flamecore.toolkit.frames import HEADER_BYTES, MAGIC, VERSION, Frame, Framing, Sequences

FRAMING = Framing("tests", 3, max_body_bytes=1000)
ADDRESSES = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)
FRAMES = st.builds(Frame, ADDRESSES, ADDRESSES, st.integers(0, 2**64 - 1), st.binary(max_size=1000))
REASONS = {"short", "magic", "version", "oversized", "length", "damaged", "job", "incarnation", "addresses"}


@given(st.lists(FRAMES, max_size=5))
def test_frames_are_unwrapped_as_they_were_wrapped(frames: list[Frame]) -> None:
    assert list(FRAMING.unwrap_all(b"".join(map(FRAMING.wrap, frames)))) == frames


@given(st.binary(max_size=200))
@example(MAGIC)
@example(MAGIC + bytes([VERSION]) + bytes(HEADER_BYTES))
@example(MAGIC + bytes([VERSION]) + b"\xff" * HEADER_BYTES)
def test_random_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(FrameError) as caught:
        FRAMING.unwrap(data)
    assert caught.value.reason in REASONS
    if data:
        with pytest.raises(FrameError):
            list(FRAMING.unwrap_all(data))


@given(FRAMES, st.data())
def test_any_flipped_bit_is_found(frame: Frame, data: st.DataObject) -> None:
    whole = bytearray(FRAMING.wrap(frame))
    bit = data.draw(st.integers(0, 8 * len(whole) - 1))
    whole[bit // 8] ^= 1 << bit % 8
    with pytest.raises(FrameError) as caught:
        FRAMING.unwrap(bytes(whole))
    assert caught.value.reason in {"magic", "version", "oversized", "length", "damaged"}


@given(FRAMES, st.data())
def test_any_cut_is_found(frame: Frame, data: st.DataObject) -> None:
    whole = FRAMING.wrap(frame)
    cut = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(FrameError) as caught:
        FRAMING.unwrap(whole[:cut])
    assert caught.value.reason in {"short", "length"}


@given(st.lists(FRAMES, min_size=1, max_size=3), st.binary(min_size=1, max_size=100))
def test_frames_before_something_else_are_found(frames: list[Frame], rest: bytes) -> None:
    reader = FRAMING.unwrap_all(b"".join(map(FRAMING.wrap, frames)) + rest)
    assert [next(reader) for _ in frames] == frames
    with pytest.raises(FrameError):
        next(reader)


@given(st.integers(0, 2**16 - 1), st.integers(0, 2**32 - 1))
def test_claimed_lengths_allocate_nothing(addresses: int, body: int) -> None:
    """A head's lengths are checked against the data before anything is allocated."""
    head = struct.pack(">4sBxHIIQQQ", MAGIC, VERSION, addresses, body, 3, 1, 0, 0)
    tracemalloc.start()
    try:
        with pytest.raises(FrameError):
            list(FRAMING.unwrap_all(head + b"\0" * 50))
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("job", "incarnation", "reason"), [("another", 3, "job"), ("tests", 2, "incarnation"), ("tests", 4, "incarnation")]
)
def test_frames_of_another_job_or_incarnation_are_refused(job: str, incarnation: int, reason: str) -> None:
    with pytest.raises(FrameError) as caught:
        FRAMING.unwrap(Framing(job, incarnation).wrap(Frame("a", "b", 1, b"")))
    assert caught.value.reason == reason


def test_a_body_too_large_is_refused() -> None:
    with pytest.raises(FrameError, match="larger than 1000") as caught:
        FRAMING.wrap(Frame("a", "b", 1, bytes(1001)))
    assert caught.value.reason == "oversized"
    with pytest.raises(FrameError) as caught:
        FRAMING.unwrap(Framing("tests", 3).wrap(Frame("a", "b", 1, bytes(1001))))
    assert caught.value.reason == "oversized"


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 6)), max_size=40))
def test_sequences_admit_each_number_once_and_in_order(numbers: list[tuple[str, int]]) -> None:
    sequences, last = Sequences(), {"a": 0, "b": 0}
    for sender, number in numbers:
        frame = Frame(sender, "z", number, b"")
        if number > last[sender] + 1:
            with pytest.raises(FrameError) as caught:
                sequences.admit(frame)
            assert caught.value.reason == "gap"
        else:
            assert sequences.admit(frame) == (number == last[sender] + 1)
            last[sender] = max(last[sender], number)
