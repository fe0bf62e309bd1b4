"""Rebalances: items are dealt out among all workers (paper 004, section 2.3, "balancing").

Which worker goes on with an item must follow from its order alone wherever the item may be taken back, or come again:
its tombstone has to go the same way. There the times are dealt out evenly.

What comes straight from the fronts comes once. There every worker gets a *share*, which follows how busy the workers
are: one that also owns key groups, or is on a slower machine, is dealt less, down to nothing. Only the worker that
deals, which hosts the front, keeps an even share at the least. Outputs do not depend on it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any, Final, ParamSpec

from flamecore.model.batch import Orders, materialise
from flamecore.model.clock import STOPWATCH
from flamecore.model.messages import Busy
from flamecore.model.meta import MAX_TIME, decode_time, encode_time

P = ParamSpec("P")

Part = tuple[Orders, Sequence[Any]]
"""(orders, payloads): what of a run goes to one worker."""

_SINGLY: Final = 1024
_BLOCK: Final = 8
"""The first times are dealt out one by one, so that a few costly records keep all workers busy, and later ones in
blocks: what comes of a block stays one run where it meets the rest again."""

_MUCH: Final = 0.5
"""As long as no worker is busier, all of them keep their shares."""

_CAUTION: Final = 0.7
"""What is moved of what seems to be too much: it was measured in one short time."""

_LITTLE: Final = 0.1
"""What takes less of one processor is not measured well."""


def dealt(time: int) -> int:
    """The number of what the items of a time are dealt out with: to the worker of that number, modulo how many."""
    return time if time < _SINGLY else time // _BLOCK


class DealingByTime:
    """Parts a run by time, a block at once. Nothing of it can fail."""

    def __init__(self, workers: int) -> None:
        self.workers = workers

    def __call__(self, orders: Orders, trace: int, payloads: Sequence[Any]) -> Sequence[Part]:
        parts: list[tuple[list[bytes], list[Any]]] = [([], []) for _ in range(self.workers)]
        orders = materialise(orders)
        start = 0
        while start < len(orders):
            time = decode_time(orders[start])
            following = time + 1 if time < _SINGLY else (time // _BLOCK + 1) * _BLOCK
            end = bisect_left(orders, encode_time(following), start) if following <= MAX_TIME else len(orders)
            places, values = parts[dealt(time) % self.workers]
            places += orders[start:end]
            values += payloads[start:end]
            start = end
        return parts


class DealingByLoad:
    """Parts a run by the shares of the workers: consecutive items for each."""

    def __init__(self, shares: LoadShares) -> None:
        self.shares = shares

    def __call__(self, orders: Orders, trace: int, payloads: Sequence[Any]) -> Sequence[Part]:
        parts: list[Part] = []
        start = 0
        for end in self.shares.deal(len(orders)):
            parts.append((orders[start:end], payloads[start:end]))
            start = end
        return parts


class LoadShares:
    """What share of the items one worker deals out to each worker. All get the same at first.

    Args:
        workers: How many there are.
        own: The one that deals.
    """

    def __init__(self, workers: int, own: int) -> None:
        self.shares = [1 / workers] * workers
        self._own = own
        self._busy = [0.0] * workers
        self._heard = False
        self._owed = [0.0] * workers  # for each border between two workers, by how much it was rounded down
        self._clock = STOPWATCH.get()
        self._dealt = 0  # items that it has dealt out lately
        self._spent = 0.0  # seconds that its own part of them took

    def deal(self, count: int) -> list[int]:
        """Where among the next `count` items each worker's end. What is rounded off is made up for later."""
        self._dealt += count
        ends = []
        end = 0
        for worker, share in enumerate(accumulate(self.shares)):
            exact = self._owed[worker] + share * count
            end = min(max(int(exact), end), count)
            self._owed[worker] = exact - end
            ends.append(end)
        ends[-1] = count
        return ends

    def timed(self, work: Callable[P, None]) -> Callable[P, None]:
        """The step or run of what it deals out to itself."""
        clock = self._clock

        def timed_work(*args: P.args, **kwargs: P.kwargs) -> None:
            began = clock()
            work(*args, **kwargs)
            self._spent += clock() - began

        return timed_work

    def note(self, word: Busy) -> None:
        """A worker has said how busy it is; the word of the one that deals is what shares are changed at."""
        self._busy[word.worker] = word.worked_s / word.passed_s
        if word.worker == self._own:
            if self._heard and self._dealt and max(self._busy) >= _MUCH:
                self._shift(self._spent / word.passed_s)
            self._heard = True  # the first time not all others have been heard of yet
            self._dealt, self._spent = 0, 0.0

    def _shift(self, own: float) -> None:
        """Deal less to those who are busier than the mean of all, and more to others.

        The worker that deals keeps an even share, at the least. What it has to do itself holds back what it lets in;
        otherwise all of a source could lie with another worker before that has said that it is too much.

        Args:
            own: How many processors the worker's own part of what it has dealt out has kept busy.
        """
        workers = len(self.shares)
        step = _CAUTION / max(own / self.shares[self._own], _LITTLE)  # all of what is dealt out keeps so many busy
        mean = sum(self._busy) / workers
        both = zip(self.shares, self._busy, strict=True)
        shares = [max(share + step * (mean - busy), 0.0) for share, busy in both]
        shares[self._own] = max(shares[self._own], 1 / workers)
        rest = sum(shares) - shares[self._own]
        left = 1 - min(shares[self._own], 1.0)
        self.shares = [share / rest * left if rest else 0.0 for share in shares]
        self.shares[self._own] = 1 - left
