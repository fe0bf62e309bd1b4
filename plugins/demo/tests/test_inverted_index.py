"""The job's change log, on made-up pages and real dumps, against the plain model."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import flamecore as fc
from flamecore.errors import OperationError
from flamecore.testing.draws import seeds
from flamecore.testing.flows.deterministic import assert_deterministic
from flamestream_demo.inverted_index import (
    Change,
    flow,
    index_word,
    number_words,
    tokenize,
    tokenized_id,
    word_of,
)
from flamestream_demo.pages import Page, revised, topics
from flamestream_demo.postings import EMPTY
from flamestream_demo.testing import plain_index

ChangeLog = Callable[[Iterable[Page]], list[tuple[object, ...]]]

DUMPS = (
    "test_index_small_dump.xml",
    "test_index_ranking_storage_small_dump.xml",
    "national_football_teams_dump.xml",
)

KITTENS = [
    Page(1, "one", "A cat and a kitten"),
    Page(2, "two", "Cats"),
    Page(1, "one", "The cat, the cats"),
]


def run(pages: Iterable[Page], workers: int = 1) -> list[Change]:
    return list(flow.run({"pages": list(pages)}, workers=workers)["index"])


@pytest.mark.parametrize("workers", [1, 3])
def test_three_small_pages_give_their_change_log(workers: int) -> None:
    expected = [
        Change("add", "a", 1, 1, 0, 2, (0, 3)),
        Change("add", "cat", 1, 1, 1, 1, (1,)),
        Change("add", "and", 1, 1, 2, 1, (2,)),
        Change("add", "kitten", 1, 1, 4, 1, (4,)),
        Change("add", "cat", 2, 1, 0, 1, (0,)),
        # The second version of page 1: "a", "and" and "kitten" are not in it, so their postings stay.
        Change("add", "the", 1, 2, 0, 2, (0, 2)),
        Change("remove", "cat", 1, 1, 1, 1, ()),
        Change("add", "cat", 1, 2, 1, 2, (1, 3)),
    ]
    assert list(plain_index(KITTENS)) == expected
    assert run(KITTENS, workers) == expected


def test_an_empty_page_changes_nothing_but_counts_as_a_version() -> None:
    pages = [Page(1, "", ""), Page(1, "", "²½ – !"), Page(1, "", "word")]
    expected = [Change("add", "word", 1, 3, 0, 1, (0,))]
    assert list(plain_index(pages)) == expected
    assert run(pages) == expected


def read_dump(file: Path) -> list[Page]:
    return [
        Page(int(page.attrib["id"]), page.attrib["title"], "".join(page.itertext()))
        for page in ET.parse(file).getroot().iter("page")
    ]


@pytest.mark.parametrize("dump", DUMPS)
def test_a_dump_gives_the_changes_worked_out_by_dictionaries(
    dump: str, wikipedia: Path, changes_by_dictionary: ChangeLog
) -> None:
    pages = read_dump(wikipedia / dump)
    expected = changes_by_dictionary(pages)
    assert len(expected) > 500, "there is something to compare"
    assert list(plain_index(pages)) == expected
    assert run(pages) == expected
    assert run(pages, workers=4) == expected


def test_three_versions_of_the_topics_are_indexed(changes_by_dictionary: ChangeLog) -> None:
    pages = [revised(page, version) for version in (1, 2, 3) for page in topics(limit=25)]
    expected = changes_by_dictionary(pages)
    assert any(change[0] == "remove" for change in expected)
    assert list(plain_index(pages)) == expected
    assert run(pages) == expected
    assert run(pages, workers=3) == expected


some_pages = st.lists(
    st.builds(Page, st.integers(1, 4), st.just(""), st.text(st.sampled_from("аёaxX -_1²\u0301"), max_size=20)),
    max_size=12,
)


@settings(max_examples=40, deadline=None)
@given(pages=some_pages, workers=st.integers(1, 4))
def test_any_pages_are_indexed_in_any_order_of_versions(
    changes_by_dictionary: ChangeLog, pages: list[Page], workers: int
) -> None:
    expected = changes_by_dictionary(pages)
    assert list(plain_index(pages)) == expected
    assert run(pages, workers) == expected


def test_pages_that_are_tokenized_before_the_first_key_give_the_same_change_log() -> None:
    tokenized = fc.Flow("tokenized")
    numbered = tokenized.source("pages", Page).map(tokenize).key_by(tokenized_id).stateful_map(0, number_words)
    numbered.key_by(word_of).stateful_map(EMPTY, index_word).sink("index")
    pages = [*KITTENS, Page(3, "empty", ""), *(revised(page, version) for page in topics(5) for version in (1, 2))]
    for workers in (1, 3):
        assert tokenized.run({"pages": pages}, workers=workers)["index"] == list(plain_index(pages))


def test_many_interleavings_of_workers_give_one_change_log(changes_by_dictionary: ChangeLog) -> None:
    # Versions of one page follow each other at once, so that words of an older one are often overtaken.
    pages = [revised(page, version) for page in topics(limit=3) for version in (1, 2, 3)]
    pages = [page._replace(text=page.text[:400]) for page in pages]
    found = assert_deterministic(flow, {"pages": pages}, workers=(1, 2, 4), seeds=seeds(9))
    assert found["index"] == changes_by_dictionary(pages)


@pytest.mark.parametrize(
    ("pages", "reason"),
    [
        ([Page(2**24, "too high", "word")], "page=16777216"),
        ([Page(1, "too often", "word")] * 256, "version=256"),
        ([Page(1, "too long", "word " * 4096)], "range=4096"),
    ],
)
def test_a_page_no_posting_can_hold_stops_the_job_with_the_reason(pages: list[Page], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        list(plain_index(pages))
    with pytest.raises(OperationError, match="indexer") as caught:
        run(pages)
    assert reason in str(caught.value)
    assert isinstance(caught.value.cause, ValueError)


def test_a_word_that_cannot_be_held_can_be_left_out() -> None:
    pages = [Page(1, "too long", "word " * 4096 + "other"), Page(2, "fine", "word")]
    found = flow.run({"pages": pages}, settings={"job.on_error": "skip"})
    assert [(change.word, change.page) for change in found["index"]] == [("other", 1), ("word", 2)]
    assert found.stats.failed == 1
