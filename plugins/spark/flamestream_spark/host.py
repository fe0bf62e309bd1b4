"""Host `spark`: each node is a task of Spark for as long as the job runs."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Annotated, Any, ClassVar

import msgspec

from flamecore.abc.config import JobConfig
from flamecore.abc.hooks import hookimpl
from flamecore.abc.host import HostContext, NodeHost, NodeSlot, PackedFlow
from flamecore.errors import FlameError, JobError
from flamecore.model.flow import FlowGraph
from flamestream_spark.nodes.feed import Feed
from flamestream_spark.nodes.packing import packed
from flamestream_spark.nodes.places import advised, problems
from flamestream_spark.nodes.slots import check_slots
from flamestream_spark.nodes.spares import Spares
from flamestream_spark.nodes.stage import Stage
from flamestream_spark.session.ending import ended, told_of_end
from flamestream_spark.session.messages import reason
from flamestream_spark.session.session import (
    facts_of,
    has_files,
    has_pages,
    is_gone,
    name_of,
    named_jobs,
    owned_by_thread,
    session,
    session_here,
    show_name,
)


def summary(counts: Mapping[str, Any]) -> str:
    """Return what a job has come to, in words.

    >>> summary({"items_in": 1200, "items_out": {"index": 3000}, "replays": 2, "latency_p99_ms": 8.25})
    'ended: 1,200 in, 3,000 out, 2 replays, release p99 8.2 ms'
    """
    out = sum(counts.get("items_out", {}).values())
    said = f"ended: {counts.get('items_in', 0):,} in, {out:,} out, {counts.get('replays', 0):,} replays"
    release_ms = counts.get("latency_p99_ms")
    return said if release_ms is None else f"{said}, release p99 {release_ms:.1f} ms"


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Options of the host.

    Attributes:
        master: Where Spark runs, if the process has no session and is not run by spark-submit: "local[4]",
            "spark://host:7077", "yarn", "k8s://…". By default as Spark's own defaults say, else "local[*]".
        config: Configuration of that session.
        workers: How many workers there are on Spark; by default as `job.workers` says.
    """

    master: str = ""
    config: Mapping[str, str] = {}
    workers: Annotated[int, msgspec.Meta(ge=1)] | None = None


class SparkHost(NodeHost):
    """Nodes as tasks, each a stage of its own.

    The loss of one task does not end the others.
    """

    name: ClassVar[str] = "spark"
    Options: ClassVar[Any] = Options

    def __init__(self, options: Any, context: HostContext) -> None:
        super().__init__(options or Options(), context)
        self._resources = ExitStack()
        self._session: Any = None
        self._stages: dict[str, Stage] = {}
        self._came: set[str] = set()
        self._slots = 0
        self._files = False
        self._spares: Spares | None = None
        self._facts: Mapping[str, Any] = {}
        self._stopping = False
        self._works = False
        self._feed = Feed(context.config, context.job)

    @classmethod
    def complete(cls, options: Any, config: JobConfig) -> JobConfig:
        return advised(options or Options(), config)

    @classmethod
    def pack(cls, flow: FlowGraph, beside: Mapping[str, bytes]) -> PackedFlow | None:
        return packed(flow, beside)

    def problems(self) -> Iterator[FlameError]:
        return problems(self.options, self.context)

    def described(self, sites: Sequence[str]) -> Mapping[str, Any]:
        return {**self._facts, "workers": len(sites), "executors": len(set(sites))}

    async def open(self) -> None:
        entering = session(self.options.master, dict(self.options.config))
        with owned_by_thread(session_here()):
            self._session = await asyncio.to_thread(self._resources.enter_context, entering)
            with told_of_end(self._session):
                await self._begin()

    async def _begin(self) -> None:
        await asyncio.to_thread(self._check_slots)
        self._spares = Spares(self._session, name_of(self.context.job, "make executors ready"))
        self._facts = await asyncio.to_thread(facts_of, self._session)
        self._files = await asyncio.to_thread(has_files, self._session)
        loop = asyncio.get_running_loop()

        def failed(error: FlameError) -> None:
            error = ended() if is_gone(self._session) else error
            loop.call_soon_threadsafe(self.context.failed, error)

        await asyncio.to_thread(self._feed.start, failed)

    async def start(self, slots: Sequence[NodeSlot], bootstrap: Mapping[str, Any]) -> None:
        here = {"cwd": str(Path.cwd()), "code": dict(self.context.code()), "files": self._files}
        told = {**bootstrap, **here, "watcher": True}
        with told_of_end(self._session), owned_by_thread(self._session):
            for slot in slots:
                title = name_of(self.context.job, "node", slot.name)
                self._stages[slot.name] = Stage(self._session, slot, told, self._stage_ended, title)

    def _check_slots(self) -> None:
        with named_jobs(self._session, name_of(self.context.job, "count slots")):
            self._slots = check_slots(self._session, self.context)

    def running(self) -> list[str]:
        return [name for name, stage in self._stages.items() if stage.runs]

    def came(self, name: str, attempt: int) -> Collection[str] | None:
        stage = self._stages.get(name)
        if stage is None or not stage.runs:
            return None
        self._works = True
        self._came.add(name)
        if self._spares is not None and self._came.issuperset(running := self.running()):
            self._spares.make_ready(min(self._slots - len(running), len(running)))
        return ()

    def release(self, name: str) -> None:
        if stage := self._stages.get(name):
            stage.released = True

    def kill(self, name: str) -> None:
        stage = self._stages.get(name)
        if stage is not None and not stage.over:
            stage.cancel()

    def _stage_ended(self, stage: Stage, lost: bool, error: Exception | None) -> None:
        del self._stages[stage.name]
        self._came.discard(stage.name)
        if self._stopping or not lost:
            return
        what, lines = reason(error)
        if is_gone(self._session):
            self.context.failed(ended())
        elif not self._works:
            hint = "\n  ".join(lines) or "Spark's own words are above."
            self.context.failed(JobError(f"{stage.name} {what}", hint=hint))
        self.context.died(stage.name, what, lines)

    async def stop(self, timeout_s: float) -> None:
        self._stopping = True
        try:
            if self._spares is not None:
                await asyncio.to_thread(self._spares.stop)
            await self._end(timeout_s)
            if self._works:
                await asyncio.to_thread(self._show_counts)
        finally:
            await asyncio.to_thread(self._feed.stop)
            await asyncio.to_thread(self._resources.close)

    def _show_counts(self) -> None:
        with suppress(Exception):  # they are for people, and the session may be gone
            if has_pages(self._session):
                show_name(self._session, name_of(self.context.job, summary(self.context.counts())))

    async def _end(self, timeout_s: float) -> None:
        stages = tuple(self._stages.values())
        waiting = [asyncio.create_task(stage.done.wait()) for stage in stages]
        if not waiting:
            return
        _, late = await asyncio.wait(waiting, timeout=timeout_s)
        if late:
            for stage in stages:
                await asyncio.to_thread(stage.cancel)
            await asyncio.wait(late, timeout=timeout_s)


@hookimpl
def flamestream_host() -> type[NodeHost]:
    return SparkHost
