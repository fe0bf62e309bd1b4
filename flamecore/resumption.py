"""Where the fronts of a job go on, and which there are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count

from flamecore.errors import JobError
from flamecore.found import Found
from flamecore.front import Source
from flamecore.graph import Graph
from flamecore.phases import Phases
from flamecore.snapshot import FrontState, Manifest


def fronts_of(found: Found, snapshot: Manifest | None) -> tuple[FrontState, ...]:
    """Where the fronts go on.

    As an epoch that went on from that snapshot before has put it; else where the snapshot says; fronts that it does not
    know where they began.

    Args:
        found: What the store holds.
        snapshot: What is gone on from; None: the beginning.
    """
    known: dict[int, FrontState] = {}
    for record in reversed(found.epochs):  # the earliest that knows a front says where it began
        known.update({front.number: front for front in record.fronts})
    if snapshot is not None:
        known.update({front.number: front for front in snapshot.fronts})
        for record in found.epochs:
            if record.commits[:1] == (snapshot.blob,):
                known.update({front.number: front for front in record.fronts})
    return tuple(known[number] for number in sorted(known))


def every_front(
    known: Sequence[FrontState], graph: Graph, sources: Mapping[str, Source], phases: Phases
) -> tuple[tuple[FrontState, ...], bool]:
    """Every front of a job that goes on, by number: those of the state, then those of partitions that are new.

    Args:
        known: Those of the state.
        graph: The job's.
        sources: By name.
        phases: Of them.

    Returns:
        The fronts; and whether all of the state had ended: the job was done, and goes on with what has come since.

    Raises:
        SourceError: A source cannot be found.
        JobError: A partition that was not read to its end is no longer there, or another phase of a source is to be
            read.
    """
    fronts = list(known)
    places = {front.place for front in fronts}
    there: set[tuple[str, int, str]] = set()
    for source in graph.sources:
        phases.check(source.name, fronts)
        phase = phases.of_source(source.name)
        taken = [front.partition for front in fronts if front.source == source.name]
        free = count(max(taken, default=-1) + 1)
        for name in sources[source.name].partitions():
            there.add((source.name, phase, name))
            if (source.name, phase, name) not in places:
                fronts.append(FrontState(source.name, next(free), name, len(fronts) + 1, None, 0, False, phase))
    for front in fronts:
        if not front.ended and front.place not in there:
            raise JobError(
                f"source {front.source!r} no longer has {front.partition_name!r}, which the state says is not "
                "read to its end",
                hint="Bring it back; or see what else could be done: flamestream plan.",
            )
    behind_end = bool(known) and all(front.ended for front in known)
    if behind_end:
        fronts = [front._replace(ended=front.place not in there) for front in fronts]
    return tuple(fronts), behind_end
