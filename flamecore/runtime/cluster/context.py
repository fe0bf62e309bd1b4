"""What of a deployment outlives its epochs: the version that runs, where it goes on from, its state and its sinks."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec

from flamecore.abc.sink import Sink
from flamecore.model.graph import Graph
from flamecore.model.plan import DEAD_LETTERS, Plan
from flamecore.runtime.codec.codec import Codec
from flamecore.runtime.config.settings import JobSettings
from flamecore.runtime.engine.planning import make_plan, open_sinks
from flamecore.runtime.state.history import History
from flamecore.runtime.tasks.deadlines import Deadlines

if TYPE_CHECKING:
    from flamecore.runtime.config.job_spec import JobSpec


class JobContext:
    """The part of a deployment that goes from epoch to epoch, and changes with it.

    Args:
        spec: Everything that is configured, checked.
        codec: Of the job, whatever version it runs.
        history: Of the job's state, open; None: it keeps none.
        edges: Closes the sinks when the job ends.
        deadlines: Of the job, with its sinks.

    Attributes:
        code: Fingerprint of the source of the version that runs.
        place: Where other processes find that version (`flamecore.runtime.config.flow_loader.importable`). What this
            process has imported may be yet another: one that it is to go on with.
        plan: The job's, from where the present epoch goes on.
        delivered_up_to: Up to which time each sink that is open holds its outputs.
    """

    def __init__(
        self, spec: JobSpec, codec: Codec, history: History | None, edges: AsyncExitStack, deadlines: Deadlines
    ) -> None:
        self.spec = spec
        self.code, self.place = spec.code, spec.place
        self.history = history
        self.delivered_up_to: dict[str, int] = {}
        self._codec = codec
        self._edges = edges
        self.deadlines = deadlines
        self.plan = self._new_plan()

    @property
    def settings(self) -> JobSettings:
        """How the job runs."""
        return self.spec.settings

    @property
    def graph(self) -> Graph:
        """What runs."""
        return self.spec.checked_graph

    def _new_plan(self) -> Plan:
        return make_plan(self.graph, self.spec.sources, self.settings, history=self.history)

    @property
    def fronts(self) -> tuple[tuple[str, int, str, Any, bool], ...]:
        """Each front: its source, number of the partition, the partition as the driver calls it, where it goes on, and
        whether it has ended."""
        plan = self.plan
        states = [(None, False)] * len(plan.fronts)
        if self.history is not None:
            states = [(front.position, front.ended) for front in self.history.fronts]
        return tuple(
            (front.source, front.partition, partition, *state)
            for front, partition, state in zip(plan.fronts, plan.partitions, states, strict=True)
        )

    # -- from epoch to epoch ---------------------------------------------------------------------------------------

    async def rewind(self) -> None:
        """Find what the next epoch goes on from."""
        assert self.history is not None
        await self.history.scan()
        if self.history.owned:
            self.plan = replace(self.plan, start=self.history.start)
        else:  # no epoch has begun, and what is new is not written down yet
            self.plan = self._new_plan()

    async def rescan(self) -> None:
        """Find what another version goes on from."""
        assert self.history is not None
        await self.history.scan()
        self.plan = self._new_plan()

    async def rescale(self, workers: int) -> None:
        """Go on with another number of workers."""
        assert self.history is not None
        config = self.spec.config
        job = msgspec.structs.replace(config.job, workers=workers)
        self.spec = replace(self.spec, config=msgspec.structs.replace(config, job=job))
        self.history.workers = workers
        await self.rewind()
        self.plan = replace(self.plan, workers=workers)

    def switch_version(self, spec: JobSpec, code: str, place: tuple[str, str]) -> None:
        """Go on with another version. Its sinks are opened when an epoch begins."""
        assert self.history is not None
        self.spec, self.code, self.place = spec, code, place
        self._codec.relearn(spec.checked_graph)
        self.history.graph, self.history.phases = spec.checked_graph, spec.settings.phases

    # -- sinks -----------------------------------------------------------------------------------------------------

    @property
    def sinks(self) -> dict[str, Sink]:
        """Those of the plan, by name of the rear."""
        sinks = self._all_sinks
        return {name: sinks[name] for name in self.plan.rears}

    @property
    def _all_sinks(self) -> dict[str, Sink]:
        spec = self.spec
        return {**spec.sinks, **({DEAD_LETTERS: spec.dead_letter} if spec.dead_letter is not None else {})}

    async def open_sinks(self) -> None:
        """Open those that are not open. Raises as `flamecore.runtime.engine.planning.open_sinks`."""
        closed = {name: sink for name, sink in self.sinks.items() if name not in self.delivered_up_to}
        self.delivered_up_to |= await open_sinks(self._edges, closed, self.history, self.deadlines)

    async def close_sinks(self, but: Collection[str]) -> None:
        """Close all others."""
        for name, sink in self._all_sinks.items():
            if name not in but and self.delivered_up_to.pop(name, None) is not None:
                await self.deadlines.close(self.deadlines.sink(name), sink.aclose)

    def note_delivered(self, reached: Mapping[str, int]) -> None:
        """An epoch has ended, in which rears have delivered up to these times."""
        self.delivered_up_to.update({name: max(time, self.delivered_up_to[name]) for name, time in reached.items()})
