"""The failures of user functions on one worker.

A failure goes the way of an output, to a barrier on the worker that hosts the front of the record, the only worker that
knows the record's place in its source. It waits there until the minimum time has passed it, and is gone if an operation
takes back the guess that failed.

If a failure ends the job, each operation has such a barrier, which opens at the minimum time of the operation: so no
sink behind the operation opens for the record before the failure is known, and no other sink waits for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from operator import itemgetter
from random import Random

from flamecore.abc.operator import Fail, Step
from flamecore.errors import FlameError
from flamecore.model.clock import global_time
from flamecore.model.failure import Cause, Failure, FlowMistake, describe, shorten_repr, user_frames, user_traceback
from flamecore.model.hashing import check_key
from flamecore.model.meta import MIN_FRONT, GlobalTime, decode_time
from flamecore.model.ordered import Due
from flamecore.model.plan import DEAD_LETTERS, Plan
from flamecore.model.vertices import ByKey, Sink, Vertex
from flamecore.runtime.operators.barrier import Barrier
from flamecore.runtime.operators.exchange import Outboxes
from flamecore.runtime.parts.front import Front


class Failures:
    """The failures of records that came in on this worker, and their barriers.

    Args:
        plan: The job's plan, with the fate of failures.
        fronts: The fronts that this worker hosts, by number.

    Attributes:
        segments: For each index, after those of all vertices, under which failures come from other workers, the segment
            of these hand-overs.
        passed: Number of records that user functions have failed on without ending the job.
        first_passed: The earliest of them, by its time, in words.
        may_end: Whether one has come, here or from another worker, that ends the job unless it is taken back.
    """

    def __init__(self, plan: Plan, fronts: Mapping[int, Front]) -> None:
        self.segments = (*plan.segments.of, plan.segments.last)
        self.passed = 0
        self.first_passed: dict[int, str] = {}
        self.may_end = False
        self._first = len(plan.graph.vertices)  # the index of a vertex's failures that end the job is so much greater
        self._last = 2 * self._first  # that of all others
        self._plan = plan
        self._fronts = fronts
        self._sources = {source.name: source for source in plan.graph.sources}
        self._barriers: dict[int, Barrier] = {}  # by index; only where something has failed
        self._ending: dict[str, list[tuple[bytes, Failure]]] = {}  # for each rear, what it has not been told
        self._away: dict[str, list[tuple[int, int]]] = {}  # the same, of failures that others hold

    def arrivals(self) -> Iterator[tuple[int, Step]]:
        """Yield each index of failures, and the step that takes them.

        They are failures of records whose fronts are hosted here.
        """
        return ((index, partial(self.hold, index)) for index in range(self._first, self._last + 1))

    @property
    def is_empty(self) -> bool:
        """Return whether no failure is held here."""
        return not self._barriers or not any(self._barriers.values())

    def malformed(self, source: str, order: bytes, failure: Failure) -> None:
        """Take a malformed record of a front that is hosted here."""
        self.hold(self.index_of(self._sources[source], failure), order, 0, True, failure)

    def index_of(self, vertex: Vertex, failure: Failure) -> int:
        """Return the index under which a failure at a vertex comes."""
        return self._first + vertex.index if failure.fatal else self._last

    def hold(self, index: int, order: bytes, trace: int, alive: bool, failure: Failure) -> None:
        """Hold a failure of a record whose front is hosted here, or take one back."""
        self.may_end |= index != self._last
        if index not in self._barriers:
            # Made by the first failure: most jobs have none, and would look at an empty barrier of
            # each operation in every flush.
            self._barriers[index] = Barrier("failures")
        self._barriers[index].step(order, trace, alive, failure)

    def release(self, min_time: Callable[[int], int]) -> tuple[Failure | None, list[tuple[bytes, Failure]]]:
        """Release the failures that the minimum time has passed.

        Each has the position of its record.

        Args:
            min_time: Returns the minimum time of a segment.

        Returns:
            The failure that ends the job, or None; and the dead letters: (order, failure), in meta order.
        """
        first: Failure | None = None
        letters: list[tuple[bytes, Failure]] = []
        for index, barrier in self._barriers.items():
            if not barrier:
                continue
            failures = barrier.release(min_time(self.segments[index - self._first]))
            if index == self._last:
                letters = self._letters(failures)
                continue
            for order, failure in failures:
                known = self._placed(failure)
                first = first or known
                # Each rear by itself: those behind the operation get exactly what comes before the record, others may
                # get more, and the job ends once all have got as far.
                for rear in self._rears_behind(self._plan.graph.vertices[index - self._first]):
                    self._ending.setdefault(rear, []).append((order, known))
        return first, letters

    def for_rear(self, rear: str) -> list[tuple[bytes, Failure]]:
        """Take out the failures that end the job, for one rear, in meta order.

        They were released since the last call.
        """
        return sorted(self._ending.pop(rear, ()), key=itemgetter(0)) if self._ending else []

    def note_away(self, index: int, order: bytes, host: int) -> None:
        """Note a failure that this worker sends to the host of the record's front."""
        if index != self._last:
            for rear in self._rears_behind(self._plan.graph.vertices[index - self._first]):
                self._away.setdefault(rear, []).append((decode_time(order), host))

    def away_from(self, rear: str) -> tuple[tuple[int, int], ...]:
        """Take out the times of failures that other workers hold, and these workers, for one rear.

        They were noted since the last call.
        """
        return tuple(self._away.pop(rear, ())) if self._away else ()

    def _rears_behind(self, vertex: Vertex) -> list[str]:
        """Return the rears that outputs of a vertex reach; all get dead letters."""
        letters = [DEAD_LETTERS] if self._plan.settings.dead_letters else []
        return letters + [end.name for end in self._plan.graph.reach_of(vertex) if isinstance(end, Sink)]

    def _placed(self, failure: Failure) -> Failure:
        if failure.at.front == MIN_FRONT:  # of a timer
            return failure._replace(position=f"time {global_time(failure.at.time)}")
        return failure._replace(position=self._fronts[failure.at.front].where(failure.at.time))

    def _letters(self, failures: Iterable[tuple[bytes, Failure]]) -> list[tuple[bytes, Failure]]:
        letters: list[tuple[bytes, Failure]] = []
        last = None
        for order, failure in failures:
            front, placed = self._fronts.get(failure.at.front), self._placed(failure)
            if front is not None and placed.vertex is None:
                letters.append((order, self._kept(placed, front)))  # of a source that skips them there are none
                continue
            # A record may fail several times; all its failures are released at once.
            if not self.first_passed:  # they are released in the order of their times
                self.first_passed = {placed.at.time: f"{placed.vertex!r}: {placed.reason}, at {placed.position}"}
            self.passed += placed.at != last
            last = placed.at
            if self._plan.settings.on_error == DEAD_LETTERS:
                letters.append((order, placed if front is None else self._kept(placed, front)))
        return letters

    def _kept(self, failure: Failure, front: Front) -> Failure:
        """Return a failure with the facts that are needed to read its record again."""
        return failure._replace(
            origin=front.name.source,
            # Read once more by the source: nothing is kept for it on the way of all records that do not fail.
            original=front.original(failure.at.time),
        )


class FailureWays:
    """The ways of failures from the operations of a worker.

    They lead to the workers that host the records' fronts.

    Args:
        worker: The number of this worker.
        plan: The job's plan, with the hosts of fronts.
        random: Source of the ids that tell the failures of different operations apart.
        outboxes: The outbox of each worker.
        held: The failures that this worker holds.
    """

    def __init__(self, worker: int, plan: Plan, *, random: Random, outboxes: Outboxes, held: Failures) -> None:
        self._worker, self._plan, self._random, self._outboxes, self._held = worker, plan, random, outboxes, held
        self._idents: dict[int, int] = {}

    def fail_at(self, vertex: Vertex) -> Fail:
        """Return the function that steps of `vertex` call when user code fails.

        It makes the failure an item of the failures' barrier.
        """
        home = self._home
        # Failures of one item at one operation come home from whichever worker it was on; as with any operation's
        # outputs, the trace says from which.
        if vertex.index not in self._idents:
            self._idents[vertex.index] = self._random.getrandbits(64)
        ident = self._idents[vertex.index]
        letters = self._plan.settings.on_error == DEAD_LETTERS

        def fail(order: bytes, trace: int, alive: bool, payload: object, error: Exception) -> None:
            key, reason = None, _reason(error)
            if isinstance(vertex.route, ByKey):
                try:
                    value = payload.key if type(payload) is Due else vertex.route.key(payload)
                    key = shorten_repr(value)
                    if isinstance(error, TypeError):  # Python's text names no type that can be used instead
                        reason = _refused_key(value) or _refused_place(vertex.route, value) or reason
                except Exception:  # noqa: BLE001 - the key function may be what failed
                    key = None
            failure = Failure(
                source=None,
                vertex=vertex.name,
                record=shorten_repr(_shown(vertex, payload)),
                key=key,
                cause=Cause(reason, user_frames(error), user_traceback(error) if letters and alive else "", error),
                declared=vertex.declared,
                fatal=self._plan.settings.on_error == "fail" or isinstance(error, FlowMistake),
                worker=self._worker,
                at=GlobalTime.decode(order),
            )
            home(self._held.index_of(vertex, failure), order, trace ^ ident, alive, failure)

        return fail

    def _home(self, index: int, order: bytes, trace: int, alive: bool, failure: Failure) -> None:
        """Send a failure to the worker that hosts the front of its record.

        Only that worker knows the record's place in its source.
        """
        host = self._plan.host_of(failure.at.front)
        # To the front's worker by a channel of items, not to the control: it may be taken back, and
        # its tombstone has to find it there.
        if host == self._worker:
            self._held.hold(index, order, trace, alive, failure)
        else:
            self._outboxes[host].put(index, order, trace, alive, failure)
            if alive:
                self._held.note_away(index, order, host)


def _shown(vertex: Vertex, payload: object) -> object:
    try:
        return vertex.shown(payload)
    except Exception:  # noqa: BLE001 - the payload may be what failed
        return payload


def _reason(error: Exception) -> str:
    """Return why a record failed.

    For an error of the engine it also gives the remedy.
    """
    if isinstance(error, FlameError):
        return ". ".join(filter(None, (error.what, error.hint)))
    return describe(error)


def _refused_place(route: ByKey, key: object) -> str | None:
    """Return why the place of a key cannot be hashed.

    None: it can be, or there is none.
    """
    if route.place is None:
        return None
    try:
        why = _refused_key(route.place(key))
    except Exception:  # noqa: BLE001 - the function of the place may be what failed
        return None
    return None if why is None else f"the place of the key: {why}"


def _refused_key(key: object) -> str | None:
    """Return why a value cannot be a key; None if it can."""
    try:
        check_key(key)
    except TypeError as error:
        return describe(error)
    return None
