"""Another version of a job's flow and configuration, for a running job to go on with (paper 004, ticks)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from msgspec import structs

from flamecore.config import Edge, JobConfig
from flamecore.errors import ConfigError
from flamecore.fitting import in_types

if TYPE_CHECKING:
    from flamecore.layout import Layout
    from flamecore.stateplan import StatePlan


@dataclass(frozen=True, slots=True)
class Revision:
    """A version that could be gone on with.

    Attributes:
        layout: Everything that is configured for it, checked.
        code: Fingerprint of its source.
        place: Where other processes find it.
        plan: What becomes of the state; None: there is no snapshot yet.
        former: Lays out the version before anew, to go back to it.
        forget: Has the modules of the version before found again, in the place of this one's.
    """

    layout: Layout
    code: str
    place: tuple[str, str]
    plan: StatePlan | None
    former: Callable[[], Layout]
    forget: Callable[[], None]

    def plan_lines(self) -> Iterator[str]:
        """What becomes of the state, for people."""
        if self.plan is not None:
            yield from self.plan.lines()


_FIXED: Final = ("transport", "registry", "deploy", "state")
"""Tables that are of the whole job, whatever it runs."""


def inherited(old: JobConfig, new: JobConfig) -> JobConfig:
    """A configuration with what a running job keeps: tables of `_FIXED` that it says nothing of, and how many workers
    there are, which `flamestream rescale` changes."""
    said = {key.partition(".")[0] for key in new.origins}
    kept = {name: getattr(old, name) for name in _FIXED if name not in said}
    return structs.replace(new, job=structs.replace(new.job, workers=old.job.workers), **kept)


def check_unchanged(old: Layout, new: Layout) -> None:
    """Refuse a version that differs in what a running job cannot change.

    Raises:
        ConfigError: Says in what.
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
            hint="Write these as the job has them; or stop it and run the new version: it goes on where it was.",
            path="",
        )


def sinks_that_stay(old: Layout, new: Layout) -> frozenset[str]:
    """Names of the sinks that are as before: the same driver, options and type. They stay open."""

    def shape(layout: Layout, name: str) -> tuple[str | None, object, int, str]:
        declared = {sink.name: sink.type for sink in layout.graph.sinks} if layout.graph is not None else {}
        edge = layout.config.sink.get(name, Edge()) if name in declared else layout.config.dead_letter or Edge()
        return edge.use, edge.options, edge.phase, in_types(declared.get(name, object))

    both = set(old.sink_names) & set(new.sink_names)
    return frozenset(name for name in both if shape(old, name) == shape(new, name))
