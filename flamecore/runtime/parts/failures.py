"""What becomes of failing user functions on one worker.

A failure goes the way of an output, to a barrier that every worker has for failures alone: that of the worker which
hosts the front of the record, the only one to know where the record stood in its source. It waits there until the
minimum time has passed it, and is gone if an operation takes back the guess that failed.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any

from flamecore.abc.operator import Fail, Step
from flamecore.errors import FlameError
from flamecore.model.failure import Failure, FlowMistake, describe, shorten_repr, user_frames, user_traceback
from flamecore.model.hashing import check_key
from flamecore.model.meta import GlobalTime
from flamecore.model.plan import DEAD_LETTERS, Plan
from flamecore.model.vertices import ByKey, Vertex
from flamecore.runtime.operators.barrier import Barrier
from flamecore.runtime.operators.exchange import Outboxes
from flamecore.runtime.parts.front import Front


class Failures:
    """Makes failures of what user functions raise, and holds those of the records that came in here.

    Args:
        worker: The number of this worker.
        plan: Says which worker hosts a front, and what becomes of failures.
        random: Draws what tells the failures of different operations apart.
        outboxes: What is to be sent to each worker.
        fronts: The fronts this worker hosts, by number.

    Attributes:
        index: Under which, after those of all vertices, failures come from other workers.
        passed: How many records user functions have failed on without ending the job.
    """

    def __init__(
        self, worker: int, plan: Plan, *, random: Random, outboxes: Outboxes, fronts: Mapping[int, Front]
    ) -> None:
        self.index = len(plan.graph.vertices)
        self.passed = 0
        self._worker = worker
        self._plan = plan
        self._random = random
        self._outboxes = outboxes
        self._fronts = fronts
        self._barrier = Barrier("failures")
        self._idents: dict[int, int] = {}

    @property
    def step(self) -> Step:
        """Takes a failure of a record whose front is hosted here."""
        return self._barrier.step

    def fail_at(self, vertex: Vertex) -> Fail:
        """What a step of `vertex` calls when user code fails: the failure becomes an item of the failures' barrier."""
        home = self._home
        # Failures of one item at one operation come home from whichever worker it was on; as with any operation's
        # outputs, the trace says from which.
        if vertex.index not in self._idents:
            self._idents[vertex.index] = self._random.getrandbits(64)
        ident = self._idents[vertex.index]
        letters = self._plan.on_error == DEAD_LETTERS

        def fail(order: bytes, trace: int, alive: bool, payload: Any, error: Exception) -> None:
            key, reason = None, error.what if isinstance(error, FlameError) else describe(error)
            if isinstance(vertex.route, ByKey):
                try:
                    value = vertex.route.key(payload)
                    key = shorten_repr(value)
                    if isinstance(error, TypeError):  # Python says "unhashable", and not what to use instead
                        reason = _refused_key(value) or reason
                except Exception:  # noqa: BLE001 - the key function may be what failed
                    key = None
            failure = Failure(
                source=None,
                vertex=vertex.name,
                record=shorten_repr(payload),
                key=key,
                reason=reason,
                declared=vertex.declared,
                frames=user_frames(error),
                fatal=self._plan.on_error == "fail" or isinstance(error, FlowMistake),
                worker=self._worker,
                at=GlobalTime.decode(order),
                trace=user_traceback(error) if letters and alive else "",
                error=error,
            )
            home(order, trace ^ ident, alive, failure)

        return fail

    def _home(self, order: bytes, trace: int, alive: bool, failure: Failure) -> None:
        """A failure goes to the worker that hosts its record's front, which knows where the record stood."""
        host = self._plan.host_of(failure.at.front)
        if host == self._worker:
            self._barrier.step(order, trace, alive, failure)
        else:
            self._outboxes[host].put(self.index, order, trace, alive, failure)

    def release(self, time: int) -> tuple[list[tuple[bytes, Failure]], list[tuple[bytes, Failure]]]:
        """Let go the failures with a time below `time`, each with the position of its record.

        Returns:
            Those that end the job, and those that become dead letters: (order, failure), in meta order.
        """
        fatal: list[tuple[bytes, Failure]] = []
        letters: list[tuple[bytes, Failure]] = []
        last = None
        for order, failure in self._barrier.release(time):
            front = self._fronts[failure.at.front]
            failure = failure._replace(position=front.where(failure.at.time))
            if failure.fatal:
                fatal.append((order, failure))
                continue
            if failure.vertex is None:
                letters.append((order, self._kept(failure, front)))  # of a source that skips them there are none
                continue
            # A record may fail several times; all its failures are released at once.
            self.passed += failure.at != last
            last = failure.at
            if self._plan.on_error == DEAD_LETTERS:
                letters.append((order, self._kept(failure, front)))
        return fatal, letters

    def _kept(self, failure: Failure, front: Front) -> Failure:
        """Add what is needed to read the record again."""
        return failure._replace(
            origin=front.name.source,
            original=front.original(failure.at.time),
        )


def _refused_key(key: Any) -> str | None:
    """Return why something cannot be a key; None if it can."""
    try:
        check_key(key)
    except TypeError as error:
        return describe(error)
    return None
