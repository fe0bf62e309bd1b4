"""The context of a job across epochs: version, starting point, state, sinks."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec

from flamecore.abc.sink import Sink
from flamecore.model.graph import Graph
from flamecore.model.plan import Placement, Plan
from flamecore.model.settings import JobSettings
from flamecore.runtime.codec.codec import Codec
from flamecore.runtime.engine.planning import LateOpening, divide_sinks, make_plan, open_sinks
from flamecore.runtime.state.fronts import Phases
from flamecore.runtime.state.history import History
from flamecore.runtime.tasks.deadlines import Deadlines

if TYPE_CHECKING:
    from flamecore.runtime.config.job_spec import JobSpec


class JobContext:
    """The part of a job that goes from epoch to epoch, and changes with it.

    Args:
        spec: The checked configuration.
        codec: The job's codec, for all versions that it runs.
        history: History of the job's state, open; None: it keeps none.
        edges: Closes the sinks when the job ends.
        deadlines: The job's deadlines, with those of its sinks.

    Attributes:
        code: Fingerprint of the source of the version that runs.
        place: Place where other processes find that version (`flamecore.runtime.config.flow_loader.importable`). This
            process may have imported yet another: the one to switch to.
        plan: The job's plan, from the start of the present epoch.
        delivered_up_to: Time up to which each open sink holds its outputs.
        late: Openings of sinks that replace output with their first one.
        grants: Grant of this epoch for each sink in partitions.
    """

    def __init__(
        self, spec: JobSpec, codec: Codec, history: History | None, edges: AsyncExitStack, deadlines: Deadlines
    ) -> None:
        self.spec = spec
        self.code, self.place = spec.code, spec.place
        self.history = history
        self.delivered_up_to: dict[str, int] = {}
        self.late: dict[str, LateOpening] = {}
        self.grants: dict[str, str] = {}
        self._codec = codec
        self._edges = edges
        self.deadlines = deadlines
        self.plan = self._new_plan(None)

    @property
    def settings(self) -> JobSettings:
        """Return the settings by which the job runs."""
        return self.spec.settings

    @property
    def graph(self) -> Graph:
        """Return the graph that runs."""
        return self.spec.checked_graph

    def _new_plan(self, placement: Placement | None) -> Plan:
        return make_plan(self.graph, self.spec.sources, self.settings, history=self.history, placement=placement)

    @property
    def fronts(self) -> tuple[tuple[str, int, str, object, bool, object], ...]:
        """Return the fronts: source, partition number, partition, position, ended, end.

        The partition is the driver's name for it; the front goes on behind the position, or from the start if that is
        None, up to the end that its source has found, if it has.
        """
        plan = self.plan
        states: Sequence[tuple[object, bool, object]] = [(None, False, None)] * len(plan.fronts)
        if self.history is not None:
            states = [(front.position, front.ended, front.end) for front in self.history.fronts]
        return tuple(
            (front.source, front.partition, partition, *state)
            for front, partition, state in zip(plan.fronts, plan.partitions, states, strict=True)
        )

    async def find_ends(self) -> None:
        """Find the ends of the fronts, as far as the state does not have them, before an epoch opens its sources.

        Raises:
            SourceError: An end cannot be found.
        """
        if self.history is not None:
            await self.history.find_ends(self.spec.sources, self.deadlines.find_end)

    # -- from epoch to epoch ---------------------------------------------------------------------------------------

    async def rewind(self) -> None:
        """Read the starting point of the next epoch from the store."""
        assert self.history is not None
        await self.history.scan()
        if self.history.owned:
            history = self.history
            past, done, unread = history.past, history.done, history.unread
            self.plan = replace(self.plan, start=history.start, past=past, done=done, unread=unread)
        else:  # no epoch has begun, so new fronts and phases are not stored yet
            self.plan = self._new_plan(self.plan.placement)

    async def rescan(self) -> None:
        """Read the starting point of another version from the store."""
        assert self.history is not None
        await self.history.scan()
        self.plan = self._new_plan(self.plan.placement)

    async def move(self, placement: Placement) -> None:
        """Set another placement for the next epoch."""
        await self.rewind()
        self.plan = replace(self.plan, placement=placement)

    async def rescale(self, workers: int) -> None:
        """Set another number of workers for the next epoch."""
        assert self.history is not None
        self.spec = self.spec.rescaled(workers)
        self.plan = replace(self.plan, placement=None)  # it is for the former number
        self.history.workers = workers
        await self.rewind()
        settings = msgspec.structs.replace(self.plan.settings, workers=workers)
        self.plan = replace(self.plan, settings=settings)

    def switch_version(self, spec: JobSpec, code: str, place: tuple[str, str]) -> None:
        """Set another version for the next epoch, which opens its sinks."""
        assert self.history is not None
        self.spec, self.code, self.place = spec, code, place
        self._codec.relearn(spec.checked_graph)
        self.history.graph, self.history.phases = spec.checked_graph, Phases.of(spec.settings)

    # -- sinks -----------------------------------------------------------------------------------------------------

    @property
    def sinks(self) -> dict[str, Sink]:
        """Return the sinks of the plan, by name of the rear."""
        sinks = self.spec.all_sinks
        return {name: sinks[name] for name in self.plan.rears}

    async def open_sinks(self) -> None:
        """Open the sinks that are not open, and divide those in partitions.

        Raises as `flamecore.runtime.engine.planning.open_sinks`.
        """
        closed = {name: sink for name, sink in self.sinks.items() if name not in self.delivered_up_to}
        delivered_up_to, late = await open_sinks(self._edges, closed, self.history, self.deadlines)
        self.delivered_up_to |= delivered_up_to
        self.late |= late
        divisions = await divide_sinks(self.sinks, self.plan.workers, self.deadlines)
        self.delivered_up_to |= {name: division.time for name, division in divisions.items()}
        self.grants = {name: division.grant for name, division in divisions.items()}

    async def open_late(self) -> None:
        """Open the sinks that have had no output, since the job has ended well.

        Raises:
            SinkError: One cannot be opened.
        """
        for opening in self.late.values():
            await opening()

    async def close_sinks(self, but: Collection[str]) -> None:
        """Close all sinks but those of the names in `but`."""
        for name, sink in self.spec.all_sinks.items():
            if name in but or self.delivered_up_to.pop(name, None) is None:
                continue
            opening = self.late.pop(name, None)
            if opening is None or opening.done:
                await self.deadlines.close(self.deadlines.sink(name), sink.aclose)

    def note_delivered(self, reached: Mapping[str, int]) -> None:
        """Note the times up to which rears have delivered in an epoch that has ended."""
        self.delivered_up_to.update({name: max(time, self.delivered_up_to[name]) for name, time in reached.items()})
