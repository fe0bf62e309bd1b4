"""Clusters: the values around which the readings of each sensor lie.

Every reading refines them.

flamestream run examples/cycles/clusters/job.toml

K-means, for each sensor by itself. A reading moves the centres of its sensor: a round takes each of the last readings
to the nearest centre, and each centre to the mean of its readings. One round follows another until no centre moves by
more than the tolerance. The next reading goes on with these centres. All rounds are of one sensor: the loop is one by
key, and workers share the sensors.
"""

from typing import Any, NamedTuple

import flamecore as fc

CENTRES = 3
READINGS = 30
TOLERANCE = 0.001


class Reading(NamedTuple):
    """A record."""

    sensor: str
    value: float


class Round(NamedTuple):
    """A round that a sensor needs: what goes round."""

    sensor: str
    number: int


class Clusters(NamedTuple):
    """An output: the centres of a sensor, and how many rounds they have taken."""

    sensor: str
    centres: tuple[float, ...]
    rounds: int


class Sensor(NamedTuple):
    """The state of a sensor: its last readings, and the centres."""

    values: tuple[float, ...] = ()
    centres: tuple[float, ...] = ()


def moved(centres: tuple[float, ...], values: tuple[float, ...]) -> tuple[float, ...]:
    """Take each centre to the mean of the values that are nearest to it."""
    near = [min(range(len(centres)), key=lambda place: abs(centres[place] - value)) for value in values]
    groups = [[value for value, at in zip(values, near, strict=True) if at == place] for place in range(len(centres))]
    return tuple(sum(group) / len(group) if group else centre for group, centre in zip(groups, centres, strict=True))


def refine(sensor: Sensor, step: Reading | Round) -> tuple[Sensor, list[Round | Clusters]]:
    """Add a reading to those of its sensor, or go on with a round."""
    values, centres = sensor
    if isinstance(step, Reading):
        values = (*values, step.value)[-READINGS:]
        if len(centres) < CENTRES and step.value not in centres:
            centres = (*centres, step.value)
        return Sensor(values, centres), [Round(step.sensor, 1)]
    after = moved(centres, values)
    if max(abs(one - other) for one, other in zip(centres, after, strict=True)) > TOLERANCE:
        return Sensor(values, after), [Round(step.sensor, step.number + 1)]
    return Sensor(values, after), [Clusters(step.sensor, after, step.number)]


def body(steps: fc.KeyedStream[str, Any]) -> tuple[fc.Stream[Any], fc.Stream[Any]]:
    """Draw the cycle."""
    refined = steps.stateful_map(Sensor(), refine, name="refine")
    again, settled = refined.branch(lambda step: isinstance(step, Round))
    return again, settled


flow = fc.Flow("clusters")
flow.source("readings", Reading).key_by(lambda step: step.sensor).loop(body).sink("clusters")
