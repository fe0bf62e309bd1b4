"""State that is whole and belongs elsewhere, and state that is older than the output: never wrong rows, and no word.

Each test damages what a job has stored as a disk, a backup or a hand may, and runs the job on. It must refuse, and say
why; or go on, and give the rows of a run that nobody disturbed. Blobs are exchanged through the store itself.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import shutil
import subprocess
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import commands
import pytest

from flamecore.abc.store import Store, StoreContext
from flamecore.runtime.state.inspect import verify
from flamecore.runtime.state.scan import scan
from flamestream_stores.directory import Directory
from flamestream_stores.sqlite import Sqlite

T = TypeVar("T")

LIMIT_S = 60
STORES: Mapping[str, type[Store]] = {"directory": Directory, "sqlite": Sqlite}

FLOW = """
import os
import flamecore as fc

def note(word):
    if word == "die" and "DIE" in os.environ:
        os._exit(9)
    return word

flow = fc.Flow("tally")
words = flow.source("words", str).rebalance().map(note)
words.key_by(lambda word: word).count(name="count").sink("counts")
"""

SETTINGS = """
schema = 1
[job]
flow = "tally.py"
guarantee = "exactly_once"
max_in_flight = 8
[source.words]
use = "lines"
path = "words.txt"
[sink.counts]
use = "jsonl"
path = "counts.jsonl"
"""

pytestmark = pytest.mark.usefixtures("installed")


class Job:
    """A job in a folder of its own, with its state in a store of a kind.

    Args:
        folder: Where; it is made.
        use: The store's driver.
        clock: Clock of the job.
        workers: Number of workers.
        interval_s: Between two snapshots.
    """

    def __init__(
        self, folder: Path, use: str, clock: str = "sequence", workers: int = 1, interval_s: float = 0.01
    ) -> None:
        self.folder, self.use = folder, use
        folder.mkdir()
        state = f'[state]\nuse = "{use}"\npath = "state/"\ninterval_s = {interval_s}\n'
        (folder / "tally.py").write_text(FLOW, "utf-8")
        settings = SETTINGS.replace("[job]", f'[job]\nclock = "{clock}"\nworkers = {workers}')
        (folder / "job.toml").write_text(settings + state, "utf-8")

    def feed(self, *words: str) -> None:
        """Add lines to the input."""
        with (self.folder / "words.txt").open("a", encoding="utf-8") as file:
            file.writelines(f"{word}\n" for word in words)

    def call(self, *words: str, dies: bool = False) -> subprocess.CompletedProcess[str]:
        return commands.call(*words, cwd=self.folder, env={**os.environ, **({"DIE": "1"} if dies else {})})

    def run(self) -> None:
        """Run it to the end of its input."""
        done = self.call("run", "job.toml", "--quiet")
        assert done.returncode == 0, done.stdout + done.stderr

    def die(self) -> None:
        """Run it until it comes to the word that kills it."""
        assert self.call("run", "job.toml", "--quiet", dies=True).returncode == 9

    def refused(self) -> str:
        """Run it; it must refuse, and change no row. Returns what it says."""
        before = self.rows
        done = self.call("run", "job.toml", "--quiet")
        assert done.returncode == 2, f"it ran, and wrote {len(self.rows)} rows for {len(self.words)} words"
        assert self.rows == before
        return done.stderr

    def refused_or_right(self) -> None:
        """Run it; it must refuse, or write the right rows.

        If it goes back behind the end of an earlier run it comes to that end once more, and the next run goes on.
        """
        done = self.call("run", "job.toml", "--quiet")
        if done.returncode == 0:
            self.run()
            assert self.rows == self.wanted
        else:
            assert done.returncode == 2
            assert "state" in done.stderr

    @property
    def words(self) -> list[str]:
        return (self.folder / "words.txt").read_text("utf-8").split()

    @property
    def rows(self) -> list[Any]:
        return [json.loads(line) for line in (self.folder / "counts.jsonl").read_text("utf-8").splitlines()]

    @property
    def wanted(self) -> list[Any]:
        """Return the rows of an undisturbed run."""
        counts: Counter[str] = Counter()
        rows = []
        for word in self.words:
            counts[word] += 1
            rows.append([word, counts[word]])
        return rows

    def damage(self) -> str:
        """Return the damage in words; empty if there is none."""
        verdict = self.store(verify)
        return " ".join(each.what for each in [*verdict.damaged, *(d for _, some in verdict.snapshots for d in some)])

    def shown(self) -> list[str]:
        """Blobs of the newest snapshot, the manifest first."""
        manifest = self.store(scan).snapshots[0]
        return [manifest.blob, *(part.blob for part in manifest.parts)]

    # -- the store ---------------------------------------------------------------------------------------------------

    def store(self, act: Callable[[Store], Awaitable[T]]) -> T:
        """Do something with the store."""
        driver = STORES[self.use]
        context = StoreContext("tally", self.folder, create=False)
        store = driver(driver.Options(path=f"{self.folder}/state/"), context)

        async def use() -> T:
            await store.open()
            try:
                return await act(store)
            finally:
                await store.aclose()

        return asyncio.run(use())

    @property
    def blobs(self) -> dict[str, bytes]:
        """Return all stored blobs."""

        async def read(store: Store) -> dict[str, bytes]:
            return {name: await store.read(name) or b"" for name in await store.names()}

        return self.store(read)

    def put(self, blobs: Mapping[str, bytes]) -> None:
        """Exchange the bytes of blobs."""

        async def write(store: Store) -> None:
            await store.delete(list(blobs))
            for name, data in blobs.items():
                assert await store.create(name, data)

        self.store(write)

    def lose(self, *names: str) -> None:
        """Delete blobs."""
        assert names
        self.store(lambda store: store.delete(names))

    def names(self, kind: str) -> list[str]:
        return [name for name in self.blobs if name.startswith(f"{kind}/")]

    def forget(self) -> None:
        """Take away state, input and output."""
        shutil.rmtree(self.folder / "state")
        for path in self.folder.glob("counts.jsonl*"):
            path.unlink()
        (self.folder / "words.txt").unlink()


@pytest.fixture(params=list(STORES))
def use(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def words(count: int, letters: str = "abc") -> list[str]:
    return list(itertools.islice(itertools.cycle(letters), count))


def two_runs(folder: Path, use: str, **settings: Any) -> tuple[Job, dict[str, bytes]]:
    """Run a job from nothing twice, on other input.

    Returns:
        The job, and the blobs of the first run.
    """
    job = Job(folder, use, **settings)
    job.feed(*words(90, "aab"))
    job.run()
    former = job.blobs
    job.forget()
    job.feed(*words(90, "abbbc"))
    job.run()
    job.feed(*words(30))
    return job, former


# -- blobs that belong elsewhere ---------------------------------------------------------------------------------------


def test_parts_of_an_earlier_run_under_the_same_names_are_found(tmp_path: Path, use: str) -> None:
    job, former = two_runs(tmp_path / "job", use)
    strange = {name: former[name] for name in job.names("part") if name in former}
    assert strange
    job.put(strange)
    said = job.call("snapshot", "verify")
    assert said.returncode == 1
    assert "it belongs to state" in said.stdout
    job.refused_or_right()


def test_all_parts_of_an_earlier_run_are_refused(tmp_path: Path, use: str) -> None:
    job, former = two_runs(tmp_path / "job", use, interval_s=60)
    (part,) = job.names("part")
    job.put({part: former[part]})
    assert job.damage()
    job.refused_or_right()


def test_parts_that_were_swapped_are_found(tmp_path: Path, use: str) -> None:
    job = Job(tmp_path / "job", use, workers=2)
    job.feed(*words(90, "abcdefgh"))
    job.run()
    job.feed(*words(30, "abcdefgh"))
    one, other = job.shown()[-2:]
    blobs = job.blobs
    job.put({one: blobs[other], other: blobs[one]})
    assert f"its bytes are those of blob {other}" in job.damage()
    job.refused_or_right()


def test_parts_of_another_copy_of_the_same_state_are_found(tmp_path: Path, use: str) -> None:
    """Two copies are gone on with separately: state, epochs and names are the same, and only what they hold differs."""
    job = Job(tmp_path / "job", use, interval_s=60)
    job.feed(*words(20))
    job.run()
    shutil.copytree(job.folder, tmp_path / "copy")
    job.feed(*words(20, "aaab"))
    job.run()
    other = job.blobs
    shutil.rmtree(job.folder)
    shutil.copytree(tmp_path / "copy", job.folder)
    job.feed(*words(20, "bccc"))
    job.run()
    part = job.shown()[-1]
    assert other[part] != job.blobs[part]
    job.put({part: other[part]})
    assert "another one than was written here" in job.damage()
    job.feed("a")
    job.refused_or_right()


def test_a_manifest_of_another_state_under_the_same_name_is_found(tmp_path: Path, use: str) -> None:
    job, former = two_runs(tmp_path / "job", use, interval_s=60)
    (manifest,) = job.names("commit")
    job.put({manifest: former[manifest], **{name: former[name] for name in job.names("part")}})
    assert job.damage()
    assert "it belongs to state" in job.refused()


def test_a_record_of_an_epoch_of_another_state_is_found(tmp_path: Path, use: str) -> None:
    job, former = two_runs(tmp_path / "job", use, interval_s=60)
    job.put({name: former[name] for name in job.names("epoch")})
    assert "it belongs to state" in job.refused()


def test_an_earlier_epoch_of_another_state_is_found(tmp_path: Path, use: str) -> None:
    job, former = two_runs(tmp_path / "job", use, interval_s=60)
    job.run()
    first, _ = job.names("epoch")
    job.put({first: former[first]})
    job.feed("a")
    assert "blobs of two states are mixed" in job.refused()


def test_journals_that_were_swapped_are_found(tmp_path: Path, use: str) -> None:
    job = Job(tmp_path / "job", use, clock="wall", interval_s=60)
    job.feed(*words(200), "die", *words(20))
    job.die()
    one, other, *_ = job.names("journal")
    blobs = job.blobs
    job.put({one: blobs[other], other: blobs[one]})
    assert f"its bytes are those of blob {other}" in job.damage()
    assert f"its bytes are those of blob {other}" in job.refused()


# -- blobs that are missing --------------------------------------------------------------------------------------------


def test_a_journal_that_is_missing_among_others_is_noticed(tmp_path: Path, use: str) -> None:
    job = Job(tmp_path / "job", use, clock="wall", interval_s=60)
    job.feed(*words(200), "die", *words(20))
    job.die()
    missing = job.names("journal")[1]
    job.lose(missing)
    assert f"blob {missing} of the state cannot be used: it is missing" in job.damage()
    assert missing in job.refused()


def test_the_newest_snapshot_may_be_missing(tmp_path: Path, use: str) -> None:
    """Outputs made twice are dropped: the snapshot before is there, and so are the journals since."""
    for clock in ("sequence", "wall"):
        job = Job(tmp_path / clock, use, clock=clock, interval_s=60)
        for _ in range(2):
            job.feed(*words(40))
            job.run()
        job.feed(*words(40, "ca"))
        job.lose(job.names("commit")[-1])
        job.run()
        job.run()
        assert job.rows == job.wanted


def test_if_all_snapshots_are_missing_the_job_does_not_begin_anew(tmp_path: Path, use: str) -> None:
    job = Job(tmp_path / "job", use)
    for _ in range(2):
        job.feed(*words(40))
        job.run()
    job.feed(*words(40, "ca"), "die")
    job.die()
    assert len(job.names("commit")) >= 2  # a kill may leave one more than are kept
    job.lose(*job.names("commit"))
    assert job.damage()
    assert "no snapshot of the state can be used" in job.refused()


@pytest.mark.parametrize("kept", [0, 1])
def test_records_of_epochs_that_are_missing_are_noticed(kept: int, tmp_path: Path, use: str) -> None:
    job = Job(tmp_path / "job", use)
    for _ in range(2):
        job.feed(*words(40))
        job.run()
    job.feed("a")
    job.lose(*job.names("epoch")[kept:])
    assert "blob epoch/00000002 of the state cannot be used: it is missing" in job.refused()


# -- state that is older than the output -------------------------------------------------------------------------------


def aged(job: Job) -> None:
    """Two runs; then the state is brought back as it was after the first, and there is more input."""
    job.feed(*words(40))
    job.run()
    shutil.copytree(job.folder / "state", job.folder / "copy")
    job.feed(*words(40, "ba"))
    job.run()
    shutil.rmtree(job.folder / "state")
    shutil.move(job.folder / "copy", job.folder / "state")
    job.feed(*words(40, "ca"))


def test_with_the_sequence_clock_an_older_copy_gives_the_same_rows(tmp_path: Path, use: str) -> None:
    """Times follow from positions, so what comes again has the times that the sink holds."""
    job = Job(tmp_path / "job", use)
    aged(job)
    job.run()
    assert job.rows == job.wanted


def test_with_the_sequence_clock_a_sink_that_is_far_ahead_drops_what_comes_again(tmp_path: Path, use: str) -> None:
    job = Job(tmp_path / "job", use, interval_s=60)
    job.feed(*words(200), "die", *words(20))
    job.die()
    assert not job.names("commit")
    assert len(job.rows) >= 190
    job.run()
    assert job.rows == job.wanted


def test_with_the_wall_clock_an_older_copy_is_refused_until_that_is_accepted(tmp_path: Path, use: str) -> None:
    job = Job(tmp_path / "job", use, clock="wall")
    aged(job)
    said = job.refused()
    assert "the state is older than the output: sink 'counts' holds its output up to time " in said
    assert "and the journals of the state go up to time " in said
    assert "flamestream plan --accept" in said
    assert job.refused() == said, "each time"

    plan = job.call("plan", "job.toml")
    assert plan.returncode == 1
    assert "LOST         sink counts: it holds its output up to time " in plan.stdout
    told = json.loads(job.call("plan", "job.toml", "--json").stdout)
    assert told["ahead"]["sinks"]["counts"] > told["ahead"]["accounted"]
    assert not told["keeps_all"]

    assert job.call("plan", "job.toml", "--accept").returncode == 0
    job.run()
    assert job.rows[:80] == job.wanted[:80], "what was delivered stays"
    assert len(job.rows) == 120 + 40, "what the copy did not know of has come again"
    assert json.loads(job.call("plan", "job.toml", "--json").stdout)["ahead"] is None
    job.run()


def test_if_the_newest_state_is_put_back_nothing_is_lost(tmp_path: Path, use: str) -> None:
    job = Job(tmp_path / "job", use, clock="wall")
    job.feed(*words(40))
    job.run()
    older = job.blobs
    job.feed(*words(40, "ba"))
    job.run()
    newest = job.blobs
    for blobs in (older, newest):
        job.lose(*job.blobs)
        job.put(blobs)
        if blobs is older:
            job.refused()
    job.feed("c")
    job.run()
    assert job.rows == job.wanted
    assert json.loads(job.call("plan", "job.toml", "--json").stdout)["keeps_all"]


@pytest.mark.parametrize("share", [0.0, 0.5])
def test_if_the_newest_journals_are_missing_the_job_is_refused(share: float, tmp_path: Path, use: str) -> None:
    job = Job(tmp_path / "job", use, clock="wall", interval_s=60)
    job.feed(*words(200), "die", *words(20))
    job.die()
    journals = job.names("journal")
    kept = round(len(journals) * share)
    job.lose(*journals[kept:])
    assert "the state is older than the output" in job.refused()


def test_if_nothing_is_missing_the_job_goes_on_with_the_wall_clock(tmp_path: Path, use: str) -> None:
    for interval_s in (0.01, 60):
        job = Job(tmp_path / f"{interval_s}", use, clock="wall", interval_s=interval_s)
        job.feed(*words(200), "die", *words(20))
        for _ in range(2):
            job.die()
        job.run()
        assert job.rows == job.wanted


def test_a_bit_of_the_log_of_a_database_is_flipped_after_a_crash(tmp_path: Path) -> None:
    """SQLite leaves out what comes behind it in the log, and says nothing: the state is that of some time ago."""
    job = Job(tmp_path / "job", "sqlite", clock="wall", interval_s=60)
    job.feed(*words(200), "die", *words(20))
    job.die()
    (log,) = (job.folder / "state").glob("*-wal")
    data = bytearray(log.read_bytes())
    data[len(data) // 2] ^= 4
    log.write_bytes(data)
    assert "the state is older than the output" in job.refused()
