"""Page rank: the rank of each page, to a tolerance, while pages come and change.

flamestream run examples/cycles/page_rank/job.toml

A page that has gained more rank than the tolerance stands in a queue. When its turn comes, it takes what it has gained,
and passes shares of it on along its links. A pass takes a part of the rank out of the world, so it ends. A page that
comes again with other links takes back what it has passed along the old ones: shares may be negative.

Whatever comes of a share comes before the sibling that follows it. So `NEXT`, the last that a page sends, finds all
those in the queue that its shares have sent there.
"""

from typing import Any, Final, NamedTuple

import flamecore as fc

DAMPING = 0.85
TOLERANCE = 0.001


class Page(NamedTuple):
    """A record: a page, or a new version of it."""

    name: str
    links: tuple[str, ...]


class Share(NamedTuple):
    """Rank that a page passes on to another."""

    name: str
    amount: float


class Turn(NamedTuple):
    """The turn of a page."""

    name: str


class Ask(NamedTuple):
    """A page that wants a turn; no name: the next one may have its turn."""

    name: str = ""


class Rank(NamedTuple):
    """An output: the rank of a page from now on."""

    name: str
    rank: float


class State(NamedTuple):
    """Rank that a page has taken, its gain since, whether it is queued, and its links."""

    rank: float = 0.0
    gained: float = 0.0
    queued: bool = False
    links: tuple[str, ...] | None = None  # the page has not come yet


NEXT: Final = Ask()
EMPTY: tuple[str, ...] = ()


def shares(links: tuple[str, ...], rank: float) -> list[Share]:
    """Divide rank among links."""
    return [Share(link, DAMPING * rank / len(links)) for link in links if rank]


def push(state: State, step: Page | Share | Turn) -> tuple[State, list[Rank | Share | Ask]]:
    """Give a page other links, more rank, or its turn."""
    rank, gained, queued, links = state
    sent: list[Rank | Share | Ask] = []
    if isinstance(step, Share):
        gained += step.amount
    elif isinstance(step, Turn):
        queued = False
        if abs(gained) > TOLERANCE and links is not None:
            rank, passed, gained = rank + gained, gained, 0.0
            sent = [Rank(step.name, rank), *shares(links, passed)]
    elif links is None:
        gained, links = gained + (1 - DAMPING), step.links
    else:
        sent, links = [*shares(links, -rank), *shares(step.links, rank)], step.links
    if abs(gained) > TOLERANCE and links is not None and not queued:
        queued = True
        sent.append(Ask(step.name))
    if not isinstance(step, Share):
        sent.append(NEXT)
    return State(rank, gained, queued, links), sent


def serve(queue: tuple[str, ...], ask: Ask) -> tuple[tuple[str, ...], list[Turn]]:
    """Put a page at the end of the queue, or let the first one have its turn."""
    if ask != NEXT:
        return (*queue, ask.name), []
    return queue[1:], [Turn(name) for name in queue[:1]]


def body(steps: fc.Stream[Any]) -> tuple[fc.Stream[Any], fc.Stream[Any]]:
    """Draw the cycle."""
    asked, others = steps.branch(lambda step: isinstance(step, Ask))
    turns = asked.key_by(lambda _: "all").stateful_map(EMPTY, serve, name="queue")
    pushed = others.merge(turns).key_by(lambda step: step.name).stateful_map(State(), push, name="push")
    ranks, again = pushed.branch(lambda step: isinstance(step, Rank))
    return again, ranks


flow = fc.Flow("page-rank")
flow.source("pages", Page).loop(body).sink("ranks")
