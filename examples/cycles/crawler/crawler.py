"""Crawler: the pages that lead from the seeds, a few from each host at a time.

flamestream run examples/cycles/crawler/job.toml

A page that is found for the first time goes to the frontier of its host. It waits there until it is the host's turn,
and a turn is for so many pages: a host is asked for no more. The links of what is fetched go round. A page that turns
out to be nearer to the seeds than it was thought comes out again, without being fetched again.
"""

from typing import Any, NamedTuple
from zlib import crc32

import flamecore as fc

DEPTH = 4
HOSTS = ("ash.example", "birch.example", "cedar.example", "elm.example")


class Turn(NamedTuple):
    """Record: the number of pages that a host may be asked for until its next turn."""

    host: str
    pages: int


class Found(NamedTuple):
    """A link to a page, so many links from the seeds: what goes round."""

    url: str
    depth: int


class Fetched(NamedTuple):
    """The links of a page: goes round, too."""

    url: str
    links: tuple[str, ...]


class Wanted(NamedTuple):
    """A page that is to be fetched."""

    url: str


class Visit(NamedTuple):
    """An output: a page, and how many links it is from the seeds."""

    url: str
    depth: int


class Page(NamedTuple):
    """The state of a page: its depth once it is found, its links once it is fetched."""

    depth: int | None = None
    links: tuple[str, ...] | None = None


class Frontier(NamedTuple):
    """State of a host: how many more pages this turn allows, and the pages that wait."""

    left: int = 0
    waiting: tuple[str, ...] = ()


def fetch(url: str) -> Fetched:
    """Ask for a page. The web is made up: two links on the same host, and one to any."""
    host = url.partition("/")[0]
    dice = [crc32(f"{url} {number}".encode()) for number in range(4)]
    return Fetched(url, (f"{host}/{dice[0] % 9}", f"{HOSTS[dice[1] % 4]}/{dice[2] % 9}", f"{host}/{dice[3] % 9}"))


def look(page: Page, step: Found | Fetched) -> tuple[Page, list[Visit | Wanted | Found]]:
    """Note that a page is found, or fetched."""
    depth, links = page
    if isinstance(step, Fetched):
        links = step.links
    elif depth is None:
        return Page(step.depth), [Wanted(step.url)]
    elif step.depth < depth:
        depth = step.depth
    else:
        return page, []
    if links is None or depth is None:  # still in the frontier
        return Page(depth, links), []
    further = [Found(link, depth + 1) for link in links if depth < DEPTH]
    return Page(depth, links), [Visit(step.url, depth), *further]


def take(frontier: Frontier, step: Turn | Wanted) -> tuple[Frontier, tuple[str, ...]]:
    """Apply a turn or a wanted page; return the state and the pages to fetch now."""
    left, waiting = frontier
    if isinstance(step, Turn):
        left = step.pages
    else:
        waiting = (*waiting, step.url)
    return Frontier(max(left - len(waiting), 0), waiting[left:]), waiting[:left]


def host_of(step: Turn | Wanted) -> str:
    """Name the host of a turn or a page."""
    return step.host if isinstance(step, Turn) else step.url.partition("/")[0]


def body(steps: fc.Stream[Any]) -> tuple[fc.Stream[Any], fc.Stream[Any]]:
    """Draw the cycle."""
    turns, found = steps.branch(lambda step: isinstance(step, Turn))
    looked = found.key_by(lambda step: step.url).stateful_map(Page(), look, name="look")
    wanted, visits, links = looked.branch(lambda step: isinstance(step, Wanted), lambda step: isinstance(step, Visit))
    taken = turns.merge(wanted).key_by(host_of).stateful_map(Frontier(), take, name="frontier")
    return links.merge(taken.map(fetch)), visits


flow = fc.Flow("crawler")
seeds = flow.source("seeds", str).map(lambda url: Found(url, 0), name="seed")
seeds.merge(flow.source("turns", Turn)).loop(body).sink("visits")
