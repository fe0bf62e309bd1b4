"""The order of work around cycles and behind them, where items arrive unsorted.

An item's third output leaves an operation before its second has gone round the cycle, and sorts after everything
derived from the second. If it were processed at once, a state behind it would see the two in the wrong order, and
repair: in a cycle each repair causes more. So every item waits, and the least goes first. All items derived from an
item sort after it and before its successors, so on one worker every state sees ascending orders, in any graph.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from heapq import heappop, heappush
from itertools import count
from sys import maxsize
from typing import Any

from flamecore.abc.operator import NEVER_OVER, Fail, Round, Step, Way, each
from flamecore.model.batch import Orders
from flamecore.model.meta import child_orders

Entry = tuple[bytes, int, Step, int, bool, Any]
"""(order, arrival number, step, trace, alive, payload)."""

Visit = tuple[Iterator[bytes], int, bool]
"""(orders of the next turns, trace, alive), shared by all items derived from one item in a cycle."""

Turn = tuple[Step, Any, int, Visit]
"""(step, payload, rounds, visit)."""


# Not one queue for each operation, first in, first out: an item's third output would pass everything derived from its
# second. Repairs would follow, and in a cycle each causes more: a breadth-first search that needs 81 calls made 5,795.
# One heap for all operations that it orders gives each of them ascending orders.
class Agenda:
    """A queue of items on one worker, by order; first in, first out within one order.

    Args:
        segment: Items from outside wait for the minimum time inbound to this segment; None: they do not wait.
        name: Name of an operation before which items wait.
        turn: The rounds of the worker.
    """

    in_vain = 0

    def __init__(self, segment: int | None = None, name: str = "", turn: Round = NEVER_OVER) -> None:
        self.segment, self.name = segment, name
        self._round = turn
        self.is_ready = False
        """Whether items wait only because `drain` has reached its number of steps."""
        self._waiting: list[Entry] = []
        self._arrivals = count()
        self._at_work = False
        self._steps_left = maxsize

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def lowest(self) -> bytes | None:
        """Return the lowest waiting order, or None."""
        return self._waiting[0][0] if self._waiting else None

    def put(self, step: Step, order: bytes, trace: int, alive: bool, payload: object) -> None:
        """Queue an item for a step."""
        # The arrival number decides within one order: an item goes before its tombstone, and steps
        # and payloads, which cannot be compared, never are.
        heappush(self._waiting, (order, next(self._arrivals), step, trace, alive, payload))

    def enter(self, turn: Round, step: Step, order: bytes, trace: int, alive: bool, payload: object) -> None:
        """Run a step on an item from outside, and all that derives from it, or queue it.

        Args:
            turn: The rounds of the worker, for the vertex that it enters.
            step: The step.
            order, trace, alive, payload: The item.
        """
        if self._at_work:
            return self.put(step, order, trace, alive, payload)
        # Where an earlier item may still come (from another worker, or late), this one waits for the minimum time.
        # Else it is the next one as soon as nothing else is at work.
        if self.segment is not None:
            return heappush(self._waiting, (order, next(self._arrivals), step, trace, alive, payload))
        self._at_work, self._round = True, turn
        self._take(step, order, trace, alive, payload)
        self._go_through()
        return None

    def _go_through(self, *_: object) -> None:
        """Run all that waits; what the round does not come to is left, and nothing enters before it."""
        self._work()
        if (lowest := self.lowest) is not None:
            self._at_work = True
            self._round.leave(self._go_through, (lowest,), 0, (None,))

    def entrance(self, step: Step, turn: Round = NEVER_OVER) -> Step:
        """Return a step for items from outside.

        Args:
            step: The step that they take.
            turn: The rounds of the worker, for the vertex that they enter.
        """
        return partial(self.enter, turn, step)

    def gate(self, way: Way) -> Way:
        """Return a way that queues items which have to wait, and passes the others."""
        pass_step, pass_run = way

        def step(order: bytes, trace: int, alive: bool, payload: object) -> None:
            # At work: the caller may emit more, and something that waits may come before this item.
            # Otherwise nothing waits, and the way is as short as without an agenda.
            if self.segment is not None or self._at_work:
                self.put(pass_step, order, trace, alive, payload)
            else:
                pass_step(order, trace, alive, payload)

        def run(orders: Orders, trace: int, payloads: Sequence[object]) -> None:
            if self.segment is not None or self._at_work:
                for order, payload in zip(orders, payloads, strict=True):
                    self.put(pass_step, order, trace, True, payload)
            else:
                pass_run(orders, trace, payloads)

        return Way(step, run)

    def drain(self, known: bytes, most: int = maxsize) -> None:
        """Run the items below an order, and all that derives from them.

        No more items below it may come.

        Args:
            known: The order.
            most: Approximate number of steps to take.
        """
        self._at_work, self._steps_left = True, most
        self._work(known)
        self.is_ready = self.lowest is not None and self.lowest < known
        self._steps_left = maxsize

    def _work(self, known: bytes | None = None) -> None:
        waiting = self._waiting
        # The steps are limited so that a worker hears messages and keeps its deadlines: a function
        # of 10 ms on all that was known to be next kept it busy for half a minute, and it was
        # declared dead.
        turn = self._round
        while waiting and (known is None or waiting[0][0] < known) and self._steps_left > 0 and not turn.is_over:
            entry = heappop(waiting)
            # Two entries of one order are a recomputed item, or an item with its tombstone. They
            # are rare, so only they pay for the search for cancelled ones.
            if waiting and waiting[0][0] == entry[0]:
                for order, _, step, trace, alive, payload in self._without_cancelled(entry):
                    self._take(step, order, trace, alive, payload)
            else:
                order, _, step, trace, alive, payload = entry
                self._take(step, order, trace, alive, payload)
        self._at_work = False

    def _take(self, step: Step, order: bytes, trace: int, alive: bool, payload: object) -> None:
        self._steps_left -= 1
        step(order, trace, alive, payload)

    def _without_cancelled(self, entry: Entry) -> list[Entry]:
        """Take out all items of an entry's order, except cancelled ones and tombstones."""
        left, waiting = [entry], self._waiting
        while waiting and waiting[0][0] == entry[0]:
            entry = heappop(waiting)
            _, _, step, trace, alive, _ = entry
            # One waiting entry is cancelled, not the identity: after a tombstone a new item may
            # have the identity of its victim, and it must stay.
            victim = None if alive else next((one for one in left if one[2:5] == (step, trace, True)), None)
            if victim is None:
                left.append(entry)
            else:
                left.remove(victim)
        return left


class NumberedAgenda(Agenda):
    """An agenda that orders items in a cycle by numbered turns.

    If items are never retracted, everything derived from an item that enters a cycle runs before the next item enters,
    in ascending order. So the number of its turn orders an item as its own child ids would, is the same in any
    recomputation, and does not grow with the rounds. Orders are not compared either: outputs of an item sort after it
    and before all waiting items, so they go on a stack.

    An item leaves the cycle, or fails there, at a turn of its own, and gets its order from it. Behind the cycle orders
    grow as usual, even while the agenda is running.

    Attributes:
        rounds: Rounds of the current item in its cycle.
        visit: Visit of the current item to its cycle.
        inside: Waiting turns of items derived from the one that entered, the next turn last.
        emitted: Turns of the outputs of the current item so far.
    """

    def __init__(self, segment: int | None = None, name: str = "", turn: Round = NEVER_OVER) -> None:
        super().__init__(segment, name, turn)
        self.rounds = 0
        self.visit: Visit = (iter(()), 0, True)
        self.inside: list[Turn] = []
        self.emitted: list[Turn] = []
        self._entered = b""  # the order of the item that entered last

    def __len__(self) -> int:
        return len(self._waiting) + len(self.inside)

    @property
    def lowest(self) -> bytes | None:
        """Return the lowest waiting order, or None.

        Items derived from the one that entered last come before all others.
        """
        return self._entered if self.inside else super().lowest

    def put(self, step: Step, order: bytes, trace: int, alive: bool, payload: object) -> None:
        self.emitted.append((step, payload, 0, (iter((order,)), trace, alive)))

    def entrance(self, step: Step, turn: Round = NEVER_OVER) -> Step:
        def begin(order: bytes, trace: int, alive: bool, payload: object) -> None:
            self.rounds, self.visit = 0, (child_orders(order), trace, alive)
            step(order, trace, alive, payload)

        return super().entrance(begin, turn)  # one for all items: a tombstone takes the step of its victim

    def turn(self, step: Step) -> Step:
        """Return a step that an item in a cycle takes at its own turn."""
        emitted = self.emitted

        def wait(order: bytes, trace: int, alive: bool, payload: object) -> None:
            emitted.append((step, payload, self.rounds, self.visit))

        return wait

    def gate_inside(self, way: Way) -> Way:
        """Return a way that queues every item in a cycle for its turn."""
        step = self.turn(way.step)
        return Way(step, each(step))

    def turn_to_fail(self, fail: Fail) -> Fail:
        """Return a failure handler that takes items in a cycle at their own turn."""

        def fail_later(order: bytes, trace: int, alive: bool, payload: object, error: Exception) -> None:
            def step(order: bytes, trace: int, alive: bool, payload: object) -> None:
                fail(order, trace, alive, payload, error)

            self.turn(step)(order, trace, alive, payload)

        return fail_later

    def abandon(self) -> None:
        """Drop all waiting turns of the current visit, which would not end."""
        self.inside[:] = [turn for turn in self.inside if turn[3] is not self.visit]

    def _work(self, known: bytes | None = None) -> None:
        self._go_on()
        super()._work(known)

    def _take(self, step: Step, order: bytes, trace: int, alive: bool, payload: object) -> None:
        self._entered = order
        super()._take(step, order, trace, alive, payload)
        self._go_on()

    def _go_on(self) -> None:
        """Run the turns of derived items, until none is left or the steps are used up."""
        emitted, inside, left = self.emitted, self.inside, self._steps_left
        while emitted or inside:
            if emitted:
                # A stack returns the last one first, so the first output, which is the least, has
                # to be pushed last.
                emitted.reverse()
                inside += emitted
                emitted.clear()
            # Only now: `lowest` looks at `inside` alone, and a turn that it missed could be passed
            # by the minimum time.
            if left <= 0 or self._round.is_over:
                break
            left -= 1
            step, payload, self.rounds, visit = inside.pop()
            self.visit = visit
            orders, trace, alive = visit
            step(next(orders), trace, alive, payload)
        self._steps_left = left
