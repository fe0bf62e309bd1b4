"""Trees of open windows: a step costs no more where a key has thousands of them."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from typing import Any

import pytest

from flamestream_windows import aggregates as agg
from flamestream_windows import triggers as t
from flamestream_windows.engine import tree
from flamestream_windows.engine.grouping import Grouping, born
from flamestream_windows.engine.tree import Row, Tree, rank
from flamestream_windows.engine.values import Cell, Clock, Element, Firing, Watermark
from flamestream_windows.model.aggregates import Collect
from flamestream_windows.model.strategy import Strategy, strategy
from flamestream_windows.model.times import MAX
from flamestream_windows.model.windows import Sessions, Window
from flamestream_windows.testing.keyed import Keys
from flamestream_windows.testing.laws import draw_events, draw_strategy

NEW = born(Grouping(strategy(Sessions(3)), agg.count()), Window(0, 3), False)


def _draw(rng: random.Random, states: int) -> Cell:
    start = rng.randrange(100)
    return NEW._replace(
        window=Window(start, start + rng.randint(1, 9)),
        hold=rng.choice([None, rng.randrange(50)]),
        expiry_hold=rng.choice([None, rng.randrange(50)]),
        trigger=(rng.randrange(states),),
    )


def _check(row: Row, cells: dict[tuple[int, int], Cell], rng: random.Random) -> None:
    wanted = [cells[place] for place in sorted(cells)]
    assert [*row] == wanted
    assert len(row) == len(wanted)
    holds = [time for cell in wanted for time in (cell.hold, cell.expiry_hold) if time is not None]
    assert tree.least_hold(row) == min(holds, default=None)
    to, states = rng.randrange(110), {(rng.randrange(20),) for _ in range(3)}
    assert [*tree.behind(row, to)] == [cell for cell in wanted if cell.window.end > to]
    over = [cell for cell in wanted if cell.window.end <= to]
    assert [*tree.chosen(row, to, states.__contains__)] == [cell for cell in over if cell.trigger in states]
    firsts: dict[Any, tuple[tuple[int, int], int]] = {}
    for state, end, start, least in row.over(to) if isinstance(row, Tree) else ():
        first, other = firsts.get(state, ((end, start), least))
        firsts[state] = (min(first, (end, start)), min(other, least))
    if isinstance(row, Tree):
        by_state = {cell.trigger: [other for other in over if other.trigger == cell.trigger] for cell in over}
        assert firsts == {
            state: (rank(some[0]), min(cell.window.start for cell in some)) for state, some in by_state.items()
        }
        assert row.start == min(cell.window.start for cell in wanted)
    if wanted:
        place = rng.randrange(-len(wanted), len(wanted))
        assert row[place] == wanted[place]
        assert tree.find(row, row[place].window) == row[place]
    assert tree.find(row, Window(rng.randrange(100), 200)) is None


@pytest.mark.parametrize(("width", "states"), [(2, 1), (3, 20), (5, 3), (32, 9)])
def test_a_tree_has_the_windows_that_were_put_in_and_no_other(
    width: int, states: int, monkeypatch: pytest.MonkeyPatch, seeds: Callable[..., range]
) -> None:
    monkeypatch.setattr(tree, "WIDTH", width)
    trees = 0
    for seed in seeds(3):
        rng = random.Random(seed)
        row: Row = ()
        cells: dict[tuple[int, int], Cell] = {}
        before: list[tuple[Row, list[Cell]]] = []
        for number in range(300):
            if cells and rng.random() < (0.25 if number < 200 else 0.75):
                place = rng.choice([*cells])
                del cells[place]
                row = tree.remove(row, Window(place[1], place[0]))
            else:
                cell = _draw(rng, states)
                cells[rank(cell)] = cell
                row = tree.put(row, cell)
            _check(row, cells, rng)
            before.append((row, [*row]))
            trees += isinstance(row, Tree)
        assert all([*old] == then for old, then in before), f"seed {seed}: a tree has been changed"
        again = tree.row_of(tuple(row))
        _check(again, cells, rng)
    assert trees > len(seeds(3))


def test_the_end_of_a_row_is_told() -> None:
    row = tree.row_of([NEW._replace(window=Window(at, at + 1)) for at in range(100)])
    assert isinstance(row, Tree)
    assert row[98:] == (row[98], row[99])
    for place in (100, -101):
        with pytest.raises(IndexError):
            row[place]


def _played(given: Strategy, events: list[Any]) -> list[Any]:
    """Return what comes of each event, with what is known of each key then."""
    keys = Keys(Grouping(given, Collect()), clock=0)
    found: list[Any] = []
    for key, event in events:
        if isinstance(event, Element):
            outputs = keys.element(key, event)
        else:
            outputs = keys.advance(event.to) if isinstance(event, Watermark) else keys.tick(event.to)
        records = {key: ((*record.open,), record.closed) for key, record in keys.records.items()}
        found.append((outputs, records, keys.output, keys._due.copy()))
    return found


def test_trees_of_windows_give_what_tuples_give(monkeypatch: pytest.MonkeyPatch, seeds: Callable[..., range]) -> None:
    for seed in seeds(60):
        rng = random.Random(seed)
        given, events = draw_strategy(rng), [event for _ in range(3) for event in draw_events(rng)[:-1]]
        events = [event for event in events if not isinstance(event[1], Clock)]
        found = []
        for width in (2, 3, sys.maxsize):
            monkeypatch.setattr(tree, "WIDTH", width)
            found.append(_played(given, [*events, (None, Watermark(MAX))]))
        assert found[0] == found[1] == found[2], f"seed {seed}: {given}"


FINAL = strategy(Sessions(10), lateness=10**9)
LATE = strategy(Sessions(10), lateness=10**9, emit=t.at_watermark(late=t.count(1)), panes="discarding")


@pytest.mark.parametrize("given", [FINAL, LATE])
def test_a_step_of_thousands_of_open_sessions_looks_at_a_few(given: Strategy, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = Keys(Grouping(given, agg.count()))
    for at in range(0, 40_000, 20):
        keys.element("k", Element("a", at))
    keys.advance(39_000)
    looked = 0
    ranked = tree.rank

    def counted(cell: Cell) -> tuple[int, int]:
        nonlocal looked
        looked += 1
        return ranked(cell)

    monkeypatch.setattr(tree, "rank", counted)
    monkeypatch.setattr(Cell, "window", property(lambda cell: counted(cell) and cell[0]))
    for at in (20_002, 15, 39_500):
        keys.element("k", Element("a", at))  # late; late, before its session; in time
    keys.advance(39_010)
    assert 0 < looked < 1000
    monkeypatch.undo()
    assert len(keys.record("k").open) == 2000
    last = [pane for _, pane in keys.advance(MAX) if isinstance(pane, Firing)]
    assert len(last) == (2000 if given is FINAL else 49)
