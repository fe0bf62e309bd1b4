"""A run of a flow on its first records, to find slow and waiting functions."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import wraps
from time import monotonic, perf_counter, thread_time
from types import GeneratorType
from typing import Any, ClassVar, Final

import msgspec

from flamecore.abc.config import HERE, Choice
from flamecore.abc.sink import Guarantee, Sink
from flamecore.abc.source import Batch, Reader, Source, SourceCapabilities
from flamecore.model.graph import Graph
from flamecore.model.plan import DEAD_LETTERS
from flamecore.model.settings import StateTable
from flamecore.model.vertices import ByKey, user_name
from flamecore.runtime.config import defaults
from flamecore.runtime.config.job_spec import JobSpec
from flamecore.runtime.config.resolve import resolve
from flamecore.runtime.engine.job import Job
from flamecore.runtime.launch import to_the_end
from flamecore.runtime.parts.counters import JobStats

READING_S: Final = 10.0
"""Longest wait for records: a source may have no end, and a function may take its time."""

_SLOW_S: Final = 0.001
"""Least time of a slow call: handing its record to another process costs as much."""
_IDLE: Final = 4
"""Ratio of elapsed time to processor time from which a call counts as waiting; on a busy machine a call that
computes takes a few times as long, too."""


@dataclasses.dataclass(slots=True)
class Timing:
    """The time that the calls of one function have taken.

    Attributes:
        name: Name of the operation that calls it.
        calls: Number of calls.
        wall_s: Elapsed time of all calls.
        cpu_s: Processor time of all calls.
    """

    name: str
    calls: int = 0
    wall_s: float = 0.0
    cpu_s: float = 0.0

    @property
    def waits(self) -> bool:
        """Return whether the calls were slow and mostly waited."""
        return self.calls > 0 and self.wall_s >= self.calls * _SLOW_S and self.wall_s >= _IDLE * self.cpu_s

    def described(self) -> dict[str, object]:
        """Return the timing as a mapping, for JSON."""
        return {**dataclasses.asdict(self), "waits": self.waits}

    def __str__(self) -> str:
        per_call = 1000 / max(self.calls, 1)
        wall, cpu = self.wall_s * per_call, self.cpu_s * per_call
        return f"{self.name}: {self.calls} calls, {wall:.3g} ms each, {cpu:.3g} ms of it CPU time"


@dataclasses.dataclass(frozen=True, slots=True)
class Sample:
    """The result of a run on the first records.

    Attributes:
        stats: Counts of the job that ran.
        timings: Timings of the user's functions, the longest first.
    """

    stats: JobStats
    timings: Sequence[Timing]

    def described(self) -> dict[str, object]:
        """Return the sample as a mapping, for JSON."""
        found = {key: getattr(self.stats, key) for key in ("items_in", "rejected", "failed", "elapsed_s")}
        return {**found, "functions": [timing.described() for timing in self.timings]}


def run_sample(spec: JobSpec, count: int, prepare: Callable[[Graph], None] | None = None) -> Sample:
    """Run a flow on the first `count` records of each source.

    It has one worker, in this process, and neither sinks nor state.

    Args:
        spec: The resolved job.
        count: Number of records.
        prepare: Takes the graph of the run, before it begins.

    Raises:
        FlameError: A source cannot be read, or a function has failed and the job is to end then.
    """
    config = msgspec.structs.replace(
        spec.config,
        transport=Choice(use=defaults.TRANSPORT),
        state=StateTable(),
        deploy=msgspec.structs.replace(spec.config.deploy, on=HERE),
        job=msgspec.structs.replace(spec.config.job, workers=1, owners=None),
        hooks=[],
    )
    local = resolve(config, spec.flow, plugins=spec.drivers.plugins)
    settings = msgspec.structs.replace(
        local.settings, dead_letters=False, source_phases={}, sink_phases={}, max_failed=None
    )
    if settings.on_error == DEAD_LETTERS:
        settings = msgspec.structs.replace(settings, on_error="skip")
    policies = {name: "skip" if how == DEAD_LETTERS else how for name, how in settings.source_policies.items()}
    graph = local.checked_graph
    if prepare is not None:
        prepare(graph)
    job = Job(
        graph,
        sources={name: _FirstOf(source, count) for name, source in local.sources.items()},
        sinks={name: _Nowhere(None, sink.context) for name, sink in local.sinks.items()},
        acker=local.acker,
        transport=local.transport,
        settings=msgspec.structs.replace(settings, source_policies=policies),
        operators=local.operators,
    )
    with timed(graph) as timings:
        stats = to_the_end(job.run()).stats
    return Sample(stats, sorted(timings, key=lambda timing: -timing.wall_s))


@contextmanager
def timed(
    graph: Graph, wall: Callable[[], float] = perf_counter, cpu: Callable[[], float] = thread_time
) -> Iterator[list[Timing]]:
    """Time the user's functions of a graph, as long as the context is open.

    Args:
        graph: The graph, which is compiled while the context is open.
        wall, cpu: Clocks, in seconds.
    """
    timings: list[Timing] = []
    before: list[tuple[Any, str, object]] = []

    def clocked(function: Callable[..., object], name: str) -> Callable[..., object]:
        timing = Timing(name)
        timings.append(timing)

        @wraps(function)
        def call(*arguments: object) -> object:
            began, worked = wall(), cpu()
            try:
                # A generator function has done nothing yet: its work is timed where it is run through.
                result = function(*arguments)
                return list(result) if isinstance(result, GeneratorType) else result
            finally:
                timing.calls += 1
                timing.wall_s += wall() - began
                timing.cpu_s += cpu() - worked

        for way in ("many", "within"):  # by these an operator would go past the call
            call.__dict__.pop(way, None)
        return call

    def put(vertex: object, name: str, value: object) -> None:
        before.append((vertex, name, getattr(vertex, name)))
        setattr(vertex, name, value)

    try:
        of_loops: dict[object, Any] = {}  # all in a loop by key goes by one function
        for head in graph.keyed_loops():
            if user_name(head.key) is not None:
                if head.key not in of_loops:
                    of_loops[head.key] = clocked(head.key, f"key of {head.name}")
                put(head, "key", of_loops[head.key])
        for vertex in graph.vertices:
            for name in vertex.functions:
                function = getattr(vertex, name)
                if function is not None and user_name(function) is not None:
                    put(vertex, name, clocked(function, vertex.name))
            if isinstance(vertex.route, ByKey) and user_name(key := vertex.route.key) is not None:
                timed = of_loops.get(key) or clocked(key, f"key of {vertex.name}")
                put(vertex, "route", dataclasses.replace(vertex.route, key=timed))
        yield timings
    finally:
        for vertex, name, value in before:
            setattr(vertex, name, value)
        timings[:] = [timing for timing in timings if timing.calls]


class _FirstOf(Source):
    """The first records of another source."""

    name: ClassVar[str] = "first-of"

    def __init__(self, inner: Source, count: int) -> None:
        super().__init__(inner.options, inner.context)
        self._inner, self.left, self._until = inner, count, 0.0

    @property
    def capabilities(self) -> SourceCapabilities:
        return SourceCapabilities(replayable=self._inner.capabilities.replayable, bounded=True)

    def partitions(self) -> Sequence[str]:
        return self._inner.partitions()

    async def open(self, partition: str, position: object = None) -> Reader:
        self._until = self._until or monotonic() + READING_S
        return _FirstReader(self, await self._inner.open(partition, position), self._until)


class _FirstReader(Reader):
    """A reader of one partition, record by record.

    It ends when the number for all partitions, or the time, is used up.
    """

    def __init__(self, source: _FirstOf, inner: Reader, until: float) -> None:
        self._source, self._inner, self._until = source, inner, until

    async def read(self, limit: int) -> Batch | None:
        if self._source.left <= 0:
            return None
        self._source.left -= 1  # before the wait: the readers of other partitions take theirs meanwhile
        batch = None
        with suppress(TimeoutError):
            batch = await asyncio.wait_for(self._inner.read(1), max(self._until - monotonic(), 0))
        if batch is None:
            self._source.left += 1
        return batch

    def describe(self, position: object) -> str:
        return self._inner.describe(position)

    def original(self, position: object) -> bytes | None:
        return self._inner.original(position)

    async def aclose(self) -> None:
        await self._inner.aclose()


class _Nowhere(Sink):
    """A sink that takes everything and keeps nothing."""

    name: ClassVar[str] = "nowhere"

    @property
    def guarantee(self) -> Guarantee:
        return "exactly_once"

    async def write(self, time: int, payloads: Sequence[object]) -> None:
        return
