"""The flow of the soak: a count, an inverted index, a sum over a drawn cycle, states in a row, a state in a cycle.

SOAK_PARTS names those that are drawn, side by side in one flow; default: all. Every record has a mark that no other
has, so the outputs say in which order the records were taken. Whatever that order is, everything else follows from it:
`check` makes the outputs again with plain loops.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import flamecore as fc
from flamecore.testing.flows.standard import (
    NOTHING_FOUND,
    Change,
    Occurrence,
    Page,
    add,
    index_word,
    is_ready,
    split_page,
)

T = TypeVar("T")

PAUSE_S = float(os.environ.get("SOAK_PAUSE_S", "0.004"))
"""Seconds of sleep for each record, so that a soak in the background leaves the processor to others."""

FRONTS = 3
"""Files of each source."""


class Step(NamedTuple):
    """An item on its way through a row, or round a cycle.

    Attributes:
        mark: Mark of its record.
        value: Decides the key.
        rounds: How many it still goes.
    """

    mark: str
    value: int
    rounds: int = 0


STATES = 6
"""In a row."""


def slowly(record: T) -> T:
    time.sleep(PAUSE_S)
    return record


def body(inside: fc.Stream[Any]) -> tuple[fc.Stream[Any], fc.Stream[Any]]:
    sums = inside.key_by(lambda _: 0).group(2).filter(is_ready).map(add)
    return sums, sums


def turn(state: int, step: Step) -> tuple[int, list[Step]]:
    """Return the next state and step of a row."""
    return (state * 7 + step.value) % 101, [step._replace(value=(step.value + state) % 97)]


def go_round(state: int, step: Step) -> tuple[int, list[Step]]:
    """Return the next state and two steps of a cycle."""
    return (state * 5 + step.value) % 101, [
        Step(step.mark, (step.value * 2 + half + state) % 97, step.rounds - 1) for half in range(2)
    ]


def keyed_body(inside: fc.Stream[Step]) -> tuple[fc.Stream[Step], fc.Stream[Step]]:
    more, done = inside.key_by(lambda step: step.value % 5).stateful_map(0, go_round).branch(lambda step: step.rounds)
    return more, done


def draw_counts(flow: fc.Flow) -> None:
    words = flow.source("lines", str).rebalance().map(slowly).flat_map(str.split)
    words.key_by(lambda word: word).count().sink("counts")


def draw_index(flow: fc.Flow) -> None:
    pages = flow.source("pages", Page).key_by(lambda page: page.id).map(slowly).flat_map(split_page)
    pages.key_by(lambda found: found.word).stateful_map(NOTHING_FOUND, index_word).sink("index")


def draw_sums(flow: fc.Flow) -> None:
    flow.source("numbers", int).key_by(lambda number: number).map(slowly).loop(body).sink("sums")


def draw_row(flow: fc.Flow) -> None:
    stream = flow.source("steps", Step).rebalance().map(slowly)
    for by in range(2, 2 + STATES):
        stream = stream.key_by(lambda step, by=by: step.value % by).stateful_map(0, turn)
    stream.sink("row")


def draw_cycle(flow: fc.Flow) -> None:
    flow.source("turns", Step).rebalance().map(slowly).loop(keyed_body).sink("cycle")


class Part(NamedTuple):
    """One of the flows.

    Attributes:
        draw: Adds it to a flow.
        source: The name of its source, and of its inputs.
        reader: Plugin that reads the source.
        writer: Plugin that writes its sink, which has the name of the part.
    """

    draw: Callable[[fc.Flow], None]
    source: str
    reader: str
    writer: str = "jsonl"


PARTS = {
    "counts": Part(draw_counts, "lines", "lines"),
    "index": Part(draw_index, "pages", "jsonl"),
    "sums": Part(draw_sums, "numbers", "jsonl", "sqlite"),
    "row": Part(draw_row, "steps", "jsonl"),
    "cycle": Part(draw_cycle, "turns", "jsonl"),
}

flow = fc.Flow("soak")
for name in os.environ.get("SOAK_PARTS", ",".join(PARTS)).split(","):
    PARTS[name].draw(flow)


Inputs = dict[str, list[list[Any]]]
"""For each part, the records of each file of its source."""


def mark(front: int, number: int) -> str:
    """Return the first word of a record."""
    return f"@{front}-{number}"


def unmark(word: str) -> tuple[int, int]:
    """Front and number of a record by its first word."""
    front, _, number = word[1:].partition("-")
    return int(front), int(number)


def drawn(chance: random.Random, parts: Iterable[str], size: int) -> Inputs:
    """Return drawn inputs of `size` records a file, and fewer of pages.

    The files of a source are of unequal length.
    """
    vocabulary = [f"w{number}" for number in range(60)]

    def text(front: int, number: int) -> str:
        return " ".join((mark(front, number), *chance.choices(vocabulary, k=chance.randrange(4))))

    def step(front: int, number: int) -> Step:
        return Step(mark(front, number), chance.randrange(97), chance.randrange(1, 4))

    made: dict[str, Callable[[int, int], Any]] = {
        "counts": text,
        "index": lambda front, number: Page(chance.randrange(40), text(front, number)),
        "sums": lambda front, number: 1 + FRONTS * number + front,
        "row": step,
        "cycle": step,
    }
    lengths = [size // (front + 1) for front in range(FRONTS)]
    return {
        part: [[made[part](front, number) for number in range(length)] for front, length in enumerate(lengths)]
        for part in parts
    }


def write(inputs: Inputs, folder: Path) -> None:
    """Put them in files."""
    for part, fronts in inputs.items():
        _, source, reader, _ = PARTS[part]
        (folder / source).mkdir()
        for number, records in enumerate(fronts):
            encoded = records if reader == "lines" else [json.dumps(_plain(record)) for record in records]
            (folder / source / f"{number}.txt").write_text("".join(f"{record}\n" for record in encoded))


def _plain(record: Any) -> Any:
    return record._asdict() if isinstance(record, tuple) else record


# -- what must come out ------------------------------------------------------------------------------------------------


def check(inputs: Inputs, outputs: dict[str, list[Any]], *, sequence: bool) -> None:
    """Hold outputs against the plain loops.

    Args:
        inputs: Records that were read.
        outputs: Contents of each sink, in order, as plain values.
        sequence: Whether times are counted, so that the order of the fronts is known, too.

    Raises:
        AssertionError: Something is lost, comes twice, or is out of order.
    """
    for name, fronts in inputs.items():
        found = outputs[name]
        taken = _steps(found) if name == "sums" else _marks(output[_MARKED[name]] for output in found)
        order = list(dict.fromkeys(taken)) if name == "cycle" else list(taken)
        _check_order(name, order, fronts, sequence=sequence)
        _check_same(name, found, list(PLAIN[name](fronts[front][number] for front, number in order)))


_MARKED = {"counts": 0, "index": 1, "row": 0, "cycle": 0}
"""Where the mark of an output is."""


def _marks(words: Iterator[str]) -> Iterator[tuple[int, int]]:
    return (unmark(word) for word in words if word.startswith("@"))


def _steps(sums: Sequence[int]) -> Iterator[tuple[int, int]]:
    before = 0
    for value in sums:
        number, front = divmod(value - before - 1, FRONTS)
        yield front, number
        before = value


def _check_order(name: str, order: list[tuple[int, int]], fronts: Sequence[Sequence[Any]], *, sequence: bool) -> None:
    for front, records in enumerate(fronts):
        numbers = [number for of, number in order if of == front]
        seen = Counter(numbers)
        lost = sorted(set(range(len(records))) - seen.keys())
        twice = sorted(number for number, count in seen.items() if count > 1)
        assert not lost, f"{name}: {len(lost)} records of front {front} are lost: {lost[:10]}"
        assert not twice, f"{name}: {len(twice)} records of front {front} came twice: {twice[:10]}"
        assert numbers == sorted(numbers), f"{name}: records of front {front} are out of order"
    if sequence:
        wanted = sorted(order, key=lambda each: (each[1], each[0]))
        assert order == wanted, f"{name}: the fronts are not merged by their times"


def _check_same(name: str, found: list[Any], wanted: list[Any]) -> None:
    for place, (have, want) in enumerate(zip(found, wanted, strict=False)):
        assert have == want, f"{name}: output {place} is {have!r}, and {want!r} was to come"
    assert len(found) == len(wanted), f"{name}: {len(found)} outputs, and {len(wanted)} were to come"


def _plain_counts(lines: Iterable[str]) -> Iterator[list[Any]]:
    counts: Counter[str] = Counter()
    for line in lines:
        for word in line.split():
            counts[word] += 1
            yield [word, counts[word]]


def _plain_index(pages: Iterable[Page]) -> Iterator[list[Any]]:
    found: dict[str, tuple[Occurrence, ...]] = {}
    for page in pages:
        for occurrence in split_page(page):
            found[occurrence.word], changes = index_word(found.get(occurrence.word, NOTHING_FOUND), occurrence)
            yield from (_listed(change) for change in changes)


def _listed(change: Change) -> list[Any]:
    return [list(field) if isinstance(field, tuple) else field for field in change]


def _plain_sums(numbers: Iterable[int]) -> Iterator[int]:
    total = 0
    for number in numbers:
        total += number
        yield total


def _plain_row(steps: Iterable[Step]) -> Iterator[list[Any]]:
    states: dict[tuple[int, int], int] = {}
    for step in steps:
        for by in range(2, 2 + STATES):
            key = by, step.value % by
            states[key], (step,) = turn(states.get(key, 0), step)
        yield [*step]


def _plain_cycle(steps: Iterable[Step]) -> Iterator[list[Any]]:
    """Yield the outputs of a cycle; an item comes to its end before the next begins."""
    states: dict[int, int] = {}
    waiting: list[Step] = []
    for step in steps:
        waiting.append(step)
        while waiting:
            item = waiting.pop()
            if not item.rounds:
                yield [*item]
                continue
            key = item.value % 5
            states[key], made = go_round(states.get(key, 0), item)
            waiting += reversed(made)


PLAIN: dict[str, Any] = {
    "counts": _plain_counts,
    "index": _plain_index,
    "sums": _plain_sums,
    "row": _plain_row,
    "cycle": _plain_cycle,
}
"""The parts as plain loops."""
