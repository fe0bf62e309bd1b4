"""Jobs that are in a registry, with real processes: who joins finds them there, and no two supervisors run one."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent
from typing import TYPE_CHECKING, Any

import pytest
from ephemeral_port_reserve import reserve

from flamecore.abc.registry import RegistryContext
from flamecore.runtime.cluster.job_record import JobRecord, key_of, read
from flamecore.testing.progress import Patience

if TYPE_CHECKING:
    from flamestream_nats.testing import NatsServer

pytestmark = pytest.mark.nats

TOKEN = "not a secret"
APP = """
    import time

    import flamecore as fc


    def slowly(line: str) -> str:
        time.sleep(0.01)
        return line


    flow = fc.Flow("slow")
    flow.source("lines", str).rebalance().map(slowly).key_by(len).count().sink("counts")
"""


@pytest.fixture(scope="module")
def server() -> Iterator[NatsServer]:
    from flamestream_nats.testing import NatsServer

    with NatsServer(jetstream=True) as made:
        yield made


@pytest.fixture(params=[pytest.param("grpc", marks=pytest.mark.grpc), "nats"])
def transport(request: pytest.FixtureRequest) -> str:
    """Return the transport of the job; the registry is always on the server."""
    return str(request.param)


class Shell:
    """Starts commands in a folder, and ends those that are left."""

    def __init__(self, folder: Path, server: NatsServer) -> None:
        self.folder = folder
        self.server = server
        self.started: list[subprocess.Popen[str]] = []
        (folder / "app.py").write_text(dedent(APP))
        for name, count in (("long", 20_000), ("short", 20)):
            (folder / name).write_text("".join(f"line {number}\n" for number in range(count)))

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "flamecore", *arguments],
            env={**os.environ, "FLAMESTREAM_TOKEN": TOKEN},
            cwd=self.folder,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.started.append(process)
        return process

    def job(self, transport: str, lines: str, out: str, **settings: Any) -> subprocess.Popen[str]:
        """Start a supervisor."""
        chosen = {
            "source.lines.path": lines,
            "sink.counts.path": out,
            "transport.use": transport,
            "transport.nats.servers": f'["{self.server.url}"]',
            "registry.use": "nats",
            **{name.replace("__", "."): value for name, value in settings.items()},
        }
        options = [part for key, value in chosen.items() for part in ("--set", f"{key}={value}")]
        edges = ["--source", "lines=lines", "--sink", "counts=jsonl"]
        return self.start("run", "app.py", *edges, *options, "-w", "2", "-q")

    def output(self, out: str) -> list[str]:
        path = self.folder / out
        return path.read_text().splitlines() if path.exists() else []

    def end(self) -> None:
        for process in self.started:
            with process:  # closes its pipes, and waits
                process.kill()

    def record(self) -> JobRecord | None:
        """Return the job's record in the registry."""
        from flamestream_nats.options import RegistryOptions
        from flamestream_nats.registry import NatsRegistry

        async def look() -> JobRecord | None:
            registry = NatsRegistry(RegistryOptions(servers=(self.server.url,)), RegistryContext())
            await registry.open()
            try:
                entry = await registry.get(key_of("slow"))
            finally:
                await registry.aclose()
            return None if entry is None else read(entry.value, "slow", TOKEN)

        return asyncio.run(look())


@pytest.fixture
def shell(tmp_path: Path, server: NatsServer) -> Iterator[Shell]:
    made = Shell(tmp_path, server)
    yield made
    made.end()


def wait_for(condition: Callable[[], object], process: subprocess.Popen[str], limit_s: float = 30) -> None:
    """Wait until something is so, as long as a process runs."""
    limit = Patience(limit_s)
    while not condition():
        assert process.poll() is None, process.communicate()[1]
        assert not limit.passed(), "it has not happened in time"
        time.sleep(0.05)


def test_a_joining_worker_finds_the_job_by_its_name(shell: Shell, transport: str) -> None:
    before = shell.record()
    listen = {"transport__grpc__listen": f"127.0.0.1:{reserve()}"} if transport == "grpc" else {}
    job = shell.job(transport, "long", "out.jsonl", deploy__start="join", **listen)
    incarnation = (before.incarnation if before else 0) + 1
    wait_for(lambda: (record := shell.record()) and record.incarnation == incarnation and record.control, job)
    names = ("w1", "w2")
    workers = [shell.start("worker", "--join", shell.server.url, "--job", "slow", "--name", name) for name in names]
    wait_for(lambda: shell.output("out.jsonl"), job)
    looked = shell.start("status", shell.server.url, "--job", "slow", "--json")
    said, trouble = looked.communicate()
    assert looked.returncode == 0, trouble
    assert json.loads(said)["nodes"]["w1"]["parts"] == ["worker/0"]
    record = shell.record()
    assert record is not None
    assert {name: member.pid for name, member in record.members.items()} == {
        name: worker.pid for name, worker in zip(names, workers, strict=True)
    }
    assert record.members["w2"].parts == ("acker/0", "worker/1")
    assert record.key_groups == {"worker/1": (0, 127)}
    assert record.fronts == (("lines", "long", "worker/0"),)
    job.send_signal(signal.SIGINT)  # it drains
    for process in (job, *workers):
        _, trouble = process.communicate()
        assert process.returncode == 0, trouble
    record = shell.record()
    assert record is not None
    assert (record.incarnation, record.lease_s, record.members) == (incarnation, 0, {})


def test_a_joining_worker_finds_a_job_without_registry_through_its_server(shell: Shell) -> None:
    job = shell.job("nats", "short", "out.jsonl", deploy__start="join", registry__use="supervisor")

    def answers() -> bool:
        looked = shell.start("status", shell.server.url, "--job", "slow")
        looked.communicate()
        return looked.returncode == 0

    wait_for(answers, job)
    workers = [shell.start("worker", "--join", shell.server.url, "--job", "slow") for _ in range(2)]
    for process in (job, *workers):
        _, trouble = process.communicate()
        assert process.returncode == 0, trouble
    assert len(shell.output("out.jsonl")) == 20


def test_a_second_supervisor_is_refused_and_follows_when_the_first_is_gone(shell: Shell, transport: str) -> None:
    before = shell.record()
    incarnation = (before.incarnation if before else 0) + 1
    first = shell.job(transport, "long", "first.jsonl", registry__lease_s=3)
    wait_for(lambda: shell.output("first.jsonl"), first)
    second = shell.job(transport, "short", "second.jsonl")
    _, said = second.communicate()
    assert second.returncode == 2
    assert f"(process {first.pid}), since incarnation {incarnation}" in said
    assert not shell.output("second.jsonl")
    assert first.poll() is None, "the first one has not been troubled"
    first.kill()
    first.communicate()
    third = shell.job(transport, "short", "third.jsonl")
    _, said = third.communicate()
    assert third.returncode == 0, said
    assert len(shell.output("third.jsonl")) == 20
    record = shell.record()
    assert record is not None
    assert record.incarnation == incarnation + 1


def test_a_supervisor_that_stood_still_goes_on_with_a_job_that_nobody_has_taken(shell: Shell, transport: str) -> None:
    job = shell.job(transport, "long", "out.jsonl", registry__lease_s=0.5)
    wait_for(lambda: shell.output("out.jsonl"), job)
    for _ in range(2):
        job.send_signal(signal.SIGSTOP)
        time.sleep(1.5)  # it has no lease any more, if another one asks
        job.send_signal(signal.SIGCONT)
        before = len(shell.output("out.jsonl"))
        wait_for(lambda before=before: len(shell.output("out.jsonl")) > before + 100, job)
    job.send_signal(signal.SIGINT)  # it drains
    _, said = job.communicate()
    assert job.returncode == 0, said
    record = shell.record()
    assert record is not None
    assert record.lease_s == 0


def test_a_worker_that_joins_an_unknown_job_is_refused(shell: Shell) -> None:
    joined = shell.start(
        "worker", "--join", shell.server.url, "--job", "other", "--set", "registry.use=nats", "--name", "w1"
    )
    _, said = joined.communicate()
    assert joined.returncode == 1
    assert "the registry has no entry for job 'other'" in said
