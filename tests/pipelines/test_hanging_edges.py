"""Sinks that never come back from a write, readers that do not leave off: the job ends, and says why.

It also ends, soon, when another fault ends it. Outputs for an exactly-once sink are neither lost nor doubled by that:
the next run continues.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from textwrap import dedent

import pytest

from flamecore.testing.progress import Patience

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals of Windows are other ones")

APP = """
    import asyncio
    import os
    import time
    from collections.abc import Sequence
    from pathlib import Path
    from typing import Any

    import flamecore as fc
    from flamecore.abc.source import Batch, Reader, Source, SourceCapabilities
    from flamecore.errors import SinkError
    from flamecore.testing import override
    from flamestream_edges.jsonl import JsonlSink
    from flamestream_stores.directory import Directory


    async def exists(path: str) -> None:
        while not Path(path).exists():
            await asyncio.sleep(0.01)


    async def hang(how: str, count: int = 0) -> None:
        Path("begun").write_text(str(count))
        Path("begun").rename("hanging")
        if how == "until":
            return await exists("go")
        if how == "thread":
            await asyncio.to_thread(time.sleep, 600)
        if how == "waits":
            await asyncio.sleep(600)
        while True:
            try:
                await asyncio.sleep(600)
            except asyncio.CancelledError:
                pass


    class Hanging(JsonlSink):
        name = "hanging"
        written = 0

        def encoder(self) -> None:
            return None

        async def write(self, time: int, payloads: Sequence[Any]) -> None:
            file = Path("hang")
            least = int(os.environ.get("LEAST", "40"))
            when, how = file.read_text().split() if file.exists() and self.written >= least else ("", "")
            if when == "before":
                await hang(how, self.written + len(payloads))
            self.written += len(payloads)
            await super().write(time, payloads)
            if when == "behind":
                await hang(how)


    class Stuck(Reader):
        def __init__(self) -> None:
            self.rest = 5

        async def read(self, limit: int) -> Batch:
            if not self.rest:
                await hang("ignores")
            self.rest -= 1
            return Batch([str(self.rest)], [5 - self.rest])


    class StuckSource(Source):
        name = "stuck"
        capabilities = SourceCapabilities(replayable=False, bounded=False)

        async def open(self, partition: str, position: Any = None) -> Reader:
            return Stuck()


    class Bad(Reader):
        # Reads a bad line when something hangs.

        def __init__(self) -> None:
            self.count = 0

        async def read(self, limit: int) -> Batch | None:
            if self.count == 2:
                return None
            if self.count:
                await exists("hanging")
            self.count += 1
            return Batch(["good" if self.count == 1 else "bad"], [self.count])


    class BadSource(Source):
        name = "bad"
        capabilities = SourceCapabilities(replayable=False, bounded=True)

        async def open(self, partition: str, position: Any = None) -> Reader:
            return Bad()


    class Broken(Hanging):
        # Breaks when another one hangs.
        name = "broken"

        async def write(self, time: int, payloads: Sequence[Any]) -> None:
            await exists("hanging")
            raise SinkError("the disk is gone", sink="other")


    class StuckStore(Directory):
        name = "stuck"

        async def aclose(self) -> None:
            await hang("thread")


    installed = [
        override("store", "stuck", StuckStore),
        override("sink", "hanging", Hanging),
        override("sink", "broken", Broken),
        override("source", "stuck", StuckSource),
        override("source", "bad", BadSource),
    ]
    for one in installed:  # in every process that imports this
        one.__enter__()

    def upper(line: str) -> str:
        if line == "bad":
            raise ValueError("no such line")
        return line.upper()


    flow = fc.Flow("hanging")
    flow.source("lines", str).rebalance().map(upper).key_by(len).count().sink("out")

    two = fc.Flow("two")
    one, other = two.source("lines", str).rebalance().map(upper).broadcast(2)
    one.sink("out")
    other.sink("other")
"""

LINES = 200
LIMIT_S = 60


@pytest.fixture(params=["inproc", pytest.param("grpc", marks=pytest.mark.grpc)])
def on(request: pytest.FixtureRequest) -> list[str]:
    """Return settings of one process, or of several."""
    if request.param == "inproc":
        return []
    return ["transport.use=grpc", "job.workers=2"]


@pytest.fixture(autouse=True)
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "app.py").write_text(dedent(APP), "utf-8")
    (tmp_path / "lines.txt").write_text("".join(f"{'x' * (number % 7)}\n" for number in range(LINES)))
    monkeypatch.chdir(tmp_path)


def start(settings: Sequence[str], source: str = "lines", flow: str = "flow") -> subprocess.Popen[str]:
    options = [part for setting in settings for part in ("--set", setting)]
    command = [sys.executable, "-m", "flamecore", "run", f"app.py:{flow}", "-q", "--source", f"lines={source}"]
    return subprocess.Popen([*command, "--sink", "out=hanging", *options], stderr=subprocess.PIPE, text=True)


@contextmanager
def running(settings: Sequence[str], source: str = "lines", flow: str = "flow") -> Iterator[subprocess.Popen[str]]:
    """Yield a job, from when a part of it hangs."""
    job = start(settings, source, flow)
    try:
        limit = Patience(LIMIT_S)
        while not Path("hanging").exists():
            assert job.poll() is None, job.communicate()[1]
            assert not limit.passed()
            time.sleep(0.02)
        yield job
    finally:
        job.kill()
        job.wait()


def kill_a_worker(job: subprocess.Popen[str]) -> None:
    worker = int(Path(f"/proc/{job.pid}/task/{job.pid}/children").read_text().split()[0])
    os.kill(worker, signal.SIGKILL)


def settings(on: Sequence[str]) -> list[str]:
    return [
        *on,
        "source.lines.path=lines.txt",
        "sink.out.path=out.jsonl",
        "state.use=sqlite",
        "state.path=state",
        "state.interval_s=0.1",
        "job.guarantee=exactly_once",
        "job.max_in_flight=16",
    ]


def is_complete() -> bool:
    counts = dict.fromkeys(range(7), 0)
    expected = []
    for number in range(LINES):
        counts[number % 7] += 1
        expected.append([number % 7, counts[number % 7]])
    return [json.loads(line) for line in Path("out.jsonl").read_text().splitlines()] == expected


def assert_the_next_run_completes(on: list[str]) -> None:
    """Once nothing hangs any more: every output is there, once."""
    Path("hang").unlink()
    again = start(settings(on))
    _, said = again.communicate()
    assert again.returncode == 0, said
    assert is_complete()


@pytest.mark.parametrize("when", ["before", "behind"])
@pytest.mark.parametrize("how", ["waits", "ignores", "thread"])
def test_a_write_that_never_returns_ends_the_job(on: list[str], when: str, how: str) -> None:
    Path("hang").write_text(f"{when} {how}")
    with running([*settings(on), "job.sink_timeout_s=1"]) as job:
        _, said = job.communicate()
    assert job.returncode == 1, said
    assert "error: sink 'out' was given 1 s to write a batch of " in said
    assert "its output is stored below time " in said
    assert "event=edge.waited" in said
    assert_the_next_run_completes(on)


def test_a_drained_job_does_not_wait_for_ever(on: list[str]) -> None:
    Path("hang").write_text("before ignores")
    with running([*settings(on), "job.sink_timeout_s=2"]) as job:
        job.send_signal(signal.SIGINT)
        _, said = job.communicate()
    assert job.returncode == 1
    assert "sink 'out' was given 2 s to write a batch" in said


def test_a_snapshot_that_waits_for_a_sink_says_so() -> None:
    Path("hang").write_text("before waits")
    with running([*settings([]), "state.commit_timeout_s=1", "job.grace_s=1"]) as job:
        _, said = job.communicate()
    assert job.returncode == 1
    assert "is not complete after 1 s; sink 'out' has been asked for " in said


@pytest.mark.parametrize("how", ["waits", "ignores", "thread"])
def test_an_epoch_that_ends_does_not_wait_for_ever(grpc: list[str], how: str) -> None:
    Path("hang").write_text(f"behind {how}")
    on = [*grpc, "job.workers=2"]
    with running([*settings(on), "job.sink_timeout_s=3"]) as job:
        kill_a_worker(job)
        _, said = job.communicate()
    assert job.returncode == 1
    assert "sink 'out' was given 3 s to write a batch" in said
    assert_the_next_run_completes(on)


def test_a_reader_that_does_not_stop_ends_the_job(on: list[str]) -> None:
    with running([*on, "sink.out.path=out.jsonl", "job.source_timeout_s=1"], source="stuck") as job:
        job.send_signal(signal.SIGINT)
        _, said = job.communicate()
    assert job.returncode == 1, said
    assert "source 'lines' was given 1 s to leave off reading, and has not done it" in said
    assert "job.source_timeout_s" in said


def test_a_store_that_does_not_close_is_abandoned() -> None:
    with running([*settings([]), "state.use=stuck", "state.commit_timeout_s=1"]) as job:
        _, said = job.communicate()
    assert job.returncode == 1, said
    assert "error: store 'stuck' was given 1 s to close, and has not done it" in said
    assert is_complete()


# -- another thing ends the job ---------------------------------------------------------------

HOW = pytest.mark.parametrize("how", ["waits", "ignores", "thread"])
PLAIN = ["source.lines.path=lines.txt", "sink.out.path=out.jsonl", "job.grace_s=1"]


@HOW
def test_a_job_whose_worker_dies_does_not_wait_for_a_sink_that_hangs(grpc: list[str], how: str) -> None:
    Path("hang").write_text(f"before {how}")
    with running([*grpc, "job.workers=2", *PLAIN, "job.max_in_flight=16"]) as job:
        kill_a_worker(job)
        _, said = job.communicate()
    assert job.returncode == 1, said
    assert "was killed by SIGKILL\n  The job has ended." in said
    assert "\nalso: sink 'out' was given 1 s more to write a batch of " in said
    assert "its output is stored below time " in said


@HOW
def test_a_failure_behind_a_hanging_batch_is_reported(on: list[str], how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The outputs before it have not been delivered, so the sink ends the job; but not after half an hour."""
    Path("hang").write_text(f"before {how}")
    monkeypatch.setenv("LEAST", "0")
    with running([*on, *PLAIN[1:]], source="bad") as job:
        _, said = job.communicate()
    assert job.returncode == 1, said
    assert "error: sink 'out' was given 1 s more to write a batch of 1 payloads, and has not done it" in said
    assert "job.grace_s says how long it may take" in said
    assert "\nalso: 'map:upper' failed: ValueError: no such line\n" in said


@HOW
def test_a_job_whose_other_sink_fails_does_not_wait_for_one_that_hangs(
    on: list[str], how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("hang").write_text(f"before {how}")
    monkeypatch.setenv("LEAST", "0")
    with running([*on, *PLAIN, "sink.other.use=broken", "sink.other.path=other.jsonl"], flow="two") as job:
        _, said = job.communicate()
    assert job.returncode == 1, said
    assert "error: the disk is gone\n" in said
    assert "\nalso: sink 'out' was given 1 s more to write a batch of " in said


@pytest.mark.parametrize("ends", ["record", "sink", "worker"])
def test_a_sink_that_is_only_slow_writes_its_batch_to_the_end(
    on: list[str], ends: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The user is told meanwhile why the job ends, and what it waits for."""
    if ends == "worker" and not on:
        pytest.skip("there are no processes that could die")
    Path("hang").write_text("before until")
    monkeypatch.setenv("LEAST", "0")
    options, source, flow = [*on, *PLAIN[:2], "job.grace_s=50"], "lines", "flow"
    if ends == "record":
        options, source = [*on, PLAIN[1], "job.grace_s=50"], "bad"
    elif ends == "sink":
        options, flow = [*options, "sink.other.use=broken", "sink.other.path=other.jsonl"], "two"
    what = {"record": "'map:upper' failed: ValueError: no such line", "sink": "the disk is gone", "worker": "SIGKILL"}
    with running(options, source, flow) as job:
        if ends == "worker":
            kill_a_worker(job)
        assert job.stderr is not None
        told = next((line for line in job.stderr if "event=job.delayed" in line), "")
        assert what[ends] in told
        assert "sink 'out' has been asked for " in told
        Path("go").touch()
        _, said = job.communicate()
    assert job.returncode == 1, said
    assert what[ends] in said
    assert "also:" not in said
    assert len(Path("out.jsonl").read_text().splitlines()) == int(Path("hanging").read_text())


def test_a_failing_record_fails_again_when_the_job_resumes_before_it(
    grpc: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is read again: nobody has asked the job to read no more."""
    Path("hang").write_text("before until")
    monkeypatch.setenv("LEAST", "0")
    text = Path("lines.txt").read_text().splitlines()
    Path("lines.txt").write_text("\n".join([*text[:100], "bad", *text[100:]]) + "\n")
    on = [*grpc, "job.workers=2", *settings([])[:-1], "job.max_in_flight=1000"]
    with running(on) as job:
        assert job.stderr is not None
        told = next((line for line in job.stderr if "event=job.delayed" in line), "")
        assert "no such line" in told
        kill_a_worker(job)
        for line in job.stderr:
            if "event=job.faulted" in line:
                break
        Path("hang").unlink()
        Path("go").touch()
        _, said = job.communicate()
    assert job.returncode == 1, said
    assert "error: 'map:upper' failed: ValueError: no such line\n" in said
    assert "also:" not in said
    assert len(Path("out.jsonl").read_text().splitlines()) == 100
