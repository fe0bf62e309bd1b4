"""Word count: every update of every count; lines are dealt out by blocks, and counts of blocks exchanged."""

from __future__ import annotations

import flamecore as fc

flow = fc.Flow("words")
flow.source("lines", str).rebalance().flat_map(str.split).key_by(lambda word: word).count(scan=True).sink("counts")
