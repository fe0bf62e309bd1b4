"""Panes: dataclasses whose fields have slots."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import weakref

import pytest

from flamestream_windows.model.panes import Pane, Timing, panes_of
from flamestream_windows.model.windows import Window

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
