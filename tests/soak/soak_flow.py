"""What the soak runs: a word count, an inverted index, and a sum over a drawn cycle, side by side in one flow.

Every record begins with a mark that no other has, so the outputs say in which order the records were taken. Whatever
that order is, everything else follows from it: `expected` makes the outputs again with plain loops.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

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

PAUSE_S = float(os.environ.get("SOAK_PAUSE_S", "0.004"))
"""How long a line takes: sleep, so that a soak in the background leaves the processor to others."""

FRONTS = 2
"""Files of each source."""


def words_of(line: str) -> list[str]:
    time.sleep(PAUSE_S)
    return line.split()


def body(inside: fc.Stream[Any]) -> tuple[fc.Stream[Any], fc.Stream[Any]]:
    sums = inside.key_by(lambda _: 0).group(2).filter(is_ready).map(add)
    return sums, sums


flow = fc.Flow("soak")
flow.source("lines", str).rebalance().flat_map(words_of).key_by(lambda word: word).count().sink("counts")
pages = flow.source("pages", Page).key_by(lambda page: page.id).flat_map(split_page).key_by(lambda found: found.word)
pages.stateful_map(NOTHING_FOUND, index_word).sink("index")
flow.source("numbers", int).key_by(lambda number: number).map(int).loop(body).sink("sums")

SOURCES = {"lines": "lines", "pages": "jsonl", "numbers": "jsonl"}
SINKS = {"counts": "jsonl", "index": "jsonl", "sums": "sqlite"}


class Inputs(NamedTuple):
    """The records of each front of each source."""

    lines: list[list[str]]
    pages: list[list[Page]]
    numbers: list[list[int]]


def mark(front: int, number: int) -> str:
    """The first word of a record."""
    return f"@{front}-{number}"


def unmark(word: str) -> tuple[int, int]:
    """Front and number of a record by its first word."""
    front, _, number = word[1:].partition("-")
    return int(front), int(number)


def drawn(chance: random.Random, size: int) -> Inputs:
    """Inputs of so many lines a front, and fewer of the rest; the fronts of a source are of unequal length."""
    vocabulary = [f"w{number}" for number in range(60)]

    def text(front: int, number: int) -> str:
        return " ".join((mark(front, number), *chance.choices(vocabulary, k=chance.randrange(4))))

    lengths = [size, size * 2 // 3][:FRONTS]
    return Inputs(
        [[text(front, number) for number in range(length)] for front, length in enumerate(lengths)],
        [
            [Page(chance.randrange(40), text(front, number)) for number in range(length // 4)]
            for front, length in enumerate(lengths)
        ],
        [[1 + FRONTS * number + front for number in range(length)] for front, length in enumerate(lengths)],
    )


def write(inputs: Inputs, folder: Path) -> None:
    """Put them in files, one for each front."""
    for source, fronts in inputs._asdict().items():
        (folder / source).mkdir()
        for number, records in enumerate(fronts):
            encoded = records if source == "lines" else [json.dumps(_plain(record)) for record in records]
            (folder / source / f"{number}.txt").write_text("".join(f"{record}\n" for record in encoded))


def _plain(record: Any) -> Any:
    return record._asdict() if isinstance(record, Page) else record


# -- what must come out ------------------------------------------------------------------------------------------------


def check(inputs: Inputs, outputs: dict[str, list[Any]], *, sequence: bool) -> None:
    """Hold outputs against the plain loops.

    Args:
        inputs: What was read.
        outputs: What each sink holds, in order, as plain values.
        sequence: Whether times are counted, so that the order of the fronts is known, too.

    Raises:
        AssertionError: Something is lost, comes twice, or is out of order.
    """
    for name, fronts, taken in (
        ("counts", inputs.lines, _marks(word for word, _ in outputs["counts"])),
        ("index", inputs.pages, _marks(change[1] for change in outputs["index"])),
        ("sums", inputs.numbers, _steps(outputs["sums"])),
    ):
        order = list(taken)
        _check_order(name, order, fronts, sequence=sequence)
        records = [fronts[front][number] for front, number in order]  # type: ignore[index]
        _check_same(name, outputs[name], list(PLAIN[name](records)))


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


def _plain_counts(lines: Sequence[str]) -> Iterator[list[Any]]:
    counts: Counter[str] = Counter()
    for line in lines:
        for word in line.split():
            counts[word] += 1
            yield [word, counts[word]]


def _plain_index(pages: Sequence[Page]) -> Iterator[list[Any]]:
    found: dict[str, tuple[Occurrence, ...]] = {}
    for page in pages:
        for occurrence in split_page(page):
            found[occurrence.word], changes = index_word(found.get(occurrence.word, NOTHING_FOUND), occurrence)
            yield from (_listed(change) for change in changes)


def _listed(change: Change) -> list[Any]:
    return [list(field) if isinstance(field, tuple) else field for field in change]


def _plain_sums(numbers: Sequence[int]) -> Iterator[int]:
    total = 0
    for number in numbers:
        total += number
        yield total


PLAIN: dict[str, Any] = {"counts": _plain_counts, "index": _plain_index, "sums": _plain_sums}
