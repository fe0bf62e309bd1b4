"""The plan of a changed flow's state: kept, dropped, unreadable and new parts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal, NamedTuple

from flamecore.abc.source import Source
from flamecore.abc.store import Store
from flamecore.errors import CodecError, SourceError
from flamecore.model.clock import global_time
from flamecore.model.graph import Graph
from flamecore.model.hashing import KEY_GROUPS
from flamecore.model.ordered import is_shared
from flamecore.model.vertices import Sink, Vertex
from flamecore.runtime.codec.codec import Codec
from flamecore.runtime.state.accepted_loss import AcceptedLoss, SinksAhead, noted_ahead
from flamecore.runtime.state.fit import misfit, unknown
from flamecore.runtime.state.format import FrontState, Manifest
from flamecore.runtime.state.fronts import Phases, in_phase, renamed
from flamecore.runtime.state.inspect import newest
from flamecore.runtime.state.restore import load_state
from flamecore.runtime.state.scan import scan
from flamecore.runtime.state.schema import Facts, groups_function, in_words, incompatibility, state_schema

Fate = Literal["kept", "dropped", "unreadable", "new"]


class OperationPlan(NamedTuple):
    """The fate of the state of one operation.

    Attributes:
        name: Name of the operation.
        fate: Fate of its state.
        keys: Number of its keys; None if not known.
        stored, now: Facts of the operation in the snapshot and in the flow; None if it is not in them.
        why: Reason why it is not kept, or why this is not known; for a new one perhaps its earlier name.
    """

    name: str
    fate: Fate
    keys: int | None
    stored: Facts | None
    now: Facts | None
    why: str = ""


class PartitionPlan(NamedTuple):
    """The fate of one partition of a source; `at` is the position to continue from."""

    source: str
    partition: str
    fate: Fate
    at: object = None
    why: str = ""


class StatePlan(NamedTuple):
    """The fate of a state.

    Attributes:
        snapshot: The snapshot compared; None: there is none, and so nothing to drop.
        operations, partitions: The fate of each.
        new_sinks, gone_sinks: Names of sinks.
        ahead: Sinks that the last run has found ahead of the state.
        identity: Identity of the state; empty: there is none.
    """

    snapshot: Manifest | None
    operations: tuple[OperationPlan, ...] = ()
    partitions: tuple[PartitionPlan, ...] = ()
    new_sinks: tuple[str, ...] = ()
    gone_sinks: tuple[str, ...] = ()
    ahead: SinksAhead = SinksAhead((), 0)
    identity: str = ""

    @property
    def loss(self) -> AcceptedLoss:
        """Return the loss that the plan implies."""
        lost = [each for each in self.operations if each.fate in ("dropped", "unreadable")]
        gone = tuple((each.source, each.partition) for each in self.partitions if each.fate == "dropped")
        return AcceptedLoss({each.name: dict(each.stored or {}) for each in lost}, gone, self.ahead.sinks)

    def lines(self) -> Iterator[str]:
        """Yield the plan as lines of text."""
        words = {"kept": "keep", "dropped": "DROP", "unreadable": "CANNOT READ", "new": "new"}
        for each in self.operations:
            facts = each.stored or each.now or {}
            keys = "" if each.keys is None else f", {each.keys:,} {'key' if each.keys == 1 else 'keys'}"
            yield f"{words[each.fate]:<12} {each.name}: {in_words(facts)}{keys}{_because(each.why)}"
        for part in self.partitions:
            where = f"source {part.source}{f': {part.partition}' if part.partition else ''}"
            yield f"{words[part.fate]:<12} {where}{_because(part.why)}"
        for name in self.new_sinks:
            yield f"{words['new']:<12} sink {name}: takes what comes from here on"
        for name in self.gone_sinks:
            yield f"{'':<12} sink {name} was removed; its output stays unchanged"
        for name, until in self.ahead.sinks:
            yield (
                f"{'LOST':<12} sink {name}: it holds its output up to time {global_time(until)}, "
                f"and the journals go up to time {global_time(self.ahead.accounted)}: what it took since may come again"
            )

    def described(self) -> dict[str, object]:
        """Return the plan as JSON-like values."""
        snapshot = self.snapshot
        return {
            "snapshot": snapshot
            and {"number": snapshot.number, "epoch": snapshot.epoch, "time": global_time(snapshot.time)},
            "keeps_all": not self.loss,
            "operations": [each._asdict() for each in self.operations],
            "partitions": [each._asdict() for each in self.partitions],
            "sinks": {"new": list(self.new_sinks), "gone": list(self.gone_sinks)},
            "ahead": {
                "sinks": {name: global_time(until) for name, until in self.ahead.sinks},
                "accounted": global_time(self.ahead.accounted),
            }
            if self.ahead.sinks
            else None,
        }


def _because(why: str) -> str:
    return f": {why}" if why else ""


async def plan_migration(
    store: Store,
    graph: Graph,
    sources: Mapping[str, Source],
    sinks: tuple[str, ...] = (),
    phases: Phases | None = None,
) -> StatePlan:
    """Compare a graph with the newest snapshot of a store, if there is one.

    Reads every value with the graph's types.

    Args:
        store: The open store.
        graph: Graph of the changed flow.
        sources: Its sources, which list their partitions.
        sinks: Names of all its sinks.
        phases: Phases of sources and sinks.

    Raises:
        CodecError: Two of the graph's own types have one name.
        CorruptError: A part is damaged.
        StoreError: The store fails.
    """
    codec = Codec.of(graph)
    phases = phases or Phases()

    async def compare(manifest: Manifest) -> StatePlan:
        now = state_schema(graph)
        vertices = {vertex.name: vertex for vertex in graph.vertices if not isinstance(vertex, Sink)}
        plans = [
            await _of_operation(store, codec, manifest, name, now.get(name), vertices.get(name))
            for name in manifest.flow
        ]
        known = [plan for plan in plans if plan.fate == "dropped"]
        for name, facts in now.items():
            if name not in manifest.flow:
                # Only a hint, never a rename of its own accord: state of another operation may fit
                # by chance.
                like = [
                    each.name for each in known if each.stored is not None and not incompatibility(each.stored, facts)
                ]
                why = f"if it is what {like[0]!r} was, give it that name" if len(like) == 1 else ""
                plans.append(OperationPlan(name, "new", None, None, facts, why))
        return StatePlan(
            manifest,
            tuple(plans),
            tuple(_partitions(manifest.fronts, sources, phases)),
            tuple(name for name in sinks if phases.of_sink(name) not in manifest.sinks),
            tuple(name for name, _ in manifest.sinks if name not in sinks),
            ahead,
            identity,
        )

    found = await scan(store)
    identity = found.last.identity if found.last is not None else ""
    ahead = (await noted_ahead(store, identity) if identity else None) or SinksAhead((), 0)
    return await newest(store, compare) if found.snapshots else StatePlan(None, ahead=ahead, identity=identity)


async def _of_operation(
    store: Store, codec: Codec, manifest: Manifest, name: str, now: Facts | None, vertex: Vertex | None
) -> OperationPlan:
    stored = manifest.flow[name]
    why = incompatibility(stored, now)
    groups_of = groups_function(stored, vertex)
    if groups_of is None:  # then it does not fit
        return OperationPlan(name, "dropped" if now is None else "unreadable", None, stored, now, why)
    try:
        # All values, not a sample: the plan is what a user decides by.
        held = await load_state(store, codec, manifest, range(KEY_GROUPS), {name: groups_of})
    except CodecError as error:
        if not why:
            return OperationPlan(name, "unreadable", None, stored, now, error.what)
        return OperationPlan(name, "dropped" if now is None else "unreadable", None, stored, now, why)
    values = held[name]
    count = sum(not is_shared(key) for key in values)
    if not why and vertex is not None and now is not None:
        why = misfit(vertex, stored, now, values)
        if not why:
            return OperationPlan(name, "kept", count, stored, now, unknown(vertex, stored, now))
    fate: Fate = "kept" if not why else "dropped" if now is None else "unreadable"
    return OperationPlan(name, fate, count, stored, now, why)


def _partitions(
    fronts: tuple[FrontState, ...], sources: Mapping[str, Source], phases: Phases
) -> Iterator[PartitionPlan]:
    there: dict[str, list[str] | str] = {}
    for name, source in sources.items():
        try:
            there[name] = list(source.partitions())
        except SourceError as error:
            there[name] = error.what
    for name, names in there.items():
        if isinstance(names, list):
            fronts = tuple(renamed(fronts, name, phases.of_source(name), sources[name], names))
    for front in fronts:
        found = there.get(front.source)
        name, partition, phase = front.source, front.partition_name, phases.of_source(front.source)
        if front.ended:
            why = f"it has been read to its end{in_phase(front.phase)}"
            yield PartitionPlan(name, partition, "kept", front.position, why)
        elif found is not None and front.phase != phase:
            why = f"it is not read to its end in phase {front.phase}, and phase {phase} is to begin"
            yield PartitionPlan(name, partition, "dropped", front.position, why)
        elif isinstance(found, str):
            yield PartitionPlan(name, partition, "kept", front.position, f"it cannot be asked here: {found}")
        elif found is None:
            yield PartitionPlan(name, partition, "dropped", front.position, "the flow has no such source")
        elif partition not in found:
            yield PartitionPlan(name, partition, "dropped", front.position, "it is not there, and not read to its end")
        else:
            yield PartitionPlan(name, partition, "kept", front.position)
    known = {front.place for front in fronts}
    for name, found in there.items():
        phase = phases.of_source(name)
        for partition in found if isinstance(found, list) else ():
            if (name, phase, partition) not in known:
                yield PartitionPlan(name, partition, "new", None, f"phase {phase} begins" if phase > 1 else "")
