"""Whole jobs on several processes, started as a user starts them: the outputs are those of one process."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random
from textwrap import dedent

import pytest
from ephemeral_port_reserve import reserve
from words import where_joined

from flamecore.testing.progress import Patience

APP = """
    import flamecore as fc

    flow = fc.Flow("words")
    lines = flow.source("lines", str).rebalance()
    lines.flat_map(str.split).key_by(lambda word: word).count().sink("counts")
"""

SLOW = """
    import time
    from pathlib import Path

    import flamecore as fc


    def slowly(line: str) -> str:
        time.sleep(0.1 if Path("linger").exists() else 0.01)
        return line


    flow = fc.Flow("slow")
    flow.source("lines", str).rebalance().map(slowly).key_by(len).count().sink("counts")
"""

LEAVING = """
    import sys
    import flamecore as fc


    def picky(line: str) -> str:
        if line == "leave":
            sys.exit(0)  # "leave"
        if line == "interrupt":
            raise KeyboardInterrupt
        return line


    flow = fc.Flow("leaving")
    flow.source("lines", str).rebalance().map(picky).key_by(len).count().sink("counts")
"""

TYPES = """
    import enum
    from collections import deque
    from dataclasses import dataclass
    from datetime import datetime, timedelta
    from decimal import Decimal
    from typing import NamedTuple

    import flamecore as fc

    flow = fc.Flow("types")


    class Size(enum.Enum):
        SMALL = "s"
        LARGE = "l"


    class Word(NamedTuple):
        text: str
        size: Size


    @dataclass(frozen=True)
    class Line:
        words: tuple[Word, ...]
        at: datetime
        price: Decimal


    class Last:
        def __init__(self, lengths: tuple[int, ...]) -> None:
            self.lengths = lengths

        def __repr__(self) -> str:
            return f"Last{self.lengths}"


    flow.codec(Last, encode=lambda last: last.lengths, decode=Last, name="last")


    def parsed(line: str) -> Line:
        words = tuple(Word(word, Size.LARGE if len(word) > 2 else Size.SMALL) for word in line.split())
        return Line(words, datetime(2024, 1, 1) + timedelta(hours=len(line)), Decimal(len(line)) / 10)


    def noted(last: Last, line: Line) -> tuple[Last, list[Last]]:
        after = Last((*last.lengths, len(line.words))[-3:])
        return after, [after]


    def undeclared(line: str) -> object:
        return deque(line)


    lines = flow.source("lines", str).rebalance()
    notes = lines.map(parsed).key_by(lambda line: line.price % 3).stateful_map(Last(()), noted)
    notes.key_by(lambda last: len(last.lengths)).group(2).map(repr).sink("notes")
    wrong = fc.Flow("wrong")
    wrong.source("lines", str).rebalance().map(undeclared).key_by(len).count().sink("counts")
"""

FAILING = """
    import flamecore as fc


    def check(line: str) -> int:
        return 10 // int(line)


    flow = fc.Flow("failing")
    flow.source("lines", str).rebalance().map(check).sink("out")
"""


FAILING_AT_A_KEY = """
    import flamecore as fc


    def added(total: int, line: str) -> int:
        return total + 10 // int(line)


    flow = fc.Flow("failing at a key")
    flow.source("lines", str).key_by(lambda line: line).fold(0, added).sink("out")
"""


@pytest.fixture
def over(over: list[str]) -> list[str]:
    """Return the settings that choose a transport, as options of the command."""
    return [word for setting in over for word in ("--set", setting)]


@pytest.fixture
def joinable(joinable: list[str]) -> list[str]:
    """Return the settings that choose a transport by which a job can be joined, as options of the command."""
    return [word for setting in joinable for word in ("--set", setting)]


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(dedent(text))
    return path


def command(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "flamecore", *map(str, arguments)]


def run(*arguments: str | Path, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(*arguments), input=stdin, capture_output=True, text=True, check=False)


def words(count: int) -> str:
    random = Random(7)
    return "\n".join(" ".join(random.choices("abcdefgh", k=5)) for _ in range(count)) + "\n"


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return (
        Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z" if Path("/proc").exists() else True
    )


def children(pid: int) -> list[int]:
    out = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True, check=False).stdout
    return [int(line) for line in out.split()]


def wait_for(condition: object, limit_s: float = 20) -> None:
    limit = Patience(limit_s)
    while not condition():  # type: ignore[operator]
        assert not limit.passed(), "it has not happened in time"
        time.sleep(0.02)


def test_outputs_are_those_of_one_process(tmp_path: Path, over: list[str]) -> None:
    """From the command line; every acker in every place: see `flamecore.testing.flows.over_transport`."""
    app = write(tmp_path, "app.py", APP)
    lines = write(tmp_path, "lines.txt", words(400))
    source = ["--source", "lines=lines", "--set", f"source.lines.path={lines}", "--sink", "counts=stdout", "-q"]
    wanted = run("run", app, *source)
    assert wanted.returncode == 0, wanted.stderr
    several = run("run", app, *source, *over, "-w", "2", "--set", "acker.use=sharded", "--set", "deploy.acker=worker")
    assert several.returncode == 0, several.stderr
    assert several.stdout == wanted.stdout


def test_nothing_is_in_flight_in_the_end(tmp_path: Path, over: list[str]) -> None:
    app = write(tmp_path, "app.py", APP)
    lines = write(tmp_path, "lines.txt", words(20))
    out = ["--sink", "counts=jsonl", "--set", f"sink.counts.path={tmp_path / 'out.jsonl'}", "--json", "-q"]
    ended = run("run", app, "--source", "lines=lines", "--set", f"source.lines.path={lines}", *out, *over, "-w", "2")
    assert ended.returncode == 0, ended.stderr
    summary = json.loads(ended.stdout)
    assert (summary["items_in"], summary["in_flight"], summary["held_back"]) == (20, 0, 0)


def test_more_records_than_may_be_between_two_snapshots_do_not_wait_for_the_interval(
    tmp_path: Path, over: list[str]
) -> None:
    app = write(tmp_path, "app.py", APP)
    lines = write(tmp_path, "lines.txt", words(400))
    rarely = ["--set", "state.interval_s=3600", "--set", "state.max_uncommitted=50", "--set", "state.use=sqlite"]

    def result(name: str, *settings: str) -> bytes:
        out = tmp_path / name / "out.jsonl"
        edges = ["--source", "lines=lines", "--set", f"source.lines.path={lines}", "--sink", "counts=jsonl"]
        state = ["--set", f"state.path={tmp_path / name / 'state.db'}"] if settings else []
        ended = run("run", app, *edges, "--set", f"sink.counts.path={out}", "-q", *settings, *state)
        assert ended.returncode == 0, ended.stderr
        return out.read_bytes()

    for name in ("once", "often"):
        (tmp_path / name).mkdir()
    assert result("often", *over, *rarely, "-w", "2") == result("once")


def test_files_may_have_the_names_of_standard_modules(tmp_path: Path, over: list[str]) -> None:
    """A flow that runs in one process runs on several: Python does not start with what lies beside it."""
    app = write(tmp_path, "types.py", APP.replace("import flamecore as fc", "import flamecore as fc\n    import words"))
    write(tmp_path, "functools.py", "raise ImportError('not this one')")
    write(tmp_path, "words.py", "")
    lines = write(tmp_path, "lines.txt", "a b\na\n")
    source = ["--source", "lines=lines", "--set", f"source.lines.path={lines}", "--sink", "counts=stdout", "-q"]
    ended = run("run", app, *source, *over, "-w", "2")
    assert (ended.returncode, ended.stdout) == (0, "a 1\nb 1\na 2\n"), ended.stderr


def test_standard_input_is_read(tmp_path: Path, over: list[str]) -> None:
    app = write(tmp_path, "app.py", APP)
    source = ["--source", "lines=stdin", "--sink", "counts=stdout", "-q"]
    ended = run("run", app, *source, *over, "-w", "2", stdin="a b\na\n")
    assert (ended.returncode, ended.stdout) == (0, "a 1\nb 1\na 2\n"), ended.stderr


def test_payloads_of_any_declared_type_cross(tmp_path: Path, over: list[str]) -> None:
    app = write(tmp_path, "app.py", TYPES)
    lines = write(tmp_path, "lines.txt", words(200))
    source = ["--source", "lines=lines", "--set", f"source.lines.path={lines}", "--sink", "notes=stdout", "-q"]
    wanted = run("run", f"{app}:flow", *source)
    assert wanted.returncode == 0, wanted.stderr
    assert "Last(5, 5)" in wanted.stdout
    several = run("run", f"{app}:flow", *source, *over, "-w", "2")
    assert several.returncode == 0, several.stderr
    assert several.stdout == wanted.stdout


def test_a_payload_that_cannot_cross_ends_the_job_and_is_named(tmp_path: Path, over: list[str]) -> None:
    app = write(tmp_path, "app.py", TYPES)
    lines = write(tmp_path, "lines.txt", words(20))
    source = ["--source", "lines=lines", "--set", f"source.lines.path={lines}", "--sink", "counts=stdout", "-q"]
    ended = run("run", f"{app}:wrong", *source, *over, "-w", "2")
    assert ended.returncode == 1
    for part in ("'map:undeclared' failed", "collections.deque", "lines.txt line 1", "flow.codec(deque"):
        assert part in ended.stderr


def test_a_failing_function_ends_the_job_with_its_record(tmp_path: Path, over: list[str]) -> None:
    app = write(tmp_path, "app.py", FAILING)
    lines = write(tmp_path, "lines.txt", "1\n5\n0\n2\n")
    ended = run("run", app, "--source", "lines=lines", "--set", f"source.lines.path={lines}", *over, "-w", "2", "-q")
    assert ended.returncode == 1
    assert ended.stdout == "10\n2\n"
    assert "ZeroDivisionError" in ended.stderr
    assert "lines.txt line 3" in ended.stderr


def test_a_failure_on_the_owner_of_a_key_ends_the_job_at_its_record(tmp_path: Path, over: list[str]) -> None:
    """The worker that reads the file has outputs of later lines by then, and opens its own part of the sink itself."""
    app = write(tmp_path, "app.py", FAILING_AT_A_KEY)
    numbers = [*range(1, 1500), 0, *range(1, 1500)]
    lines = write(tmp_path, "lines.txt", "".join(f"{number}\n" for number in numbers))
    source = ["--source", "lines=lines", "--set", f"source.lines.path={lines}", "--sink", "out=stdout", "-q"]
    wanted = run("run", app, *source)
    assert (wanted.returncode, wanted.stdout.count("\n")) == (1, 1499), wanted.stderr
    for workers in (2, 3):
        several = run("run", app, *source, *over, "-w", str(workers))
        assert several.returncode == 1
        assert "lines.txt line 1500" in several.stderr
        assert several.stdout == wanted.stdout


@pytest.mark.parametrize(
    ("line", "said", "source"),
    [
        ("leave", "called sys.exit(0)", 'in picky: sys.exit(0)  # "leave"'),
        # No key can have been pressed: the processes of a job ignore that signal.
        ("interrupt", "raised KeyboardInterrupt", "in picky: raise KeyboardInterrupt"),
    ],
)
def test_a_function_that_would_end_its_process_ends_the_job_and_is_named(
    tmp_path: Path, over: list[str], line: str, said: str, source: str
) -> None:
    app = write(tmp_path, "app.py", LEAVING)
    lines = write(tmp_path, "lines.txt", f"a\nb\n{line}\nc\n")
    ended = run("run", app, "--source", "lines=lines", "--set", f"source.lines.path={lines}", *over, "-w", "2", "-q")
    assert ended.returncode == 1
    assert f"has {said}" in ended.stderr
    assert source in ended.stderr, "the line that did it"
    assert "there is no answer" not in ended.stderr


def slow_job(tmp_path: Path, over: Sequence[str]) -> subprocess.Popen[str]:
    app = write(tmp_path, "app.py", SLOW)
    lines = write(tmp_path, "lines.txt", words(20_000))
    job = subprocess.Popen(
        command(
            "run", app, "--source", "lines=lines", "--set", f"source.lines.path={lines}", "--sink", "counts=jsonl",
            "--set", f"sink.counts.path={tmp_path / 'out.jsonl'}", *over, "-w", "2", "-q",
        ),
        stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    out = tmp_path / "out.jsonl"
    wait_for(lambda: (out.exists() and out.stat().st_size > 0) or job.poll() is not None)
    assert job.poll() is None, job.communicate()[1]
    return job


def test_a_worker_that_is_killed_ends_the_job_and_is_named(tmp_path: Path, over: list[str]) -> None:
    job = slow_job(tmp_path, over)
    workers = children(job.pid)
    assert len(workers) == 2
    os.kill(workers[1], signal.SIGKILL)
    _, said = job.communicate()
    assert job.returncode == 1
    assert "SIGKILL" in said
    assert "worker-1" in said
    assert not any(alive(pid) for pid in workers)


def test_no_worker_survives_its_supervisor(tmp_path: Path, over: list[str]) -> None:
    job = slow_job(tmp_path, over)
    workers = children(job.pid)
    job.kill()
    job.communicate()
    wait_for(lambda: not any(alive(pid) for pid in workers), limit_s=10)


def test_the_next_run_removes_what_a_killed_supervisor_left(tmp_path: Path, over: list[str]) -> None:
    """The folder of sockets; that of a job that runs is left alone."""
    (tmp_path / "one").mkdir()
    (tmp_path / "other").mkdir()
    # Not below `tmp_path`: a path of a socket has to be short.
    with tempfile.TemporaryDirectory() as place, pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", place)
        one = slow_job(tmp_path / "one", over)
        try:
            in_use = set(Path(place).glob("flamestream-*"))
            other = slow_job(tmp_path / "other", over)
            workers = children(other.pid)
            (left,) = set(Path(place).glob("flamestream-*")) - in_use
            other.kill()
            other.communicate()
            wait_for(lambda: not any(alive(pid) for pid in workers), limit_s=10)
            assert left.exists(), "a killed process clears nothing away"
            app = write(tmp_path, "app.py", APP)
            lines = write(tmp_path, "lines.txt", "to be\n")
            ended = run("run", app, "--source", "lines=lines", "--set", f"source.lines.path={lines}", *over, "-q")
            assert ended.returncode == 0, ended.stderr
            assert set(Path(place).glob("flamestream-*")) == in_use
            assert one.poll() is None
        finally:
            one.send_signal(signal.SIGINT)
            _, said = one.communicate()
        assert one.returncode == 0, said
        assert list(Path(place).glob("flamestream-*")) == []


def test_ctrl_c_drains(tmp_path: Path, over: list[str]) -> None:
    job = slow_job(tmp_path, over)
    job.send_signal(signal.SIGINT)
    _, said = job.communicate()
    assert job.returncode == 0, said
    delivered = (tmp_path / "out.jsonl").read_text().splitlines()
    assert 0 < len(delivered) < 20_000
    assert len(delivered) == sum(1 for _ in map(json.loads, delivered)), "no line is torn"


@pytest.mark.grpc
@pytest.mark.parametrize(("name", "said"), [("worker", "there is no answer"), ("status", "nothing listens")])
def test_a_client_that_reaches_no_job_fails_at_once(tmp_path: Path, name: str, said: str) -> None:
    here = f"grpc://127.0.0.1:{reserve()}"
    ended = subprocess.run(
        command(
            name, *(["--join"] if name == "worker" else []), here, "--job", "none",
            "--set", "transport.grpc.connect_timeout_s=0.2",
        ),
        env={**os.environ, "FLAMESTREAM_TOKEN": "not a secret"},
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )  # fmt: skip
    assert ended.returncode == 1
    assert said in ended.stderr


@pytest.mark.parametrize(
    "scheme",
    [
        pytest.param("grpc", marks=pytest.mark.grpc),
        pytest.param("nats", marks=pytest.mark.nats),
        pytest.param("unix", marks=pytest.mark.grpc),
    ],
)
@pytest.mark.parametrize("name", ["status", "rescale"])
def test_an_address_where_nothing_listens_is_told_at_once(tmp_path: Path, scheme: str, name: str) -> None:
    place = f"unix://{tmp_path}/none.sock" if scheme == "unix" else f"{scheme}://127.0.0.1:{reserve()}"
    more = [] if scheme == "nats" else ["--set", "transport.grpc.connect_timeout_s=3600"]
    done = subprocess.run(
        command(name, place, "--job", "none", *(["-w", "3"] if name == "rescale" else []), *more),
        env={**os.environ, "FLAMESTREAM_TOKEN": "not a secret"},
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("error: nothing listens at "), done.stderr


def handles(pid: int, number: signal.Signals) -> bool:
    """Return whether a process has a handler for a signal."""
    (caught,) = re.findall(r"SigCgt:\s*([0-9a-f]+)", Path(f"/proc/{pid}/status").read_text())
    return bool(int(caught, 16) >> number - 1 & 1)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="looks into /proc for handlers of signals")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_job_that_waits_for_its_workers_ends_at_the_first_signal(
    tmp_path: Path, joinable: list[str], number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing was read, so there is nothing to drain."""
    monkeypatch.setenv("FLAMESTREAM_TOKEN", "not a secret")
    app = write(tmp_path, "app.py", APP)
    lines = write(tmp_path, "lines.txt", "a\n")
    if "transport.use=grpc" in joinable:
        joinable = [*joinable, "--set", f"transport.grpc.listen=127.0.0.1:{reserve()}"]
    job = subprocess.Popen(
        command(
            "run", app, "--source", "lines=lines", "--set", f"source.lines.path={lines}", *joinable, "-w", "2",
            "--set", "deploy.start=join", "--set", "deploy.start_timeout_s=600",
        ),
        stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    try:
        assert job.stderr is not None
        assert "waits 600 s for 2 workers" in job.stderr.readline()
        wait_for(lambda: handles(job.pid, signal.SIGTERM))
        job.send_signal(number)
        _, said = job.communicate()
    finally:
        job.kill()
    assert job.returncode == 0, said
    assert "stopped before anything was read" in said


DELAYED = """
import time

import flamecore as fc


def slow(line):
    time.sleep(0.002)
    return line


flow = fc.Flow("slow")
flow.source("lines", str).rebalance().map(slow).sink("out")
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_all_processes_of_a_job_drains_it(tmp_path: Path, over: list[str], number: signal.Signals) -> None:
    app = write(tmp_path, "app.py", DELAYED)
    lines = write(tmp_path, "lines.txt", "".join(f"{number}\n" for number in range(100_000)))
    out = tmp_path / "out.jsonl"
    job = subprocess.Popen(
        command(
            "run", app, "--source", "lines=lines", "--set", f"source.lines.path={lines}", *over, "-w", "2",
            "--sink", "out=jsonl", "--set", f"sink.out.path={out}", "--set", "job.max_in_flight=200", "-q",
        ),
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )  # fmt: skip
    try:
        wait_for(lambda: out.exists() and out.stat().st_size > 1000)
        os.killpg(job.pid, number)
        _, said = job.communicate()
    finally:
        job.kill()
    assert job.returncode == 0, said
    assert (done := out.read_text().splitlines()) == [f'"{each}"' for each in range(len(done))]
    assert len(done) < 100_000, "it has ended by itself"


@pytest.mark.parametrize("quiet", [False, True])
def test_the_supervisor_names_the_workers_it_waits_for(
    tmp_path: Path, joinable: list[str], quiet: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLAMESTREAM_TOKEN", "not a secret")
    app = write(tmp_path, "app.py", APP)
    lines = write(tmp_path, "lines.txt", "a\n")
    here = f"grpc://127.0.0.1:{reserve()}"
    if "transport.use=grpc" in joinable:
        joinable = [*joinable, "--set", f"transport.grpc.listen={here.partition('://')[2]}"]
    else:
        here = where_joined(joinable)
    ended = run(
        "run", app, "--source", "lines=lines", "--set", f"source.lines.path={lines}", *joinable, "-w", "2",
        *(["-q"] if quiet else []), "--set", "deploy.start=join", "--set", "deploy.acker=own",
        "--set", "deploy.start_timeout_s=0.5",
    )  # fmt: skip
    assert ended.returncode == 2
    for role in ("worker", "acker"):
        assert (f"flamestream {role} --join {here} --job words --name NAME\n" in ended.stderr) is not quiet
    assert "after 0.5 s not all workers have joined (of 2 workers: none; of 1 acker: none)" in ended.stderr


@pytest.mark.grpc
def test_workers_join_a_job_from_elsewhere(tmp_path: Path) -> None:
    app = write(tmp_path, "app.py", SLOW)
    lines = write(tmp_path, "lines.txt", words(1_000))
    out = tmp_path / "out.jsonl"
    here = f"127.0.0.1:{reserve()}"
    environment = {**os.environ, "FLAMESTREAM_TOKEN": "not a secret"}
    (tmp_path / "linger").touch()  # so that it does not end before it has been looked at

    def start(*arguments: str | Path) -> subprocess.Popen[bytes]:
        return subprocess.Popen(command(*arguments), env=environment, cwd=tmp_path)

    started = [
        start(
            "run", app, "--source", "lines=lines", "--set", f"source.lines.path={lines}", "--sink", "counts=jsonl",
            "--set", f"sink.counts.path={out}", "--set", "transport.use=grpc",
            "--set", f"transport.grpc.listen={here}", "--set", "deploy.start=join", "-w", "2", "-q",
        ),
        *(start("worker", "--join", f"grpc://{here}", "--job", "slow", "--name", name) for name in ("w1", "w2")),
    ]  # fmt: skip
    try:
        wait_for(lambda: (out.exists() and out.stat().st_size > 0) or started[0].poll() is not None)
        looked = subprocess.run(
            command("status", f"grpc://{here}", "--job", "slow", "--json"),
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert looked.returncode == 0, looked.stderr
        facts = json.loads(looked.stdout)
        assert facts["nodes"]["w2"]["parts"] == ["acker/0", "worker/1"]
        assert facts["records_per_s"] > 0
        assert facts["outputs_per_s"]["counts"] > 0
        assert facts["key_groups"] == {"worker/1": [0, 127]}
        (tmp_path / "linger").unlink()
        assert [process.wait() for process in started] == [0, 0, 0]
        assert len(out.read_text().splitlines()) == 1_000
    finally:
        for process in started:
            process.kill()
            process.wait()
