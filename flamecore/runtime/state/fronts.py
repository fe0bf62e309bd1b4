"""The fronts that a job continues with, and the phases of its sources and sinks.

Phases: a job over history, then the same job over live data, with one state.

A phase of a source is read to its end; the next one begins behind it, in time and in order, so outputs are those of one
run over everything. Each phase may have another driver, and run in another place.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Final

from flamecore.abc.source import Source
from flamecore.errors import JobError
from flamecore.model.graph import Graph
from flamecore.model.settings import JobSettings
from flamecore.runtime.state.format import FrontState, Manifest, SinkState
from flamecore.runtime.state.scan import StoreContents


@dataclass(frozen=True, slots=True)
class Phases:
    """The current phase of each source and sink of a job, by name; 1 if not given."""

    sources: Mapping[str, int] = field(default_factory=dict)
    sinks: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, settings: JobSettings) -> Phases:
        """Return the phases that the settings of a job name."""
        return cls(settings.source_phases, settings.sink_phases)

    def of_source(self, name: str) -> int:
        """Return the phase of a source."""
        return self.sources.get(name, 1)

    def of_sink(self, name: str) -> SinkState:
        """Return a sink in its phase."""
        return SinkState(name, self.sinks.get(name, 1))

    def check(self, source: str, fronts: Iterable[FrontState]) -> None:
        """Refuse to begin a phase before the earlier one has ended.

        Args:
            source: Name of the source.
            fronts: All fronts in the state.

        Raises:
            JobError: An earlier phase was not read to its end, or a later one has begun.
        """
        phase = self.of_source(source)
        for front in fronts:
            if front.source != source or front.phase == phase:
                continue
            where = f"{front.partition_name!r} " if front.partition_name else ""
            at = "its beginning" if front.position is None else repr(front.position)
            if front.phase > phase:
                raise JobError(
                    f"source {source!r} is in phase {front.phase} by the state, and phase {phase} is configured",
                    hint=f"Say what is read now: [source.{source}] phase = {front.phase}, and its driver.",
                )
            if not front.ended:
                raise JobError(
                    f"phase {phase} of source {source!r} is to begin, and phase {front.phase} has not been read to its "
                    f"end: {where}stands at {at}",
                    hint=f"Run the job of phase {front.phase} to its end first.",
                )


def in_phase(number: int) -> str:
    """Return " in phase N" for error texts; empty for phase 1."""
    return f" in phase {number}" if number > 1 else ""


def fronts_of(contents: StoreContents, snapshot: Manifest | None) -> tuple[FrontState, ...]:
    """Return the positions from which the fronts continue, by number.

    They are those of an epoch that already continued from this snapshot; otherwise the snapshot's; a front that is not
    in it starts where it began.

    Args:
        contents: Contents of the store.
        snapshot: The snapshot to continue from; None: the beginning.
    """
    known: dict[int, FrontState] = {}
    # The earliest that knows a front says where it began, and the earliest that has an end, where the run ends.
    for record in reversed(contents.epochs):
        known.update(
            {
                front.number: front._replace(end=known[front.number].end)
                if front.end is None and front.number in known
                else front
                for front in record.fronts
            }
        )
    if snapshot is not None:
        known.update({front.number: front for front in snapshot.fronts})
        for record in contents.epochs:
            if record.commits[:1] == (snapshot.blob,):
                known.update({front.number: front for front in record.fronts})
    return tuple(known[number] for number in sorted(known))


PASSING: Final = "dead letters "
"""Beginning of the name of a partition that is there for one run only."""


def newly_gone(before: Sequence[FrontState], after: Sequence[FrontState]) -> dict[str, list[str]]:
    """Return, by source, the partitions that were read whole and have gone.

    They have gone since the job last started.

    Args:
        before: Fronts of the state.
        after: The same and new ones, as `merge_fronts` returns them.
    """
    gone: dict[str, list[str]] = {}
    for known, front in zip(before, after, strict=False):
        empty = front.position is None
        if front.gone and not (known.gone or empty or front.partition_name.startswith(PASSING)):
            gone.setdefault(front.source, []).append(front.partition_name)
    return gone


def renamed(
    fronts: Sequence[FrontState], name: str, phase: int, source: Source, partitions: Collection[str]
) -> list[FrontState]:
    """Return fronts with the present names of their partitions; see `flamecore.abc.source.Source.partition_of`.

    Args:
        fronts: Fronts of the state.
        name: Name of the source.
        phase: Its phase.
        source: The source.
        partitions: Its partitions.
    """
    there, places = set(partitions), {front.place for front in fronts}
    found = []
    for front in fronts:
        if (front.source, front.phase) == (name, phase) and front.partition_name not in there:
            new = front._replace(partition_name=source.partition_of(front.partition_name))
            if new.partition_name in there and new.place not in places:  # two fronts never read one partition
                places.add(new.place)
                front = new
        found.append(front)
    return found


def merge_fronts(
    known: Sequence[FrontState], graph: Graph, sources: Mapping[str, Source], phases: Phases
) -> tuple[tuple[FrontState, ...], bool]:
    """Return all fronts of a continuing job, by number.

    First come those of the state, then those of new partitions.

    Args:
        known: Fronts of the state.
        graph: The job's graph.
        sources: Sources by name.
        phases: Phases of the sources.

    Returns:
        The fronts; and whether all fronts of the state had ended: the job was done, and continues with newer data.

    Raises:
        SourceError: A source cannot be found.
        JobError: A partition that was not read to its end is no longer there, or another phase of a source is to be
            read.
    """
    fronts = list(known)
    there: set[tuple[str, int, str]] = set()
    for source in graph.sources:
        phases.check(source.name, fronts)
        phase = phases.of_source(source.name)
        taken = [front.partition for front in fronts if front.source == source.name]
        free = count(max(taken, default=-1) + 1)
        names = sources[source.name].partitions()
        fronts = renamed(fronts, source.name, phase, sources[source.name], names)
        places = {front.place for front in fronts}
        for name in names:
            there.add((source.name, phase, name))
            if (source.name, phase, name) not in places:
                fronts.append(
                    FrontState(source.name, next(free), name, len(fronts) + 1, None, 0, False, phase, unread=True)
                )
    for front in fronts:
        if not front.ended and front.place not in there:
            raise JobError(
                f"source {front.source!r} no longer has {front.partition_name!r}, which the state says is not "
                "read to its end",
                hint="Bring it back; or see what else could be done: flamestream plan.",
            )
    behind_end = bool(known) and all(front.ended for front in known)
    if behind_end:
        fronts = [front._replace(ended=front.place not in there, unread=True, end=None) for front in fronts]
    current = {(source.name, phases.of_source(source.name)) for source in graph.sources}
    fronts = [
        front._replace(gone=front.place not in there)
        if (front.source, front.phase) in current and front.gone != (front.place not in there)
        else front
        for front in fronts
    ]
    return tuple(fronts), behind_end
