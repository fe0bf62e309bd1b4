"""The laws I0 to I9 on drawn runs, an oracle beside the engine, and mistakes that must not go unseen."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from flamestream_windows.engine import tree
from flamestream_windows.engine.grouping import Grouping
from flamestream_windows.engine.values import Clock, Element, Firing, Watermark
from flamestream_windows.model import triggers, windows
from flamestream_windows.model.aggregates import Collect
from flamestream_windows.model.panes import Timing
from flamestream_windows.model.strategy import Strategy
from flamestream_windows.model.times import MAX
from flamestream_windows.testing import cases, laws
from flamestream_windows.testing.keyed import Keys
from flamestream_windows.testing.laws import LawError, check_run, draw_events, draw_strategy, draw_windows
from flamestream_windows.testing.oracle import WATERMARK, Expected, Given, final_panes

PARTS = 5
Seeds = Callable[..., range]


@pytest.mark.parametrize("part", range(PARTS))
def test_drawn_runs_keep_every_law(part: int, seeds: Seeds) -> None:
    runs = seeds(400, part)
    assert sum(map(check_run, runs)) > len(runs)


# The oracle


def _drawn(rng: random.Random) -> tuple[windows.WindowFn, Any, list[Given]]:
    size, period, lateness = rng.choice([4, 10, 25]), rng.choice([2, 3, 7]), rng.choice([0, 0, 5, 30])
    kind = rng.choice(["fixed", "sliding", "sessions"])
    function: windows.WindowFn = {
        "fixed": windows.Fixed(size),
        "sliding": windows.Sliding(size, period),
        "sessions": windows.Sessions(size),
    }[kind]
    events, now = [], rng.randint(-30, 30)
    for number in range(rng.randint(3, 50)):
        now += rng.randint(0, 4)
        if rng.random() < 0.3:
            events.append(Given(WATERMARK, now - rng.randint(-5, 25)))
        else:
            events.append(Given(rng.choice("abc"), now - rng.randint(0, 40), number))
    return function, (kind, size, period, lateness), [*events, Given(WATERMARK, MAX)]


def _compare_with_oracle(seed: int) -> int:
    function, (kind, size, period, lateness), events = _drawn(random.Random(seed))
    keys = Keys(Grouping(Strategy(function, lateness=lateness), Collect()))
    panes = 0
    for event, expected in zip(events, final_panes(kind, size, period, lateness, events), strict=True):
        if event.key == WATERMARK:
            found = keys.advance(event.at)
        else:
            found = keys.element(event.key, Element(event.value, event.at))
        got = [
            Expected(key, *pane.window, tuple(sorted(pane.value)), pane.timing == Timing.LATE)
            for key, pane in found
            if isinstance(pane, Firing)
        ]
        assert sorted(got) == sorted(expected), f"seed {seed}: {function}, {lateness}, {event} of {events}"
        panes += len(got)
    return panes


@pytest.mark.parametrize("part", range(PARTS))
def test_final_panes_are_those_of_the_oracle(part: int, seeds: Seeds) -> None:
    runs = seeds(400, part)
    assert sum(map(_compare_with_oracle, runs)) > len(runs)


def test_drawn_runs_keep_every_law_with_trees_of_windows(seeds: Seeds, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree, "WIDTH", 2)
    runs = seeds(400)
    assert sum(map(check_run, runs)) > len(runs)
    assert sum(map(_compare_with_oracle, runs)) > len(runs)


# Mistakes: a text of the engine, and what it is replaced by.

GROUPING = {
    "holds that ignore the output watermark": (
        "if time >= output and window.end > input:",
        "if True:",
    ),
    "an output watermark that the windows of a key do not hold": ("held = grouping.hold(record)", "held = None"),
    "no hold for what is too late": ("expiry_hold = strategy.expiry(window)\n", "pass\n"),
    "panes that forget no hold": ("hold=None, expiry_hold=promised", "hold=cell.hold, expiry_hold=promised"),
    "late windows that are on time": ("self.merging and window.end <= self.input", "False"),
    "joined windows that are on time": (
        "(result.end <= self.input and held is None) if own is None",
        "False if own is None",
    ),
    "joined windows without a hold": ("        if holds:\n", "        if False:\n"),
    "joined windows without what was given": (
        "tuple(firing for cell in sources for firing in cell.outstanding)",
        "()",
    ),
    "joined windows that keep a number": ("None if own is None else own.pane", "sources[0].pane"),
    "joined windows with one trigger": ("[cell.trigger for cell in sources]", "[sources[0].trigger]"),
    "timing by the input watermark": ("if self.output >= window.end or", "if self.input >= window.end or"),
    "timing that forgets what was given": ("(before is not None and before[0] != Timing.EARLY)", "False"),
    "discarding that keeps": ('if self.strategy.panes == "discarding" else', "if False else"),
    "windows that stay a tick too long": (
        "expired and self.strategy.expiry(window) < to",
        "expired and self.strategy.expiry(window) + 1 < to",
    ),
    "closed windows that stay": ("if self.strategy.expiry(window) >= to}", "}"),
    "elements of expired windows": (
        "for window in windows if self.strategy.expiry(window) >= self.input]",
        "for window in windows]",
    ),
    "retractions of nothing": ("for old in cell.outstanding:", "for old in ():"),
    "panes behind their window": ("at = min(at, window.end - 1)", "at = at + 3"),
    "no promised pane": ('if self.strategy.closing == "always" else None', "if False else None"),
    "what is due once": ("turns.append((moment.input + 1,", "turns.append((2**62 + 1,"),
    "what is due too late": ("turns.append((window.end,", "turns.append((window.end + 3,"),
    "a record that can be changed": ("cells = self.cells.row\n", "cells = [*self.cells.row]\n"),
}
KEYED = {
    "an output watermark that holds nothing": ("held = self._first(2)", "held = None"),
    "keys in the order in which they came": ("        every.sort(", "        (lambda **_: None)("),
    "what is due sooner is forgotten": ("and time != earlier:", "and earlier is None:"),
}


def _mutant(module: str, old: str, new: str) -> ModuleType:
    spec = find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    source = Path(spec.origin).read_text("utf-8")
    assert source.count(old) == 1, f"{old!r} is in {module} {source.count(old)} times"
    made = ModuleType("flamestream_windows_mutant")
    sys.modules[made.__name__] = made
    exec(compile(source.replace(old, new), "mutant", "exec"), made.__dict__)
    return made


@pytest.fixture(autouse=True)
def no_mutant_is_left() -> Iterator[None]:
    yield
    sys.modules.pop("flamestream_windows_mutant", None)


def _is_caught(own_cases: list[dict[str, Any]]) -> bool:
    """Return whether a case, the oracle or a law tells that something is wrong."""
    try:
        for case in own_cases:
            if case["kind"] == "positive":
                cases.replay(case)
        for seed in range(200):
            _compare_with_oracle(seed)
        for seed in range(1000):
            check_run(seed)
    except Exception:  # noqa: BLE001  # a mutant may break in any way
        return True
    return False


def _put(monkeypatch: pytest.MonkeyPatch, name: str, kind: type) -> None:
    for module in (laws, cases, sys.modules[__name__]):
        monkeypatch.setattr(module, name, kind)


@pytest.mark.parametrize("mistake", GROUPING)
def test_a_mistake_in_the_grouping_is_caught(
    mistake: str, own_cases: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant = _mutant("flamestream_windows.engine.grouping", *GROUPING[mistake])
    _put(monkeypatch, "Grouping", mutant.Grouping)
    assert _is_caught(own_cases)


@pytest.mark.parametrize("mistake", KEYED)
def test_a_mistake_among_keys_is_caught(
    mistake: str, own_cases: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    _put(monkeypatch, "Keys", _mutant("flamestream_windows.testing.keyed", *KEYED[mistake]).Keys)
    assert _is_caught(own_cases)


def test_a_trigger_that_begins_again_in_part_is_caught(
    own_cases: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def again(trigger: triggers.Trigger, state: triggers.State, look: triggers.Look) -> triggers.State:
        state = trigger.fire(state, look)
        return (False, *state[1:]) if trigger.finished(state) else state

    monkeypatch.setattr(triggers, "_again", again)
    assert _is_caught(own_cases)


def test_what_is_due_of_a_key_does_not_grow_with_its_elements() -> None:
    keys = Keys(Grouping(Strategy(windows.Sessions(10), time="latest"), Collect()))
    for at in range(2000):
        keys.element("k", Element(at, at))
        assert sum(map(len, keys._heaps)) < 300
    ((_, pane),) = keys.advance(MAX)
    assert isinstance(pane, Firing)
    assert (pane.window, len(pane.value)) == ((0, 2009), 2000)


def _chained(seed: int) -> int:
    """Play a grouping behind a grouping, with input that is never late, and count the panes of the second."""
    rng = random.Random(seed)
    first = draw_strategy(rng)
    panes: Any = rng.choice(["accumulating", "discarding"])
    first = replace(first, panes=panes, closing="if_any", time=rng.choice(["end", "earliest", "shifted"]))
    second = replace(first.after(), windows=draw_windows(rng))
    one, two = Keys(Grouping(first, Collect()), clock=0), Keys(Grouping(second, Collect()), clock=0)
    found = 0
    for key, given in draw_events(rng):
        if isinstance(given, Element):
            outputs = one.element(key, given._replace(at=max(given.at, one.watermark)))
        elif isinstance(given, Watermark):
            outputs = one.advance(given.to)
        else:
            assert isinstance(given, Clock)
            outputs = one.tick(given.to)
            found += len(two.tick(given.to))
        for number, (its, pane) in enumerate(outputs):
            if isinstance(pane, Firing):
                assert pane.timing != Timing.LATE, f"seed {seed}: {first}: {pane}"
                assert pane.at >= two.watermark, f"seed {seed}: {first}: {pane} at {two.watermark}"
                found += len(two.element(its, Element(number, pane.at, (pane.window,))))
        assert two.watermark <= one.output
        found += len(two.advance(one.output))
    assert (one.records, two.records) == ({}, {})
    return found


def test_without_late_input_nothing_is_late_in_a_chain(seeds: Seeds) -> None:
    runs = seeds(1000)
    assert sum(map(_chained, runs)) > len(runs)


def test_a_law_that_is_broken_tells_the_seed_and_the_strategy(monkeypatch: pytest.MonkeyPatch) -> None:
    mutant = _mutant("flamestream_windows.engine.grouping", "for old in cell.outstanding:", "for old in ():")
    monkeypatch.setattr(laws, "Grouping", mutant.Grouping)
    with pytest.raises(LawError, match=r"seed \d+: .*panes=retracting"):
        sum(check_run(seed) for seed in range(3000))
