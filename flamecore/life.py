"""What of a deployment outlives its epochs: the version that runs, where it goes on from, its state and its sinks."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec

from flamecore.codec import Codec
from flamecore.graph import Graph
from flamecore.history import History
from flamecore.opening import make_plan, open_sinks
from flamecore.patience import Patience
from flamecore.plan import DEAD_LETTERS, Plan
from flamecore.rear import Sink
from flamecore.reference import importable
from flamecore.settings import JobSettings

if TYPE_CHECKING:
    from flamecore.layout import Layout


class Life:
    """The part of a deployment that goes from epoch to epoch, and changes with it.

    Args:
        layout: Everything that is configured, checked.
        codec: Of the job, whatever version it runs.
        history: Of the job's state, open; None: it keeps none.
        edges: Closes the sinks when the job ends.
        patience: Of the job, with its sinks.

    Attributes:
        code: Fingerprint of the source of the version that runs.
        place: Where other processes find that version (`flamecore.reference.importable`). What this process has
            imported may be yet another: one that it is to go on with.
        plan: The job's, from where the present epoch goes on.
        held: Up to which time each sink that is open holds its outputs.
    """

    def __init__(
        self, layout: Layout, codec: Codec, history: History | None, edges: AsyncExitStack, patience: Patience
    ) -> None:
        self.layout = layout
        self.code, self.place = layout.code, importable(layout.flow)
        self.history = history
        self.held: dict[str, int] = {}
        self._codec = codec
        self._edges = edges
        self.patience = patience
        self.plan = self._new_plan()

    @property
    def settings(self) -> JobSettings:
        """How the job runs."""
        return self.layout.settings

    @property
    def graph(self) -> Graph:
        """What runs."""
        return self.layout.sound_graph

    def _new_plan(self) -> Plan:
        return make_plan(self.graph, self.layout.sources, self.settings, history=self.history)

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

    async def go_back(self) -> None:
        """Find what the next epoch goes on from."""
        assert self.history is not None
        await self.history.look()
        if self.history.owned:
            self.plan = replace(self.plan, start=self.history.start)
        else:  # no epoch has begun, and what is new is not written down yet
            self.plan = self._new_plan()

    async def look_anew(self) -> None:
        """Find what another version goes on from."""
        assert self.history is not None
        await self.history.look()
        self.plan = self._new_plan()

    async def rescale(self, workers: int) -> None:
        """Go on with another number of workers."""
        assert self.history is not None
        config = self.layout.config
        job = msgspec.structs.replace(config.job, workers=workers)
        self.layout = replace(self.layout, config=msgspec.structs.replace(config, job=job))
        self.history.workers = workers
        await self.go_back()
        self.plan = replace(self.plan, workers=workers)

    def adopt(self, layout: Layout, code: str, place: tuple[str, str]) -> None:
        """Go on with another version. Its sinks are opened when an epoch begins."""
        assert self.history is not None
        self.layout, self.code, self.place = layout, code, place
        self._codec.relearn(layout.sound_graph)
        self.history.graph, self.history.phases = layout.sound_graph, layout.settings.phases

    # -- sinks -----------------------------------------------------------------------------------------------------

    @property
    def sinks(self) -> dict[str, Sink]:
        """Those of the plan, by name of the rear."""
        sinks = self._all_sinks
        return {name: sinks[name] for name in self.plan.rears}

    @property
    def _all_sinks(self) -> dict[str, Sink]:
        layout = self.layout
        return {**layout.sinks, **({DEAD_LETTERS: layout.dead_letter} if layout.dead_letter is not None else {})}

    async def open_sinks(self) -> None:
        """Open those that are not open. Raises as `flamecore.opening.open_sinks`."""
        closed = {name: sink for name, sink in self.sinks.items() if name not in self.held}
        self.held |= await open_sinks(self._edges, closed, self.history, self.patience)

    async def close_sinks(self, but: Collection[str]) -> None:
        """Close all others."""
        for name, sink in self._all_sinks.items():
            if name not in but and self.held.pop(name, None) is not None:
                await self.patience.close(self.patience.sink(name), sink.aclose)

    def hold(self, reached: Mapping[str, int]) -> None:
        """An epoch has ended, in which rears have delivered up to these times."""
        self.held.update({name: max(time, self.held[name]) for name, time in reached.items()})
