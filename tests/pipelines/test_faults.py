"""Faults that are no deaths: who stands still, disks that are full, blobs that are damaged, clocks that jump."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import processes
import pytest
from processes import wait_until_gone
from words import SHORT, Words, ended, wait_for

pytestmark = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds the processes of a job in /proc")


DISK_BYTES = 24 * 2**20
ROOM_BYTES = 64 * 2**10


def the_error(said: str) -> str:
    """Return the last error of a job."""
    assert "Traceback" not in said, said
    return said[said.rindex("error: ") :]


# -- who stands still --------------------------------------------------------------------------------------------------


def test_a_worker_that_is_stopped_is_named_and_waited_for(tmp_path: Path, over: list[str]) -> None:
    """The system says that its process is there, so it is not taken for dead."""
    words = Words(tmp_path, over)
    with words.running(**SHORT) as run:
        wait_for(lambda: words.delivered() > 100, run)
        stopped = run.nodes()[1]
        os.kill(stopped.pid, signal.SIGSTOP)
        wait_for(lambda: "node=worker-1 state=stopped" in run.said(), run)
        os.kill(stopped.pid, signal.SIGCONT)
        assert words.finish(run) == 0, run.said()
        assert not wait_until_gone(run.met)
    assert "job.recovered" not in run.said()
    words.check()


@pytest.mark.parametrize("state", [True, False], ids=["state", "no state"])
@pytest.mark.parametrize("how", ["asleep", "in_c", "stopped"])
def test_no_busy_worker_is_taken_for_dead(tmp_path: Path, over: list[str], how: str, state: bool) -> None:
    """Its function keeps it at the first record, and in the midst of others, for longer than any limit of silence."""
    words = Words(tmp_path, over, out="out.jsonl")
    words.be_busy(how)
    kept = {} if state else {"job__guarantee": None, "state__use": None, "state__path": None, "state__interval_s": None}
    with words.running(**SHORT, **kept) as run:
        assert ended(run) == 0, run.said()
        assert not wait_until_gone(run.met)
    assert "job.recovered" not in run.said()
    assert f"state={'stopped' if how == 'stopped' else 'running'}" in run.said()
    assert words.calls() == ["w0", "w40"]
    words.check()


@pytest.mark.parametrize("how", ["asleep", "in_c", "stopped"])
def test_a_call_longer_than_the_lease_of_the_state_loses_it_to_nobody(tmp_path: Path, how: str) -> None:
    """The whole job is one process, which cannot renew the lease meanwhile; another start is refused."""
    words = Words(tmp_path, ["transport.use=inproc"], out="out.jsonl")
    words.be_busy(how)
    with words.running(state__lease_s=0.3) as run:
        wait_for((tmp_path / "begun-w0").exists, run)
        if how != "stopped":
            with words.running(state__lease_s=0.3) as second:
                assert ended(second) == 2, second.said()
            assert f"process {run.process.pid} on " in the_error(second.said())
        assert ended(run) == 0, run.said()
    assert words.calls() == ["w0", "w40"]
    words.check()


@pytest.mark.parametrize(
    ("how", "text"),
    [
        ("endless", "CallLimitError: seen has lasted for more than job.call_limit_s = 0.5 s"),
        ("kept", "has lasted for more than job.call_limit_s = 0.5 s, in code in C that keeps the interpreter"),
    ],
)
def test_a_call_beyond_its_limit_that_cannot_be_interrupted_ends_its_worker(
    tmp_path: Path, over: list[str], how: str, text: str
) -> None:
    """The thread that watches it does, or the supervisor, if that has no turn; the job goes on from its state."""
    words = Words(tmp_path, over, out="out.jsonl")
    words.be_busy(how)
    with words.running(job__call_limit_s=0.5, deploy__silence_timeout_s=0.5) as run:
        assert ended(run) == 0, run.said()
        assert not wait_until_gone(run.met)
    assert text in run.said()
    assert run.said().count("job.faulted") == 1
    assert bool(re.search("record    'w(0|40)'", run.said())) is (how == "endless")
    words.check()


def test_a_supervisor_that_stood_still_stops_when_another_has_taken_over(tmp_path: Path, over: list[str]) -> None:
    """Both have one state and one sink. The newer one goes on; the other writes nothing more, and says why."""
    words = Words(tmp_path, over)
    with words.running() as first:
        wait_for(lambda: words.delivered() > 300, first)
        first.nodes()
        words.stand_still(first.process)
        with words.running() as second:
            wait_for(lambda: words.delivered() > 600, second)
            first.process.send_signal(signal.SIGCONT)
            assert ended(first) == 1, first.said()
            assert words.finish(second) == 0, second.said()
            assert not wait_until_gone(first.met | second.met)
    assert "another run" in the_error(first.said())
    words.check()


# -- disks that are full -----------------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Yield a file system of its own, with little room left."""
    place = tmp_path / "disk"
    place.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", place],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        pytest.skip(f"a small file system cannot be mounted here: {done.stderr.strip()}")
    (place / "filler").write_bytes(bytes(DISK_BYTES - ROOM_BYTES))
    yield place
    subprocess.run(["umount", "-l", place], check=True)


@pytest.mark.parametrize(
    ("out", "settings"),
    [
        ("out.db", {"state__path": "disk/state"}),
        ("out.db", {"state__use": "directory", "state__path": "disk/state"}),
        ("disk/out.db", {}),
        ("disk/out.jsonl", {}),
    ],
    ids=["sqlite store", "directory store", "sqlite sink", "jsonl sink"],
)
def test_a_job_resumes_when_a_full_disk_has_room_again(
    tmp_path: Path, grpc: list[str], small_disk: Path, out: str, settings: dict[str, str]
) -> None:
    words = Words(tmp_path, grpc, out=out)
    # So much that the last snapshot is too large by itself, however few a quick job takes before that.
    words.lines = [f"{line} {number}-{'x' * 60}" for number, line in enumerate(words.lines)]
    words.write("a", words.lines)
    with words.running(**settings) as run:
        assert ended(run) in (1, 2), run.said()  # 2: there was no room to begin
        assert not wait_until_gone(run.met)
    error = the_error(run.said())
    assert "Make room" in error, error
    assert "disk/" in error, error
    (small_disk / "filler").unlink()
    with words.running(**settings) as run:
        assert words.finish(run) == 0, run.said()
    words.check()
    kept = sum(path.stat().st_blocks * 512 for path in small_disk.rglob("*") if path.is_file())
    assert kept > ROOM_BYTES, "a quick job may end before the disk is full"


def test_a_job_begins_when_a_full_disk_has_room_again(tmp_path: Path, grpc: list[str], small_disk: Path) -> None:
    (small_disk / "more").write_bytes(bytes(ROOM_BYTES - 24 * 2**10))
    words = Words(tmp_path, grpc, lines=20, out="disk/out.db")
    with words.running() as run:
        assert ended(run) == 2, run.said()
    assert "Make room" in the_error(run.said())
    (small_disk / "more").unlink()
    (small_disk / "filler").unlink()
    with words.running() as run:
        assert ended(run) == 0, run.said()
    words.check()


# -- blobs that are damaged --------------------------------------------------------------------------------------------


def interrupted(folder: Path, over: list[str], clock: str) -> Words:
    """Return a job that was killed on its way, with its state in files."""
    words = Words(folder, [*over, "state.use=directory", f"job.clock={clock}"])
    with words.running(state__use=None) as run:
        wait_for(lambda: len(newest(folder, "commit")) > 1 and words.delivered() > 800, run)
    return words


def newest(folder: Path, kind: str) -> list[Path]:
    """Return the files of the blobs of a kind, the newest last."""
    return sorted((folder / "state" / "words").glob(f"{kind}=*"))


def torn(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])


def flipped(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[random.Random(7).randrange(len(data))] ^= 4
    path.write_bytes(data)


def emptied(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize(("kind", "damage"), [("commit", torn), ("commit", emptied), ("part", flipped)])
def test_a_job_resumes_from_the_snapshot_before_a_damaged_one(
    tmp_path: Path, grpc: list[str], kind: str, damage: Callable[[Path], None]
) -> None:
    words = interrupted(tmp_path, grpc, "sequence")
    damage(newest(tmp_path, kind)[-1])
    with words.running(state__use=None) as run:
        assert words.finish(run) == 0, run.said()
    words.check()


@pytest.mark.parametrize(("kind", "damage"), [("epoch", torn), ("journal", flipped)])
def test_damage_to_a_blob_without_a_second_is_an_error(
    tmp_path: Path, grpc: list[str], kind: str, damage: Callable[[Path], None]
) -> None:
    """The owner of the state and the times given cannot be known from a damaged journal, and nothing is changed."""
    words = interrupted(tmp_path, grpc, "wall")
    path = newest(tmp_path, kind)[-1]
    whole = path.read_bytes()
    damage(path)
    with words.running(state__use=None) as run:
        assert ended(run) == 2, run.said()
    error = the_error(run.said())
    assert f"{kind}/" in error, error
    assert "Bring the state back from a copy" in error, error
    path.write_bytes(whole)
    with words.running(state__use=None) as run:
        assert words.finish(run) == 0, run.said()
    words.check()


# -- clocks that jump --------------------------------------------------------------------------------------------------


def test_a_clock_that_jumps_by_an_hour_does_not_change_the_outputs(tmp_path: Path, grpc: list[str]) -> None:
    """While the job runs, while a worker is dead, and while the whole job is."""
    words = Words(tmp_path, [*grpc, "job.clock=wall"])
    set_by = tmp_path / "clock"
    words.environ["SOAK_CLOCK"] = str(set_by)
    words.environ["PYTHONPATH"] = str(Path(processes.__file__).parent / "clock")
    with words.running() as run:
        wait_for(lambda: words.delivered() > 300, run)
        set_by.write_text("3600")
        wait_for(lambda: words.delivered() > 800, run)
        os.kill(run.nodes()[0].pid, signal.SIGKILL)
        set_by.write_text("-3600")
        wait_for(lambda: words.delivered() > 1400, run)
        run.nodes()
        run.process.kill()
        run.process.wait()
        set_by.write_text("7200")
        assert not run.over(), "it is started again"
        assert words.finish(run) == 0, run.said()
    words.check()
