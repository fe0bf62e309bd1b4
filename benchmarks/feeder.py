"""Writer of lines to stdout at a fixed rate, whatever the reader does.

Run it as `python -m benchmarks.feeder RATE COUNT STAMPS [TEXTS]`; TEXTS is `lines`, of ten words each, or `pages`.

It waits for a line on stdin, then line number i is due at start + i / RATE. It never waits for the reader: where the
reader stalls, lines pile up in the pipe, and their waiting counts. When each line was handed over is written to the
file STAMPS: nanoseconds of the system's monotonic clock, as JSON.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Final

from benchmarks.corpora import synthetic_pages, zipf_lines

_SPIN_S: Final = 0.0003
"""A sleep is that much too long now and then, so the last of the waiting is done awake."""


def texts_of(kind: str, count: int) -> list[str]:
    """Return `count` texts of one line each, which are lines of ten words or pages of 20 to 100."""
    return list(zipf_lines(count * 10)) if kind == "lines" else [page.text for page in synthetic_pages(count)]


def feed(rate: int, count: int, stamps: Path, kind: str = "lines") -> None:
    """Write `count` texts, `rate` a second, a line each; every line starts with its number."""
    lines = [f"{number} {text}\n".encode() for number, text in enumerate(texts_of(kind, count))]
    handed: list[int] = []
    sys.stdin.readline()
    start = time.monotonic()
    for number, line in enumerate(lines):
        due = start + number / rate
        while (wait := due - time.monotonic()) > 0:
            if wait > _SPIN_S:
                time.sleep(wait - _SPIN_S)
        handed.append(time.monotonic_ns())
        os.write(1, line)
    stamps.write_text(json.dumps(handed))


if __name__ == "__main__":
    _, rate_text, count_text, path, *kinds = sys.argv
    feed(int(rate_text), int(count_text), Path(path), *kinds)
