"""A running job is given other numbers of workers: the output is that of a quiet run."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from ephemeral_port_reserve import reserve

from flamecore.abc.transport import TransportContext
from flamecore.errors import JobError
from flamecore.model.messages import CONTROL, Rescale
from flamecore.runtime.cluster.client import Client
from flamecore.runtime.codec.codec import Codec
from flamecore.testing.progress import Patience, patiently

pytestmark = pytest.mark.grpc

APP = """
    import atexit
    import sys
    import time
    from pathlib import Path

    import flamecore as fc


    def split(line: str) -> list[str]:
        time.sleep(0.001 if Path("hurry").exists() else 0.02)
        return line.split()


    def stay() -> None:
        while Path("stay").exists():
            time.sleep(0.01)


    if sys.argv[0].endswith("process.py"):
        atexit.register(stay)

    flow = fc.Flow("words")
    flow.source("lines", str).rebalance().flat_map(split).key_by(lambda word: word).count().sink("counts")
"""

LINES = 6000


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "flamecore", *arguments]


def ask(port: int, *arguments: str) -> subprocess.CompletedProcess[str]:
    line = command(arguments[0], f"grpc://127.0.0.1:{port}", "--job", "words", *arguments[1:], "--json")
    return subprocess.run(line, env=environment(), capture_output=True, text=True, check=False)


def environment() -> dict[str, str]:
    return {**os.environ, "FLAMESTREAM_TOKEN": "a secret of this test"}


def start(folder: Path, port: int, state: bool, *more: str) -> subprocess.Popen[str]:
    (folder / "app.py").write_text(dedent(APP))
    lines = [f"w{number % 211} w{number % 7} w{number % 13}" for number in range(LINES)]
    (folder / "lines.txt").write_text("\n".join(lines) + "\n")
    settings = [
        "transport.use=grpc",
        f"transport.grpc.listen=127.0.0.1:{port}",
        "source.lines.path=lines.txt",
        "sink.counts.path=out.jsonl",
        "job.max_in_flight=64",  # so that a snapshot need not wait for long
        "job.owners=4",  # the state is divided, and moves; by default one worker has all counts
        *more,
    ]
    settings += ["state.use=sqlite", "state.path=state"] if state else []
    options = [part for setting in settings for part in ("--set", setting)]
    line = command("run", "app.py", "-q", "-w", "2", "--source", "lines=lines", "--sink", "counts=jsonl", *options)
    return subprocess.Popen(line, cwd=folder, env=environment(), stderr=subprocess.PIPE, text=True)


def wait_until_it_runs(port: int) -> None:
    limit = Patience(20)
    while not limit.passed():
        asked = ask(port, "status")
        if asked.returncode == 0 and json.loads(asked.stdout)["items_in"] > 0:
            return
    raise AssertionError(f"the job does not begin: {asked.stderr}")


def test_key_groups_move_while_the_job_runs(tmp_path: Path) -> None:
    port = reserve()
    job = start(tmp_path, port, state=True)
    try:
        wait_until_it_runs(port)
        for workers in (4, 1, 3):
            asked = ask(port, "rescale", "-w", str(workers))
            assert asked.returncode == 0, asked.stderr
            facts = json.loads(asked.stdout)
            assert facts["workers"] == workers
            print(f"{workers} workers after a pause of {facts['pause_ms']} ms")
        asked = ask(port, "status")
        assert asked.returncode == 0, asked.stderr
        status = json.loads(asked.stdout)
        hosting = [node for node in status["nodes"].values() if node["parts"]]
        assert len(hosting) == 3
        (tmp_path / "hurry").touch()  # until here it must not end, however slow the commands are
        _, said = job.communicate()
    finally:
        job.kill()
        job.wait()
    assert job.returncode == 0, said
    counts: Counter[str] = Counter()
    expected = []
    for word in (word for line in (tmp_path / "lines.txt").read_text().splitlines() for word in line.split()):
        counts[word] += 1
        expected.append([word, counts[word]])
    assert [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()] == expected


def test_a_job_without_state_refuses_to_rescale(tmp_path: Path) -> None:
    port = reserve()
    job = start(tmp_path, port, state=False)
    try:
        wait_until_it_runs(port)
        asked = ask(port, "rescale", "-w", "4")
        assert asked.returncode != 0
        assert "keeps no state" in asked.stderr
        assert ask(port, "status").returncode == 0
    finally:
        job.terminate()
        job.communicate()


def test_a_request_to_an_ending_job_is_answered(tmp_path: Path) -> None:
    port = reserve()
    (tmp_path / "hurry").touch()
    (tmp_path / "stay").touch()
    job = start(tmp_path, port, True, "deploy.stop_timeout_s=60")
    try:
        wait_until_it_runs(port)
        while (asked := ask(port, "status")).returncode == 0:
            time.sleep(0.05)
        assert "the job has come to its end" in asked.stderr
        asked = ask(port, "rescale", "-w", "3")
        assert "the job has come to its end" in asked.stderr
        (tmp_path / "stay").unlink()
        _, said = job.communicate()
    finally:
        job.kill()
        job.wait()
    assert job.returncode == 0, said


def test_a_client_hears_that_the_supervisor_left_without_an_answer(tmp_path: Path) -> None:
    from flamestream_grpc import GrpcTransport

    facts: dict[str, Any] = {"job": "j", "incarnation": 1, "token": "t" * 32, "folder": str(tmp_path)}

    async def run() -> None:
        supervisor = GrpcTransport(None, TransportContext(codec=Codec(), node="supervisor", **facts))
        control = await supervisor.start()
        heard = await supervisor.bind(CONTROL)
        client = Client(
            {
                **facts,
                "job_name": "words",
                "transport": "grpc",
                "options": {},
                "node": "c",
                "role": "operator",
                "control": control,
            }
        )
        asking = asyncio.create_task(client.ask(Rescale(2), 60))
        while not isinstance((await heard.receive()).message, Rescale):
            pass
        await supervisor.aclose()
        with pytest.raises(JobError, match="job 'words' is not there"):
            await patiently(asking, 30)

    asyncio.run(run())


def test_a_worker_of_another_version_is_turned_away(tmp_path: Path) -> None:
    port = reserve()
    job = start(tmp_path, port, state=False)
    try:
        wait_until_it_runs(port)
        program = (
            "import sys; from flamecore import _version; _version.__version__ = '0.0.1'; "
            "from flamecore.cli import main; sys.exit(main())"
        )
        joining = ["worker", "--join", f"grpc://127.0.0.1:{port}", "--job", "words", "--name", "old"]
        line = [sys.executable, "-c", program, *joining]
        old = subprocess.run(line, env=environment(), capture_output=True, text=True, check=False)
        assert old.returncode != 0
        assert "old runs flamestream 0.0.1, and the supervisor" in old.stderr
        asked = ask(port, "status")
        assert asked.returncode == 0, "the job goes on"
        assert "old" not in json.loads(asked.stdout)["nodes"]
    finally:
        job.terminate()
        _, said = job.communicate()
    assert "node.refused" in said
