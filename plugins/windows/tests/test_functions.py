"""Stateful functions: cells, timers in strict order, expiry, and what they hold."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import pytest

from flamecore.errors import ConsistencyError, GraphError
from flamestream_windows import windows as w
from flamestream_windows.engine import functions
from flamestream_windows.engine.functions import FnRecord, Function
from flamestream_windows.engine.values import Clock, Drop, Element, Emit, Late, Moment, Output, Timer, Watermark
from flamestream_windows.model.times import MAX, MIN, date_of, instant
from flamestream_windows.model.windows import Fixed, WindowFn
from flamestream_windows.testing.keyed import Keys


class Driven:
    """A stateful function, driven by hand."""

    def __init__(self, function: type[w.StatefulFn[Any, Any, Any]], windows: WindowFn | None = None, lateness: int = 0):
        self.work = Function(function, windows or w.whole(), lateness)
        self.keys = Keys(self.work, clock=0)

    def add(self, value: Any, at: int, key: str = "k") -> list[Any]:
        return self.said(self.keys.element(key, Element(value, at)))

    def watermark(self, to: int) -> list[Any]:
        return self.said(self.keys.advance(to))

    def clock(self, to: int) -> list[Any]:
        return self.said(self.keys.tick(to))

    def said(self, outputs: list[tuple[Any, Output]]) -> list[Any]:
        return [(output.value, output.at) if isinstance(output, Emit) else output for _, output in outputs]


class Fn(w.StatefulFn[Any, Any, Any]):
    """A function that counts in microseconds, as its tests do."""

    micros = True


class Everything(Fn):
    """Does to its cells as the elements say."""

    value = w.Value(int)
    items = w.List(str)
    names = w.Set(str)
    table = w.Map(str, int)
    line = w.OrderedList(str)

    def on_element(self, key: str, value: tuple[Any, ...], at: int) -> Iterable[Any]:
        match value:
            case ("set", new):
                self.value.set(new)
            case ("add", text):
                self.items.add(text)
                yield self.names.add(text)
                self.table.put(text, self.table.get(text, 0) + 1)
                self.line.add(at, text)
            case ("drop", text):
                self.names.discard(text)
                self.table.remove(text)
            case ("clear",):
                for cell in (self.value, self.items, self.names, self.table, self.line):
                    cell.clear()
            case ("fail", text):
                self.items.add(text)
                raise ZeroDivisionError
            case ("look",):
                yield self.value.get(-1), list(self.items), list(self.names), self.table.items(), list(self.line)
                yield len(self.items), len(self.names), len(self.table), len(self.line), bool(self.value)
                yield "a" in self.names, "a" in self.table, self.line.between(2, 4)


def test_cells_hold_what_was_put_in() -> None:
    driven = Driven(Everything)
    assert driven.add(("look",), 0)[0] == ((-1, [], [], [], []), 0)
    assert [driven.add(("add", text), at) for text, at in (("b", 5), ("a", 2), ("b", 3))] == [
        [(True, 5)],
        [(True, 2)],
        [(False, 3)],
    ]
    driven.add(("set", 7), 0)
    assert driven.add(("look",), 9) == [
        ((7, ["b", "a", "b"], ["b", "a"], [("b", 2), ("a", 1)], [(2, "a"), (3, "b"), (5, "b")]), 9),
        ((3, 2, 2, 3, True), 9),
        ((True, True, [(2, "a"), (3, "b")]), 9),
    ]
    driven.add(("drop", "a"), 9)
    assert driven.add(("look",), 9)[2] == ((False, False, [(2, "a"), (3, "b")]), 9)
    driven.add(("clear",), 9)
    assert driven.keys.records == {}


def test_a_function_that_fails_leaves_its_cells_as_they_were() -> None:
    driven = Driven(Everything)
    driven.add(("add", "a"), 1)
    before = dict(driven.keys.records)
    shown = repr(before)
    with pytest.raises(ZeroDivisionError):
        driven.add(("fail", "b"), 1)
    assert driven.keys.records == before
    assert repr(before) == shown
    assert driven.add(("look",), 1)[0][0][1] == ["a"]


def test_records_are_plain_data() -> None:
    driven = Driven(Everything)
    driven.add(("add", "a"), 1)
    driven.add(("set", 3), 1)
    (record,) = driven.keys.records.values()
    (cell,) = record.open
    assert cell.contents == (
        ("items", ("a",)),
        ("line", ((1, "a"),)),
        ("names", ("a",)),
        ("table", (("a", 1),)),
        ("value", (3,)),
    )


class Remembers(Fn):
    """Puts something into itself."""

    count = w.Value(int)
    done = w.Timer()

    def on_element(self, key: str, value: int, at: int) -> Iterable[Any]:
        if value == 1:
            self.total = 1
        elif value == 2:
            self.count = 3
        else:
            self.done = at
        return ()

    def on_done(self, key: str, at: int) -> Iterable[Any]:
        return ()


def test_what_would_be_forgotten_is_refused() -> None:
    driven = Driven(Remembers)
    for value, text in ((1, "would be forgotten"), (2, "is a cell"), (3, "is a timer")):
        with pytest.raises(AttributeError, match=text):
            driven.add(value, 0)
    with pytest.raises(RuntimeError, match="only while"):
        Remembers().count.get()


class Silent(Fn):
    """Tells of keys that say nothing for 15 ticks."""

    latest = w.Value(int)
    quiet = w.Timer("event")

    def on_element(self, key: str, value: int, at: int) -> Iterable[str]:
        self.latest.set(value)
        self.quiet.set(at + 15)
        return ()

    def on_quiet(self, key: str, at: int) -> Iterable[str]:
        yield f"{key} {self.latest.get()} at {at}"


def test_a_timer_runs_when_the_watermark_is_there() -> None:
    driven = Driven(Silent)
    driven.add(1, 0)
    assert driven.watermark(10) == []
    driven.add(2, 10)
    assert driven.watermark(24) == []
    assert driven.watermark(25) == [("k 2 at 25", 25)]
    assert driven.watermark(99) == []


def test_a_timer_holds_the_output_watermark_until_it_has_run() -> None:
    driven = Driven(Silent)
    driven.add(1, 0)
    driven.add(1, 7, key="l")
    assert driven.watermark(14) == []
    assert driven.keys.output == 14
    assert driven.keys.watermark == 14
    assert driven.watermark(20) == [("k 1 at 15", 15)]
    assert driven.keys.output == 20
    assert driven.watermark(MAX) == [("l 1 at 22", 22)]
    assert driven.keys.records == {}


class Chain(Fn):
    """Timers that set timers."""

    seen = w.List(str)
    first = w.Timer("event")
    second = w.Timer("event")
    clock = w.Timer("processing")

    def on_element(self, key: str, value: int, at: int) -> Iterable[Any]:
        self.first.set(value, tag=str(value), output=min(at, value))
        yield "element"

    def on_first(self, key: str, at: int) -> Iterable[Any]:
        yield "first", at
        self.second.set(at + 2)
        self.clock.set(30)
        assert self.clock.due() == 30

    def on_second(self, key: str, at: int) -> Iterable[Any]:
        yield "second", at, self.watermark

    def on_clock(self, key: str, at: int) -> Iterable[Any]:
        yield "clock", at


class Tagged(Fn):
    """One that gives the tag of a timer as a number."""

    timer = w.Timer("event")
    call: ClassVar[Callable[[Any], object]]

    def on_element(self, key: str, value: int, at: int) -> Iterable[Any]:
        type(self).call(self.timer)
        return ()

    def on_timer(self, key: str, at: int) -> Iterable[Any]:
        return ()


@pytest.mark.parametrize(
    "call",
    [
        lambda timer: timer.set(9, tag=1),
        lambda timer: timer.after(timedelta(seconds=1), tag=1),
        lambda timer: timer.clear(tag=1),
        lambda timer: timer.due(tag=1),
    ],
)
def test_a_tag_that_is_no_text_is_refused_at_once(call: Callable[[Any], object]) -> None:
    driven = Driven(type("Tagged", (Tagged,), {"call": staticmethod(call)}))
    with pytest.raises(TypeError, match="the tag of the timer timer is a text, and not 1"):
        driven.add(1, 5)


def test_due_timers_run_in_the_order_of_time_and_what_they_set_joins_the_queue() -> None:
    driven = Driven(Chain)
    driven.add(12, 5)
    driven.add(10, 6)
    assert [value for value, _ in driven.watermark(20)] == [
        ("first", 10),
        ("first", 12),
        ("second", 14, 20),  # set twice: the later time counts
    ]
    assert driven.clock(29) == []
    assert driven.clock(30) == [(("clock", 30), 5)]  # of the element of the timer that was set last


def test_a_timer_for_a_time_that_is_over_runs_after_the_element() -> None:
    driven = Driven(Chain)
    driven.watermark(20)
    late, *said = driven.add(10, 10)
    assert late == Late(10, 10)
    assert [value for value, _ in said] == ["element", ("first", 10), ("second", 12, 20)]


class Looping(Fn):
    """Ticks every 10 of event time."""

    tick = w.Timer("event")
    step: ClassVar[int] = 10

    def on_element(self, key: str, value: int, at: int) -> Iterable[int]:
        self.tick.set(at + self.step)
        return ()

    def on_tick(self, key: str, at: int) -> Iterable[int]:
        yield at
        self.tick.set(at + self.step)


def test_a_timer_may_set_itself_again_until_the_input_is_over() -> None:
    driven = Driven(Looping)
    driven.add(0, 0)
    assert driven.watermark(35) == [(10, 10), (20, 20), (30, 30)]
    assert driven.keys.output == 35
    assert driven.watermark(MAX) == [(40, 40)]
    assert driven.keys.records == {}


class Stuck(Looping):
    """Sets itself for the time at which it runs."""

    step = 0


def test_a_timer_that_runs_for_ever_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(functions, "LIMIT", 100)
    driven = Driven(Stuck)
    driven.add(0, 5)
    before = dict(driven.keys.records)
    with pytest.raises(ConsistencyError, match="100 timers"):
        driven.watermark(10)
    assert driven.keys.records == before
    with pytest.raises(ConsistencyError, match="100 timers"):  # it is still due
        driven.watermark(10)


class PerWindow(Fn):
    """Gathers by window, and tells at the end."""

    seen = w.List(str)
    end = w.Timer("event")

    def on_element(self, key: str, value: str, at: int) -> Iterable[Any]:
        self.seen.add(value)
        self.end.after(timedelta(microseconds=1000))
        return ()

    def on_end(self, key: str, at: int) -> Iterable[Any]:
        yield "end", at

    def on_expiry(self, key: str, at: int) -> Iterable[Any]:
        yield "expiry", list(self.seen), at


def test_windows_expire_behind_their_timers_and_their_cells_can_still_be_read() -> None:
    driven = Driven(PerWindow, Fixed(10), lateness=5)
    driven.add("a", 3)
    driven.add("b", 13)
    assert driven.watermark(14) == [(("end", 14), 14)]
    assert driven.watermark(15) == [(("expiry", ["a"], 9), 9)]
    assert driven.add("c", 9) == [Drop("c", 9, "lateness", w.Window(0, 10))]
    assert driven.add("d", 11) == [Late("d", 11)]
    assert driven.watermark(MAX) == [(("end", 24), 24), (("expiry", ["b", "d"], 19), 19)]
    assert driven.keys.records == {}


class TooFar(Fn):
    """Sets a timer for where its elements say."""

    late = w.Timer("event")

    def on_element(self, key: str, value: int, at: int) -> Iterable[Any]:
        if value < 0:
            self.late.set(at, output=at + 1)
        self.late.set(value)
        return ()

    def on_late(self, key: str, at: int) -> Iterable[Any]:
        yield w.Stamped("early", at - 1)


def test_a_timer_behind_its_window_is_refused() -> None:
    driven = Driven(TooFar, Fixed(10), lateness=5)
    driven.add(14, 3)
    with pytest.raises(ValueError, match="behind its window"):
        driven.add(15, 3)
    with pytest.raises(ValueError, match="before its output"):
        driven.add(-1, 3)


def test_an_output_before_what_it_comes_of_is_refused() -> None:
    driven = Driven(TooFar)
    driven.add(5, 3)
    with pytest.raises(
        ValueError, match=r"the timestamp 1970-01-01T00:00:00.000004\+00:00, before 1970-01-01T00:00:00.000005\+00:00"
    ):
        driven.watermark(5)


class Patient(Fn):
    """Takes elements that are at most 5 late."""

    lateness = 5

    def on_element(self, key: str, value: int, at: int) -> Iterable[int]:
        yield value


def test_elements_that_are_too_late_are_dropped() -> None:
    driven = Driven(Patient)
    driven.watermark(20)
    assert driven.add(1, 15) == [Late(1, 15), (1, 15)]
    assert [type(each) for each in driven.add(2, 14)] == [Drop]


class NoMethod(Fn):
    """Has a timer that nobody hears."""

    alarm = w.Timer("processing")

    def on_element(self, key: str, value: int, at: int) -> Iterable[int]:
        return ()


class NoElement(Fn):
    """Hears of no element."""


def test_functions_that_cannot_work_are_refused() -> None:
    with pytest.raises(GraphError, match="def on_alarm"):
        Function(NoMethod)
    with pytest.raises(GraphError, match="on_element"):
        Function(NoElement)
    with pytest.raises(GraphError, match="may join"):
        Function(Silent, w.sessions(seconds=1))
    with pytest.raises(GraphError, match="not of 'lunch'"):
        w.Timer("lunch")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="no trigger"):
        Function(Silent).step(FnRecord(), Timer(w.Window(0, 1)), Moment())
    with pytest.raises(ConsistencyError, match="retraction"):
        Function(Silent).step(FnRecord(), Element(1, 1, retraction=True), Moment())


class Dated(w.StatefulFn[str, str, Any]):
    """Counts in dates, as functions do by default."""

    line = w.OrderedList(str)
    quiet = w.Timer("event")

    def on_element(self, key: str, value: str, at: datetime) -> Iterable[Any]:
        self.line.add(at, value)
        self.quiet.set(at + timedelta(minutes=15))
        if value == "look":
            yield w.Stamped((at, self.quiet.due(), self.line.between(at - timedelta(hours=1), at)), at)

    def on_quiet(self, key: str, at: datetime) -> Iterable[Any]:
        yield at, self.watermark, list(self.line)
        self.line.remove(datetime.min.replace(tzinfo=UTC), at)


def test_functions_are_given_dates() -> None:
    noon = datetime(2024, 3, 31, 12, tzinfo=UTC)
    driven = Driven(Dated)
    driven.add("a", instant(noon - timedelta(minutes=30)))
    quarter = noon + timedelta(minutes=15)
    look = (noon, quarter, [(noon - timedelta(minutes=30), "a")])
    assert driven.add("look", instant(noon)) == [(look, instant(noon))]
    line = [(noon - timedelta(minutes=30), "a"), (noon, "look")]
    assert driven.watermark(instant(quarter)) == [((quarter, quarter, line), instant(quarter))]
    assert driven.keys.records == {}


def test_an_instant_beyond_all_years_is_shown_as_the_last() -> None:
    assert [date_of(MAX).year, date_of(MIN).year, date_of(0)] == [9999, 1, datetime(1970, 1, 1, tzinfo=UTC)]


def test_a_watermark_that_does_not_rise_changes_nothing() -> None:
    work = Function(Silent)
    record, _ = work.step(FnRecord(), Element(1, 1), Moment(input=100), "k")
    assert work.step(record, Watermark(100), Moment(input=100), "k") == (record, [])


class Drawn(Fn):
    """Sets timers as its elements say, and tells of all that happens."""

    history = w.List(str)
    event = w.Timer("event")
    wall = w.Timer("processing")

    def on_element(self, key: str, value: tuple[str, int], at: int) -> Iterable[Any]:
        what, delay = value
        self.history.add(what)
        if what == "event":
            self.event.after(timedelta(microseconds=delay), tag=str(delay % 2))
        elif what == "past":
            self.event.set(at - delay, tag="past", output=at - delay)
        elif what == "wall":
            self.wall.set(delay * 5)
        elif what == "clear":
            self.event.clear(tag="0")
        elif what == "empty":
            self.history.clear()
        yield key, what, at

    def on_event(self, key: str, at: int) -> Iterable[Any]:
        yield key, "event", at, len(self.history), self.watermark
        if len(self.history) > 3:
            self.history.clear()
            self.event.after(timedelta(microseconds=3), tag="again")

    def on_wall(self, key: str, at: int) -> Iterable[Any]:
        yield key, "wall", at

    def on_expiry(self, key: str, at: int) -> Iterable[Any]:
        yield key, "expiry", at, list(self.history)


class Relative(Fn):
    """Sets timers for later, in both times."""

    soon = w.Timer("event")
    wall = w.Timer("processing")

    def on_element(self, key: str, value: int, at: int) -> Iterable[Any]:
        self.soon.set(at + 10, output=at)
        self.wall.after(timedelta(microseconds=value))
        return ()

    def on_soon(self, key: str, at: int) -> Iterable[Any]:
        yield "soon", at
        self.soon.after(timedelta(microseconds=5), tag="second")

    def on_wall(self, key: str, at: int) -> Iterable[Any]:
        yield "wall", at


def test_a_timer_may_be_set_for_later_in_its_own_time() -> None:
    driven = Driven(Relative)
    driven.clock(1000)
    driven.add(7, 3)
    assert driven.watermark(18) == [(("soon", 13), 3), (("soon", 18), 18)]
    assert driven.clock(1006) == []
    assert driven.clock(1007) == [(("wall", 1007), 3)]


class InOrder(Drawn):
    """Does the same in the order of time."""

    ordered = True


class Times(Fn):
    """Tells of its elements and timers in the order of time."""

    ordered = True
    count = w.Value(int)
    tick = w.Timer("event")

    def on_element(self, key: str, value: str, at: int) -> Iterable[Any]:
        self.count.set(self.count.get(0) + 1)
        self.tick.set(at + 5)
        yield value, self.count.get()

    def on_tick(self, key: str, at: int) -> Iterable[Any]:
        yield "tick", at


@pytest.mark.parametrize("steps", [[30], [5, 6, 11, 12, 30], list(range(31))])
def test_ordered_elements_come_in_the_order_of_time_however_the_watermark_moves(steps: list[int]) -> None:
    driven = Driven(Times)
    for value, at in (("c", 11), ("a", 5), ("d", 20), ("b", 5), ("e", 10)):
        assert driven.add(value, at) == []
    assert driven.keys.output == MIN
    said = [each for to in steps for each in driven.watermark(to)]
    assert [value for value, _ in said] == [
        ("a", 1),
        ("b", 2),
        ("tick", 10),
        ("e", 3),
        ("c", 4),
        ("tick", 16),
        ("d", 5),
        ("tick", 25),
    ]
    assert [at for _, at in said] == [5, 5, 10, 10, 11, 16, 20, 25]
    assert [type(each) for each in driven.add("late", 29)] == [Drop]
    assert driven.add("now", 30) == []
    assert (driven.keys.output, driven.watermark(31)) == (30, [(("now", 6), 30)])


def _drawn(seed: int) -> tuple[Function, list[tuple[str, Any]]]:
    rng = random.Random(seed)
    windows = rng.choice([w.whole(), Fixed(10), Fixed(25), w.sliding(microseconds=8, every=timedelta(microseconds=3))])
    events: list[tuple[str, Any]] = []
    now, watermark, clock = 0, MIN, 0
    for _ in range(rng.randint(3, 30)):
        chance, now = rng.random(), now + rng.randint(0, 4)
        if chance < 0.6:
            what = rng.choice(["event", "event", "past", "wall", "clear", "empty"])
            events.append((rng.choice("abc"), Element((what, rng.randint(0, 20)), now - rng.randint(0, 12))))
        elif chance < 0.85:
            watermark = max(watermark, now - rng.randint(-3, 12))
            events.append(("", Watermark(watermark)))
        else:
            clock += rng.randint(0, 30)
            events.append(("", Clock(clock)))
    function = rng.choice([Drawn, Drawn, InOrder])
    return Function(function, windows, rng.choice([0, 5, 30])), [*events, ("", Watermark(MAX))]


def _check_drawn(seed: int) -> int:
    """Play a drawn story of several keys, and of each key alone with each step of time."""
    work, events = _drawn(seed)
    keys = Keys(work, clock=0)
    outputs: dict[str, list[Output]] = {}
    late: set[str] = set()
    for key, given in events:
        before = keys.output
        if isinstance(given, Element):
            late |= {key} if given.at < keys.watermark or given.value[0] == "past" else set()
            found = keys.element(key, given)
        elif isinstance(given, Watermark):
            found = keys.advance(given.to)
        else:
            found = keys.tick(given.to)
        places = [output.place for _, output in found if isinstance(output, Emit)]
        assert isinstance(given, Element) or places == sorted(places)
        for its, output in found:
            outputs.setdefault(its, []).append(output)
            # The end of a window is told at the end of the window, which holds nothing.
            if isinstance(output, Emit) and its not in late and output.value[1] != "expiry":
                assert output.at >= before, f"seed {seed}: {output} at {before}"
        held = [hold for record in keys.records.values() if (hold := work.hold(record)) is not None]
        assert keys.output == min([keys.watermark, *held])
        assert before <= keys.output <= keys.watermark, f"seed {seed}"
    assert keys.records == {}
    for key in "abc":
        record, moment, alone = work.nothing, Moment(clock=0), list[Output]()
        for its, given in events:
            if isinstance(given, Element) and its != key:
                continue
            if isinstance(given, Watermark) and given.to <= moment.input:
                continue
            shown = repr(record)
            after, found_alone = work.step(record, given, moment, key)
            assert repr(record) == shown
            if work.waits_alike(record, after):
                assert (work.due(record, moment), work.hold(record)) == (work.due(after, moment), work.hold(after))
            record = after
            alone += found_alone
            if isinstance(given, Watermark):
                moment = moment._replace(input=given.to)
            elif isinstance(given, Clock):
                moment = moment._replace(clock=given.to)
        assert alone == outputs.get(key, []), f"seed {seed}, key {key}"
    return sum(map(len, outputs.values()))


def test_drawn_stories_of_a_key_do_not_depend_on_other_keys(seeds: Callable[..., range]) -> None:
    runs = seeds(600)
    assert sum(map(_check_drawn, runs)) > len(runs)


# Mistakes: a text of the step, and what it is replaced by.

MISTAKES = {
    "windows that end before their timers": ("(scope.limit + 1, _ENDS", "(scope.limit - 40, _ENDS"),
    "elements out of order": ("insort(scope.waiting, ", "(lambda line, each, key: line.append(each))(scope.waiting, "),
    "elements that come too soon": ("scope.waiting[0][0] < self.input:", "scope.waiting[0][0] <= self.input:"),
    "timers that hold nothing": ("for alarm in alarms if alarm.holds]", "for alarm in ()]"),
    "timers out of order": ("return min(due)", "return max(due)"),
    "timers of processing time that run too soon": ("alarm.at <= self.now and", "alarm.at <= self.now + 1 and"),
    "timers of event time that run too late": ("(alarm.at <= self.input if", "(alarm.at < self.input if"),
    "timers that run twice": ("[name, tag]\n            scope.clear(name, tag)\n", "[name, tag]\n"),
    "windows that stay": ("expired = scope.limit < self.input", "expired = False"),
    "elements that are never too late": ("if too_late or limit < self.input:", "if too_late:"),
    "elements that are never late": ("too_late = late and", "too_late = False and"),
    "cells that are not written": ("waiting = scope.freeze(),", "waiting = None,"),
    "timers that are not written": ("alarms is before.alarms and not waiting", "not waiting"),
    "elements that are forgotten": ("before.alarms and not waiting and", "before.alarms and"),
    "what is due too late": ("end = self.expiry(window) + 1\n", "end = self.expiry(window) + 3\n"),
    "timers that count as before": ("after.window and cell.alarms is after.alarms", "after.window"),
    "waiting elements that count as before": ("same or cell.waiting or after.waiting", "same"),
    "outputs at the time of the timer": ('f"on_{alarm.name}", alarm.output,', 'f"on_{alarm.name}", alarm.at,'),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_in_the_step_is_caught(mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = MISTAKES[mistake]
    assert functions.__file__ is not None
    source = Path(functions.__file__).read_text("utf-8")
    assert source.count(old) == 1, old
    mutant = ModuleType("flamestream_windows_mutant")
    monkeypatch.setitem(sys.modules, mutant.__name__, mutant)
    source = source.replace(old, new).replace("LIMIT: Final = 1_000_000", "LIMIT: Final = 1000")
    exec(compile(source, "mutant", "exec"), mutant.__dict__)
    monkeypatch.setattr(sys.modules[__name__], "Function", mutant.Function)
    checks: list[Callable[[], object]] = [
        test_cells_hold_what_was_put_in,
        lambda: test_ordered_elements_come_in_the_order_of_time_however_the_watermark_moves([5, 6, 11, 12, 30]),
        test_a_timer_runs_when_the_watermark_is_there,
        test_a_timer_holds_the_output_watermark_until_it_has_run,
        test_due_timers_run_in_the_order_of_time_and_what_they_set_joins_the_queue,
        test_windows_expire_behind_their_timers_and_their_cells_can_still_be_read,
        lambda: [_check_drawn(seed) for seed in range(200)],
    ]
    with pytest.raises(Exception):  # noqa: B017, PT011  # a mutant may break in any way
        any(check() for check in checks)
