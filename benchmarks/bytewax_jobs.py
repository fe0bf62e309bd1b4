"""Jobs in Bytewax: one worker, from a list to a list, in this process.

`word_count` and `index` are written as its documentation would; `word_count_batches` uses its operators for whole
batches, which are its fastest. Batches of a hundred lines: larger ones gain little, and hold outputs back for longer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import bytewax.operators as op
from bytewax.dataflow import Dataflow, Stream
from bytewax.testing import TestingSink, TestingSource, run_main

from flamestream_demo.inverted_index import Change, index_word, number_version, split_page, word_of
from flamestream_demo.postings import EMPTY

_BATCH: Final = 100


def _run(flow: Dataflow, outputs: Stream[Any]) -> list[Any]:
    found: list[Any] = []
    op.output("out", outputs, TestingSink(found))
    run_main(flow)  # type: ignore[no-untyped-call]  # Bytewax has no hints there
    return found


def word_count(lines: Sequence[str]) -> list[tuple[str, int]]:
    """Split, key by the word, and count in a stateful map."""

    def count(seen: int | None, _: str) -> tuple[int, int]:
        now = (seen or 0) + 1
        return now, now

    flow = Dataflow("word_count")
    words = op.flat_map("split", op.input("lines", flow, TestingSource(lines, _BATCH)), str.split)
    keyed = op.key_on("key", words, lambda word: word)
    return _run(flow, op.stateful_map("count", keyed, count))


class _Count(op.StatefulBatchLogic[Any, int, int]):
    def __init__(self, seen: int | None) -> None:
        self.seen = seen or 0

    def on_batch(self, values: list[Any]) -> tuple[Iterable[int], bool]:
        first = self.seen + 1
        self.seen += len(values)
        return range(first, self.seen + 1), False

    def snapshot(self) -> int:
        return self.seen


def word_count_batches(lines: Sequence[str]) -> list[tuple[str, int]]:
    """Split a batch of lines at once, and count a batch of equal words at once."""

    def split(batch: list[str]) -> list[tuple[str, None]]:
        return [(word, None) for line in batch for word in line.split()]

    flow = Dataflow("word_count_batches")
    keyed: op.KeyedStream[None] = op.flat_map_batch(
        "split", op.input("lines", flow, TestingSource(lines, _BATCH)), split
    )
    return _run(flow, op.stateful_batch("count", keyed, _Count))


def index(pages: Sequence[Any]) -> list[Change]:
    """Run the functions of the demo's flow, in the operators that fit."""
    flow = Dataflow("index")
    keyed = op.key_on("page", op.input("pages", flow, TestingSource(pages, _BATCH)), lambda page: str(page.id))
    versions = op.stateful_map("versions", keyed, lambda seen, page: number_version(seen or 0, page))
    words = op.flat_map("split", op.key_rm("page_rm", versions), lambda numbered: split_page(numbered[0]))
    by_word = op.key_on("word", words, word_of)
    changes = op.stateful_flat_map(
        "indexer", by_word, lambda state, item: index_word(EMPTY if state is None else state, item)
    )
    return _run(flow, op.key_rm("word_rm", changes))
