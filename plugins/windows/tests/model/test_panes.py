"""Panes: dataclasses whose fields have slots."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import weakref

import pytest

from flamestream_windows.model.panes import Pane, Timing, panes_of
from flamestream_windows.model.windows import Window

EARLIER = (
    b"\x80\x04\x95\xc4\x00\x00\x00\x00\x00\x00\x00\x8c\x1fflamestream_windows.model.panes\x94\x8c\x04Pane\x94\x93\x94)"
    b"\x81\x94}\x94(\x8c\x03key\x94\x8c\x01k\x94\x8c\x05value\x94K\x07\x8c\x06window\x94\x8c!flamestream_windows.model."
    b"windows\x94\x8c\x06Window\x94\x93\x94K\x00K\n\x86\x94\x81\x94\x8c\x06timing\x94h\x00\x8c\x06Timing\x94\x93\x94K\x02"
    b"\x85\x94R\x94\x8c\x05index\x94K\x03\x8c\x04last\x94\x88\x8c\nretraction\x94\x89ub."
)
"""A pickle of a pane of an earlier version, which had a dictionary."""

PANE = Pane("k", 7, Window(0, 10), Timing.LATE, 3, last=True)


def test_panes_made_together_are_what_each_made_alone_is() -> None:
    made = panes_of(Window(0, 10), Timing.LATE, "ak", (5, 7), (0, 3), last=True)
    assert made == [Pane("a", 5, Window(0, 10), Timing.LATE, 0, last=True), PANE]
    for pane in made:
        assert type(pane) is Pane
        assert (hash(pane), repr(pane)) == (hash(dataclasses.replace(pane)), repr(dataclasses.replace(pane)))
        assert not hasattr(pane, "__dict__")
        with pytest.raises(dataclasses.FrozenInstanceError):
            pane.key = "b"  # type: ignore[misc]  # it is frozen
        with pytest.raises(dataclasses.FrozenInstanceError):
            pane.other = 1  # type: ignore[attr-defined]  # as above


def test_a_pane_is_no_retraction_unless_it_says_so() -> None:
    assert not PANE.retraction
    assert dataclasses.replace(PANE, retraction=True).retraction
    assert dataclasses.asdict(PANE)["retraction"] is False


def test_panes_are_copied_pickled_and_referred_to() -> None:
    for again in (copy.copy(PANE), copy.deepcopy(PANE), pickle.loads(pickle.dumps(PANE))):
        assert again == PANE
    assert weakref.ref(PANE)() is PANE
    assert Pane[str, int]("k", 7, Window(0, 10), Timing.LATE, 3, last=True) == PANE


def test_pickles_are_those_of_earlier_panes() -> None:
    assert pickle.loads(EARLIER) == PANE
    assert pickle.dumps(PANE, 4) == EARLIER
