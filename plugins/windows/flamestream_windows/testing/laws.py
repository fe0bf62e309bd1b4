"""The laws of a grouping, I0 to I9, checked on drawn runs.

A seed draws a strategy, elements of several keys, and steps of time.

A run is played in one place for all keys, and once more for each key alone, step by step without an index. Values are
numbers, each given once, so that every pane tells which elements it holds.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from typing import Any

from flamestream_windows.engine.grouping import Grouping
from flamestream_windows.engine.tree import Tree
from flamestream_windows.engine.values import (
    Clock,
    Drop,
    Element,
    Firing,
    Input,
    Late,
    Moment,
    Output,
    Record,
    Watermark,
)
from flamestream_windows.model import triggers as t
from flamestream_windows.model import windows as w
from flamestream_windows.model.aggregates import Collect
from flamestream_windows.model.panes import Timing
from flamestream_windows.model.strategy import Strategy
from flamestream_windows.model.times import MAX, MIN
from flamestream_windows.model.windows import Window
from flamestream_windows.testing.keyed import Keyed, Keys

Event = tuple[Hashable, Input]
"""An element of a key, or a step of time, of no key."""


class LawError(AssertionError):
    """A law that a run has broken. `law` is its name."""

    def __init__(self, law: str, text: str) -> None:
        super().__init__(f"{law}: {text}")
        self.law = law


def draw_trigger(rng: random.Random, depth: int = 2) -> t.Trigger:
    """Draw a trigger, of at most so many levels above its leaves."""

    def inner() -> t.Trigger:
        return draw_trigger(rng, depth - 1)

    leaves: list[Callable[[], t.Trigger]] = [
        t.Default,
        t.Never,
        t.Always,
        t.AfterWatermark,
        lambda: t.AfterCount(rng.randint(1, 4)),
        lambda: t.AfterProcessingTime(rng.randint(0, 12)),
        lambda: t.AfterProcessingTime(rng.randint(0, 3), rng.choice([4, 10])),
        t.AfterSynchronizedProcessingTime,
    ]
    trees: list[Callable[[], t.Trigger]] = [
        lambda: t.AfterWatermark(inner(), inner()),
        lambda: t.AfterWatermark(inner(), None),
        lambda: t.AfterWatermark(None, inner()),
        lambda: t.Repeatedly(inner()),
        lambda: t.AfterAny((inner(), inner())),
        lambda: t.AfterAll((inner(), inner())),
        lambda: t.AfterEach((inner(), inner())),
        lambda: t.AfterEach((inner(), inner(), inner())),
        lambda: t.OrFinally(inner(), inner()),
    ]
    return rng.choice(leaves if depth == 0 or rng.random() < 0.25 else trees)()


def draw_windows(rng: random.Random) -> w.WindowFn:
    """Draw windows of some ticks."""
    size = rng.choice([4, 10, 25])
    return rng.choice(
        [
            w.Fixed(size, rng.randint(0, size - 1)),
            w.Fixed(size),
            w.Sliding(size, rng.randint(1, size + 2), rng.randint(-3, 3)),
            w.Sessions(rng.choice([3, 6, 12])),
            w.Sessions(rng.choice([3, 6, 12])),
            w.Global(),
        ]
    )


def draw_strategy(rng: random.Random) -> Strategy:
    """Draw a strategy, also one that a flow refuses."""
    return Strategy(
        draw_windows(rng),
        draw_trigger(rng),
        rng.choice(["accumulating", "discarding", "retracting"]),
        rng.choice(["end", "earliest", "latest", "shifted"]),
        rng.choice([0, 0, 3, 15, 1000]),
        rng.choice(["always", "if_any"]),
        rng.choice(["always", "if_any"]),
    )


def draw_events(rng: random.Random) -> list[Event]:
    """Draw elements of up to three keys in disorder, and steps of time."""
    keys = rng.sample(["a", "b", "c"], rng.randint(1, 3))
    events: list[Event] = []
    now, clock, watermark, disorder = rng.randint(-20, 20), 0, MIN, rng.choice([0, 4, 15, 40])
    for number in range(rng.randint(3, 40)):
        chance = rng.random()
        if chance < 0.65:
            now += rng.choice([0, 1, 1, 2, 5])
            events.append((rng.choice(keys), Element(number, now - rng.randint(0, disorder))))
        elif chance < 0.85:
            watermark = max(watermark, now + rng.randint(-disorder - 5, 8))
            events.append((None, Watermark(watermark)))
        else:
            clock += rng.randint(0, 9)
            events.append((None, Clock(clock)))
    events.append((None, Watermark(MAX)))
    return events


@dataclass
class _Story:
    """All that is known of the elements and panes of a key, told as it happens."""

    strategy: Strategy
    late: dict[int, bool] = field(default_factory=dict)
    taken: dict[Window | None, list[int]] = field(default_factory=dict)
    fresh: dict[Window | None, list[int]] = field(default_factory=dict)
    seen: dict[Window | None, set[int]] = field(default_factory=dict)
    timings: dict[Window, list[int]] = field(default_factory=dict)
    outstanding: list[Firing] = field(default_factory=list)

    def place(self, window: Window) -> Window | None:
        # A session may join another: its elements are followed without it.
        return None if self.strategy.windows.merging else window


def check_run(seed: int) -> int:
    """Draw a run, play it, and check all laws. Return the number of panes.

    Raises:
        LawError: A law is broken; the text has the seed and the strategy.
    """
    rng = random.Random(seed)
    strategy, events = draw_strategy(rng), draw_events(rng)
    try:
        return check_events(strategy, events)
    except LawError as error:
        raise LawError(error.law, f"{error}\nseed {seed}: {strategy}\n{events}") from None


def check_events(strategy: Strategy, events: Iterable[Event]) -> int:
    """Play events, and check all laws. Return the number of panes.

    Raises:
        LawError: A law is broken.
    """
    events = list(events)
    grouping = Grouping(strategy, Collect())
    keys = Keys(grouping, clock=0)
    stories: dict[Hashable, _Story] = {}
    outputs: dict[Hashable, list[Output]] = {}
    count, forwarded = 0, MIN
    for key, given in events:
        before = {each: _output(grouping, keys, each) for each in stories}
        now = given.to if isinstance(given, Watermark) else keys.watermark
        if isinstance(given, Element):
            story = stories.setdefault(key, _Story(strategy))
            before.setdefault(key, keys.watermark)
            found = keys.element(key, given)
            _check_element(story, given, keys.watermark, [output for _, output in found])
        elif isinstance(given, Watermark):
            found = keys.advance(given.to)
        else:
            assert isinstance(given, Clock)
            found = keys.tick(given.to)
        _check_order(found, given)
        for its, output in found:
            outputs.setdefault(its, []).append(output)
            if isinstance(output, Firing):
                count += 1
                _check_firing(stories[its], output, before[its], now)
        for each, output_before in before.items():
            after = _output(grouping, keys, each)
            _demand("I0", output_before <= after <= keys.watermark, f"{each!r}: {output_before} → {after}")
        every = [_output(grouping, keys, each) for each in keys.records]
        _demand("I0", keys.output == min([keys.watermark, *every]), f"the least of {every} is said to be {keys.output}")
        _demand("I0", forwarded <= keys.output, f"the output watermark fell from {forwarded} to {keys.output}")
        forwarded = keys.output
    _demand("I8", not keys.records, f"at the end there is {keys.records}")
    for story in stories.values():
        _check_end(story)
    for key in stories:
        alone = _alone(grouping, [given for its, given in events if its == key or not isinstance(given, Element)])
        _demand("I9", alone == outputs.get(key, []), f"{key!r} alone: {alone}, among others {outputs.get(key)}")
    return count


def _demand(law: str, holds: bool, text: str) -> None:
    if not holds:
        raise LawError(law, text)


def _output(grouping: Grouping, keys: Keys[Record], key: Hashable) -> int:
    held = grouping.hold(keys.record(key))
    return keys.watermark if held is None else min(held, keys.watermark)


def _alone(grouping: Grouping, events: list[Input]) -> list[Output]:
    """Play the events of one key, with each step of time."""
    record, moment, outputs = grouping.nothing, Moment(clock=0), list[Output]()
    for given in events:
        if not isinstance(given, Element) and given.to <= (  # type: ignore[union-attr]  # no look at one window
            moment.input if isinstance(given, Watermark) else moment.clock
        ):
            continue
        shown = repr(record)
        after, found = grouping.step(record, given, moment)
        _demand("immutable", repr(record) == shown, f"{given} has changed {shown} to {record}")
        _check_plain(after)
        record = after
        outputs += found
        match given:
            case Watermark(to):
                moment = moment._replace(input=to)
            case Clock(to):
                moment = moment._replace(clock=to)
    return outputs


def _check_plain(value: Any) -> None:
    if isinstance(value, tuple | Tree):
        for part in value:
            _check_plain(part)
    else:
        _demand("plain", type(value) in (int, bool, str, type(None)), f"a record holds {value!r}")


def _check_element(story: _Story, element: Element, watermark: int, outputs: list[Output]) -> None:
    strategy, number = story.strategy, element.value
    late = story.late[number] = element.at < watermark
    windows = set(strategy.windows.assign(element.at, number, element.windows))
    drops = [output for output in outputs if isinstance(output, Drop)]
    expired = {window for window in windows if strategy.expiry(window) < watermark}
    _demand("1.5", {drop.window for drop in drops if drop.reason == "lateness"} == expired, f"{element}: {drops}")
    _demand("1.5", (not windows) == any(drop.reason == "no window" for drop in drops), f"{element}: {drops}")
    shut = {drop.window for drop in drops if drop.reason == "closed window"}
    taken = bool(windows) and not drops if strategy.windows.merging else bool(windows - expired - shut)
    said = [output for output in outputs if isinstance(output, Late)]
    _demand("1.5", len(said) == (late and taken), f"{element} at {watermark}: {said}")
    places = [None] if strategy.windows.merging else windows - expired - shut
    for place in places if taken else ():
        story.taken.setdefault(place, []).append(number)
        story.fresh.setdefault(place, []).append(number)


def _check_firing(story: _Story, firing: Firing, output: int, watermark: int) -> None:
    strategy, place = story.strategy, story.place(firing.window)
    if firing.retraction:
        plain = firing._replace(retraction=False, place=())
        _demand("I7", plain in story.outstanding, f"{firing} takes back what is not there: {story.outstanding}")
        story.outstanding.remove(plain)
        return
    seen = story.seen.setdefault(place, set())
    fresh = [number for number in firing.value if number not in seen]
    seen.update(fresh)
    if strategy.panes == "discarding":
        _demand("I2", fresh == firing.value, f"{firing} repeats what was in {seen}")
    if place is not None:
        wanted = story.fresh.get(place, []) if strategy.panes == "discarding" else story.taken.get(place, [])
        _demand("I2", firing.value == wanted, f"{firing} holds other elements than {wanted}")
        story.fresh[place] = []
    late = firing.timing == Timing.LATE
    held = firing.at >= output
    for number in fresh:
        _demand("I1", story.late[number] or (not late and held), f"{firing} has {number}, not late, at {output}")
    _demand("I3", strategy.expiry(firing.window) >= output, f"{firing} is droppable at {output}")
    _demand("I4", late or held, f"{firing} is late at {output}")
    _demand("H4", firing.at < firing.window.end, f"{firing} lies behind its window")
    early = watermark < firing.window.end
    _demand("P1", early or firing.timing != Timing.EARLY, f"{firing} is early at {watermark}")
    timings = story.timings.setdefault(firing.window, [])
    timings.append(firing.timing)
    _demand("I5", timings == sorted(timings) and timings.count(Timing.ON_TIME) <= 1, f"{firing} after {timings[:-1]}")
    if place is not None:
        _demand("P2", firing.number == len(timings) - 1, f"{firing} is number {len(timings) - 1}")
        spoken = len([timing for timing in timings if timing != Timing.EARLY])
        wanted_number = -1 if firing.timing == Timing.EARLY else spoken - 1
        _demand("P2", firing.on_time_number == wanted_number, f"{firing} is number {wanted_number} on time")
    if strategy.panes == "retracting":
        story.outstanding.append(firing._replace(place=()))


def _check_end(story: _Story) -> None:
    for place, numbers in story.taken.items():
        missing = set(numbers) - story.seen.get(place, set())
        _demand("I2", not missing, f"{sorted(missing)} are in no pane of {place}")
    if story.strategy.panes == "retracting":
        for place, numbers in story.taken.items():
            left = [
                number for firing in story.outstanding if story.place(firing.window) == place for number in firing.value
            ]
            _demand("I7", sorted(left) == sorted(numbers), f"{place}: {left} is left of {numbers}")


def _check_order(found: list[Keyed], given: Input) -> None:
    if isinstance(given, Element):
        return
    places = [output.place for _, output in found if isinstance(output, Firing)]
    _demand("order", places == sorted(places), f"{given} gives {found}")
