"""The order of work where items do not come in order by themselves: round a cycle, in it, and behind it.

An item's third output leaves an operation before its second has gone round, and is greater than all that comes of that.
If it went on at once, a state behind it would see the two in the wrong order, and repair: in a cycle each repair is the
cause of more. So nothing goes on at once there. It waits, and the least goes first. All that is derived from an item
sorts after it and before whatever follows it, so on one worker every state sees ascending orders, in any graph.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from heapq import heappop, heappush
from itertools import count
from sys import maxsize
from typing import Any

from flamecore.abc.operator import Fail, Step, Way, each
from flamecore.model.batch import Orders
from flamecore.model.meta import child_orders

Entry = tuple[bytes, int, Step, int, bool, Any]
"""(order, number of arrival, step, trace, alive, payload)."""

Visit = tuple[Iterator[bytes], int, bool]
"""(orders of the next turns, trace, alive): what all that comes of an item in a cycle has in common."""

Turn = tuple[Step, Any, int, Visit]
"""(step, payload, rounds, visit)."""


class Agenda:
    """What waits for its turn on one worker, by order. What is of one order keeps the sequence in which it came.

    Args:
        segment: What comes from outside waits for the minimum time inbound to this segment; None: it goes on at once.
        name: That of an operation before which items wait.
    """

    in_vain = 0

    def __init__(self, segment: int | None = None, name: str = "") -> None:
        self.segment, self.name = segment, name
        self.is_ready = False
        """True if something waits only because enough has gone on at once."""
        self._waiting: list[Entry] = []
        self._arrivals = count()
        self._at_work = False
        self._steps_left = maxsize

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def lowest(self) -> bytes | None:
        """The lowest order that waits."""
        return self._waiting[0][0] if self._waiting else None

    def put(self, step: Step, order: bytes, trace: int, alive: bool, payload: Any) -> None:
        """Let an item wait for its turn to take a step."""
        heappush(self._waiting, (order, next(self._arrivals), step, trace, alive, payload))

    def enter(self, step: Step, order: bytes, trace: int, alive: bool, payload: Any) -> None:
        """Let an item from outside take a step, and then all that comes of it, unless it has to wait."""
        if self._at_work:
            return self.put(step, order, trace, alive, payload)
        if self.segment is not None:
            return heappush(self._waiting, (order, next(self._arrivals), step, trace, alive, payload))
        self._at_work = True
        self._take(step, order, trace, alive, payload)
        self._work()
        return None

    def entrance(self, step: Step) -> Step:
        """Return a step by which items come from outside."""
        return partial(self.enter, step)

    def gate(self, way: Way) -> Way:
        """Return a way that lets pass what need not wait, and gives the rest its turn."""
        pass_step, pass_run = way

        def step(order: bytes, trace: int, alive: bool, payload: Any) -> None:
            if self.segment is not None or self._at_work:
                self.put(pass_step, order, trace, alive, payload)
            else:
                pass_step(order, trace, alive, payload)

        def run(orders: Orders, trace: int, payloads: Sequence[Any]) -> None:
            if self.segment is not None or self._at_work:
                for order, payload in zip(orders, payloads, strict=True):
                    self.put(pass_step, order, trace, True, payload)
            else:
                pass_run(orders, trace, payloads)

        return Way(step, run)

    def drain(self, known: bytes, most: int = maxsize) -> None:
        """Run what waits below an order, with all that comes of it: nothing below it is to come any more.

        Args:
            known: The order.
            most: How many steps to take, about.
        """
        self._at_work, self._steps_left = True, most
        self._work(known)
        self.is_ready = self.lowest is not None and self.lowest < known
        self._steps_left = maxsize

    def _work(self, known: bytes | None = None) -> None:
        waiting = self._waiting
        while waiting and (known is None or waiting[0][0] < known) and self._steps_left > 0:
            entry = heappop(waiting)
            if waiting and waiting[0][0] == entry[0]:
                for order, _, step, trace, alive, payload in self._without_cancelled(entry):
                    self._take(step, order, trace, alive, payload)
            else:
                order, _, step, trace, alive, payload = entry
                self._take(step, order, trace, alive, payload)
        self._at_work = False

    def _take(self, step: Step, order: bytes, trace: int, alive: bool, payload: Any) -> None:
        self._steps_left -= 1
        step(order, trace, alive, payload)

    def _without_cancelled(self, entry: Entry) -> list[Entry]:
        """Take all that is of the order of an entry; leave out items whose tombstones have come, and these."""
        left, waiting = [entry], self._waiting
        while waiting and waiting[0][0] == entry[0]:
            entry = heappop(waiting)
            _, _, step, trace, alive, _ = entry
            victim = None if alive else next((one for one in left if one[2:5] == (step, trace, True)), None)
            if victim is None:
                left.append(entry)
            else:
                left.remove(victim)
        return left


class NumberedAgenda(Agenda):
    """An agenda that numbers the turns of a cycle, as child ids of what has entered it.

    Where nothing is ever taken back, all that comes of what enters a cycle runs before the next enters, in ascending
    order. So the number of its turn orders an item as its own child ids would, is the same in any recomputation, and
    does not grow with the rounds. No orders are compared either: what an item emits sorts after it and before all that
    waits, so it goes on a stack.

    What leaves the cycle, or fails there, does so at a turn of its own: its order from before counts no more. Behind
    the cycle orders grow as they do anywhere, also while the agenda is at work.

    Attributes:
        rounds: How often the item whose turn it is has gone round its cycle.
        visit: The visit to a cycle that the item whose turn it is belongs to.
        inside: What waits and has come of what entered, the next one last.
        emitted: What the item whose turn it is has emitted so far.
    """

    def __init__(self, segment: int | None = None, name: str = "") -> None:
        super().__init__(segment, name)
        self.rounds = 0
        self.visit: Visit = (iter(()), 0, True)
        self.inside: list[Turn] = []
        self.emitted: list[Turn] = []
        self._entered = b""  # the order of the last that has

    def __len__(self) -> int:
        return len(self._waiting) + len(self.inside)

    @property
    def lowest(self) -> bytes | None:
        """The lowest order that waits: what comes of the last that has entered is before all others."""
        return self._entered if self.inside else super().lowest

    def put(self, step: Step, order: bytes, trace: int, alive: bool, payload: Any) -> None:
        self.emitted.append((step, payload, 0, (iter((order,)), trace, alive)))

    def entrance(self, step: Step) -> Step:
        def begin(order: bytes, trace: int, alive: bool, payload: Any) -> None:
            self.rounds, self.visit = 0, (child_orders(order), trace, alive)
            step(order, trace, alive, payload)

        return super().entrance(begin)  # one for all items: a tombstone takes the step of its victim

    def turn(self, step: Step) -> Step:
        """Return a step that an item in a cycle takes at a turn of its own."""
        emitted = self.emitted

        def wait(order: bytes, trace: int, alive: bool, payload: Any) -> None:
            emitted.append((step, payload, self.rounds, self.visit))

        return wait

    def gate_inside(self, way: Way) -> Way:
        """Return a way that gives all items in a cycle their turn."""
        step = self.turn(way.step)
        return Way(step, each(step))

    def turn_to_fail(self, fail: Fail) -> Fail:
        """Return where an item in a cycle goes that a function fails on: there too, at a turn of its own."""

        def fail_later(order: bytes, trace: int, alive: bool, payload: Any, error: Exception) -> None:
            def step(order: bytes, trace: int, alive: bool, payload: Any) -> None:
                fail(order, trace, alive, payload, error)

            self.turn(step)(order, trace, alive, payload)

        return fail_later

    def abandon(self) -> None:
        """Drop all that waits of the visit of the item whose turn it is: it would go on without end."""
        self.inside[:] = [turn for turn in self.inside if turn[3] is not self.visit]

    def _work(self, known: bytes | None = None) -> None:
        self._go_on()
        super()._work(known)

    def _take(self, step: Step, order: bytes, trace: int, alive: bool, payload: Any) -> None:
        self._entered = order
        super()._take(step, order, trace, alive, payload)
        self._go_on()

    def _go_on(self) -> None:
        """Run the turns of what has come of the last that has entered, as many as there are steps left."""
        emitted, inside, left = self.emitted, self.inside, self._steps_left
        while emitted or inside:
            if emitted:
                emitted.reverse()
                inside += emitted
                emitted.clear()
            if left <= 0:
                break
            left -= 1
            step, payload, self.rounds, visit = inside.pop()
            self.visit = visit
            orders, trace, alive = visit
            step(next(orders), trace, alive, payload)
        self._steps_left = left
