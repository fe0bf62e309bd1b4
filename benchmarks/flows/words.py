"""Word count: every update of every count."""

from __future__ import annotations

import flamecore as fc

flow = fc.Flow("words")
flow.source("lines", str).flat_map(str.split).key_by(lambda word: word).count().sink("counts")
