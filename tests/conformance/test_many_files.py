"""Any number of files on any number of workers: the outputs of one file, with the calls it needs, in bounded room."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

import flamecore as fc
from flamecore.model.clock import WALL_CLOCK
from flamecore.runtime.config.layers import from_program
from flamecore.runtime.config.read import make_config
from flamecore.runtime.engine.job import Job
from flamecore.runtime.launch import make_job
from flamecore.testing.simulation.virtual import run_virtually

pytestmark = pytest.mark.usefixtures("installed")

WORDS_A_LINE = 4
IN_FLIGHT = 256

WORDS = Random(5).choices([f"{first}{second}" for first in "abcdefg" for second in "xyz"], k=8000)
LINES = [" ".join(WORDS[start : start + WORDS_A_LINE]) for start in range(0, len(WORDS), WORDS_A_LINE)]


def counts() -> list[tuple[str, int]]:
    """Return what a plain loop makes of one file."""
    found: Counter[str] = Counter()
    updates = []
    for word in WORDS:
        found[word] += 1
        updates.append((word, found[word]))
    return updates


@pytest.fixture(autouse=True)
def made_up_clock() -> Iterator[None]:
    token = WALL_CLOCK.set(lambda: 1_000_000 + round(asyncio.get_running_loop().time() * 1_000_000))
    yield
    WALL_CLOCK.reset(token)


@pytest.mark.parametrize("workers", [1, 2, 3, 4])
@pytest.mark.parametrize("files", [1, 2, 8, 200])
@pytest.mark.parametrize("clock", ["sequence", "wall"])
def test_the_outputs_do_not_tell_how_many_files_there_were(
    tmp_path: Path, files: int, workers: int, clock: str
) -> None:
    """Lines are dealt out to the files in turn, so that on the sequence clock they come in the order of one file."""
    for file in range(files):
        (tmp_path / f"{file:03}.txt").write_text("\n".join(LINES[file::files]) + "\n", "utf-8")
    calls = 0

    def add(count: int, _: str) -> int:
        nonlocal calls
        calls += 1
        return count + 1

    flow = fc.Flow("words")
    flow.source("lines", str).flat_map(str.split).key_by(lambda word: word).fold(0, add).sink("counts")
    settings = {"job.workers": workers, "job.clock": clock, "job.max_in_flight": IN_FLIGHT, "source.lines.use": "lines"}
    out: list[Any] = []
    layer = from_program({**settings, "source.lines.path": str(tmp_path / "*.txt")})
    job = make_job(make_config(layer, environ={}), flow, given={"counts": out})
    assert isinstance(job, Job)
    looks = []

    async def watch() -> None:
        while True:
            looks.append(job.stats())
            await asyncio.sleep(0)

    async def main() -> None:
        watching = asyncio.create_task(watch())
        await job.run()
        watching.cancel()

    run_virtually(main())
    if clock == "sequence":
        assert out == counts()
    else:
        assert Counter(out) == Counter(counts())
    assert 0 <= calls - len(WORDS) <= (len(WORDS) // 10 + 32 * workers if workers > 1 else 0)
    assert 0 < max(look.in_flight for look in looks) <= IN_FLIGHT
    assert max(sum(look.waiting.values()) for look in looks) <= WORDS_A_LINE * IN_FLIGHT
