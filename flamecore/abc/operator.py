"""The contract of operators: a vertex as it is computed on a worker.

A vertex says what is meant; an operator computes it, with this worker's share of the items. The engine has one row for
each kind of vertex, vertex class → operator class, and plugins add rows (`docs/plugins/operator.md`).

An operator is compiled: it gives a *step*, a function of one item's four parts:

    step(order, trace, alive, payload)

A step does its work and calls the step of what comes next; so an item runs depth first to its end on a worker, and
nothing is boxed on the way. Steps know neither workers nor transports nor progress: routes are steps too.

Where the way is straight, items that are in order anyway go in *runs*, which cost a fraction:

    run(orders, trace, payloads)

A run means a step for each of its items, one after another. It ends at the head of a cycle and at a fork whose ways
meet again, where the items go on one by one: what comes of one must meet before anything that comes of the next.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, NamedTuple

from flamecore.model.batch import Orders
from flamecore.model.hashing import key_groups
from flamecore.model.ordered import Now, Outcome, Timer
from flamecore.model.vertices import Vertex

API: int = 1

Columns = tuple[Orders, Sequence[Any]]
"""Orders and payloads, apart."""

Step = Callable[[bytes, int, bool, Any], None]
"""Takes one item, as (order, trace, alive, payload). `alive` is False for a tombstone."""

Run = Callable[[Orders, int, Sequence[Any]], None]
"""Takes at least one live item, all of one trace, in ascending order, as (orders, trace, payloads). The sequences are
shared: a receiver may keep them, and must not change them."""


class _Gone:
    """The type of `GONE`, so that no codec can store it."""


GONE: Final[object] = _Gone()
"""Mark in the changes of a snapshot: the name has no state any more."""

CHANGES: Final = 1 << 17
"""Most names in one piece of the changes of a snapshot. Larger dictionaries take long to grow, and to let go."""

Fail = Callable[[bytes, int, bool, Any, Exception], None]
"""Called instead of the next step when a user function raises. A failure is an item of its own: the barrier holds it
like every output, and it is taken back if the failing item turns out to be a wrong guess."""


class Round:
    """The present round of a worker's work, as an operator sees it. This one never ends.

    A round ends by time, so that a worker hears its messages, and outputs leave, however long functions take. An
    operator that calls a function for each item of a run goes over the items by `iterate`, and leaves those that it has
    not come to: they run in the next round, before anything else. One that does not is not interrupted within a run.
    """

    __slots__ = ()

    @property
    def is_over(self) -> bool:
        """Return whether the round has ended: whatever comes now has to be left."""
        return False

    @property
    def is_behind(self) -> bool:
        """Return whether items of an earlier run are left on the worker."""
        return False

    def iterate(self, values: Sequence[Any]) -> Iterator[Any]:
        """Return an iterator over values that ends with the round; it is empty if that is over."""
        return iter(values)

    def finish(self) -> None:
        """Note that the loop over the last iterator has ended.

        Loops may be nested, and each ends before the one around it.
        """

    def leave(self, run: Run, orders: Orders, trace: int, payloads: Sequence[Any]) -> None:
        """Leave items of a run to the next round.

        Args:
            run: The run that takes them then.
            orders, trace, payloads: The items, behind all that have run.
        """
        run(orders, trace, payloads)


NEVER_OVER: Final = Round()


class Way(NamedTuple):
    """An edge to a successor, as the two functions that take items along it."""

    step: Step
    run: Run


def each(step: Step, turn: Round = NEVER_OVER) -> Run:
    """Return the run that steps through its items.

    Args:
        step: The step.
        turn: The rounds of the worker.
    """

    def run(orders: Orders, trace: int, payloads: Sequence[Any]) -> None:
        done = 0
        for done, (order, payload) in enumerate(zip(orders, turn.iterate(payloads), strict=False), 1):  # noqa: B007
            step(order, trace, True, payload)
        turn.finish()
        if done < len(payloads):
            turn.leave(run, orders[done:], trace, payloads[done:])

    return run


@dataclass(frozen=True, slots=True)
class Site:
    """The place of an operator on a worker: its surroundings and its successors.

    Attributes:
        ident: Random 64-bit id of this physical instance. A stateful operator, and every one that appends child ids,
            xors it into the trace of what it emits.
        fail: Takes an item that a user function fails on.
        ways: One for each successor, in the order of the links; none at a sink.
        apart: Whether what goes these ways never meets again, so that one may be ahead of the other.
        snapshots: Whether snapshots of state are taken.
        stored: Returns the bytes of a state as snapshots have it; None: no snapshots are taken. It raises `CodecError`.
        barrier: Whether outputs wait for the minimum time.
        strict: The same vertex with functions that check their results; None: there is none.
        early: While it holds an order, the strict vertex computes the items below that. Emptied once all are computed.
        round: The present round of the worker's work.
    """

    ident: int
    fail: Fail
    ways: tuple[Way, ...]
    apart: bool = True
    snapshots: bool = False
    stored: Callable[[Any], bytes] | None = None
    barrier: bool = True
    strict: Vertex | None = None
    early: Sequence[bytes] = ()
    round: Round = NEVER_OVER

    @property
    def emit(self) -> Step:
        """Return the step of the only successor."""
        (way,) = self.ways
        return way.step

    @property
    def emit_run(self) -> Run:
        """Return the run of the only successor."""
        (way,) = self.ways
        return way.run


# Not one entry, process(orders, trace, alive, payloads), in place of step, run and undo, with a step
# as a run of one. It was tried, with a short cut for runs of one: counting words and keeping an index
# cost as before (0.998 and 0.98 of the CPU, medians of nine interleaved pairs), since their records go
# in runs anyway. A search in a cycle, where items go one by one, cost 1.32 times as much (1.25 to 1.39):
# each operation on the way makes a list of orders and one of outputs for a single item.
class Operator:
    """A vertex at work on one worker.

    A plugin's operator states `name` and `vertex`; for the engine's own the table does.

    Args:
        vertex: The vertex that it computes, an instance of the class `vertex`.
        site: Its place on the worker.

    Attributes:
        name: The kind of its vertex (`Vertex.kind`), and the name of its entry point.
        api: Version of the plugin contract it was written for.
        vertex: Class of the vertices that it computes.
        step: Takes one item.
        run: Takes a run; None: a run is taken step by step.
        undo: Takes several tombstones of one trace, in ascending order; None: they are taken step by step.
    """

    name: ClassVar[str]
    api: ClassVar[int] = API
    vertex: ClassVar[type[Vertex]]

    step: Step
    run: Run | None = None
    undo: Run | None = None

    def __init__(self, vertex: Any, site: Site) -> None:
        """Compile the steps."""

    def on_time(self, minimum: bytes) -> None:
        """Learn that the minimum time inbound has risen.

        Called when the worker flushes, after all else, and only where a subclass defines it. Everything of a time
        below `minimum` that can come to this operator has come.

        Nothing may be emitted from here: the minimum time holds for the successors too, and they may have acted on it.

        Args:
            minimum: The minimum time inbound to the vertex's segment, encoded: an order below it is of an earlier time.
        """


class StatefulOperator(Operator, ABC):
    """An operator that keeps state by name, repairs it, and is part of snapshots.

    Repair takes back what late items and tombstones make wrong.

    A *name* is what tells two entries of state apart: the key, unless `Vertex.state_facts` says otherwise. The state of
    a name at a time is what all items below that time leave; a snapshot holds it for every name, in pieces that were
    written as it changed.

    Attributes:
        worked: Number of live items that have gone into it.
        retracted: Number of outputs that it has taken back.
        repeated: Number of times that it has processed an item again, or found out its outputs, to take back or repair.
        names: All names that have state, and perhaps some that have none any more, each once or more. It is only
            appended to, except by `compact`. It may be empty if no snapshots are taken.
    """

    worked: int = 0
    retracted: int = 0
    repeated: int = 0
    names: list[Any]

    @property
    def name_types(self) -> Collection[type] | None:
        """Return the types of all names that it has given and may give; None: unknown.

        The exact types of the very objects that are in its mappings, also where equal names are of several types.
        """
        return None

    @property
    def state_type(self) -> type | None:
        """Return the exact type of all its states; None: unknown, or they may be `GONE`."""
        return None

    @property
    def calls(self) -> int:
        """Return the number of times that it has processed an item, first or again."""
        return self.worked + self.repeated

    def followers(self, orders: Orders, payloads: Sequence[Any]) -> int | None:
        """Return the most items to be processed again if it took these.

        They may be live items or tombstones. It changes nothing. None: the number is unknown.
        """
        return None

    @abstractmethod
    def trim(self, before: bytes) -> None:
        """Forget what only repairs and snapshots below the time `before` need.

        There will be neither. `before` is encoded. Called often, so it works in small steps.
        """

    @abstractmethod
    def cut(self, before: bytes) -> Sequence[Mapping[Any, Any]]:
        """Return what has changed below `before` since the last cut, then trim.

        `before` is an encoded time.

        Returns:
            Mappings from name to its state at that time, of at most `CHANGES` names; a name may be in several, the
            last counts. `GONE` stands for no state. They are read until the next cut, and must not change.
        """

    @abstractmethod
    def snapshot_of(self, names: Sequence[Any]) -> Mapping[Any, Any]:
        """Return the state of each of `names` at the last cut.

        A name that had none is left out. Called right after a cut, before the next item.
        """

    @abstractmethod
    def restore(self, states: Mapping[Any, Any]) -> None:
        """Start from the states of a snapshot, by name.

        Called before the first item, perhaps several times.
        """

    def compact(self) -> None:
        """Forget the names that have had no state since the last cut.

        Called right after a cut, before the next item, when a sweep of the snapshots has read all names. By default
        none is forgotten.
        """

    def groups_of(self, names: Sequence[Any]) -> Sequence[int]:
        """Return the key group of each of `names`.

        State moves between workers by key group. By default names are keys.
        """
        return key_groups(names)


Record = tuple[Any, tuple[tuple[int, int, bool], ...], int | None]
"""(state, timers, hold) of a key, as it is stored. Timers are plain tuples, by time and tag, those for the watermark
last."""


Turn = tuple[int, int]
"""(time, tag) of a timer for the watermark."""

Watermarks = Sequence[tuple[int, int]]
"""The watermark of several items, and those that marks among them make of it: (place of the first item behind the mark,
watermark), the first of place 0."""


class Part(NamedTuple):
    """New cells of a turn.

    Attributes:
        turn: The turn.
        keys: The keys that have them, each once or more.
        put: Puts them among the cells of the turn, by key. It does not raise.
    """

    turn: Turn
    keys: Collection[Any]
    put: Callable[[dict[Any, Any]], object]


class Cells(ABC):
    """Division of the states of keys into *cells*.

    A cell is the part of a key's state that is kept until the turn of a timer for the watermark. The engine has the
    cells of all keys that wait for a turn in one place, with one timer and one hold for all: a key costs what its cells
    do, and a turn that comes takes all of its cells away. To all else the state of a key is what `joined` says. No cell
    is None.
    """

    @abstractmethod
    def take(
        self,
        keys: Sequence[Any],
        payloads: Sequence[Any],
        watermarks: Watermarks,
        cells: Mapping[Turn, Mapping[Any, Any]],
    ) -> tuple[Sequence[Part], Sequence[Any]] | Sequence[int]:
        """Work on several items with no timer between them.

        The outcome is that of `Work.process` on each. The method may be called again, with the first of the items. If
        it raises, all are worked on alone.

        Args:
            keys: Key of each item. The state of each is in cells.
            payloads: The items.
            watermarks: The watermark, and those that marks among the items make of it. The turn and the hold of an
                item that is taken are not below its watermark.
            cells: The cells of each turn before, by key; a key that is missing has none.

        Returns:
            The new cells, at most one part for a turn, and the outputs of all items, of each the same number. Or a
            list: the places of items that have to be worked on alone; if it is empty, all.
        """

    def take_alone(
        self, key: Any, payload: Any, watermark: int, cells: Mapping[Turn, Mapping[Any, Any]]
    ) -> tuple[Sequence[Part], Sequence[Any]] | None:
        """Work on an item that `take` has said to be worked on alone.

        The outcome is that of `Work.process`, where this depends on the given cells only. By default no item is worked
        on so: `Work.process` costs as much as the key has cells. If it raises, `Work.process` is called.

        Args:
            key: The key of the item. Its state is in cells.
            payload: The item.
            watermark: The watermark.
            cells: The cells of each turn before, by key.

        Returns:
            The new cells, at most one part for a turn, whose turns and holds are not below the watermark; and the
            outputs. None: the item needs the state of its key.
        """
        return None

    def after(self, turn: Turn, cells: Mapping[Any, Any], watermark: int) -> Mapping[Turn, Mapping[Any, Any]]:
        """Return the cells that come of those of a turn that has come, by the later turns for which they wait.

        Each of these turns has some. A key may have one for each of several, for which it had none before; nothing else
        of it changes, and it has no outputs. The turn of the other keys ends. This method does not raise.

        Args:
            turn: The turn.
            cells: Its cells.
            watermark: The watermark.
        """
        return {}

    @abstractmethod
    def end(self, keys: Sequence[Any], cells: Mapping[Any, Any], timer: Timer, now: Now) -> Sequence[Any]:
        """Return the outputs of keys whose turn ends, the same number for each.

        The outputs are those that `Work.on_time` returns for each key. The cells go, and nothing else of the keys
        changes. If it raises, all keys are worked on alone.

        Args:
            keys: The keys.
            cells: The cells of the turn, of these keys, and perhaps of others.
            timer: The timer.
            now: The place of the mark.
        """

    @abstractmethod
    def hold(self, turn: Turn) -> int | None:
        """Return where the cells of a turn hold the marks."""

    @abstractmethod
    def joined(self, cells: Sequence[tuple[Turn, Any]]) -> Any:
        """Return the state of a key from its cells: one or more, in the order of turns."""

    @abstractmethod
    def parted(self, state: Any, turns: Sequence[Turn]) -> Sequence[Any] | None:
        """Return the cells of a state that waits for these turns, one for each turn.

        None: the state does not fall into cells.
        """


class Work(ABC):
    """The work of an ordered operation (`model.ordered.Ordered`) on one worker.

    It has the items of each key in the order of their metas, in their only version, and keeps nothing itself: the state
    of a key is handed to it and taken from it. So the engine has the state at any time, moves it between workers, and
    goes on from it, and an outcome depends on nothing but the arguments. A call that raises leaves the state as it was.

    A plugin's vertex makes one for each worker. `begin` and `end` are around the calls of one step; how many calls that
    are is not the same in every run.

    Attributes:
        late: Number of processed items that were behind the watermark, if it counts them: for status and summary.
        dropped: Number of those that it has not processed.
        stored: Returns a record as snapshots hold it; None: as it is. With it, states may have another form in memory,
            such as one that changes at less cost, and other timers and another hold: timers that come too soon and are
            set again, as long as outputs and marks are the same.
        cells: Division of states into cells, if there is one; not used if the vertex has `timers`.
    """

    cells: Cells | None = None
    late: int = 0
    dropped: int = 0
    stored: Callable[[Record], Record] | None = None

    def open(self) -> None:  # noqa: B027 - most works have nothing to do here
        """Get ready, before all else."""

    def begin(self) -> None:  # noqa: B027 - most works have nothing to do here
        """Begin a step: some items can be worked on now."""

    @abstractmethod
    def process(self, key: Any, state: Any, payload: Any, now: Now) -> Outcome:
        """Work on an item.

        Args:
            key: The key of the item.
            state: The state of the key; None: it has none.
            payload: The payload of the item.
            now: The place of the item.
        """

    def on_time(self, key: Any, state: Any, timer: Timer, now: Now) -> Outcome:
        """Work on a timer that is due; only where the vertex has `timers`.

        Args:
            key: The key that has set it.
            state: The state of the key; None: it has none.
            timer: The timer. It is no longer pending.
            now: The place of the timer; of the item that has set it, if it was past then.
        """
        raise NotImplementedError(f"{type(self).__qualname__} does not define on_time")

    def leave_out(self, key: Any, state: Any, timer: Timer, now: Now) -> Outcome | None:
        """Return the outcome of a timer on which `on_time` has raised, and which is left out.

        It is for works whose states would raise again with whatever comes next for the key. The failure has been told.

        Args:
            key: The key that has set it.
            state: The state of the key, as it was.
            timer: The timer.
            now: Its place.

        Returns:
            None if the state stays as it was, with the other timers.
        """
        return None

    def held(self, state: Any) -> int:
        """Return the number of items in a state whose outputs come only when the watermark rises.

        It is asked at the end of a job, for each key with a timer for the watermark, and says what an input holds back
        that has ended. By default a key counts once.

        Args:
            state: The state of the key; None: it has only timers.
        """
        return 1

    def end(self) -> None:  # noqa: B027 - most works have nothing to do here
        """End a step."""

    def close(self) -> None:  # noqa: B027 - most works have nothing to do here
        """Release the resources that `open` has acquired; nothing is called after it."""


class OutputBuffer(Operator, ABC):
    """The barrier: an operator at a sink that holds outputs back.

    They wait until the minimum time has passed them.
    """

    @abstractmethod
    def release(self, time: int) -> list[tuple[bytes, Any]]:
        """Take out everything strictly below `time`: (order, payload), in meta order.

        Raises as `columns`.
        """

    @abstractmethod
    def columns(self, time: int) -> Columns:
        """Take out everything strictly below `time`, in meta order.

        Returns:
            Orders and payloads, apart.

        Raises:
            ConsistencyError: An item, or `time`, is impossible: some part of the job breaks its contract.
        """


Build = Callable[[Any, Site], Operator]
"""Makes the operator of a vertex at its site; commonly an operator class."""
