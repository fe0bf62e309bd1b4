"""State of the present format is gone on with: what is in the folder `stored`, and how it came there.

Each story is a job that was ended in the midst of its input by the first code that stored in this format: by `kill -9`,
with its sinks ahead of its last snapshot, or drained. Here it is run on through the command line, by the code under
test, and the outputs are, item for item, those of a run from nothing. Code that cannot read them has to give the format
another number, so that stored state is refused with a clear error. `stored/write.py` tells what a story is made of.

The stories cover the stores `directory`, `sqlite` and `nats` (on a real server, over a copy of its folder). An object
store holds the same blobs under the same names as a folder, so one story is also run through fsspec. The store `memory`
outlives nothing. State holds no failures: records that fail are dead letters, before and after the job was ended.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import commands
import pytest

from flamecore.runtime.state.format import FORMAT

FOLDER = Path(__file__).with_name("stored") / f"format_{FORMAT}"
LEDGER = FOLDER / "ledger"

STORIES = ("directory", "drawn", "sqlite", "nats", "accepted")
SINKS = ("seen", "balances", "windows", "moments", "totals", "counts", "letters")
FIELDS = ("source", "vertex", "position", "reason", "record", "original")
"""Fields of letters that do not depend on the folder of the flow."""
FILES = ("in/east.jsonl", "in/west.jsonl")
ENTRIES = 110
LIMIT_S = 60

RECORDS = (b"!Manifest", b"!EpochRecord", b"!FrontState", b"!SinkState", b"!Part")
"""Names of classes of the engine that are in the state of every story."""

CALL_THROUGH_FSSPEC = """
import shutil
import fsspec
from flamecore.cli import main

files = fsspec.filesystem("memory")
files.put("state/ledger/", "/state/ledger/", recursive=True)
try:
    main()
finally:
    shutil.rmtree("state/ledger")
    files.get("/state/ledger/", "state/ledger/", recursive=True)
"""
"""fsspec's file system of the process, with the blobs of a folder, and what becomes of them back in the folder."""

pytestmark = pytest.mark.usefixtures("installed")


class Job:
    """A job in a folder of its own.

    Args:
        folder: Where; has the flow, its job file and its input.
        settings: Beside those of the job file.
        call: The program that calls flamestream.
    """

    def __init__(self, folder: Path, settings: list[str], call: str | None = None) -> None:
        self.folder = folder
        self.settings = settings
        self._call = call

    def call(self, *words: str, exits: int = 0) -> dict[str, Any]:
        """Call flamestream; returns what it prints."""
        sets = [word for each in self.settings for word in ("--set", each)]
        if self._call is None:
            done = commands.call(*words, "--json", *sets, cwd=self.folder)
        else:
            line = [sys.executable, "-c", self._call, *words, "--json", *sets]
            done = subprocess.run(line, cwd=self.folder, capture_output=True, text=True, check=False)
        assert done.returncode == exits, done.stdout + done.stderr
        told: dict[str, Any] = json.loads(done.stdout)
        return told

    def outputs(self) -> dict[str, list[Any]]:
        """Return what the sinks hold; of letters the fields that every run of the flow gives."""
        outputs = {
            name: [json.loads(line) for line in (self.folder / "out" / f"{name}.jsonl").read_bytes().splitlines()]
            for name in SINKS
        }
        return outputs | {"letters": [{key: letter[key] for key in FIELDS} for letter in outputs["letters"]]}


def from_nothing(folder: Path, *settings: str, order: list[int] | None = None) -> dict[str, list[Any]]:
    """Return the outputs of an undisturbed run.

    Args:
        folder: Where it may run.
        settings: Beside those of the job file.
        order: Numbers of all entries in the order in which one file is to have them; None: two files, as stored.
    """
    shutil.copytree(LEDGER, folder, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "out").mkdir()
    if order is not None:
        lines = [line for path in sorted((folder / "in").iterdir()) for line in path.read_text("utf-8").splitlines()]
        by_number = {json.loads(line)["number"]: line for line in lines}
        shutil.rmtree(folder / "in")
        (folder / "in").mkdir()
        (folder / "in" / "all.jsonl").write_text("".join(f"{by_number[number]}\n" for number in order), "utf-8")
    job = Job(folder, list(settings))
    assert job.call("run", "job.toml", "--quiet")["items_in"] == ENTRIES
    return job.outputs()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    return from_nothing(tmp_path_factory.mktemp("undisturbed") / "ledger")


@contextlib.contextmanager
def told_again(story: str, folder: Path, call: str | None = None) -> Iterator[Job]:
    """Yield a copy of a stored job, with the server of its store."""
    shutil.copytree(LEDGER, folder, ignore=shutil.ignore_patterns("__pycache__"))
    for part in ("state", "out"):
        for path in (FOLDER / story / part).rglob("*"):
            if path.is_file():
                copy = folder / path.relative_to(FOLDER / story)
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, copy.with_name(copy.name.removesuffix(".kept")))
    settings = json.loads((FOLDER / story / "story.json").read_text("utf-8"))["settings"]
    if story == "nats":
        with server(folder / "state") as address:
            yield Job(folder, [*settings, f'state.servers=["{address}"]'], call)
    else:
        yield Job(folder, settings, call)


@contextlib.contextmanager
def server(store: Path) -> Iterator[str]:
    """Yield the address of a NATS server over a folder of JetStream."""
    from flamecore.errors import MissingDependencyError
    from flamestream_nats.testing import NatsServer, program

    try:
        program()
    except MissingDependencyError as error:
        pytest.skip(error.what)
    with NatsServer(settings={"jetstream": {"store_dir": str(store)}}) as nats:
        yield nats.url


class Look(NamedTuple):
    """Numbers of a stored job: of the entries that are in its snapshot, and of its journals."""

    entries: int
    journals: int


def entries_in(plan: dict[str, Any]) -> int:
    """Return the number of entries in the snapshot that a plan is of.

    A position is an offset, a line and a seal.
    """
    return sum(partition["at"][1] for partition in plan["partitions"])


def goes_on(job: Job, workers: int = 2) -> Look:
    """Look at what is stored, and run it on to the end of the input."""
    verdict = job.call("snapshot", "verify")
    newest = verdict["snapshots"][0]
    assert verdict["sound"]
    assert verdict["damaged"] == []
    assert len(verdict["snapshots"]) >= 2
    assert verdict["goes_on_from"] == newest["number"]
    assert newest["epoch"] == 1
    assert not newest["finished"]

    plan = job.call("plan", "job.toml")
    assert plan["keeps_all"]
    assert {each["fate"] for each in plan["operations"]} == {"kept"}
    assert all(each["keys"] for each in plan["operations"])
    assert {each["partition"]: each["fate"] for each in plan["partitions"]} == dict.fromkeys(FILES, "kept")
    assert plan["sinks"] == {"new": [], "gone": []}
    read = entries_in(plan)
    assert 0 < read < ENTRIES

    run = job.call("run", "job.toml", "--quiet", "--workers", str(workers))
    assert run["items_in"] == ENTRIES - read, "what is in the snapshot is not read again, and all else is"
    end = job.call("snapshot", "list")["snapshots"][0]
    assert end["epoch"] == 2
    assert end["finished"]
    return Look(read, verdict["journals"])


def holds(job: Job, wanted: dict[str, list[Any]]) -> None:
    """Compare what the sinks hold, item for item."""
    outputs = job.outputs()
    for name in SINKS:
        assert outputs[name] == wanted[name], name


def without_places(outputs: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """Return the outputs with letters that do not tell their records' places."""
    return outputs | {"letters": [letter | {"position": ""} for letter in outputs["letters"]]}


@pytest.mark.parametrize("story", STORIES)
def test_stored_state_names_classes_of_the_engine_by_no_module(story: str) -> None:
    stored = b"".join(path.read_bytes() for path in sorted((FOLDER / story / "state").rglob("*")) if path.is_file())
    formats = Counter(re.findall(rb"FLMB(.)", stored, re.DOTALL))
    assert set(formats) == {bytes([FORMAT])}
    assert formats.total() >= 6, "an epoch, two snapshots and their parts"
    assert all(name in stored for name in RECORDS)
    assert (b"!AcceptedLoss" in stored) == (story == "accepted")
    assert b"flamecore" not in stored
    assert b"ledger:Balance" in stored
    assert b"!GlobalTime" in stored
    assert (b"!State" in stored) == (story == "drawn")


def test_a_job_resumes_from_state_in_a_folder(tmp_path: Path, undisturbed: dict[str, list[Any]]) -> None:
    with told_again("directory", tmp_path / "ledger") as job:
        goes_on(job)
        holds(job, undisturbed)
        assert not job.call("snapshot", "verify")["damaged"]


def test_a_job_resumes_from_state_in_an_object_store(tmp_path: Path, undisturbed: dict[str, list[Any]]) -> None:
    """Its blobs have the same names as in a folder. fsspec's `file://` is taken as a folder, so it is `memory://`."""
    pytest.importorskip("fsspec", reason="fsspec is not installed")
    with told_again("directory", tmp_path / "ledger", CALL_THROUGH_FSSPEC) as job:
        job.settings.append("state.path=memory://state")
        goes_on(job)
        holds(job, undisturbed)


def test_a_job_resumes_from_state_of_drawn_cycles(tmp_path: Path, undisturbed: dict[str, list[Any]]) -> None:
    """The items in these cycles are instances of a class of the engine. Letters name the flows that were drawn."""
    with told_again("drawn", tmp_path / "ledger") as job:
        goes_on(job)
        wanted = from_nothing(tmp_path / "undisturbed", "job.flow=ledger.py:drawn")
        assert job.outputs() == wanted
        holds(job, undisturbed | {"letters": job.outputs()["letters"]})


def test_a_drained_job_resumes_on_another_number_of_workers(tmp_path: Path, undisturbed: dict[str, list[Any]]) -> None:
    with told_again("accepted", tmp_path / "ledger") as job:
        goes_on(job, workers=3)
        holds(job, undisturbed)


@pytest.mark.parametrize("story", ["sqlite", pytest.param("nats", marks=pytest.mark.nats)])
def test_a_job_resumes_from_state_with_wall_clock_times(story: str, tmp_path: Path) -> None:
    """Two files meet in any order there: in that which the outputs tell, one file with all entries gives the same.

    Sinks that are ahead of the snapshot drop what comes again, by its times: those in the journals.
    """
    with told_again(story, tmp_path / "ledger") as job:
        held = {name: (job.folder / "out" / f"{name}.jsonl").read_bytes() for name in SINKS}
        look = goes_on(job)
        assert held["seen"].count(b"\n") > look.entries
        assert look.journals > 0
        for name in SINKS:
            assert (job.folder / "out" / f"{name}.jsonl").read_bytes().startswith(held[name]), name
        outputs = job.outputs()
        order = outputs["seen"]
        assert sorted(order) == list(range(1, ENTRIES + 1))
        wanted = from_nothing(tmp_path / "in one file", order=order)
        assert without_places(outputs) == without_places(wanted)


def test_an_accepted_loss_is_taken_once(tmp_path: Path, undisturbed: dict[str, list[Any]]) -> None:
    """The count has another name in the flow that goes on, so it begins anew; all else goes on."""
    with told_again("accepted", tmp_path / "ledger") as job:
        job.settings.append("job.flow=ledger.py:recounted")
        held = job.outputs()["counts"]
        plan = job.call("plan", "job.toml", exits=1)
        fates = {each["name"]: each["fate"] for each in plan["operations"]}
        assert fates.pop("count") == "dropped"
        assert fates.pop("recount") == "new"
        assert set(fates.values()) == {"kept"}
        assert job.call("run", "job.toml", "--quiet")["items_in"] == ENTRIES - entries_in(plan)
        assert job.call("plan", "job.toml")["keeps_all"]
        counts, anew = Counter[str](), []
        for kind, _ in undisturbed["counts"][len(held) :]:
            counts[kind] += 1
            anew.append([kind, counts[kind]])
        assert anew
        holds(job, undisturbed | {"counts": [*held, *anew]})


def test_a_loss_that_was_not_accepted_is_refused(tmp_path: Path) -> None:
    with told_again("accepted", tmp_path / "ledger") as job:
        job.settings.append("job.flow=ledger.py:recounted")
        (word,) = (job.folder / "state" / "ledger").glob("accepted=*.blob")
        word.unlink()
        failed = job.call("run", "job.toml", "--quiet", exits=2)
        assert "part of it would be lost" in failed["error"]["message"]


def test_damage_in_stored_state_is_found(tmp_path: Path) -> None:
    with told_again("directory", tmp_path / "ledger") as job:
        blob = job.call("snapshot", "show")["blobs"][-1]
        part = job.folder / "state" / "ledger" / f"{blob.replace('/', '=')}.blob"
        data = bytearray(part.read_bytes())
        data[-1] ^= 1
        part.write_bytes(data)
        verdict = job.call("snapshot", "verify", exits=1)
        assert not verdict["sound"]
        assert {damage["blob"] for each in verdict["snapshots"] for damage in each["damaged"]} == {blob}
