"""Rebalances, which deal out items among all workers.

See paper 004, section 2.3, "balancing". If an item may be retracted, or come again, its worker must follow from its
order alone: its tombstone has to go the same way. Such items are dealt out evenly by time.

Items straight from the fronts come once. For them every worker has a *share*, which follows its load: a worker that
also owns key groups, or runs on a slower machine, gets less, down to nothing. Only the dealing worker, which hosts the
front, keeps at least an even share. Outputs do not depend on shares.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from itertools import accumulate
from sys import maxsize
from typing import Any, Final, ParamSpec

from flamecore.model.batch import Orders, materialise
from flamecore.model.clock import STOPWATCH
from flamecore.model.messages import Busy
from flamecore.model.meta import MAX_TIME, decode_time, encode_time

P = ParamSpec("P")

Part = tuple[Orders, Sequence[Any]]
"""(orders, payloads): the part of a run for one worker."""

_SINGLY: Final = 1024
_BLOCK: Final = 8
"""The first times are dealt out one by one, so that a few costly records keep all workers busy, and later ones in
blocks: the outputs of a block stay one run where they meet the others again."""

_MUCH: Final = 0.5
"""Load below which shares do not change, if no worker is above it."""

_CAUTION: Final = 0.7
"""Fraction of the measured imbalance that is moved, because one measurement is short."""

_LITTLE: Final = 0.1
"""Smallest measurable load, in processors."""


def dealt(time: int) -> int:
    """Return the number of the block of a time; its worker is that modulo workers."""
    return time if time < _SINGLY else time // _BLOCK


class DealingByTime:
    """A partition of runs by time, one block at a time; it cannot fail, and comes to all items in any round."""

    done = maxsize

    def __init__(self, workers: int) -> None:
        self.workers = workers

    def __call__(self, orders: Orders, trace: int, payloads: Sequence[object]) -> Sequence[Part]:
        parts: list[tuple[list[bytes], list[object]]] = [([], []) for _ in range(self.workers)]
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
    """A partition of runs by the shares of the workers: consecutive items for each, and all in any round."""

    done = maxsize

    def __init__(self, shares: LoadShares) -> None:
        self.shares = shares

    def __call__(self, orders: Orders, trace: int, payloads: Sequence[object]) -> Sequence[Part]:
        parts: list[Part] = []
        start = 0
        for end in self.shares.deal(len(orders)):
            parts.append((orders[start:end], payloads[start:end]))
            start = end
        return parts


class LoadShares:
    """The share of each worker in the items that one worker deals out; even at first.

    Args:
        workers: Number of workers.
        own: Number of the dealing worker.
    """

    def __init__(self, workers: int, own: int) -> None:
        self.shares = [1 / workers] * workers
        self._own = own
        self._busy = [0.0] * workers
        self._heard = False
        self._owed = [0.0] * workers  # for each border between two workers, the sum rounded down
        self._clock = STOPWATCH.get()
        self._dealt = 0  # items dealt out since its last report
        self._spent = 0.0  # seconds of processing its own part of them

    def deal(self, count: int) -> list[int]:
        """Return the end of each worker's items among the next `count`.

        # Borders, not shares, are rounded: each worker gets what lies between two of them, so the
        # parts always add up to the count.
        Later calls make up for rounding.
        """
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
        """Return a step or run that measures the dealing worker's own part."""
        clock = self._clock

        def timed_work(*args: P.args, **kwargs: P.kwargs) -> None:
            began = clock()
            work(*args, **kwargs)
            self._spent += clock() - began

        return timed_work

    def note(self, word: Busy) -> None:
        """Record a worker's load; at the dealing worker's report, shift the shares."""
        self._busy[word.worker] = word.worked_s / word.passed_s
        if word.worker == self._own:
            if self._heard and self._dealt and max(self._busy) >= _MUCH:
                self._shift(self._spent / word.passed_s)
            self._heard = True  # at the first report, those of other workers may be missing
            self._dealt, self._spent = 0, 0.0

    def _shift(self, own: float) -> None:
        """Lower the shares of workers busier than the mean, and raise the others.

        The dealing worker keeps at least an even share. Its own work limits the items that it lets in; otherwise all
        items of a source could be at another worker before that one reports its load.

        Args:
            own: Load of the dealing worker's own part of the items, in processors.
        """
        workers = len(self.shares)
        step = _CAUTION / max(own / self.shares[self._own], _LITTLE)  # divided by the load of all dealt items
        mean = sum(self._busy) / workers
        both = zip(self.shares, self._busy, strict=True)
        shares = [max(share + step * (mean - busy), 0.0) for share, busy in both]
        shares[self._own] = max(shares[self._own], 1 / workers)
        rest = sum(shares) - shares[self._own]
        left = 1 - min(shares[self._own], 1.0)
        self.shares = [share / rest * left if rest else 0.0 for share in shares]
        self.shares[self._own] = 1 - left
