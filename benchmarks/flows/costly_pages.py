"""Word count with a function of the user's that is costly for every page.

There is no key before the function.

The duration is given in turns of an empty loop, by the environment variable TURNS, as in
`benchmarks.flows.costly_words`.
"""

from __future__ import annotations

import os

import flamecore as fc

TURNS = int(os.environ.get("TURNS", "0"))


def words_of(page: str) -> list[str]:
    """Return the words of a page, after a while."""
    for _ in range(TURNS):
        pass
    return page.split()


def itself(word: str) -> str:
    """Return the key of a word."""
    return word


flow = fc.Flow("costly-pages")
flow.source("pages", str).flat_map(words_of).key_by(itself).count().sink("counts")
