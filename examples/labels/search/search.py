"""Search by requests: people within a number of hops, and when all are found.

flamestream run examples/labels/search/job.toml

The acquaintances are a state by person, which all requests share and which grows between them. The people that a
request has reached are a state by person and *request*: it comes with the request, and is dropped with it. Each step
asks the acquaintances of a person, who ask theirs, until the hops are used up; a person who is reached again with more
hops left is asked again, and is no new answer. Behind the last answer comes the end of the request, with their number.
"""

from typing import Any, NamedTuple

import flamecore as fc


class Event(NamedTuple):
    """Record: a person who knows another, or a request from a person over some hops."""

    person: str
    knows: str = ""
    request: str = ""
    hops: int = 0


class Step(NamedTuple):
    """A step of a request, which goes round the cycle."""

    request: str
    person: str
    hops: int


class Visit(NamedTuple):
    """A step that goes on; `new` if the request has not been there."""

    request: str
    person: str
    hops: int
    new: bool


class Answer(NamedTuple):
    """An output: a request finds a person."""

    request: str
    person: str


class Done(NamedTuple):
    """An output: a request has had all its answers."""

    request: str
    answers: int


NOBODY: tuple[str, ...] = ()


def begin(event: Event) -> Step:
    """Return the first step of a request."""
    return Step(event.request, event.person, event.hops)


def visit(most: int, step: Step) -> tuple[int, list[Visit]]:
    """Continue if more hops are left than at all visits before.

    `most` is the maximum of the visits before; -1 before the first.
    """
    return (most, []) if step.hops <= most else (step.hops, [Visit(*step, new=most < 0)])


def ask(known: tuple[str, ...], item: Event | Visit) -> tuple[tuple[str, ...], list[Any]]:
    """Tell a person of a new acquaintance, or ask the acquaintances."""
    if isinstance(item, Event):
        return (*known, item.knows), []
    answers: list[Any] = [Answer(item.request, item.person)] if item.new else []
    return known, answers + [Step(item.request, other, item.hops - 1) for other in known if item.hops]


def body(inside: fc.Stream[Any]) -> tuple[fc.Stream[Any], fc.Stream[Any]]:
    """Draw a round."""
    steps, ties = inside.branch(lambda item: isinstance(item, Step))
    visits = steps.key_by(lambda step: step.person, label="request").stateful_map(-1, visit)
    asked = ties.merge(visits).key_by(lambda item: item.person).stateful_map(NOBODY, ask)
    again, answers = asked.branch(lambda item: isinstance(item, Step))
    return again, answers


def done(gathered: fc.Gathered[Event, Answer]) -> Done:
    """Return the end of a request."""
    return Done(gathered.item.request, len(gathered.parts))


search = fc.Flow("search")
requests, ties = search.source("events", Event).branch(lambda event: event.request)
answers = ties.merge(requests.label("request").map(begin)).loop(body)
answers.merge(answers.gather("request").map(done)).sink("answers")
