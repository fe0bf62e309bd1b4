"""The index as its change log gives it, and the demo's reports of it."""

from __future__ import annotations

import pytest

from flamecore.errors import ConsistencyError
from flamecore.runtime.parts.counters import JobStats
from flamestream_demo.inverted_index import Change
from flamestream_demo.pages import Page
from flamestream_demo.report import Answer, Figures, as_text
from flamestream_demo.testing import plain_index
from flamestream_demo.view import Held, IndexView

PAGES = [Page(2, "Zwei", "cats and a dog"), Page(1, "Eins", "a cat"), Page(2, "Zwei", "the cat, the cat")]


@pytest.fixture
def view() -> IndexView:
    made = IndexView()
    made.apply(plain_index(PAGES))
    return made


def test_the_view_holds_the_newest_version_of_a_word(view: IndexView) -> None:
    assert view.postings == {
        "cat": {1: Held(1, (1,)), 2: Held(2, (1, 3))},
        "and": {2: Held(1, (1,))},
        "a": {2: Held(1, (2,)), 1: Held(1, (0,))},
        "dog": {2: Held(1, (3,))},
        "the": {2: Held(2, (0, 2))},
    }
    assert view.tokens == 4 + 2 + 4
    assert view.changes == 4 + 2 + 3


@pytest.mark.parametrize(
    "change",
    [
        Change("remove", "horse", 1, 1, 0, 1, ()),
        Change("remove", "cat", 3, 1, 0, 1, ()),
        Change("remove", "cat", 2, 1, 0, 1, ()),
        Change("add", "cat", 2, 3, 0, 1, (0,)),
    ],
)
def test_a_change_that_does_not_fit_is_an_error(view: IndexView, change: Change) -> None:
    with pytest.raises(ConsistencyError, match="does not fit"):
        view.apply([change])


def test_busiest_words_come_by_pages_then_by_the_alphabet(view: IndexView) -> None:
    assert view.busiest(3) == [("a", 2), ("cat", 2), ("and", 1)]
    assert view.busiest(99)[3:] == [("dog", 1), ("the", 1)]


def test_an_answer_lists_postings_by_page(view: IndexView) -> None:
    titles = {page.id: page.title for page in PAGES}
    answer = Answer.of("Cats", "cat", view)
    assert answer.text(titles).splitlines() == [
        "'Cats', looked up as 'cat': 2 pages, 3 times",
        "page  version  positions",
        "Eins        1  1",
        "Zwei        2  1, 3",
    ]
    assert answer.facts(titles) == {
        "query": "Cats",
        "word": "cat",
        "postings": [
            {"page": 1, "title": "Eins", "version": 1, "positions": [1]},
            {"page": 2, "title": "Zwei", "version": 2, "positions": [1, 3]},
        ],
        "nearest": [],
    }


def test_a_long_list_of_positions_is_cut_for_people_only() -> None:
    view = IndexView()
    view.apply(plain_index([Page(1, "One", "word " * 13)]))
    answer = Answer.of("word", "word", view)
    assert "1 page, 13 times" in answer.text({1: "One"})
    assert answer.text({1: "One"}).endswith("10, 11 and 1 more")
    assert answer.facts({1: "One"})["postings"][0]["positions"] == list(range(13))


def test_an_unknown_word_names_the_nearest(view: IndexView) -> None:
    answer = Answer.of("Dogma", "dogma", view)
    assert not answer.postings
    assert answer.text({}) == "no page holds 'Dogma' (looked up as 'dogma'); nearest: dog"
    assert Answer.of("xyz", "xyz", view).text({}) == "no page holds 'xyz' (looked up as 'xyz')"


def test_figures_are_shown_before_the_start_and_after_the_end(view: IndexView) -> None:
    assert dict(Figures.of(JobStats(), IndexView(), 1).rows()) == {
        "pages": "0",
        "tokens": "0",
        "distinct words": "0",
        "index changes": "0",
        "pages/s": "0",
        "release latency p50": "–",
        "release latency p99": "–",
        "replays": "0",
    }
    stats = JobStats(items_in=3000, elapsed_s=2.0, replays=7, latency_p50_ms=0.25, latency_p99_ms=1234.0)
    assert list(Figures.of(stats, view, 4).rows()) == [
        ("pages", "3,000"),
        ("tokens", "10"),
        ("distinct words", "5"),
        ("index changes", "9"),
        ("pages/s", "1,500"),
        ("release latency p50", "0.2 ms"),
        ("release latency p99", "1,234.0 ms"),
        ("replays", "7"),
    ]


def test_rows_as_text_are_lined_up() -> None:
    assert as_text([("a", "100"), ("long", "1")]) == "a     100\nlong    1"
