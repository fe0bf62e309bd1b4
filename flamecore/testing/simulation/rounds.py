"""Rounds that end anywhere: functions take no time in a simulation, so their calls are counted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

from flamecore.runtime.operators.rounds import Rounds

_OFTEN = 0.15


class DrawnRounds(Rounds):
    """Rounds of which each call may be the last.

    Args:
        random: Source of the ends.
    """

    __slots__ = ("_random",)

    def __init__(self, random: Random) -> None:
        super().__init__()
        self._random = random

    def iterate(self, values: Sequence[Any]) -> Iterator[Any]:
        left = super().iterate(values)
        return left if self.is_over else self._cut(left)

    def _cut(self, left: Iterator[Any]) -> Iterator[Any]:
        for value in left:
            # Before the value is handed out: whoever asks for the next one has found the round not over until then.
            last = self._random.random() < _OFTEN
            yield value
            if last:
                self.end()
                return


def drawn_rounds(seed: object) -> type[Rounds] | Any:
    """Return what makes the rounds of a worker: for half of the seeds, rounds that end anywhere."""
    random = Random(f"rounds {seed}")
    if random.random() < 0.5:
        return Rounds
    return lambda: DrawnRounds(Random(random.getrandbits(64)))
