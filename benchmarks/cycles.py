"""Searches in a cycle with keyed state, beside a plain loop.

The loop calls the same functions in the same order.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from random import Random
from typing import Any, Final

from benchmarks.corpora import SEED
from benchmarks.processes import measured
from benchmarks.report import Spread, Table

WORKERS: Final = (1, 2)
PLAIN: Final = "plain loop"
PATHWAY: Final = "pathway"
MOST: Final = 12.0

Links = dict[Any, list[Any]]


@dataclass(frozen=True, slots=True)
class Search:
    """A search: what happens in one round, and what it begins with.

    Attributes:
        starts: Its records.
        key: The key of an item.
        initial, state: State of a key before its first item, and the state's function.
        more: Whether an output goes round again.
        before, behind: A flat map before the state and behind it; None: there is none.
        links: The links that it searches.
    """

    starts: Sequence[Any]
    key: Callable[[Any], Any]
    initial: Any
    state: Callable[[Any, Any], tuple[Any, list[Any]]]
    more: Callable[[Any], bool]
    before: Callable[[Any], list[Any]] | None = None
    behind: Callable[[Any], list[Any]] | None = None
    links: Links | None = None


def _grid(width: int) -> Links:
    near = ((0, 1), (1, 0), (0, -1), (-1, 0))
    cells = {(x, y): None for x in range(width) for y in range(width)}
    return {(x, y): [(x + a, y + b) for a, b in near if (x + a, y + b) in cells] for x, y in cells}


def _path(length: int) -> Links:
    return {at: [to for to in (at - 1, at + 1) if 0 <= to < length] for at in range(length)}


def _random(count: int, each: int) -> Links:
    random = Random(SEED)
    return {page: [random.randrange(count) for _ in range(each)] for page in range(count)}


def _goes_round(item: tuple[Any, int, bool]) -> bool:
    return item[2]


def _place(item: tuple[Any, ...]) -> Any:
    return item[0]


def _visits(links: Links, start: Any) -> Search:
    """Visit each vertex once, and tell how far it was."""

    def visit(seen: bool, item: tuple[Any, int, bool]) -> tuple[bool, list[Any]]:
        if seen:
            return True, []
        at, distance, _ = item
        return True, [(at, distance, False), *[(to, distance + 1, True) for to in links[at]]]

    return Search([(start, 0, True)], _place, False, visit, _goes_round)


def _components(links: Links) -> Search:
    """Tell each vertex the least number that reaches it."""

    def lower(least: int, item: tuple[int, int, bool]) -> tuple[int, list[Any]]:
        at, number, _ = item
        if least <= number:
            return least, []
        return number, [(at, number, False), *[(to, number, True) for to in links[at]]]

    starts = [(at, at, True) for at in links]
    return Search(starts, _place, len(links), lower, _goes_round, links=links)


def _crawl(links: Links, depth: int, pages: int) -> Search:
    """Fetch each page once, and what it links to, so deep."""

    def first(times: int, item: tuple[int, int, bool]) -> tuple[int, list[Any]]:
        return times + 1, [] if times or item[1] <= 0 else [(item[0], item[1], False)]

    def fetch(item: tuple[int, int, bool]) -> list[Any]:
        return [item, *[(to, item[1] - 1, True) for to in links[item[0]]]]

    return Search([(page, depth, True) for page in range(pages)], _place, 0, first, _goes_round, behind=fetch)


def _splits(rounds: int) -> Search:
    """Make two of each item, so many times, and count them all in one state."""

    def halves(item: tuple[int, int]) -> list[tuple[int, int]]:
        return [(item[0] - 1, item[1] * 2 + half) for half in range(2)]

    def count(seen: int, item: tuple[int, int]) -> tuple[int, list[Any]]:
        return seen + 1, [item]

    return Search([(rounds, 0)], lambda _: 0, 0, count, lambda item: item[0] > 0, before=halves)


SEARCHES: Final[dict[str, Callable[[], Search]]] = {
    "grid of 20 x 20": lambda: _visits(_grid(20), (0, 0)),
    "grid of 60 x 60": lambda: _visits(_grid(60), (0, 0)),
    "path of 5,000": lambda: _visits(_path(5000), 0),
    "components of 2,000": lambda: _components(_random(2000, 2)),
    "crawl of 300": lambda: _crawl(_random(2000, 3), 6, 300),
    "12 times two of each": lambda: _splits(12),
}


def plain(search: Search) -> tuple[int, list[Any]]:
    """Run a search with a stack; return its calls and its outputs.

    The search is depth first, in the order of child ids.
    """
    key, initial, state, more, before, behind = (
        search.key,
        search.initial,
        search.state,
        search.more,
        search.before,
        search.behind,
    )
    states: dict[Any, Any] = {}
    outputs: list[Any] = []
    calls = 0
    for start in search.starts:
        stack = [(before is None, True, start)]
        while stack:
            ready, again, item = stack.pop()
            if not again:
                outputs.append(item)
                continue
            if not ready and before is not None:
                stack += [(True, True, part) for part in reversed(before(item))]
                continue
            name = key(item)
            states[name], found = state(states.get(name, initial), item)
            calls += 1
            if behind is not None:
                found = [part for one in found for part in behind(one)]
            stack += [(before is None, more(one), one) for one in reversed(found)]
    return calls, outputs


def _flow(search: Search) -> Any:
    import flamecore as fc

    def body(stream: Any) -> Any:
        if search.before is not None:
            stream = stream.flat_map(search.before)
        stream = stream.key_by(search.key).stateful_map(search.initial, search.state)
        if search.behind is not None:
            stream = stream.flat_map(search.behind)
        return stream.branch(search.more)

    flow = fc.Flow("search")
    flow.source("starts").loop(body).sink("found")
    return flow


def _pathway(links: Links) -> dict[int, int]:
    """Find the least number that reaches each vertex, all at once and round by round.

    `iterate` works on tables.
    """
    import pathway as pw  # type: ignore[import-not-found,unused-ignore]  # a peer, where it is installed

    links_of = pw.schema_builder({"start": pw.column_definition(dtype=int), "end": pw.column_definition(dtype=int)})
    least_of = pw.schema_builder({"at": pw.column_definition(dtype=int), "least": pw.column_definition(dtype=int)})
    edges = pw.debug.table_from_rows(links_of, [(start, end) for start, ends in links.items() for end in ends])
    begins = pw.debug.table_from_rows(least_of, [(at, at) for at in links])

    def step(labels: Any, edges: Any) -> dict[str, Any]:
        told = edges.join(labels, edges.start == labels.at).select(at=edges.end, least=labels.least)
        every = pw.Table.concat_reindex(labels.select(labels.at, labels.least), told)
        least = every.groupby(every.at).reduce(every.at, least=pw.reducers.min(every.least))
        return {"labels": least.with_id_from(pw.this.at).with_universe_of(labels), "edges": edges}

    labels = pw.iterate(step, labels=begins.with_id_from(pw.this.at), edges=edges).labels
    _, columns = pw.debug.table_to_dicts(labels)
    return {columns["at"][row]: columns["least"][row] for row in columns["at"]}


def one_run(search: str, contender: str, workers: int) -> dict[str, Any]:
    """Run one search once.

    A first run, and the time of starting and ending, are not in the figures.
    """
    chosen = SEARCHES[search]()
    if contender == PLAIN:
        calls, outputs = plain(chosen)
        seconds = min(_took(partial(plain, chosen)) for _ in range(5))
        return {"seconds": seconds, "calls": calls, "outputs": _digest(outputs), "ends": _ends(outputs)}
    if contender == PATHWAY:
        assert chosen.links is not None
        few = {0: [0]}
        _pathway(few)
        spent = _took(partial(_pathway, few))
        begun = time.process_time()
        labels = _pathway(chosen.links)
        return {"seconds": time.process_time() - begun - spent, "ends": _digest(sorted(labels.items()))}
    flow = _flow(chosen)

    def run(records: Sequence[Any]) -> list[Any]:
        return list(flow.run({"starts": records}, workers=workers)["found"])

    outputs = run(chosen.starts)
    spent = min(_took(partial(run, [])) for _ in range(5))
    seconds = min(_took(partial(run, chosen.starts)) for _ in range(5)) - spent
    return {"seconds": seconds, "outputs": _digest(outputs), "started_in": spent}


def _took(run: Callable[[], Any]) -> float:
    """Return the processor's time of a run, in seconds."""
    begun = time.process_time()
    run()
    return time.process_time() - begun


def _digest(values: Sequence[Any]) -> str:
    return hashlib.sha256(repr(values).encode()).hexdigest()


def _ends(outputs: Sequence[Any]) -> str:
    """Return the last output of each vertex."""
    return _digest(sorted({output[0]: output[1] for output in outputs}.items()))


def compare(*, rounds: int) -> tuple[Table, dict[str, Any]]:
    """Measure every search by every contender that can run it, several rounds."""
    ours = {f"flamestream {workers}w": workers for workers in WORKERS}
    columns = ("search", "calls", "µs a call, plain loop", *(f"{name}, x plain loop" for name in ours), "outputs")
    has_pathway = find_spec("pathway") is not None
    if has_pathway:
        columns = (*columns[:-1], "pathway, x plain loop", columns[-1])
    table = Table("Searches in a cycle, by CPU time", columns)
    facts: dict[str, Any] = {}
    for search, make in SEARCHES.items():
        contenders = {PLAIN: 1, **ours}
        if has_pathway and make().links is not None:
            contenders[PATHWAY] = 1
        runs: dict[str, list[dict[str, Any]]] = {name: [] for name in contenders}
        for _ in range(rounds):
            for name, workers in contenders.items():
                arguments = {"search": search, "contender": name, "workers": workers}
                runs[name].append(measured("cycles", arguments, what=f"cycles: {search}, {name}"))
        facts[search] = runs
        wanted = runs[PLAIN][0]
        wrong = [name for name in ours if any(run["outputs"] != wanted["outputs"] for run in runs[name])]
        wrong += [PATHWAY for run in runs.get(PATHWAY, ())[:1] if run["ends"] != wanted["ends"]]
        if wrong:
            table.fail(search, ", ".join(wrong))
            continue
        slower = {
            name: Spread.of([mine["seconds"] / base["seconds"] for mine, base in zip(took, runs[PLAIN], strict=True)])
            for name, took in runs.items()
        }
        each = Spread.of([run["seconds"] / run["calls"] * 1e6 for run in runs[PLAIN]])
        cells = [slower.get(name, "-") for name in (*ours, *([PATHWAY] if has_pathway else ()))]
        table.add(search, f"{wanted['calls']:,}", each, *cells, "equal")
        for name in ours:
            table.target(name, f"{search}, {name}: times a plain loop", slower[name], MOST, at_most=True)
    return table, {"searches": facts, "targets": table.targets}
