"""Jobs on processes of one machine whose configuration names no transport: they use sockets."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any, Final

import pytest
from ephemeral_port_reserve import reserve

from flamecore.suggest import install_command
from flamecore.testing.progress import Patience

APP: Final = """
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

ABSENT: Final = """
    raise ModuleNotFoundError("No module named 'grpc'", name="grpc")
"""

LINES: Final = 3000
TOKEN: Final = "a secret of this test"


class Folder:
    """A folder with a flow and its input, where commands run without the client of gRPC.

    Args:
        folder: Its path.
        sockets: Folder for sockets, with a short path.
    """

    def __init__(self, folder: Path, sockets: Path) -> None:
        self.folder, self.sockets = folder, sockets
        (folder / "app.py").write_text(dedent(APP))
        self.lines = [f"w{number % 211} w{number % 7} w{number % 13}" for number in range(LINES)]
        (folder / "lines.txt").write_text("\n".join(self.lines) + "\n")
        (folder / "absent").mkdir()
        (folder / "absent" / "grpc.py").write_text(dedent(ABSENT))
        self.environ = {**os.environ, "TMPDIR": str(sockets), "PYTHONPATH": str(folder / "absent")}

    def hurry(self) -> None:
        """Remove the delay of lines."""
        (self.folder / "hurry").touch()

    def job(self, name: str, *options: str) -> list[str]:
        """Return the command line of a command that takes the job."""
        edges = ("--source", "lines=lines", "--set", "source.lines.path=lines.txt")
        sink = ("--sink", "counts=jsonl", "--set", "sink.counts.path=out.jsonl")
        return [sys.executable, "-m", "flamecore", name, "app.py", *edges, *sink, *options]

    def call(self, line: list[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(line, cwd=self.folder, env=self.environ, capture_output=True, text=True, check=False)

    def start(self, line: list[str]) -> subprocess.Popen[str]:
        return subprocess.Popen(line, cwd=self.folder, env=self.environ, stderr=subprocess.PIPE, text=True)

    def ask(self, name: str, *options: str) -> subprocess.CompletedProcess[str]:
        """Ask the running job at its socket."""
        path = next(self.sockets.rglob("supervisor.sock"), self.sockets / "none.sock")
        return self.call([sys.executable, "-m", "flamecore", name, f"socket://{path}", "--job", "words", *options])

    def output(self) -> list[Any]:
        return [json.loads(line) for line in (self.folder / "out.jsonl").read_text().splitlines()]

    def expected(self) -> list[Any]:
        counts: Counter[str] = Counter()
        output = []
        for word in (word for line in self.lines for word in line.split()):
            counts[word] += 1
            output.append([word, counts[word]])
        return output


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Folder]:
    with tempfile.TemporaryDirectory(prefix="fs") as sockets:  # not below `tmp_path`: its path is too long
        yield Folder(tmp_path, Path(sockets))


def test_several_processes_need_no_client(here: Folder) -> None:
    here.hurry()
    done = here.call(here.job("run", "-q", "-w", "3", "--on", "processes", "--set", "deploy.acker=own"))
    assert done.returncode == 0, done.stderr
    assert here.output() == here.expected()


def test_another_transport_has_to_be_installed(here: Folder) -> None:
    for more in (["transport.use=grpc"], ["deploy.on=processes", "transport.grpc.listen=127.0.0.1:0"]):
        done = here.call(here.job("run", "-q", "-w", "2", *(part for one in more for part in ("--set", one))))
        assert done.returncode == 3
        assert install_command("flamestream", "grpc") in done.stderr


def test_check_shows_what_is_chosen(here: Folder) -> None:
    done = here.call(here.job("check", "-w", "2", "--on", "processes", "--json"))
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert facts["transport"]["use"] == "socket"
    assert [process["name"] for process in facts["processes"]] == ["supervisor", "worker-0", "worker-1"]
    assert {process["place"] for process in facts["processes"]} == {"a unix socket in a folder of the job"}


def test_a_running_job_is_asked_at_its_socket(here: Folder) -> None:
    here.environ["FLAMESTREAM_TOKEN"] = TOKEN
    state = ("--set", "state.use=sqlite", "--set", "state.path=state", "--set", "job.max_in_flight=64")
    job = here.start(here.job("run", "-q", "-w", "2", "--on", "processes", *state))
    try:
        limit = Patience(60)
        while json.loads((asked := here.ask("status", "--json")).stdout or "{}").get("items_in", 0) == 0:
            assert job.poll() is None, job.communicate()[1]
            assert not limit.passed(), asked.stderr
        for workers in (3, 1):
            asked = here.ask("rescale", "-w", str(workers), "--json")
            assert asked.returncode == 0, asked.stderr
            assert json.loads(asked.stdout)["workers"] == workers
        status = json.loads(here.ask("status", "--json").stdout)
        assert len([node for node in status["nodes"].values() if node["parts"]]) == 1
        here.hurry()
        _, said = job.communicate()
    finally:
        job.kill()
        job.wait()
    assert job.returncode == 0, said
    assert here.output() == here.expected()
    planned = here.call(here.job("plan", "--on", "processes", *state))
    assert planned.returncode == 0, planned.stderr
    assert "count" in planned.stdout


def test_a_killed_worker_is_replaced(here: Folder) -> None:
    here.environ["FLAMESTREAM_TOKEN"] = TOKEN
    state = ("--set", "state.use=sqlite", "--set", "state.path=state", "--set", "job.max_in_flight=64")
    job = here.start(here.job("run", "-q", "-w", "2", "--on", "processes", *state))
    try:
        limit = Patience(60)
        nodes: dict[str, Any] = {}
        while not nodes.get("worker-1", {}).get("parts"):
            assert job.poll() is None, job.communicate()[1]
            assert not limit.passed(), "the job does not begin"
            nodes = json.loads(here.ask("status", "--json").stdout or "{}").get("nodes", {})
        os.kill(nodes["worker-1"]["pid"], signal.SIGKILL)
        here.hurry()
        _, said = job.communicate()
    finally:
        job.kill()
        job.wait()
    assert job.returncode == 0, said
    assert "job.faulted" in said
    assert here.output() == here.expected()


def test_workers_that_join_need_a_transport_that_reaches_them(here: Folder) -> None:
    """The error names it where the configuration does not, and the package to install."""
    here.environ["FLAMESTREAM_TOKEN"] = TOKEN
    joined = here.job("run", "-w", "2", "--set", "deploy.start=join")
    done = here.call([*joined, "--set", "transport.use=inproc"])
    assert done.returncode == 2
    assert 'Use one that does, such as [transport] use = "grpc"; or leave deploy.start out.' in done.stderr
    for options in ([], ["--on", "processes"]):
        done = here.call([*joined, *options])
        assert done.returncode == 3
        assert install_command("flamestream", "grpc") in done.stderr


@pytest.mark.grpc
def test_workers_that_join_are_told_where_to_listen(here: Folder) -> None:
    del here.environ["PYTHONPATH"]
    here.environ["FLAMESTREAM_TOKEN"] = TOKEN
    done = here.call(here.job("run", "-w", "2", "--set", "deploy.start=join", "--on", "processes"))
    assert done.returncode == 2
    assert 'Name a place, such as [transport.grpc] listen = "127.0.0.1:7070".' in done.stderr


def test_workers_that_join_over_sockets_need_a_folder_that_is_named(here: Folder) -> None:
    here.environ["FLAMESTREAM_TOKEN"] = TOKEN
    options = [part for setting in ("deploy.start=join", "transport.use=socket") for part in ("--set", setting)]
    done = here.call(here.job("run", "-w", "2", "--on", "processes", *options))
    assert done.returncode == 2
    assert 'Name a place, such as [transport.socket] folder = "/tmp/NAME".' in done.stderr


@pytest.mark.parametrize("transport", ["socket", pytest.param("grpc", marks=pytest.mark.grpc)])
@pytest.mark.parametrize("joining", [False, True])
def test_a_place_to_listen_at_chooses_the_transport_that_has_one(here: Folder, transport: str, joining: bool) -> None:
    here.environ["FLAMESTREAM_TOKEN"] = TOKEN
    if transport == "grpc":
        del here.environ["PYTHONPATH"]
        place = f"127.0.0.1:{reserve()}"
        chosen, address = f"transport.grpc.listen={place}", f"grpc://{place}"
    else:
        chosen, address = f"transport.socket.folder={here.sockets}/j", f"socket://{here.sockets}/j/supervisor.sock"
    settings = [chosen, "job.max_in_flight=64", *(["deploy.start=join"] if joining else [])]
    options = [part for setting in settings for part in ("--set", setting)]
    job = here.start(here.job("run", "-q", "-w", "2", "--on", "processes", *options))
    join = [sys.executable, "-m", "flamecore", "worker", "--join", address, "--job", "words", "--name"]
    started = [job, *(here.start([*join, name]) for name in (("w1", "w2") if joining else ()))]
    line = [sys.executable, "-m", "flamecore", "status", address, "--job", "words", "--json"]
    try:
        limit = Patience(60)
        while json.loads((asked := here.call(line)).stdout or "{}").get("items_in", 0) == 0:
            assert job.poll() is None, job.communicate()[1]
            assert not limit.passed(), asked.stderr
        here.hurry()
        for process in started:
            _, said = process.communicate()
            assert process.returncode == 0, said
    finally:
        for process in started:
            process.kill()
            process.wait()
    assert here.output() == here.expected()
