"""What a node process runs in one epoch, and what of the process outlives epochs.

After a fault every surviving process ends what it runs and takes on a new assignment, without starting anew: its
imports, its connections and its store stay.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from flamecore.codec import Codec
from flamecore.config import decode_config
from flamecore.errors import ConfigError
from flamecore.flow_code import at_hand
from flamecore.launch import lay_out
from flamecore.layout import Layout
from flamecore.messages import Assignment, Resume
from flamecore.node import Node
from flamecore.opening import make_plan
from flamecore.rear import encoders_of
from flamecore.recovery import Kept
from flamecore.reference import load_flow
from flamecore.remains import Remains
from flamecore.scope import Scope
from flamecore.store import Store
from flamecore.transport import Transport


class Incarnation:
    """What runs here in one epoch.

    Args:
        home: Lends what outlives it.
        assignment: What it is.
        layout: The job's.
    """

    def __init__(self, home: Home, assignment: Assignment, layout: Layout) -> None:
        self.assignment = assignment
        self._home = home
        self._layout = layout
        settings = replace(layout.settings, workers=assignment.total)
        fronts = [front[:3] for front in assignment.fronts]
        self.plan = make_plan(layout.sound_graph, layout.sources, settings, fronts=fronts, start=assignment.start)
        scope, encoders = Scope(home.transport, assignment.epoch), encoders_of(layout.sinks)
        self.node = Node(self.plan, scope, fail=home.failed, encoders=encoders, patience=settings.patience)

    async def open(self) -> None:
        """Open what is read."""
        states = [(position, ended) for *_, position, ended in self.assignment.fronts]
        await self.node.open_sources(self._layout.sources, self.assignment.workers, states)

    async def load(self, resume: Resume | None) -> None:
        """Bind the parts, with their state."""
        from flamecore.epoch import acker_plan

        node, layout = self.node, self._layout
        if resume is not None:
            assert layout.settings.state is not None
            store = await self._home.store(layout)
            node.kept = Kept(store, self._home.codec, resume, layout.settings.state.max_uncommitted)
        acker = layout.acker(acker_plan(self.plan))
        for index in self.assignment.trackers:
            await node.add_tracker(acker, index)
        for index in self.assignment.workers:
            await node.add_worker(acker, index)
        node.listen()

    @property
    def silence_s(self) -> float:
        """Who is not heard of for this long is taken for dead."""
        return self._layout.config.deploy.silence_timeout_s

    def stats(self) -> dict[str, Any]:
        """Counts."""
        return asdict(self.node.stats())

    async def leave(self, *, orderly: bool) -> None:
        """End. In order: what was sent is handed over first."""
        if orderly:
            await self.node.aclose()
        else:
            await self.node.halt(self._home.remains.see_to)


class Home:
    """What of a process outlives its epochs: the transport, the imported flow, the open store.

    Args:
        transport: Started.
        codec: The transport's.
        failed: Told when a part fails.
        spare: A folder with a copy of the flow's source, for where its own files are not.
    """

    def __init__(
        self,
        transport: Transport,
        codec: Codec,
        failed: Callable[[BaseException], None],
        spare: Path | None = None,
    ) -> None:
        self.transport = transport
        self.codec = codec
        self.failed = failed
        self._spare = spare
        self._layouts: dict[tuple[bytes, tuple[str, str]], Layout] = {}
        self._store: Store | None = None
        self._close: Callable[[], Coroutine[Any, Any, None]] | None = None
        self.remains = Remains()

    async def let(self, assignment: Assignment) -> Incarnation:
        """Take in what is assigned, with its sources open.

        Raises:
            FlameError: The flow cannot be imported, or a source not be opened.
        """
        key = (assignment.config, assignment.flow)
        if key not in self._layouts:
            layout = self._layouts[key] = _layout(assignment, self._spare)
            self.codec.learn(layout.sound_graph)
        incarnation = Incarnation(self, assignment, self._layouts[key])
        try:
            await incarnation.open()
        except BaseException:
            await incarnation.leave(orderly=False)
            raise
        return incarnation

    async def store(self, layout: Layout) -> Store:
        """The job's store, open."""
        if self._store is None:
            store, state, patience = layout.store(), layout.settings.state, layout.settings.patience
            assert store is not None
            assert state is not None
            self._close = partial(patience.close, patience.store(store.name, state.commit_timeout_s), store.aclose)
            await store.open()
            self._store = store
        return self._store

    async def aclose(self) -> None:
        """Release everything but the transport."""
        self.remains.cancel()
        if self._close is not None:
            await self._close()


def _layout(assignment: Assignment, spare: Path | None) -> Layout:
    """What the control has laid out, here."""
    reference, folder = assignment.flow[0], Path(assignment.flow[1])
    if spare is not None:
        reference, folder = at_hand(reference, folder, spare)
    flow = load_flow(reference, folder)
    layout = lay_out(decode_config(assignment.config), flow)
    layout.problems.raise_first()
    if assignment.code and layout.code != assignment.code:
        raise ConfigError(
            f"flow {flow.name!r} is another version here than the one that runs: {reference} has changed since",
            hint="Put the former version back; or have the job go on with the new one: flamestream upgrade.",
            path="job.flow",
        )
    return layout
