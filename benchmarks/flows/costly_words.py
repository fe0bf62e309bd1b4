"""Word count with a function of the user's in front that is costly per line.

The duration is given in turns of an empty loop, by the environment variable TURNS: work of the processor, which does
not become less where the process has to wait for one.
"""

from __future__ import annotations

import os

import flamecore as fc

TURNS = int(os.environ.get("TURNS", "0"))


def ponder(line: str) -> str:
    """Return the line, after a while."""
    for _ in range(TURNS):
        pass
    return line


flow = fc.Flow("costly-words")
lines = flow.source("lines", str).rebalance().map(ponder)
lines.flat_map(str.split).key_by(lambda word: word).count().sink("counts")
