"""A state is looked at while its job runs, and forgets what was there a moment ago."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

import flamecore as fc
from flamecore.abc.store import Store, StoreContext
from flamecore.errors import CorruptError, JobError
from flamecore.runtime.codec.codec import Codec
from flamecore.runtime.state.inspect import prune, value_of, verify
from flamecore.runtime.state.migration import plan_migration
from flamecore.runtime.state.scan import scan
from flamecore.testing.bench.stores import using
from flamecore.testing.progress import Patience
from flamestream_stores.memory import Memory
from flamestream_stores.sqlite import Sqlite

pytestmark = pytest.mark.usefixtures("installed")


def counting() -> fc.Flow:
    flow = fc.Flow("counting")
    words = flow.source("words", str).map(slowly)
    words.key_by(lambda word: word).count(name="count").sink("counts")
    return flow


def slowly(word: str) -> str:
    time.sleep(0.002)
    return word


FLOW = counting()
WORDS = [f"w{number % 7}" for number in range(70)]


def state_of(folder: Path) -> Sqlite:
    return Sqlite(Sqlite.Options(path=str(folder)), StoreContext("counting", create=False))


async def all_of(store: Store) -> dict[str, bytes]:
    return {name: await store.read(name) or b"" for name in await store.names()}


class Forgetful(Memory):
    """With the first part that is read, the job has gone on to other snapshots."""

    def __init__(self, now: dict[str, bytes], later: dict[str, bytes]) -> None:
        super().__init__(None, StoreContext("counting"), now)
        self.later = later

    async def read(self, name: str) -> bytes | None:
        if name.startswith("part/") and self.blobs is not self.later:
            self.blobs = self.later
            return None
        return await super().read(name)


class Overtaken(Memory):
    """When snapshots are listed, another run has begun and forgotten those that were there."""

    def __init__(self, now: dict[str, bytes], later: dict[str, bytes]) -> None:
        super().__init__(None, StoreContext("counting"), now)
        self.later = later

    async def names(self, prefix: str = "") -> list[str]:
        if prefix.startswith("commit/"):
            self.blobs = self.later
        return await super().names(prefix)


@pytest.fixture(scope="module")
def moments(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, bytes], dict[str, bytes]]:
    """Return the blobs of a job at two moments that have no snapshot in common."""
    folder = tmp_path_factory.mktemp("state")
    found = []
    for times in (1, 4):
        settings = {"state.interval_s": 0.02}
        FLOW.run({"words": WORDS * times}, state=folder, settings=settings)
        found.append(using(state_of(folder), all_of))
    before, after = ({name for name in blobs if name.startswith("commit/")} for blobs in found)
    assert before.isdisjoint(after)
    return found[0], found[1]


def test_blobs_deleted_meanwhile_are_no_damage(moments: tuple[dict[str, bytes], dict[str, bytes]]) -> None:
    graph = FLOW.graph()
    value = using(Forgetful(*moments), lambda store: value_of(store, Codec.of(graph), "count", ["w3"]))
    assert (value.found, value.value) == (True, 40)
    verdict = using(Forgetful(*moments), verify)
    assert verdict.sound
    assert verdict.goes_on is not None
    plan = using(Forgetful(*moments), lambda store: plan_migration(store, graph, {}))
    assert [(each.fate, each.keys) for each in plan.operations] == [("kept", 7)]


def test_snapshots_forgotten_by_a_new_run_meanwhile_are_no_damage(
    moments: tuple[dict[str, bytes], dict[str, bytes]],
) -> None:
    epoch = max(name for name in moments[0] if name.startswith("epoch/")).rpartition("/")[2]
    assert len({name.split("/")[2] for name in moments[0] if name.startswith(f"part/{epoch}/")}) > 1
    found = using(Overtaken(*moments), scan)
    assert found == using(Memory(None, StoreContext("counting"), moments[1]), scan)
    assert found.damaged == ()


def test_missing_parts_of_an_existing_snapshot_are_damage(
    moments: tuple[dict[str, bytes], dict[str, bytes]],
) -> None:
    blobs = {name: data for name, data in moments[1].items() if not name.startswith("part/")}
    store = Memory(None, StoreContext("counting"), blobs)
    verdict = using(store, verify)
    assert not verdict.sound
    assert not verdict.startable
    with pytest.raises(CorruptError, match="it is missing") as caught:
        using(store, lambda store: value_of(store, Codec(), "count", ["w3"]))
    assert "flamestream snapshot verify" in caught.value.__notes__[0]


def test_a_store_that_knows_nothing_of_the_job_says_so() -> None:
    store = Memory(None, StoreContext("counting"), {})
    with pytest.raises(JobError, match="holds nothing of job 'counting'"):
        using(store, lambda store: value_of(store, Codec(), "count", ["w3"]))
    assert using(store, prune) == []
    assert using(store, verify).startable


def test_state_can_be_inspected_while_the_job_runs(tmp_path: Path) -> None:
    job = threading.Thread(
        target=lambda: FLOW.run({"words": WORDS * 12}, state=tmp_path, settings={"state.interval_s": 0.01})
    )
    job.start()
    seen = []
    try:
        limit = Patience(30)
        while job.is_alive():
            assert not limit.passed()
            if not (tmp_path / "counting.db").exists() or not using(state_of(tmp_path), scan).snapshots:
                time.sleep(0.01)
                continue
            assert using(state_of(tmp_path), verify).sound
            assert using(state_of(tmp_path), prune) == []
            seen.append(using(state_of(tmp_path), lambda s: value_of(s, Codec(), "count", ["w3"])).value or 0)
    finally:
        job.join()
    assert seen == sorted(seen)
    assert len(set(seen)) > 1, "it has moved on meanwhile"
    assert using(state_of(tmp_path), lambda s: value_of(s, Codec(), "count", ["w3"])).value == 120
