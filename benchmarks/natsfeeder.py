"""Feeder like `benchmarks.feeder`, by messages.

Run it as `python -m benchmarks.natsfeeder RATE COUNT STAMPS SERVER SUBJECT`.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Final

import nats

from benchmarks.corpora import zipf_lines

_SPIN_S: Final = 0.0005
"""The last of the waiting only lets others run."""


async def feed(rate: int, count: int, stamps: Path, server: str, subject: str) -> None:
    """Publish `count` lines, `rate` a second; every line starts with its number."""
    lines = [f"{number} {line}".encode() for number, line in enumerate(zipf_lines(count * 10))]
    client = await nats.connect(server)
    handed: list[int] = []
    sys.stdin.readline()
    start = time.monotonic()
    for number, line in enumerate(lines):
        due = start + number / rate
        while (wait := due - time.monotonic()) > 0:
            await asyncio.sleep(wait - _SPIN_S if wait > _SPIN_S else 0)
        handed.append(time.monotonic_ns())
        await client.publish(subject, line)
        await asyncio.sleep(0)  # the client writes in a task of its own
    await client.drain()
    stamps.write_text(json.dumps(handed))


if __name__ == "__main__":
    _, rate_text, count_text, path, server_url, name = sys.argv
    asyncio.run(feed(int(rate_text), int(count_text), Path(path), server_url, name))
