"""The next times that a worker promises for its fronts.

No minimum time passes the promise of a front. So it is held back until the given times before it are stored, where
they are stored at all, and until the records before it have run.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from flamecore.abc.acker import Reporter
from flamecore.runtime.parts.front_merge import FrontMerge
from flamecore.runtime.state.journal import GivenTimes

NO_MORE: Final = (1 << 64) - 1
"""Promise of a front that has ended, above all times. It fits into a message."""


class Promises:
    """The promises of the fronts of one worker.

    Args:
        reporter: The worker's side of the acker.
        merge_of: The merge of each front whose records wait for those of others.

    Attributes:
        given_times: Given times that are not stored yet.
        made: For each front that has promised anything, the last time that was reported; `NO_MORE` once it has ended.
    """

    def __init__(self, reporter: Reporter, merge_of: Mapping[int, FrontMerge]) -> None:
        self.given_times: list[GivenTimes] = []
        self.made: dict[int, int] = {}
        self._reporter = reporter
        self._merge_of = merge_of
        self._merges = tuple(dict.fromkeys(merge_of.values()))
        self._held: dict[int, int] = {}  # promises of merged fronts that are not reported
        self._changed: dict[int, None] = {}  # fronts of new ones among these
        self._unstored: dict[int, int] = {}  # for each front with given times, the time after the last
        # Of fronts that end once their times are stored and their records have run: the last promise, or None.
        self._closing: dict[int, int | None] = {}

    def take_given_times(self) -> list[GivenTimes]:
        """Take out the given times that are not stored yet."""
        given, self.given_times = self.given_times, []
        return given

    def is_unstored(self, number: int) -> bool:
        """Return whether some times of a front are not stored yet."""
        return number in self._unstored

    def give(self, given: GivenTimes, then: int) -> None:
        """Note given times of a front; `then` is promised once they are stored."""
        self.given_times.append(given)
        self._unstored[given.front] = then

    def confirm(self, number: int, end: int) -> None:
        """Promise the time after the oldest given ones of a front, which are now stored."""
        self.make(number, end)
        if self._unstored[number] == end:
            del self._unstored[number]
            if number in self._closing:
                self.end(number, self._closing[number])

    def make(self, number: int, time: int) -> None:
        """Promise the next time of a front.

        It does so at once, or with `tell` if its records wait for others.
        """
        if number in self._merge_of:
            self._held[number] = time
            self._changed[number] = None
        else:
            self._report(number, time)

    def _report(self, number: int, time: int) -> None:
        self.made[number] = time
        self._reporter.heartbeat(number, time)

    # Not with each batch: it waits with those of all other fronts, and its promise would be that of its first record,
    # which has been made already, and once more when it runs.
    def tell(self) -> None:
        """Report the promises of merged fronts that have changed.

        The promise of a front is its first waiting record, until that runs.
        """
        if not self._merges and not self._changed:
            return
        changed, self._changed = self._changed, {}
        for merge in self._merges:
            changed |= dict.fromkeys(merge.moved())
        for number in changed:
            if (time := self._held.get(number)) is None:
                continue
            # A front is held back for its own records alone: another may have promised more already, and a promise
            # cannot go back.
            first = self._merge_of[number].first_time(number)
            if first is not None and first < time:
                self._report(number, first)
                continue
            del self._held[number]
            self._report(number, time)
            if number in self._closing:
                self.end(number, self._closing[number])

    def end(self, number: int, last: int | None) -> None:
        """Report the end of a front, unless some of its times or records are pending.

        Times are pending until they are stored, records until they run.

        Args:
            number: Number of the front.
            last: The time to promise before; None: no item has a time of its own after the records.
        """
        if number in self._unstored or number in self._held:
            self._closing[number] = last
            return
        self._closing.pop(number, None)
        if last is not None:
            self._reporter.heartbeat(number, last)
        self.made[number] = NO_MORE
        self._reporter.unregister(number)
