"""Each transport, acker, store and event loop once, in a whole job whose worker is killed: in every tier.

Settings that do not touch each other need no product: each case has another value of each.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from flamecore.testing.progress import Patience

APP = """
import time
from pathlib import Path

import flamecore as fc


def pace(line):
    if not Path("killed").exists():
        time.sleep(0.02)  # until a worker is killed
    return line


flow = fc.Flow("smoke")
lines = flow.source("lines", str).map(pace).rebalance()
lines.flat_map(str.split).key_by(lambda word: word).count().sink("counts")
"""

LINES = [" ".join("abcdefgh"[number * step % 8] for step in (1, 3, 5)) for number in range(300)]

CASES = [
    pytest.param("socket", "centralized", "sqlite", "asyncio", id="socket"),
    pytest.param("grpc", "local", "directory", "uvloop", id="grpc", marks=pytest.mark.grpc),
    pytest.param("nats", "sharded", "nats", "uvloop", id="nats", marks=pytest.mark.nats),
]


@pytest.mark.smoke
@pytest.mark.parametrize(("transport", "acker", "store", "loop"), CASES)
def test_a_job_whose_worker_is_killed_gives_all_outputs_once(
    tmp_path: Path, transport: str, acker: str, store: str, loop: str
) -> None:
    if loop == "uvloop" and find_spec("uvloop") is None:
        pytest.skip("uvloop is not installed")
    (tmp_path / "app.py").write_text(APP)
    (tmp_path / "lines.txt").write_text("\n".join(LINES) + "\n")
    settings: dict[str, Any] = {
        "source.lines.path": "lines.txt",
        "sink.counts.path": "out.jsonl",
        "transport.use": transport,
        "acker.use": acker,
        "state.use": store,
        "state.interval_s": 0.1,
    }
    if store != "nats":
        settings["state.path"] = "state"
    if "nats" not in (transport, store):
        outputs(tmp_path, settings, loop)
        return
    from flamestream_nats.testing import NatsServer

    with NatsServer(jetstream=True) as server:
        servers = json.dumps([server.url])
        outputs(tmp_path, {**settings, "transport.nats.servers": servers, "state.servers": servers}, loop)


def outputs(folder: Path, settings: dict[str, Any], loop: str) -> None:
    """Run the job, kill a worker as soon as there are outputs, and compare these in the end."""
    options = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    edges = ["--source", "lines=lines", "--sink", "counts=jsonl", "-w", "2", "--on", "processes"]
    command = [sys.executable, "-m", "flamecore", "run", "app.py", *edges, *options]
    environ = {**os.environ, "FLAMESTREAM_EVENT_LOOP": loop if loop == "asyncio" else ""}
    out, log = folder / "out.jsonl", folder / "log"
    with log.open("wb") as said, subprocess.Popen(command, cwd=folder, env=environ, stderr=said) as job:
        limit = Patience(30)
        while not out.exists() or out.stat().st_size < 1000:
            assert job.poll() is None, log.read_text()
            assert not limit.passed(), log.read_text()
            time.sleep(0.02)
        listed = subprocess.run(["pgrep", "-P", str(job.pid)], capture_output=True, text=True, check=True).stdout
        os.kill(int(listed.split()[-1]), signal.SIGKILL)
        (folder / "killed").touch()
        assert job.wait() == 0, log.read_text()
    assert "job.faulted" in log.read_text() or "killed" in log.read_text()
    counts: dict[str, int] = {}
    wanted = []
    for word in " ".join(LINES).split():
        counts[word] = counts.get(word, 0) + 1
        wanted.append([word, counts[word]])
    assert [json.loads(line) for line in out.read_text().splitlines()] == wanted
