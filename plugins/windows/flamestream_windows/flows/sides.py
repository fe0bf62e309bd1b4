"""Side inputs in flows: each item with the panes of another stream at its time.

The panes of the side go to each of a number of shards, which does not depend on the number of workers, and an item goes
to the shard of its key. A shard is a key of an ordered operation: so its state moves as any other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, NamedTuple

from flamecore.abc.operator import Work
from flamecore.model.clock import moment
from flamecore.model.hashing import stable_hash
from flamecore.model.ordered import Now, Ordered, Outcome, Timer
from flamestream_windows.engine.sides import Side, SideRecord, WaitRecord
from flamestream_windows.engine.values import Element, Emit
from flamestream_windows.flows.stamps import DROPPED, LATE, RETRACTION, VALUE, named_after
from flamestream_windows.model.aggregates import LEFT, RIGHT
from flamestream_windows.model.panes import Dropped, Pane
from flamestream_windows.model.times import MAX, MIN
from flamestream_windows.model.windows import Window

SHARDS: Final = 16
"""Number of copies of a side; stored state is valid as long as this number does not change."""

Stamp = tuple[int, int, Any]

_NO_SIDE: Final = SideRecord()


class Sharded(NamedTuple):
    """An item of either stream on its way to a shard.

    Attributes:
        stream: `LEFT`: an item; `RIGHT`: a pane of the side.
        shard: The shard.
        value: The item, or the pane.
    """

    stream: int
    shard: int
    value: Any


class SideState(NamedTuple):
    """The state of a shard.

    Attributes:
        side: Its copy of the side.
        waiting: The items that wait for it.
    """

    side: SideRecord = _NO_SIDE
    waiting: WaitRecord = WaitRecord()


_EMPTY: Final = SideState()


@dataclass(eq=False, slots=True, repr=False)
class Sided(Ordered):
    """A side input at work.

    Attributes:
        side: The side input.
        lateness: Time after its end for which a window of the side is kept, in microseconds.
    """

    kind: ClassVar[str] = "with_side"

    side: Side = field(kw_only=True)
    lateness: int = field(kw_only=True)

    def state_shown(self, stored: Any) -> Any:
        """Return the panes of the side by window, and the items that wait for one."""
        side, waiting = stored[0]
        windows = [
            {"start": moment(window.start), "end": moment(window.end), "values": [[key, [*some]] for key, some in keys]}
            for window, keys in side.contents
        ]
        return {
            "watermark": moment(side.watermark),
            "windows": windows,
            "waiting": [{"at": moment(item.at), "value": item.value} for item in waiting.waiting],
        }

    def work(self) -> Work:
        return SideWork(self.side, self.lateness)

    @property
    def types(self) -> tuple[Any, ...]:
        return (SideState, SideRecord, WaitRecord, Sharded, Pane, Dropped)

    @property
    def state_facts(self) -> Mapping[str, str | int]:
        side = self.side
        return {"windows": str(side.windows), "form": side.shape, "panes": side.panes, "shards": SHARDS}


class SideWork(Work):
    """The work on a shard: its items wait until their window of the side is ready.

    It is when it has a pane, or when the watermark has passed its end.

    Args:
        side: The side input.
        lateness: Time after its end for which a window of the side is kept, in microseconds.
    """

    def __init__(self, side: Side, lateness: int) -> None:
        self._side, self._lateness = side, lateness

    def process(self, key: Any, state: SideState | None, payload: Any, now: Now) -> Outcome:
        kind, at, (stream, _, value) = payload
        record = _EMPTY if state is None else state
        watermark = _engine(now.watermark)
        side = self._side.mark(record.side, watermark)
        if stream == RIGHT:
            if self._expiry(value.window) < watermark:
                return self._outcome(SideState(side, record.waiting), [])
            side = self._side.take(side, value.key, value.value, value.window, retraction=kind == RETRACTION)
            waiting, outputs = self._side.release(record.waiting, side)
            return self._outcome(SideState(side, waiting), [_stamp(output) for output in outputs])
        instant = Window(at, at + 1)
        window = self._side.windows.side(instant)
        if self._expiry(window) < watermark:
            self.dropped += 1
            dropped = (DROPPED, at, Dropped(value, at, "lateness", window))
            return self._outcome(SideState(side, record.waiting), [dropped])
        late = [(LATE, at, value)] if at < watermark else []
        self.late += len(late)
        element = Element(value, at, (instant,))
        waiting, outputs = self._side.element(record.waiting, element, watermark, side)
        return self._outcome(SideState(side, waiting), [*late, *map(_stamp, outputs)])

    def on_time(self, key: Any, state: SideState | None, timer: Timer, now: Now) -> Outcome:
        assert state is not None
        due = _engine(timer.time)  # others that the mark makes due have a place of their own behind it
        side = self._side.mark(state.side, due)
        waiting, outputs = self._side.release(state.waiting, side)
        side = self._side.forget(side, due - self._lateness)
        return self._outcome(SideState(side, waiting), [_stamp(output) for output in outputs])

    def held(self, state: SideState | None) -> int:
        return 0 if state is None else len(state.waiting.waiting)

    def _expiry(self, window: Window) -> int:
        return min(window.end - 1 + self._lateness, MAX - 1)

    def _outcome(self, state: SideState, outputs: list[Stamp]) -> Outcome:
        side, waiting = state
        if not side.contents and not waiting.waiting:
            return Outcome(None, outputs)
        times = {self._expiry(window) + 1 for window, _ in side.contents}
        times |= {each.window.end for each in waiting.waiting}
        # The watermark is not kept: it would differ with each mark, and the next call brings it anyway.
        kept = SideState(side._replace(watermark=MIN), waiting)
        return Outcome(kept, outputs, [Timer(time, 0, True) for time in times], self._side.hold(waiting))


def to_shard(key: Callable[[Any], Any]) -> Callable[[Any], Sharded]:
    """Return the function that sends an item to the shard of its key."""

    def sharded(item: Any) -> Sharded:
        return Sharded(LEFT, stable_hash(key(item)) % SHARDS, item)

    return named_after(sharded, key, Sharded)


def to_all_shards(pane: Pane[Any, Any]) -> list[Sharded]:
    """Return a pane for each shard."""
    return [Sharded(RIGHT, shard, pane) for shard in range(SHARDS)]


def shard_of(sharded: Sharded) -> int:
    """Return the shard of an item."""
    return sharded.shard


def _stamp(output: Any) -> Stamp:
    assert type(output) is Emit
    return (VALUE, output.at, output.value)


def _engine(watermark: int) -> int:
    """Return a watermark of the core as one of the engine, whose bounds are narrower."""
    return max(MIN, min(watermark, MAX))
