"""Processes of a job that keeps state are killed for real, at random moments: the output is that of a quiet run.

The jobs read several files, and are those of the soak, each part alone and in short; `python tests/soak` plays long
ones. FLAMESTREAM_SEED plays a job again, FLAMESTREAM_KILLS has more processes killed.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from rounds import Round, play

if TYPE_CHECKING:
    from flamestream_nats.testing import NatsServer

pytestmark = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds the processes of a job in /proc")


@pytest.fixture(params=[pytest.param("grpc", marks=pytest.mark.grpc), pytest.param("nats", marks=pytest.mark.nats)])
def transport(request: pytest.FixtureRequest) -> Iterator[tuple[str, NatsServer | None]]:
    if request.param == "grpc":
        yield "grpc", None
        return
    from flamestream_nats.testing import NatsServer

    with NatsServer(jetstream=True) as server:
        yield "nats", server


@pytest.mark.parametrize(
    ("part", "clock"),
    [
        ("counts", "sequence"),
        ("counts", "wall"),
        ("index", "wall"),
        ("row", "sequence"),
        ("cycle", "wall"),
    ],
)
def test_kills_lose_no_output_and_repeat_none(
    tmp_path: Path, transport: tuple[str, NatsServer | None], part: str, clock: str
) -> None:
    seed = int(os.environ.get("FLAMESTREAM_SEED", random.randrange(2**32)))
    kills = int(os.environ.get("FLAMESTREAM_KILLS", 2))
    print(f"FLAMESTREAM_SEED={seed}")
    name, server = transport
    for turn in range(3):  # on a busy machine a job may end before the first kill: then a longer one is played
        round_ = Round.draw(seed + turn, name, kills, size=300 * kills << turn).short(part)._replace(clock=clock)
        print(round_)
        folder = tmp_path / f"{turn}"
        folder.mkdir()
        result = play(round_, folder, server)
        print(result)
        if result.killed:
            break
    assert result.killed > 0
