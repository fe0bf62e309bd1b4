"""Word count with a function of the user's that is costly for every output.

There is no key behind the function, which takes TURNS turns of an empty loop, as in `benchmarks.flows.costly_words`.
"""

from __future__ import annotations

import os

import flamecore as fc

TURNS = int(os.environ.get("TURNS", "0"))


def itself(word: str) -> str:
    """Return the key of a word."""
    return word


def slowly(pair: tuple[str, int]) -> tuple[str, int]:
    """Return an output, after a while."""
    for _ in range(TURNS):
        pass
    return pair


flow = fc.Flow("costly-outputs")
flow.source("words", str).key_by(itself).count().map(slowly).sink("counts")
