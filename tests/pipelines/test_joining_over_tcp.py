"""A transport that the core has never heard of carries a whole job: who joins finds it by its scheme, `tcp`.

The plugin is `stranger/flamestream_plaintcp.py`. Nothing here needs a client library.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from textwrap import dedent
from typing import Any

import flamestream_plaintcp
import pytest
from ephemeral_port_reserve import reserve
from flamestream_plaintcp import PlainTcp

from flamecore.abc.transport import Transport, TransportContext
from flamecore.testing.checks.transports import TransportTests
from flamecore.testing.progress import Patience

pytestmark = pytest.mark.usefixtures("installed")

APP = """
    import time
    from pathlib import Path

    import flamecore as fc


    def split(line: str) -> list[str]:
        if not Path("hurry").exists():
            time.sleep(0.02)
        return line.split()


    flow = fc.Flow("words")
    flow.source("lines", str).rebalance().flat_map(split).key_by(lambda word: word).count().sink("counts")
"""

LINES = 12_000
"""So many that no job ends before it is told to hurry, however slowly processes start beside it."""

LIMIT_S = 60.0


class TestPlainTcp(TransportTests):
    def make(self, context: TransportContext) -> Transport:
        return PlainTcp(None, context)


def counted(words: Iterable[str]) -> list[list[Any]]:
    counts: Counter[str] = Counter()
    made = []
    for word in words:
        counts[word] += 1
        made.append([word, counts[word]])
    return made


class Job:
    """A job that counts words, and all the processes that have to do with it.

    Args:
        folder: Where its files are.
        stack: Ends the processes.
    """

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder = folder
        self._stack = stack
        self._port = reserve()
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self.write()
        lines = [f"w{number % 211} w{number % 7} x{number % 13}" for number in range(LINES)]
        self.words = [word for line in lines for word in line.split()]
        (folder / "lines.txt").write_text("\n".join(lines) + "\n", "utf-8")

    def write(self, app: str = dedent(APP)) -> None:
        (self.folder / "app.py").write_text(app, "utf-8")

    def configure(self, *more: str) -> None:
        settings = f"""
            schema = 1
            [job]
            flow = "app.py"
            workers = 2
            max_in_flight = 64
            guarantee = "exactly_once"
            [transport]
            use = "plaintcp"
            [transport.plaintcp]
            listen = "127.0.0.1:{self._port}"
            [state]
            use = "sqlite"
            path = "state"
            [source.lines]
            use = "lines"
            path = "lines.txt"
            [sink.counts]
            use = "jsonl"
            path = "counts.jsonl"
        """
        (self.folder / "job.toml").write_text("\n".join([dedent(settings), *more]), "utf-8")

    @property
    def address(self) -> str:
        return f"tcp://127.0.0.1:{self._port}"

    def start(self, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.txt").open("wb") as said:
            process = subprocess.Popen(
                [sys.executable, "-m", "flamecore", *arguments], cwd=self.folder, stdout=said, stderr=said
            )
        self._stack.callback(process.wait, LIMIT_S)
        self._stack.callback(process.kill)
        self._processes[name] = process
        return process

    def join(self, role: str, name: str) -> None:
        self.start(name, role, "--join", self.address, "--job", "words", "--name", name)

    def kill(self, name: str) -> None:
        process = self._processes.pop(name)
        process.kill()
        process.wait(LIMIT_S)

    def said(self) -> str:
        return "\n".join(f"{name}: {(self.folder / f'{name}.txt').read_text('utf-8')}" for name in self._processes)

    def ask(self, *arguments: str) -> dict[str, Any]:
        asked = self.asked(*arguments)
        assert asked.returncode == 0, f"{asked.stderr}\n{self.said()}"
        facts: dict[str, Any] = json.loads(asked.stdout)
        return facts

    def asked(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        what, *rest = arguments
        line = [sys.executable, "-m", "flamecore", what, self.address, *rest, "--job", "words", "--json"]
        return subprocess.run(line, cwd=self.folder, capture_output=True, text=True, check=False)

    def wait_for(self, is_so: Callable[[dict[str, Any]], bool]) -> None:
        """Ask for the status until it is so."""
        limit = Patience(LIMIT_S)
        while (asked := self.asked("status")).returncode != 0 or not is_so(json.loads(asked.stdout)):
            assert not limit.passed(), f"{asked.stdout}\n{asked.stderr}\n{self.said()}"

    def finish(self) -> list[list[Any]]:
        """Remove the delay, wait for the end, and return the outputs.

        Every process must end well.
        """
        (self.folder / "hurry").touch()
        for process in self._processes.values():
            assert process.wait(LIMIT_S) == 0, self.said()
        return [json.loads(line) for line in (self.folder / "counts.jsonl").read_text("utf-8").splitlines()]


@pytest.fixture
def job(tmp_path: Path, distributions: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Job]:
    distributions.add("flamestream-plaintcp", entry_points={"flamestream.transport": {"plaintcp": PlainTcp.__module__}})
    found = (Path(flamestream_plaintcp.__file__).parent, distributions.folder)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, found)))
    monkeypatch.setenv("FLAMESTREAM_TOKEN", "a secret of this test")
    # Edits of one second and one size would not be told apart by what Python has compiled.
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    with ExitStack() as stack:
        yield Job(tmp_path, stack)


def test_workers_and_an_acker_join_and_the_job_is_looked_at_rescaled_and_upgraded(job: Job) -> None:
    job.configure("[deploy]", 'start = "join"', 'acker = "own"', f"start_timeout_s = {LIMIT_S}")
    job.start("run", "run", "job.toml", "-q")
    for role, name in (("worker", "a"), ("worker", "b"), ("acker", "k")):
        job.join(role, name)
    job.wait_for(lambda status: status["items_in"] > 0)
    job.join("worker", "c")
    job.wait_for(lambda status: sorted(status["nodes"]) == ["a", "b", "c", "k"])
    assert job.ask("rescale", "-w", "3")["workers"] == 3
    hosting = [name for name, node in job.ask("status")["nodes"].items() if node["parts"]]
    assert sorted(hosting) == ["a", "b", "c", "k"]

    job.write(dedent(APP).replace("return line.split()", 'return line.replace("x", "y").split()'))
    for role, name in (("worker", "d"), ("worker", "e"), ("worker", "f"), ("acker", "l")):
        job.join(role, name)
    job.wait_for(lambda status: {"d", "e", "f", "l"} <= {*status["nodes"]})
    job.ask("upgrade", "job.toml")
    assert sorted(job.ask("status")["nodes"]) == ["d", "e", "f", "l"]

    output = job.finish()
    turn = next(place for place, (word, _) in enumerate(output) if word.startswith("y"))
    later = (word.replace("x", "y") if place >= turn else word for place, word in enumerate(job.words))
    assert output == counted(later)


def test_workers_that_the_supervisor_starts_need_no_address(job: Job) -> None:
    job.configure()
    job.start("run", "run", "job.toml", "-q")
    assert job.finish() == counted(job.words)


def test_another_worker_comes_in_place_of_one_that_was_killed(job: Job) -> None:
    job.configure("[deploy]", 'start = "join"', f"start_timeout_s = {LIMIT_S}")
    job.start("run", "run", "job.toml", "-q")
    job.join("worker", "a")
    job.join("worker", "b")
    job.wait_for(lambda status: status["items_in"] > 0)
    job.kill("b")
    job.join("worker", "c")
    job.wait_for(lambda status: "c" in status["nodes"] and bool(status["nodes"]["c"]["parts"]))
    assert job.finish() == counted(job.words)
