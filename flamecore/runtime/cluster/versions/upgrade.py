"""The upgrade of a running job to another version of its flow (paper 004, ticks)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from msgspec import structs

from flamecore.abc.config import AUTO, Edge, JobConfig, SinkEdge
from flamecore.errors import ConfigError, JobError
from flamecore.model.failure import describe
from flamecore.model.messages import Upgrade
from flamecore.model.types import type_text
from flamecore.runtime.config.flow_loader import importable, load_flow_anew
from flamecore.runtime.config.job_spec import JobSpec
from flamecore.runtime.config.paths import FLOW, base_of
from flamecore.runtime.config.read import decode_config
from flamecore.runtime.config.resolve import resolve
from flamecore.runtime.state.fronts import Phases
from flamecore.runtime.state.migration import StatePlan, plan_migration
from flamecore.runtime.state.scan import scan
from flamecore.runtime.tasks.deadlines import Deadlines


@dataclass(frozen=True, slots=True)
class FlowVersion:
    """A version of a flow that a running job can switch to.

    Attributes:
        spec: Its checked configuration.
        code: Fingerprint of its source.
        place: Place where other processes find it.
        plan: Fate of the state; None: there is no snapshot yet.
        former: Resolves the former version again, to go back to it.
        forget: Restores the imported modules of the former version.
    """

    spec: JobSpec
    code: str
    place: tuple[str, str]
    plan: StatePlan | None
    former: Callable[[], JobSpec]
    forget: Callable[[], None]

    def plan_lines(self) -> Iterator[str]:
        """Yield the fate of the state as lines, for people."""
        if self.plan is not None:
            yield from self.plan.lines()


_FIXED: Final = ("transport", "registry", "deploy", "state")
"""Tables of the whole job, which are the same for all versions."""


def inherited(old: JobConfig, new: JobConfig) -> JobConfig:
    """Return a configuration completed by the running job's.

    It takes tables of `_FIXED` that it does not have, and the number of workers, which `flamestream rescale` changes.
    """
    said = {key.partition(".")[0] for key in new.origins}
    if new.deploy.on == AUTO:
        new = structs.replace(new, deploy=structs.replace(new.deploy, on=old.deploy.on))
    kept = {name: getattr(old, name) for name in _FIXED if name not in said}
    return structs.replace(new, job=structs.replace(new.job, workers=old.job.workers), **kept)


def check_unchanged(old: JobSpec, new: JobSpec) -> None:
    """Raise an error if a version changes tables that a running job cannot change.

    Raises:
        ConfigError: It does; the text names the keys.
    """
    differing = [f"[{name}]" for name in _FIXED if getattr(old.config, name) != getattr(new.config, name)]
    keys = ("clock", "barrier")
    differing += [f"job.{key}" for key in keys if getattr(old.config.job, key) != getattr(new.config.job, key)]
    if old.name != new.name:
        differing.insert(0, f"the job's name ({old.name!r}, {new.name!r})")
    if gone := [name for name, source in old.sources.items() if not source.capabilities.replayable]:
        raise ConfigError(
            f"source {gone[0]!r} cannot be read again from where it stopped, and other processes are to read it on",
            hint="Stop the job and run the new version.",
            path=f"source.{gone[0]}",
        )
    if differing:
        raise ConfigError(
            f"a running job cannot change {', '.join(differing)}",
            hint="Write these as the job has them; or stop it and run the new version: it continues where it was.",
            path="",
        )


def sinks_that_stay(old: JobSpec, new: JobSpec) -> frozenset[str]:
    """Return the names of the sinks that stay open.

    They have the same driver, options and type in both versions.
    """

    def shape(spec: JobSpec, name: str) -> tuple[str | None, object, int, str, str]:
        declared = {sink.name: sink.type for sink in spec.graph.sinks} if spec.graph is not None else {}
        edge = spec.config.sink.get(name, SinkEdge()) if name in declared else spec.config.dead_letter or Edge()
        order = edge.order if isinstance(edge, SinkEdge) else ""
        return edge.use, edge.options, edge.phase, order, type_text(declared.get(name, object))

    both = set(old.sink_names) & set(new.sink_names)
    return frozenset(name for name in both if shape(old, name) == shape(new, name))


def config_of(old: JobConfig, asked: Upgrade) -> JobConfig:
    """Return the configuration of a version, completed by the running job's.

    Raises:
        ConfigError: What was sent is no configuration, or names no flow.
    """
    try:
        config = decode_config(asked.config)
    # A text with a lone surrogate, a number beyond all limits: each class of field has errors of its own.
    except Exception as error:
        raise ConfigError(
            f"the configuration that was sent cannot be read: {describe(error)}",
            hint="Run flamestream upgrade in the version of flamestream that the job runs.",
            path="",
        ) from error
    config = inherited(old, config)
    if not config.job.flow:
        raise ConfigError("the flow to continue with is not given", path="job.flow")
    return config


def load_version(old: JobSpec, asked: Upgrade) -> FlowVersion:
    """Import a version, resolve it, and compare it with the job's state.

    It takes time: call it in a thread, and for a version that a process of its own has imported
    (`flamecore.runtime.cluster.versions.trial`).

    Raises:
        FlameError: It cannot be imported, cannot work, changes what cannot be changed, or would lose state and that is
            not accepted. Nothing has changed then.
    """
    config = config_of(old.config, asked)
    flow, forget = load_flow_anew(config.job.flow, base_of(config, FLOW))
    try:
        new = resolve(config, flow, plugins=old.drivers.plugins)
        new.problems.raise_first()
        check_unchanged(old, new)
        # In a loop of its own: this runs in a thread, beside the loop of the job.
        plan = asyncio.run(_plan(old, new, accepted=asked.accept))
        code, place = new.code, importable(new.flow)
    # After any exception: the version that runs has to find its own modules again.
    except BaseException:
        forget()
        raise
    return FlowVersion(
        new, code, place, plan, lambda: resolve(old.config, old.flow, plugins=old.drivers.plugins), forget
    )


async def _plan(old: JobSpec, new: JobSpec, *, accepted: bool) -> StatePlan | None:
    # Another store object: the open one belongs to the loop of the job.
    store = old.store()
    assert store is not None
    await Deadlines().store(store.name, old.config.state.commit_timeout_s).call(store.open(), "open")
    try:
        if not (await scan(store)).snapshots:
            return None
        plan = await plan_migration(store, new.checked_graph, new.sources, new.sink_names, Phases.of(new.settings))
        if plan.loss and not accepted:
            text = "\n    ".join(["part of the state would be lost:", *plan.lines()])
            raise JobError(text, hint="To accept that: flamestream upgrade --accept.")
        return plan
    finally:
        await store.aclose()
