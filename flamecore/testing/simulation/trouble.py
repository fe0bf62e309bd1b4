"""Faults of a job in the stories of `flamecore.testing.simulation.crashes`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from flamecore.errors import GraphError
from flamecore.model.graph import Graph
from flamecore.model.ordered import Marking


@dataclass(frozen=True, slots=True)
class Trouble:
    """The faults that fate may cause.

    They are: `kill` every process of the job; a kill with `damage` to stored data; `abandon` a run, which goes on, for
    a while, beside the next one; a `worker` dies; a worker is declared dead behind a `partition`, and goes on; the
    connection of two processes is `cut`; a call of the `store` or of a `sink` fails, before or after it has taken
    effect; the wall `clock` jumps; the job is told to `drain`; the number of workers changes in a `turn`. In a job on
    one process those of single processes are a `kill`.

    Attributes:
        faults: Most faults.
        kinds: Kinds of faults, with their relative frequency.
        between: Numbers of moments between two faults, on average: one of these each time. A record makes some ten. For
            every other fault, and all damage, they are counted from the next snapshot on, and are fewer: most would
            come before there is any.
        grows: Whether sources get their last records only in the end. By default where outputs do not depend on the
            moments at which a source has nothing more: see `grows_in`.
        tears: See `World`.
        damages: Whether there is damage (`flamecore.testing.simulation.damages`): to the newest snapshot, which the job
            must do without; to data it cannot do without, which it must refuse, and which is put back then; an older
            copy of all data, which it must refuse, or give the right output all the same. Not together with tears:
            there is one snapshot to spare, not two.
    """

    faults: int = 5
    kinds: Mapping[str, float] = field(
        default_factory=lambda: {
            "kill": 3,
            "damage": 6,
            "abandon": 2,
            "worker": 3,
            "partition": 2,
            "cut": 2,
            "store": 2,
            "sink": 2,
            "clock": 1,
            "drain": 1,
            "turn": 2,
        }
    )
    between: Sequence[int] = (3, 15, 60, 250)
    grows: bool | None = None
    tears: bool = True
    damages: bool = True

    def grows_in(self, graph: Graph) -> bool:
        """Return whether sources of a graph grow while the job runs.

        They cannot where the end of a source is a mark: if it closes its windows, or if watermarks of several sources
        meet, and one that has nothing new holds the others back no longer. The moment at which a run has found nothing
        more then decides which items are late, and no two stories agree on that.

        Raises:
            GraphError: They are to grow, and cannot.
        """
        why = _ends_count(graph) if self.grows is not False else None
        if why is not None and self.grows:
            vertex, what = why
            raise GraphError(
                f"{what}: if sources grow, what is late depends on when a run has found nothing more, and outputs of "
                "several runs cannot be compared",
                hint="Leave Trouble.grows out, or set it to False: every source has all its records from the start.",
                vertex=vertex,
            )
        return self.grows is not False and why is None


def _ends_count(graph: Graph) -> tuple[str, str] | None:
    """Return an operation for which ends of sources count, and why; None: there is none."""
    marking = [vertex for vertex in graph.vertices if isinstance(vertex, Marking)]
    for one in marking:
        if one.closes:
            return one.name, f"{one!r} closes all windows at the end of its source"
    for vertex in graph.vertices:
        meeting = [one for one in marking if vertex.ordered and vertex in graph.reach_of(one)]
        if len(meeting) > 1:
            return vertex.name, f"watermarks of {' and '.join(map(repr, meeting))} meet at {vertex!r}"
    return None
