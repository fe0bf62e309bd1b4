"""Drivers that hang before anything is read, or beside it: each call has a limit, which the error names."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Any, ClassVar

import pytest

import flamecore as fc
from flamecore.abc.source import Reader, Source, SourceCapabilities
from flamecore.abc.store import StoreContext
from flamecore.errors import FlameError, SourceError, StoreError
from flamecore.runtime.engine.limited_store import LimitedStore
from flamecore.runtime.tasks import event_loop
from flamecore.runtime.tasks.deadlines import Deadlines
from flamecore.testing import override
from flamestream_stores.memory import Memory

NEVER_S = 1000.0


class Deaf(Source):
    """Hangs in one of its calls."""

    name: ClassVar[str] = "deaf"
    hangs: ClassVar[str] = "open"

    @property
    def capabilities(self) -> SourceCapabilities:
        return SourceCapabilities(replayable=True, bounded=True)

    def partitions(self) -> tuple[str, ...]:
        return ("one",)

    async def open(self, partition: str, position: Any = None) -> Reader:
        await asyncio.sleep(NEVER_S)
        raise AssertionError

    async def open_until(self, partition: str, position: Any, end: Any) -> Reader:
        return await self.open(partition, position)

    async def find_end(self, partition: str) -> Any:
        if self.hangs == "find_end":
            await asyncio.sleep(NEVER_S)
        return 1 if self.hangs == "open_until" else None


class Stuck(Memory):
    """Hangs in one of its calls."""

    name: ClassVar[str] = "stuck"
    hangs: ClassVar[str] = "open"

    def __init__(self, options: Any, context: StoreContext) -> None:
        super().__init__(options, context)

    async def open(self) -> None:
        if self.hangs == "open":
            await asyncio.sleep(NEVER_S)
        await super().open()

    async def delete(self, names: Collection[str]) -> None:
        if self.hangs == "delete":
            await asyncio.sleep(NEVER_S)
        await super().delete(names)


@pytest.fixture(autouse=True)
def leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have other tests look for what loops leave: after a call that has no end none is told to."""
    monkeypatch.setattr(event_loop, "_left", False)


def failed(settings: dict[str, Any], inputs: dict[str, Any] | None = None) -> FlameError:
    flow = fc.Flow("hangs")
    flow.source("lines", str).sink("out")
    with (
        override("source", "deaf", Deaf),
        override("store", "stuck", Stuck),
        pytest.raises(FlameError) as caught,
    ):
        flow.run(inputs, settings=settings)
    return caught.value


@pytest.mark.parametrize(
    ("hangs", "doing"),
    [("open", "open 'one'"), ("open_until", "open 'one'"), ("find_end", "find where the run ends")],
)
def test_a_source_that_hangs_before_it_reads_ends_the_job(
    hangs: str, doing: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setattr(Deaf, "hangs", hangs)
    settings = {"source.lines.use": "deaf", "job.open_timeout_s": 0.05}
    error = failed(settings | {"state.use": "sqlite", "state.path": str(tmp_path)})
    assert isinstance(error, SourceError)
    assert "source 'lines'" in error.what
    assert f"was given 0.05 s to {doing}, and has not done it" in error.what
    assert "job.open_timeout_s says how long it may take" in error.hint


@pytest.mark.parametrize(("hangs", "doing"), [("open", "open"), ("delete", "delete 2 of its blobs")])
def test_a_store_that_hangs_ends_the_job(hangs: str, doing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Stuck, "hangs", hangs)
    error = failed({"state.use": "stuck", "state.commit_timeout_s": 0.05}, {"lines": ["a"]})
    assert isinstance(error, StoreError)
    assert error.what == f"store 'stuck' was given 0.05 s to {doing}, and has not done it"
    assert "state.commit_timeout_s says how long it may take" in error.hint


def test_a_store_under_a_limit_is_the_same_store() -> None:
    async def run() -> list[str]:
        store = LimitedStore(Memory(None, StoreContext("job")), Deadlines(), 10)
        await store.open()
        assert await store.create("a", b"1")
        assert await store.create("b", b"2")
        assert not await store.create("a", b"3")
        assert await store.read("a") == b"1"
        await store.delete([])
        await asyncio.gather(store.delete(["a"]), store.delete(["a"]))
        names = await store.names()
        await store.aclose()
        assert (store.name, store.capabilities) == ("memory", Memory(None, StoreContext("job")).capabilities)
        return names

    assert asyncio.run(run()) == ["b"]
