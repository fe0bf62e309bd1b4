"""A running job goes on with another version of its flow: each record is worked on by one of the two, in order."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from ephemeral_port_reserve import reserve

from flamecore.testing.progress import Patience

APP = """
    import time
    from pathlib import Path

    import flamecore as fc
    from helper import words_of

    GO = Path("go")


    def split(line: str) -> list[str]:
        if not GO.exists():
            time.sleep(0.01)
        return words_of(line)


    flow = fc.Flow("words")
    words = flow.source("lines", str).rebalance().flat_map(split)
    words.key_by(lambda word: word).count(name="count").sink("counts")
"""

HELPER = """
    def words_of(line: str) -> list[str]:
        return line.split()
"""

SECOND = '\nwords.key_by(lambda word: word[0]).group(2, name="pair").sink("pairs")\n'
THIRD = '\nwords.key_by(len).count(name="size").sink("sizes")\n'

LINES = 8000


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "flamecore", *arguments]


def environment() -> dict[str, str]:
    # Edits of one second and one size would not be told apart by what Python has compiled.
    return {**os.environ, "FLAMESTREAM_TOKEN": "a secret of this test", "PYTHONDONTWRITEBYTECODE": "1"}


class Job:
    """A job in a folder, as two workers count the words of its lines.

    Args:
        folder: Where all its files are.
        sinks: Outputs besides `counts`.
        server: A NATS server to talk through; without one it is gRPC.
        more: Further lines of the job file.
    """

    def __init__(self, folder: Path, *sinks: str, server: str = "", more: Sequence[str] = ()) -> None:
        self.folder = folder
        self.more = more
        self.server = server
        self.port = reserve()
        self.lines = [f"w{number % 211} w{number % 7} x{number % 13}" for number in range(LINES)]
        (folder / "lines.txt").write_text("\n".join(self.lines) + "\n")
        self.write(*sinks)

    def write(self, *sinks: str, app: str = dedent(APP), helper: str = dedent(HELPER)) -> None:
        """Write the flow and the job file. On more than the sink `counts`: `sinks`."""
        (self.folder / "app.py").write_text(app)
        (self.folder / "helper.py").write_text(helper)
        lines = ["schema = 1", "[job]", 'flow = "app.py"', "workers = 2", "max_in_flight = 100"]
        lines += ["[transport]", f'use = "{"nats" if self.server else "grpc"}"']
        lines += ["[transport.grpc]", f'listen = "127.0.0.1:{self.port}"']
        lines += ["[transport.nats]", f'servers = ["{self.server}"]']
        lines += self.more
        lines += [
            "[state]",
            'use = "sqlite"',
            'path = "state"',
            "[source.lines]",
            'use = "lines"',
            'path = "lines.txt"',
        ]
        for sink in ("counts", *sinks):
            lines += [f"[sink.{sink}]", 'use = "jsonl"', f'path = "{sink}.jsonl"']
        (self.folder / "job.toml").write_text("\n".join(lines))

    @property
    def address(self) -> str:
        return self.server or f"grpc://127.0.0.1:{self.port}"

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        line = command(*arguments)
        return subprocess.Popen(line, cwd=self.folder, env=environment(), stderr=subprocess.PIPE, text=True)

    def worker(self, name: str) -> subprocess.Popen[str]:
        """Start a worker by hand."""
        return self.start("worker", "--join", self.address, "--job", "words", "--name", name)

    @contextmanager
    def running(self, *workers: str) -> Iterator[subprocess.Popen[str]]:
        with self.start("run", "job.toml", "-q") as process, ExitStack() as joined:
            try:
                for name in workers:
                    joined.callback(joined.enter_context(self.worker(name)).kill)
                limit = Patience(30)
                while json.loads(self.ask("status").stdout or "{}").get("items_in", 0) == 0:
                    assert process.poll() is None, process.communicate()[1]
                    assert not limit.passed(), "the job does not begin"
                yield process
            finally:
                process.kill()

    def ask(self, what: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        line = command(what, self.address, *arguments, "--job", "words", "--json")
        return subprocess.run(line, cwd=self.folder, env=environment(), capture_output=True, text=True, check=False)

    def upgrade(self, *arguments: str) -> Any:
        asked = self.ask("upgrade", "job.toml", *arguments)
        assert asked.returncode == 0, asked.stderr
        facts = json.loads(asked.stdout)
        print(f"a pause of {facts['pause_ms']} ms; {facts['plan']}")
        return facts

    def refused(self, *arguments: str) -> str:
        asked = self.ask("upgrade", "job.toml", *arguments)
        assert asked.returncode != 0
        return asked.stderr

    def output(self, sink: str = "counts") -> list[Any]:
        return [json.loads(line) for line in (self.folder / f"{sink}.jsonl").read_text().splitlines()]

    def words(self) -> Iterator[str]:
        return (word for line in self.lines for word in line.split())


def ended(job: Job, process: subprocess.Popen[str]) -> None:
    """Remove the delay of a job, and wait for its end."""
    (job.folder / "go").touch()
    _, said = process.communicate()
    assert process.returncode == 0, said


def counted(words: Iterator[str]) -> list[Any]:
    counts: Counter[str] = Counter()
    output = []
    for word in words:
        counts[word] += 1
        output.append([word, counts[word]])
    return output


@pytest.fixture(params=[pytest.param("grpc", marks=pytest.mark.grpc), pytest.param("nats", marks=pytest.mark.nats)])
def server(request: pytest.FixtureRequest) -> Iterator[str]:
    """Yield the address of a NATS server; empty: none is used."""
    if request.param == "grpc":
        yield ""
        return
    from flamestream_nats.testing import NatsServer

    with NatsServer() as started:
        yield started.url


def test_a_mended_function_works_from_one_record_on(tmp_path: Path, server: str) -> None:
    """It lies in a module beside the flow. State is kept: what was counted goes on."""
    job = Job(tmp_path, server=server)
    with job.running() as process:
        job.write(helper=dedent(HELPER).replace("split()", 'replace("x", "y").split()'))
        facts = job.upgrade()
        assert facts["workers"] == 2
        assert facts["plan"][0].startswith("keep         count: drift, ")
        status = json.loads(job.ask("status").stdout)
        hosting = sorted(name for name, node in status["nodes"].items() if node["parts"])
        assert hosting == ["worker-0.1", "worker-1.1"]
        ended(job, process)
    output = job.output()
    turn = next(place for place, (word, _) in enumerate(output) if word.startswith("y"))
    assert (turn - 2) % 3 == 0, "the new version begins with a record"
    words = (word.replace("x", "y") if place >= turn else word for place, word in enumerate(job.words()))
    assert output == counted(words)


@pytest.mark.grpc
def test_operations_come_and_go(tmp_path: Path) -> None:
    job = Job(tmp_path, "pairs", more=("[deploy]", 'acker = "own"'))
    job.write("pairs", app=dedent(APP) + SECOND)
    with job.running() as process:
        # The type of what goes to `counts` is not known any more: that sink is closed, and opened again.
        job.write("sizes", app=dedent(APP).replace(".sink(", ".map(lambda pair: pair).sink(") + THIRD)
        text = job.refused()
        assert "part of the state would be lost" in text
        assert "DROP         pair: grouping of window 2, " in text, text
        facts = job.upgrade("--accept")
        assert "new          sink sizes: takes what comes from here on" in facts["plan"]
        ended(job, process)
    assert job.output() == counted(job.words())
    pairs, sizes = job.output("pairs"), job.output("sizes")
    assert len(pairs) + len(sizes) == 3 * LINES, "each word went to one of the two"
    rest = [str(len(word)) for word in list(job.words())[len(pairs) :]]
    assert [[str(size), count] for size, count in sizes] == counted(iter(rest))
    shown = subprocess.run(
        command("snapshot", "show", "--json"), cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert sorted(json.loads(shown.stdout)["operations"]) == ["count", "size"]


BROKEN = "\nimport sys\nif 'process' in sys.argv[0]:\n    raise ValueError('not here')\n"


@pytest.mark.grpc
def test_a_version_that_cannot_run_leaves_the_job_as_it_was(tmp_path: Path) -> None:
    job = Job(tmp_path)
    with job.running() as process:
        job.write(app="this is no Python")
        assert "app.py cannot be loaded: SyntaxError" in job.refused()
        job.write(app=dedent(APP), helper="")
        assert "cannot import name 'words_of'" in job.refused()
        job.write(app=dedent(APP).replace('"words"', '"others"'))
        assert "cannot change the job's name ('words', 'others')" in job.refused()
        job.write(app=dedent(APP).replace("count(", "group(2, "))
        assert "CANNOT READ  count: drift" in job.refused()
        # The supervisor can import this one, and the workers cannot.
        job.write(app=dedent(APP) + BROKEN)
        text = job.refused()
        assert "the new version could not start, and the job continues with the former" in text
        assert "ValueError: not here" in text
        ended(job, process)
    assert job.output() == counted(job.words())


@pytest.mark.grpc
def test_a_sink_goes_to_another_place_under_another_name_only(tmp_path: Path) -> None:
    """Under its name it would lack what it has delivered: the next run could not tell that from a loss."""
    job = Job(tmp_path)
    with job.running() as process:
        text = job.refused("--set", "sink.counts.path=others.jsonl")
        assert "the job continues with the former" in text
        assert "sink 'counts' holds none of its output, and the state continues from " in text
        assert "A sink of another name takes what comes from here on." in text
        (tmp_path / "app.py").write_text(dedent(APP).replace('"counts"', '"others"'))
        settings = tmp_path / "job.toml"
        settings.write_text(settings.read_text().replace("counts", "others"))
        plan = job.upgrade()["plan"]
        assert "new          sink others: takes what comes from here on" in plan
        assert any("sink counts was removed; its output stays unchanged" in line for line in plan)
        ended(job, process)
    assert job.output() + job.output("others") == counted(job.words())


@pytest.mark.grpc
def test_a_loss_accepted_for_a_version_that_cannot_start_is_not_taken(tmp_path: Path) -> None:
    job = Job(tmp_path)
    with job.running() as process:
        changed = dedent(APP).replace('name="count").', 'name="again").map(lambda pair: pair).')
        job.write(app=changed + BROKEN)
        assert "continues with the former" in job.refused("--accept")
        ended(job, process)
    assert job.output() == counted(job.words())


@pytest.mark.grpc
def test_workers_that_were_started_by_hand_are_replaced_by_hand(tmp_path: Path) -> None:
    job = Job(tmp_path, more=("[deploy]", 'start = "join"'))
    with job.running("a", "b") as process, ExitStack() as later:
        (tmp_path / "helper.py").write_text(dedent(HELPER).replace("split()", 'replace("x", "y").split()'))
        assert "2 new ones of role worker are needed, and 0 are there" in job.refused()
        for name in ("c", "d"):
            later.callback(later.enter_context(job.worker(name)).kill)
        limit = Patience(30)
        while len(json.loads(job.ask("status").stdout)["nodes"]) < 4:
            assert not limit.passed()
        job.upgrade()
        assert sorted(json.loads(job.ask("status").stdout)["nodes"]) == ["c", "d"]
        ended(job, process)
    output = job.output()
    turn = next(place for place, (word, _) in enumerate(output) if word.startswith("y"))
    words = (word.replace("x", "y") if place >= turn else word for place, word in enumerate(job.words()))
    assert output == counted(words)


@pytest.mark.grpc
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds the processes of a job in /proc")
def test_versions_are_not_mixed(tmp_path: Path) -> None:
    """The file has changed, and a worker dies: the one that comes in its place is another version."""
    job = Job(tmp_path)
    with job.running() as process:
        job.write(helper=dedent(HELPER).replace("split()", "upper().split()"))
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        os.kill(int(children[0]), signal.SIGKILL)
        (tmp_path / "go").touch()
        _, said = process.communicate()
        assert process.returncode == 1
        assert "flow 'words' is another version here than the one that runs" in said
    output = job.output()
    assert output == counted(job.words())[: len(output)]
    planned = subprocess.run(command("plan", "job.toml"), cwd=tmp_path, capture_output=True, text=True, check=False)
    assert planned.returncode == 0, planned.stderr


SLOW = """
import sys
import time

while "versions.trial" in sys.orig_argv[-1] and (hold := Path("hold")).exists():
    Path("held").touch()
    time.sleep(0.01)
"""


@pytest.mark.grpc
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds the processes of a job in /proc")
def test_a_fault_while_another_version_is_imported_does_not_end_the_job(tmp_path: Path) -> None:
    """The job goes on with the version that it has; whoever asks once more meanwhile waits, and gets the other."""
    job = Job(tmp_path)
    (tmp_path / "hold").touch()
    (tmp_path / "other.py").write_text(dedent(APP) + SLOW)
    (tmp_path / "other.toml").write_text((tmp_path / "job.toml").read_text().replace('"app.py"', '"other.py"'))
    with job.running() as process:
        asked = job.start("upgrade", job.address, "other.toml", "--job", "words")
        wait_until((tmp_path / "held").exists)
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        os.kill(int(children[0]), signal.SIGKILL)
        _, said = asked.communicate()
        assert "the job has met a fault meanwhile" in said
        wait_until(lambda: process.poll() is not None or len(hosting(job)) == 2)
        assert process.poll() is None, process.communicate()[1]
        again = [job.start("upgrade", job.address, "other.toml", "--job", "words") for _ in range(2)]
        wait_until(lambda: any(each.poll() is not None for each in again))
        again.sort(key=lambda each: each.poll() is None)
        assert "just being changed" in again[0].communicate()[1]
        (tmp_path / "hold").unlink()
        _, said = again[1].communicate()
        assert again[1].returncode == 0, said
        assert len(hosting(job)) == 2
        ended(job, process)
    assert job.output() == counted(job.words())


HANGING = """
import time
from pathlib import Path

while Path("hold").exists():
    Path("held").touch()
    time.sleep(0.01)
"""


@pytest.mark.grpc
def test_a_version_whose_import_hangs_is_refused(tmp_path: Path) -> None:
    """Nobody waits for it, neither who has asked nor the end of the job; when it is there at last it is let go of."""
    job = Job(tmp_path, more=["[deploy]", "start_timeout_s = 5"])
    (tmp_path / "hold").touch()
    (tmp_path / "other.py").write_text(HANGING + dedent(APP))
    (tmp_path / "other.toml").write_text((tmp_path / "job.toml").read_text().replace('"app.py"', '"other.py"'))

    def ask() -> str:
        asked = job.start("upgrade", job.address, "other.toml", "--job", "words")
        _, said = asked.communicate()
        assert asked.returncode == 1
        return said

    with job.running() as process:
        assert "the flow has not been imported after 5 s" in ask()
        assert "the flow has not been imported after 5 s" in ask(), "not even another one"
        (tmp_path / "hold").unlink()
        wait_until(lambda: job.upgrade()["workers"] == 2)
        (tmp_path / "hold").touch()
        (tmp_path / "held").unlink()
        asked = job.start("upgrade", job.address, "other.toml", "--job", "words")
        wait_until((tmp_path / "held").exists)
        ended(job, process)
        asked.communicate()
    assert job.output() == counted(job.words())


ENDS = """
import faulthandler, os, signal, sys
print("the last words of the module", flush=True)
"""


@pytest.mark.grpc
@pytest.mark.parametrize(
    ("end", "how"),
    [
        ("os.abort()", "was killed by SIGABRT"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "was killed by SIGKILL"),
        ("os._exit(3)", "ended with code 3"),
        ("os._exit(0)", "ended with code 0"),
    ],
)
def test_a_version_that_ends_the_interpreter_is_refused(tmp_path: Path, end: str, how: str) -> None:
    job = Job(tmp_path)
    (tmp_path / "other.py").write_text(ENDS + end + "\n" + dedent(APP))
    (tmp_path / "other.toml").write_text((tmp_path / "job.toml").read_text().replace('"app.py"', '"other.py"'))
    with job.running() as process:
        asked = job.ask("upgrade", "other.toml")
        assert asked.returncode == 1
        assert f"other.py cannot be imported: the process that tried it {how}" in asked.stderr
        assert "the last words of the module" in asked.stderr
        ended(job, process)
    assert job.output() == counted(job.words())


LATE = """
import sys
import time
from pathlib import Path

while sys.orig_argv[-1].endswith("worker-0.1.json") and (hold := Path("hold")).exists():
    Path("held").touch()
    time.sleep(0.01)
"""


@pytest.mark.grpc
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds the processes of a job in /proc")
def test_nodes_of_an_abandoned_version_do_not_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even those that have not come yet."""
    job = Job(tmp_path)
    (tmp_path / "sitecustomize.py").write_text(LATE)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(tmp_path), os.environ.get("PYTHONPATH", ""))))
    (tmp_path / "hold").touch()

    def nodes() -> list[str]:
        return Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()

    with job.running() as process:
        asked = job.start("upgrade", job.address, "job.toml", "--job", "words")
        wait_until((tmp_path / "held").exists)
        os.kill(int(nodes()[0]), signal.SIGKILL)
        _, said = asked.communicate()
        assert "the job has met a fault meanwhile" in said
        (tmp_path / "hold").unlink()
        wait_until(lambda: len(hosting(job)) == len(nodes()) == 2)
        ended(job, process)
    assert job.output() == counted(job.words())


def wait_until(condition: Callable[[], bool]) -> None:
    limit = Patience(30)
    while not condition():
        assert not limit.passed()
        time.sleep(0.01)


def hosting(job: Job) -> list[str]:
    """Return the names of the nodes that have parts."""
    asked = job.ask("status")
    nodes = json.loads(asked.stdout)["nodes"] if asked.returncode == 0 else {}
    return sorted(name for name, node in nodes.items() if node["parts"])
