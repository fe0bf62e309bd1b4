"""From a configuration and a flow to a job.

`lay_out` notes all that is wrong instead of stopping at the first problem, and starts nothing: it is what
`flamestream check` shows. `prepare` goes on to the job, and `run_embedded` runs it here and now.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flamecore.building import Builder
from flamecore.config import JobConfig, make_config
from flamecore.flow import Flow
from flamecore.layers import from_program
from flamecore.layout import Layout
from flamecore.outputs import Outputs
from flamecore.placement import TOKEN, check_findable, refusals
from flamecore.registry import Registry
from flamecore.runner import run
from flamecore.strict import Problems, unknown_key
from flamecore.transport import TransportContext

if TYPE_CHECKING:
    from flamecore.job import AnyJob
    from flamecore.messages import Upgrade
    from flamecore.revision import Revision
    from flamecore.stats import JobReport


def lay_out(
    config: JobConfig,
    flow: Flow,
    *,
    given: Mapping[str, Any] | None = None,
    registry: Registry | None = None,
    problems: Problems | None = None,
) -> Layout:
    """Find and build every part of a job, and note all that is wrong. Starts nothing, opens nothing.

    Args:
        config: What is configured.
        flow: What is to run.
        given: What a program hands over: values by name of the source, and lists that take outputs by name of the sink.
            These use the memory driver; a sink only if nothing else is configured for it.
        registry: Where drivers are found.
        problems: Takes what is wrong, besides what it holds already.
    """
    found = Problems() if problems is None else problems
    return Builder(config, flow, registry or Registry(), given or {}, found).build()


def prepare(
    config: JobConfig, flow: Flow, *, given: Mapping[str, Any] | None = None, registry: Registry | None = None
) -> AnyJob:
    """Build the job. Arguments as for `lay_out`.

    Raises:
        FlameError: Something cannot work; further problems are notes of the error.
    """
    return build(lay_out(config, flow, given=given, registry=registry))


def build(layout: Layout) -> AnyJob:
    """Build the job: in this process, or on several if the transport reaches them and no values are handed over.

    Raises:
        FlameError: The first of the problems; the others are its notes.
    """
    layout.problems.raise_first()
    transport = layout.transport(TransportContext(job=layout.name, token=os.environ.get(TOKEN, "")))
    if not layout.given:
        layout.problems.extend(refusals(layout.config, transport, os.environ))
        layout.problems.extend(layout.host().problems())
        layout.problems.raise_first()
        if layout.config.deploy.start == "join":
            check_findable(layout.config, transport, transport.outlook(), listed=layout.is_listed)
    if not layout.given and transport.capabilities.multi_process:
        from flamecore.deployment import Deployment

        return Deployment(layout, _revise)
    from flamecore.job import Job

    return Job(
        layout.sound_graph,
        sources=layout.sources,
        sinks=layout.sinks,
        acker=layout.acker,
        transport=layout.transport,
        settings=layout.settings,
        observers=layout.observers,
        store=layout.store(),
    )


def _revise(old: Layout, asked: Upgrade) -> Revision:
    from flamecore.upgrading import revise

    return revise(old, asked)


def run_embedded(
    flow: Flow,
    inputs: Mapping[str, Iterable[Any]],
    *,
    workers: int = 1,
    acker: str = "centralized",
    transport: str = "inproc",
    state: str | Path | None = None,
    settings: Mapping[str, Any] | None = None,
) -> Outputs:
    """Run a flow in this process to the end of its inputs: see `flamecore.flow.Flow.run`. The environment has no say.

    Raises:
        FlameError: It cannot work, or has failed.
    """
    chosen: dict[str, Any] = {"job.workers": workers, "acker.use": acker, "transport.use": transport}
    if state is not None:
        chosen |= {"state.use": "sqlite", "state.path": str(state)}
    layer = from_program(chosen | dict(settings or {}))
    graph = flow.graph()
    sources = [source.name for source in graph.sources]
    for name in inputs:
        if name not in sources:
            raise unknown_key(f"source.{name}", sources, where=f": flow {flow.name!r} has no such source (inputs)")
    outputs = Outputs({sink.name: [] for sink in graph.sinks})
    job = prepare(make_config(layer), flow, given={**outputs, **inputs})
    outputs.report = to_the_end(job)
    return outputs


def to_the_end(job: AnyJob) -> JobReport:
    """Run a job, also from within a running event loop.

    Raises as `flamecore.job.Job.run`.
    """
    if not _is_in_a_loop():
        return run(job.run())
    # A notebook has a loop of its own in this thread, which waits for this very cell.
    from concurrent.futures import ThreadPoolExecutor
    from contextvars import copy_context

    with ThreadPoolExecutor(1, thread_name_prefix="flamestream") as thread:
        return thread.submit(copy_context().run, run, job.run()).result()


def _is_in_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
