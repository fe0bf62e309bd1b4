"""Word count: every update of every count, with counts of blocks exchanged in place of words."""

from __future__ import annotations

import flamecore as fc

flow = fc.Flow("words")
flow.source("lines", str).flat_map(str.split).key_by(lambda word: word).count(scan=True).sink("counts")
