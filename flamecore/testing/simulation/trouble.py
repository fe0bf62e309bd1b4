"""Faults of a job in the stories of `flamecore.testing.simulation.crashes`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


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
        grows: Whether sources get their last records only in the end; not where watermarks of several sources meet.
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
    grows: bool = True
    tears: bool = True
    damages: bool = True
