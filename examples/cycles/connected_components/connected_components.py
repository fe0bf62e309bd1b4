"""Connected components: computers that reach each other, while cables are laid.

flamestream run examples/cycles/connected_components/job.toml

The name of a component is the least number in it. A cable that joins two components sends the lesser number through the
other one, from neighbour to neighbour. Every computer that gets another number comes out.
"""

from typing import Any, NamedTuple

import flamecore as fc


class Cable(NamedTuple):
    """A record: two computers are joined."""

    one: int
    other: int


class Label(NamedTuple):
    """The number of a component, on its way to a computer: what goes round."""

    computer: int
    component: int


class Member(NamedTuple):
    """An output: a computer belongs to a component from now on."""

    computer: int
    component: int


class Computer(NamedTuple):
    """The state of a computer: its component, once it is known, and its neighbours."""

    component: int | None = None
    neighbours: tuple[int, ...] = ()


def ends(cable: Cable) -> list[Cable]:
    """Tell both computers of a cable."""
    return [cable, Cable(cable.other, cable.one)]


def join(computer: Computer, step: Cable | Label) -> tuple[Computer, list[Member | Label]]:
    """Give a computer a new neighbour, or tell it of a component."""
    number = computer_of(step)
    known = computer.component
    heard = step.component if isinstance(step, Label) else number
    component = min(number if known is None else known, heard)
    neighbours = (*computer.neighbours, step.other) if isinstance(step, Cable) else computer.neighbours
    told = neighbours
    if component == known:  # then only a new neighbour does not know it
        told = neighbours[-1:] if isinstance(step, Cable) else ()
    news = [] if component == known else [Member(number, component)]
    return Computer(component, neighbours), [*news, *(Label(neighbour, component) for neighbour in told)]


def computer_of(step: Cable | Label) -> int:
    """Name the computer that a step is for."""
    return step.one if isinstance(step, Cable) else step.computer


def body(steps: fc.Stream[Any]) -> tuple[fc.Stream[Any], fc.Stream[Any]]:
    """Draw the cycle."""
    joined = steps.key_by(computer_of).stateful_map(Computer(), join, name="computers")
    again, members = joined.branch(lambda step: isinstance(step, Label))
    return again, members


flow = fc.Flow("connected-components")
flow.source("cables", Cable).flat_map(ends).loop(body).sink("members")
