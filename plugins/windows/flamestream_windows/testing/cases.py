"""Cases as data: events and their panes, in JSON (`trigger-cases/1`).

Events are `elements`, `watermark`, `clock`, `finish`, `manual`, `poke`; expectations are `expect`, `expect_total`,
`expect_hold`, `expect_closed`, `expect_dropped`. Times are ticks on both clocks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from flamestream_windows.engine.grouping import Grouping
from flamestream_windows.engine.values import Drop, Element, Firing, Timer
from flamestream_windows.model import triggers, windows
from flamestream_windows.model.aggregates import Collect
from flamestream_windows.model.panes import Timing
from flamestream_windows.model.strategy import Strategy
from flamestream_windows.model.times import MAX
from flamestream_windows.model.triggers import Look, State, Trigger
from flamestream_windows.model.windows import GLOBAL, Window, WindowFn
from flamestream_windows.testing.keyed import Keyed, Keys

Case = Mapping[str, Any]


class CaseError(AssertionError):
    """A case that does not hold.

    `kind` is `unmatched_output`, `unexpected_output`, or the expectation that was wrong.
    """

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(f"{kind}: {text}")
        self.kind = kind


class Switch:
    """The position of a manual trigger."""

    fires: bool = False
    finishes: bool = False


@dataclass(frozen=True)
class Manual(Trigger):
    """A trigger that fires when it is looked at with its switch on."""

    switch: Switch = field(compare=False)

    def start(self) -> State:
        return (False,)

    def ready(self, state: State, look: Look) -> bool:
        return self.switch.fires

    def fire(self, state: State, look: Look) -> State:
        return (self.switch.finishes,)

    def merge(self, states: Sequence[State], look: Look) -> State:
        return (all(state[0] for state in states),)


@dataclass(frozen=True)
class Shifted(windows.Fixed):
    """Fixed windows whose elements hold the watermark later than they are."""

    delta: int = 0

    def shift(self, window: Window, at: int) -> int:
        return at + self.delta


def window_fn(spec: Case) -> WindowFn:
    """Return the windows that a case tells of."""
    match spec["type"]:
        case "global":
            return windows.Global()
        case "fixed" if "output_time_fn" in spec:
            return Shifted(spec["size"], spec["offset"], spec["output_time_fn"]["delta"])
        case "fixed":
            return windows.Fixed(spec["size"], spec.get("offset", 0))
        case "sliding":
            return windows.Sliding(spec["size"], spec["period"], spec.get("offset", 0))
        case "sessions":
            return windows.Sessions(spec["gap"])
        case other:
            raise ValueError(f"no windows of type {other!r}")


def trigger(spec: Case, switch: Switch) -> Trigger:
    """Return the trigger that a case tells of."""

    def part(name: str) -> Trigger | None:
        return trigger(spec[name], switch) if spec.get(name) else None

    def parts() -> tuple[Trigger, ...]:
        return tuple(trigger(each, switch) for each in spec["triggers"])

    match spec["type"]:
        case "default":
            return triggers.Default()
        case "never":
            return triggers.Never()
        case "always":
            return triggers.Always()
        case "after_watermark":
            return triggers.AfterWatermark(part("early"), part("late"))
        case "after_count":
            return triggers.AfterCount(spec["count"])
        case "after_processing_time":
            return triggers.AfterProcessingTime(spec.get("delay", 0), spec.get("align_to"))
        case "repeatedly":
            return triggers.Repeatedly(trigger(spec["trigger"], switch))
        case "after_any":
            return triggers.AfterAny(parts())
        case "after_all":
            return triggers.AfterAll(parts())
        case "after_each":
            return triggers.AfterEach(parts())
        case "or_finally":
            return triggers.OrFinally(trigger(spec["main"], switch), trigger(spec["finally"], switch))
        case "manual":
            return Manual(switch)
        case other:
            raise ValueError(f"no trigger of type {other!r}")


_TIMES: Final = {
    "end_of_window": "end",
    "earliest": "earliest",
    "latest": "latest",
    "earliest_transformed": "shifted",
}


def strategy_of(spec: Case, switch: Switch) -> Strategy:
    """Return the strategy that the `windowing` of a case tells of."""
    return Strategy(
        window_fn(spec["window_fn"]),
        trigger(spec["trigger"], switch),
        spec.get("accumulation_mode", "discarding"),
        _TIMES[spec.get("timestamp_combiner", "end_of_window")],  # type: ignore[arg-type]
        spec.get("allowed_lateness", 0),
        on_time="always" if spec.get("on_time_behavior", "fire_always") == "fire_always" else "if_any",
        closing="always" if spec.get("closing_behavior") == "fire_always" else "if_any",
        beyond=spec.get("output_time_limit") == "none",
    )


def replay(case: Case) -> None:
    """Play the events of a case, and compare the outputs with what it expects.

    Args:
        case: The case.

    Raises:
        CaseError: Something else came of it.
    """
    events = case.get("per_element_events", case.get("spec_events", case["events"]))
    _Replay(strategy_of(case["windowing"], switch := Switch()), switch, case["check"]).play(events)


class _Replay:
    def __init__(self, strategy: Strategy, switch: Switch, check: str) -> None:
        self.grouping = Grouping(strategy, Collect())
        self.keys = Keys(self.grouping, clock=0)
        self.switch = switch
        self.stepwise = check == "stepwise"
        self.panes: list[tuple[Hashable, Firing]] = []
        self.dropped: Counter[str] = Counter()

    def play(self, events: Sequence[Case]) -> None:
        for event in events:
            if self.stepwise and not event["op"].startswith("expect") and event["op"] not in ("state", "ignore_output"):
                self._nothing_left()
            getattr(self, f"_{event['op']}")(event)
        if self.stepwise:
            self._nothing_left()

    def _nothing_left(self) -> None:
        if self.panes:
            raise CaseError("unexpected_output", f"{self.panes}")

    def _take(self, outputs: Sequence[Keyed]) -> None:
        for key, output in outputs:
            if isinstance(output, Firing):
                self.panes.append((key, output))
            elif isinstance(output, Drop):
                self.dropped[output.reason.replace(" ", "_")] += 1

    # Events

    def _elements(self, event: Case) -> None:
        for each in event["bundle"]:
            self._take(self.keys.element(each.get("key"), Element(each["value"], each["ts"])))

    def _watermark(self, event: Case) -> None:
        self._take(self.keys.advance(MAX if event["ts"] == "+inf" else event["ts"]))

    def _finish(self, event: Case) -> None:
        self._take(self.keys.advance(MAX))

    def _clock(self, event: Case) -> None:
        self._take(self.keys.tick(event["to"] if "to" in event else self.keys.clock + event["advance_by"]))

    def _manual(self, event: Case) -> None:
        self.switch.fires, self.switch.finishes = event["should_fire"], event["finish_on_fire"]

    def _poke(self, event: Case) -> None:
        self._take(self.keys.give(event.get("key"), Timer(window_of(event["window"]))))

    def _state(self, event: Case) -> None:
        """Upstream checks nothing here."""

    def _ignore_output(self, event: Case) -> None:
        self.panes.clear()

    # Expectations

    def _expect(self, event: Case) -> None:
        for wanted in event["panes"]:
            found = next((pane for pane in self.panes if matches(wanted, *pane)), None)
            if found is None:
                raise CaseError("unmatched_output", f"no pane {wanted} among {self.panes}")
            self.panes.remove(found)
        self._nothing_left()

    def _expect_total(self, event: Case) -> None:
        found: dict[tuple[Hashable, Window], list[list[str]]] = {}
        for key, firing in self.panes:
            found.setdefault((key, firing.window), []).append(multiset(firing.value))
            if event.get("every_pane_timestamp") == "window_max" and firing.at != firing.window.end - 1:
                raise CaseError("unmatched_output", f"the time of {firing} is not its window's end")
        wanted = {
            (each.get("key"), window_of(each["window"])): [multiset(values) for values in each["panes"]]
            for each in event["panes_by_window"]
        }
        if found != wanted:
            raise CaseError("unmatched_output", f"{found} instead of {wanted}")
        self.panes.clear()

    def _expect_hold(self, event: Case) -> None:
        records = self.keys.records
        chosen = [records[key] for key in records if "key" not in event or key == event["key"]]
        held = min((time for record in chosen if (time := self.grouping.hold(record)) is not None), default=None)
        if held != event["ts"]:
            raise CaseError("hold", f"{held} instead of {event}")

    def _expect_closed(self, event: Case) -> None:
        closed = any(window_of(event["window"]) in record.closed for record in self.keys.records.values())
        if closed != event["closed"]:
            raise CaseError("closed", f"{closed} instead of {event}")

    def _expect_dropped(self, event: Case) -> None:
        if self.dropped[event["reason"]] != event["total"]:
            raise CaseError("dropped", f"{dict(self.dropped)} instead of {event}")


def window_of(spec: Any) -> Window:
    """Return the window that a case tells of."""
    return GLOBAL if spec == "global" else Window(*spec)


def multiset(values: Sequence[Any]) -> list[str]:
    """Return values in an order that does not depend on theirs."""
    return sorted(map(repr, values))


def matches(wanted: Case, key: Hashable, firing: Firing) -> bool:
    """Return whether a pane has all that a case says of it."""
    facts = {
        "key": key,
        "window": "global" if firing.window == GLOBAL else list(firing.window),
        "timestamp": firing.at,
        "index": firing.number,
        "nonspeculative_index": firing.on_time_number,
        "timing": Timing(firing.timing).name,
        "early": firing.timing == Timing.EARLY,
        "late": firing.timing == Timing.LATE,
        "first": firing.number == 0,
        "final": firing.last,
        "kind": "retraction" if firing.retraction else "value",
        "count": len(firing.value),
        "values": multiset(firing.value),
    }
    given = {name: multiset(value) if name == "values" else value for name, value in wanted.items()}
    return all(facts[name] == value for name, value in given.items() if value is not None)
