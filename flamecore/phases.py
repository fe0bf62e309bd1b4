"""Phases of sources and sinks: a job over history, and then the same job over what comes live, with one state.

A phase of a source is read to its end; what is read in the next begins behind it, in time and in order, so outputs are
those of one run over all of it. The driver may be another in each phase, and so may where the job runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from flamecore.errors import JobError
from flamecore.snapshot import FrontState, SinkState


@dataclass(frozen=True, slots=True)
class Phases:
    """Which phase of each source and sink a job is in: by name; 1 where nothing is said."""

    sources: Mapping[str, int] = field(default_factory=dict)
    sinks: Mapping[str, int] = field(default_factory=dict)

    def of_source(self, name: str) -> int:
        """The phase of a source."""
        return self.sources.get(name, 1)

    def of_sink(self, name: str) -> SinkState:
        """A sink, in its phase."""
        return SinkState(name, self.sinks.get(name, 1))

    def check(self, source: str, fronts: Iterable[FrontState]) -> None:
        """Refuse to begin a phase in the midst of another.

        Args:
            source: Name of the source.
            fronts: All that the state knows.

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
    """What to add to the name of something, for people; nothing as long as there was one phase only."""
    return f" in phase {number}" if number > 1 else ""
