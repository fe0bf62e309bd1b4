"""The items of one worker that have not run yet: received ones, admitted ones, and what is left of a round.

A message may hold thousands of items, and a function may take a second for each of them. So they run in rounds, between
which outputs leave, and messages and signals are served. What comes in waits behind them; and no buffer lets items in
that could come to an operation which has left some: so each operation has its items in the sequence of a single round.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

from flamecore.abc.operator import Round, Run, Step, each
from flamecore.model.batch import Orders
from flamecore.model.messages import Items
from flamecore.runtime.operators.rounds import Rest, Rounds, VertexRound


class Backlog:
    """A queue of items, which run in the sequence in which they came.

    Args:
        steps: Step of each vertex, by index.
        runs: Run of each vertex that accepts runs from other workers, by index.
        segment_of: Segment of the hand-overs under each index.
        rounds: The rounds of the worker.
        done: Function called with (sender, message) once all items of a message have run.

    Attributes:
        waiting: All that waits: not to be changed. Each flush asks several times whether it is empty.
    """

    def __init__(
        self,
        steps: Mapping[int, Step],
        runs: Mapping[int, Run],
        segment_of: Sequence[int],
        rounds: Rounds,
        done: Callable[[str, Items], None],
    ) -> None:
        self._steps, self._runs, self._segment_of, self._rounds, self._done = steps, runs, segment_of, rounds, done
        self.waiting: deque[Rest | Callable[[], None]] = deque()
        self._cut = Counter[int]()  # by segment, how many of these are left of a round

    @property
    def round_is_over(self) -> bool:
        """Return whether the present round has ended."""
        return self._rounds.is_over

    def receive(self, sender: str, message: Items) -> None:
        """Queue the items of a message."""
        for index, trace, alive, orders, payloads in message.pieces:
            segment = self._segment_of[index]
            # Runs are of live items: a tombstone takes the step of its victim, whichever way that came.
            run = self._runs.get(index) if alive else None
            if run is None:
                run = _each(self._steps[index], alive, VertexRound(self._rounds, segment))
            self.waiting.append(Rest(run, segment, orders, trace, payloads))
        self.waiting.append(partial(self._done, sender, message))

    def admit(self, run: Run, segment: int, orders: Orders, payloads: Sequence[Any]) -> None:
        """Run admitted records, or queue them if anything waits."""
        if self.waiting:
            self.waiting.append(Rest(run, segment, orders, 0, payloads))
        else:
            run(orders, 0, payloads)
            self.collect()

    def collect(self) -> None:
        """Queue what is left of the round, before all that waits."""
        if self._rounds.left:
            left = self._rounds.take()
            self.waiting.extendleft(reversed(left))
            self._cut.update([rest.segment for rest in left])
            self._rounds.behind += len(left)

    def cuts(self, segments: Collection[int]) -> bool:
        """Return whether an operation of a segment has left items of a round."""
        return bool(self._cut) and not self._cut.keys().isdisjoint(segments)

    def lowest(self) -> dict[int, bytes]:
        """Return the lowest order that waits, for each segment that has any."""
        lowest: dict[int, bytes] = {}
        for rest in self.waiting:
            if type(rest) is Rest:
                order, segment = rest.orders[0], rest.segment
                lowest[segment] = min(order, lowest.get(segment, order))
        return lowest

    def run(self, most: int) -> None:
        """Run some items, until the round is over.

        Args:
            most: Most items.
        """
        waiting, rounds = self.waiting, self._rounds
        while waiting and not rounds.is_over:
            rest = waiting.popleft()
            if type(rest) is not Rest:
                rest()  # type: ignore[operator]  # the end of a message
                continue
            run, segment, orders, trace, payloads, cut = rest
            if (count := len(orders)) > most:
                waiting.appendleft(Rest(run, segment, orders[most:], trace, payloads[most:], cut))
                orders, payloads = orders[:most], payloads[:most]
            elif cut:
                self._cut[segment] -= 1
                if not self._cut[segment]:
                    del self._cut[segment]
            run(orders, trace, payloads)
            if rounds.left:
                self.collect()
            if cut and count <= most:
                rounds.behind -= 1
            most -= count
            if most <= 0:
                return


def _each(step: Step, alive: bool, turn: Round) -> Run:
    """Return the run that steps through its items, live ones or tombstones."""
    if alive:
        return each(step, turn)
    return each(lambda order, trace, _, payload: step(order, trace, False, payload), turn)
