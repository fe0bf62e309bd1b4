"""Shortest paths: distance of each town from the depot, while the road map grows.

flamestream run examples/cycles/shortest_paths/job.toml

A new or shorter road brings some towns nearer. The search that finds them is Dijkstra's: a queue names the nearest
place that may have come nearer, the town looks whether it has, and what it offers to its neighbours goes back into
the queue. Both are states of one cycle. Each town that a road brings nearer comes out once, with its new distance.
"""

from typing import Any, NamedTuple

import flamecore as fc

DEPOT = "depot"


class Road(NamedTuple):
    """Record: a one-way road that leads from one place to another.

    A shorter one beside it may follow.
    """

    start: str
    end: str
    km: int


class Offer(NamedTuple):
    """A way to a town."""

    km: int
    town: str


class Offers(NamedTuple):
    """New ways from a place, which go round; empty if the place has not come nearer."""

    ways: tuple[Offer, ...] = ()


class Distance(NamedTuple):
    """An output: a town is nearer than before."""

    town: str
    km: int


class Place(NamedTuple):
    """The state of a place: how far it is, if there is a way, and the roads from it."""

    km: int | None = None
    roads: tuple[Road, ...] = ()


EMPTY: tuple[Offer, ...] = ()


def nearest(queue: tuple[Offer, ...], found: Offers) -> tuple[tuple[Offer, ...], tuple[Offer, ...]]:
    """Put offers into the queue, and take the shortest out."""
    waiting = tuple(sorted([*queue, *found.ways]))
    return waiting[1:], waiting[:1]


def offers(km: int | None, roads: tuple[Road, ...]) -> Offers:
    """Offer the ways that go on by roads from a place at this distance, if it has one."""
    return Offers(() if km is None else tuple(Offer(km + road.km, road.end) for road in roads))


def look(place: Place, step: Road | Offer) -> tuple[Place, list[Distance | Offers]]:
    """Give a place a new road, or bring it nearer."""
    if isinstance(step, Road):
        km = 0 if step.start == DEPOT else place.km
        return Place(km, (*place.roads, step)), [offers(km, (step,))]
    if place.km is not None and place.km <= step.km:
        return place, [Offers()]
    return Place(step.km, place.roads), [Distance(step.town, step.km), offers(step.km, place.roads)]


def place_of(step: Road | Offer) -> str:
    """Name the place that a road begins at, or that an offer is made to."""
    return step.start if isinstance(step, Road) else step.town


def body(steps: fc.Stream[Any]) -> tuple[fc.Stream[Any], fc.Stream[Any]]:
    """Draw the cycle."""
    found, roads = steps.branch(lambda step: isinstance(step, Offers))
    shortest = found.key_by(lambda _: "all").stateful_map(EMPTY, nearest, name="queue")
    looked = roads.merge(shortest).key_by(place_of).stateful_map(Place(), look, name="places")
    again, nearer = looked.branch(lambda step: isinstance(step, Offers))
    return again, nearer


flow = fc.Flow("shortest-paths")
flow.source("roads", Road).loop(body).sink("distances")
