"""The seeds and cases of a run of tests: their number by its tier, their choice by its draw.

`FLAMESTREAM_TIER` says how many: `quick` a few, `more` a part, `whole` all of them and every deployment of a transport.
Those that fetch jars by Maven run in neither `quick` nor `more`. If it is not set, all seeds and cases are run, and of
the deployments the fewest that have each pair of settings.
`FLAMESTREAM_DRAW=<n>` says which: runs of the same number have the same ones, and over many numbers all have a turn.

Run as a program, prints the draw of the checkout in the working directory. It needs nothing but Python.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from math import ceil
from pathlib import Path
from random import Random, getrandbits
from typing import Final, NamedTuple, TypeVar

TIER: Final = "FLAMESTREAM_TIER"
DRAW: Final = "FLAMESTREAM_DRAW"

_DRAWS: Final = 2**20
"""Number of draws that have seeds of their own."""

T = TypeVar("T")


class Tier(NamedTuple):
    """The size of a run.

    Attributes:
        seeds: Part of the seeds that a simulation is played with.
        cases: Part of the parameters that a test is run with.
        jobs: Part of the tests that start processes of their own; the cases are a part of those of each.
        jvm: Part of the tests that start a JVM.
        fetches: Whether tests are run whose jars or servers Maven fetches.
        all_deployments: Whether to run every combination of settings, in place of every pair.
    """

    seeds: float = 1.0
    cases: float = 1.0
    jobs: float = 1.0
    jvm: float = 1.0
    fetches: bool = True
    all_deployments: bool = False


TIERS: Final = {
    "": Tier(),
    "quick": Tier(seeds=0.2, cases=0.1, jobs=0.125, jvm=0.0, fetches=False),
    "more": Tier(seeds=0.4, cases=0.2, jobs=0.3, jvm=0.1, fetches=False),
    "whole": Tier(all_deployments=True),
}
"""By name; the empty one is that of a run without a tier."""


def tier() -> Tier:
    """Return the tier of this run.

    Raises:
        ValueError: There is none of that name.
    """
    name = os.environ.get(TIER, "")
    if name not in TIERS:
        raise ValueError(f"{TIER} is {name!r}; there are {', '.join(filter(None, TIERS))}")
    return TIERS[name]


def draw() -> int:
    """Return the number of this run's draw; 0 if none is set.

    Raises:
        ValueError: It is no integer.
    """
    return int(os.environ.get(DRAW) or 0)


def drawn(checkout: Path) -> int:
    """Return the draw of a checkout: its commit, or a random number while there are changes, or without git.

    Args:
        checkout: Its folder.
    """

    def git(*command: str) -> str:
        done = subprocess.run(["git", *command], cwd=checkout, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    try:
        if not git("status", "--porcelain"):
            return int(git("rev-parse", "HEAD")[:8], 16)
    except (OSError, subprocess.CalledProcessError):
        pass
    return getrandbits(32)


def seeds(count: int, part: int = 0, *, least: int = 1) -> range:
    """Return the seeds of a simulation.

    Args:
        count: Their number in a run of all of them.
        part: Number of a test among several that share the work, from 0: each has other seeds.
        least: Number below which the tier does not bring it.
    """
    count = max(least, int(count * tier().seeds))
    # Parts have to be far apart: the count may differ from part to part, the draw does not.
    first = draw() % _DRAWS * count + part * count * _DRAWS
    return range(first, first + count)


def chosen(cases: Sequence[T], test: str, part: float) -> list[T]:
    """Return those of some cases that are run, in an order of their own: draws that follow each other take turns.

    Args:
        cases: All of them.
        test: Name of the test: tests with the same parameters run different ones.
        part: The part of the cases that is run, rounded up.
    """
    # Shuffled, since each n-th of a product of parameters may be all cases of one value, and none of another.
    shuffled = Random(test).sample(cases, len(cases))
    count = ceil(len(cases) * part)
    return [shuffled[(draw() * count + number) % len(cases)] for number in range(count)]


if __name__ == "__main__":
    print(os.environ.get(DRAW) or drawn(Path()))
