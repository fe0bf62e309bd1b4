"""The way from a configuration and a flow to a job.

`resolve` notes all problems instead of stopping at the first, and starts nothing: `flamestream check` shows its result.
`make_job` goes on to the job, and `run_embedded` runs it here and now.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flamecore.abc.config import HERE, JobConfig
from flamecore.errors import ConfigError
from flamecore.model.failure import DeadLetter
from flamecore.model.flow import FlowGraph
from flamecore.model.plan import DEAD_LETTERS
from flamecore.runtime.cluster.placement import check_findable, context_to_be, refusals, too_many_workers
from flamecore.runtime.config import defaults
from flamecore.runtime.config.job_spec import JobSpec
from flamecore.runtime.config.layers import from_program
from flamecore.runtime.config.plugins import PluginRegistry
from flamecore.runtime.config.read import make_config
from flamecore.runtime.config.resolve import resolve
from flamecore.runtime.config.validate import unknown_key
from flamecore.runtime.parts.counters import JobStats
from flamecore.runtime.tasks.event_loop import run
from flamecore.runtime.tasks.stats import JobReport

if TYPE_CHECKING:
    from flamecore.model.messages import Upgrade
    from flamecore.runtime.cluster.versions.upgrade import FlowVersion
    from flamecore.runtime.engine.job import AnyJob


def make_job(
    config: JobConfig,
    flow: FlowGraph,
    *,
    given: Mapping[str, object] | None = None,
    plugins: PluginRegistry | None = None,
) -> AnyJob:
    """Build the job.

    Arguments as for `resolve`.

    Raises:
        FlameError: Something cannot work; further problems are notes of the error.
    """
    return job_of(resolve(config, flow, given=given, plugins=plugins))


def job_of(spec: JobSpec) -> AnyJob:
    """Build the job of a resolved spec.

    It runs in this process, or on its host if no values are handed over.

    Raises:
        FlameError: The first of the problems; the others are its notes.
    """
    spec.problems.raise_first()
    context = context_to_be(spec.name, spec.config, os.environ, embedded=spec.embedded)
    transport = spec.transport(context)
    if spec.given:
        spec.problems.extend(too_many_workers(spec.config))
        spec.problems.raise_first()
    else:
        spec.problems.extend(refusals(spec.config, transport, spec.store(), os.environ))
        if spec.has_host:
            spec.problems.extend(spec.host().problems())
        spec.problems.raise_first()
        if spec.config.deploy.start == "join":
            check_findable(spec.config, transport, transport.outlook(), listed=spec.is_listed)
    # Imported late: a job in one process needs none of it, and its start is what a notebook or a
    # test waits for.
    if not spec.embedded:
        from flamecore.runtime.cluster.job import ClusterJob

        return ClusterJob(spec.reachable(), _load_version)
    from flamecore.runtime.engine.job import Job

    return Job(
        spec.checked_graph,
        sources=spec.sources,
        sinks=spec.all_sinks,
        acker=spec.acker,
        transport=spec.transport,
        settings=spec.settings,
        observers=spec.observers,
        store=spec.store(),
        operators=spec.operators,
    )


def _load_version(old: JobSpec, asked: Upgrade) -> FlowVersion:
    from flamecore.runtime.cluster.versions.upgrade import load_version

    return load_version(old, asked)


def run_embedded(
    flow: FlowGraph,
    inputs: Mapping[str, Iterable[object]],
    *,
    workers: int = 1,
    acker: str | None = None,
    transport: str | None = None,
    state: str | Path | None = None,
    settings: Mapping[str, object] | None = None,
) -> Outputs:
    """Run a flow in this process to the end of its inputs.

    See `flamecore.flow.Flow.run`. The environment has no influence.

    Under pytest all promises of functions are checked, unless `settings` say otherwise.

    Raises:
        FlameError: It cannot work, or has failed.
        KeyboardInterrupt: Ctrl-C. Any exception that ends a run in progress has the outputs so far as `outputs`.
    """
    chosen: dict[str, object] = {"job.workers": workers, "deploy.on": HERE}
    if acker is not None:
        chosen["acker.use"] = acker
    if transport is not None:
        chosen["transport.use"] = transport
    chosen |= checks_under_pytest()
    if state is not None:
        chosen |= {"state.use": defaults.STATE_IN_FOLDER, "state.path": str(state)}
    layer = from_program(chosen | dict(settings or {}))
    graph = flow.graph()
    sources = [source.name for source in graph.sources]
    if not isinstance(inputs, Mapping):
        raise ConfigError(
            f"the inputs are a {type(inputs).__name__}, which does not say whose records they are",
            hint=f"Name the source: flow.run({{{(sources or ['NAME'])[0]!r}: …}})",
            path="",
        )
    for name in inputs:
        if name not in sources:
            raise unknown_key(f"source.{name}", sources, where=f": flow {flow.name!r} has no such source (inputs)")
    outputs = Outputs({sink.name: [] for sink in graph.sinks})
    letters = {} if DEAD_LETTERS in sources else {DEAD_LETTERS: outputs.dead_letters}
    job = make_job(make_config(layer), flow, given={**letters, **outputs, **inputs})
    try:
        outputs.report = to_the_end(job.run())
    except BaseException as error:
        outputs.report = JobReport(job.stats())
        error.outputs = outputs  # type: ignore[attr-defined]  # an exception takes any attribute
        raise
    return outputs


def checks_under_pytest() -> Mapping[str, object]:
    """Return the settings by which all promises of functions are checked in tests; none elsewhere."""
    if "PYTEST_CURRENT_TEST" not in os.environ:
        return {}
    return {"job.check_types": True, "job.check_mutation": True}


def to_the_end(running: Coroutine[object, object, JobReport]) -> JobReport:
    """Run a job to its end, also from within a running event loop.

    Args:
        running: Its `run()`, or what waits for that.

    Raises as `flamecore.runtime.engine.job.Job.run`.
    """
    if not _is_in_a_loop():
        return run(running)
    # A notebook has a loop of its own in this thread, which waits for this very cell: another thread runs the job.
    from concurrent.futures import ThreadPoolExecutor
    from contextvars import copy_context
    from threading import Event

    tasks: list[tuple[asyncio.AbstractEventLoop, asyncio.Task[object]]] = []
    interrupted = Event()

    async def main() -> JobReport:
        task = asyncio.current_task()
        assert task is not None
        tasks.append((asyncio.get_running_loop(), task))
        if interrupted.is_set():  # before there was a task to cancel
            task.cancel()
        return await running

    with ThreadPoolExecutor(1, thread_name_prefix="flamestream") as thread:
        try:
            # With the context of this thread, which may hold overrides of plugins, and clocks.
            return thread.submit(copy_context().run, run, main()).result()
        except KeyboardInterrupt:  # it comes to this thread alone, which would wait for the other one
            interrupted.set()
            for loop, task in tasks:
                with suppress(RuntimeError):  # it has ended meanwhile
                    loop.call_soon_threadsafe(task.cancel)
            raise


def _is_in_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


class Outputs(dict[str, list[Any]]):
    """The list of outputs for each sink, in order.

    It is empty for a sink that another driver was configured for.

    Attributes:
        dead_letters: The records that were left out, in order, where `job.on_error` or that of a source is
            "dead_letter"; empty where another driver was configured for them.
        report: The result of the job.
    """

    def __init__(self, outputs: Mapping[str, list[Any]]) -> None:
        super().__init__(outputs)
        self.dead_letters: list[DeadLetter] = []
        self.report = JobReport(JobStats())

    def __missing__(self, name: str) -> list[object]:
        raise KeyError(f"no sink {name!r}; the flow has {', '.join(map(repr, self))}")

    @property
    def stats(self) -> JobStats:
        """Return counts and latency of the job."""
        return self.report.stats
