"""The source of the demo: topics of the language reference."""

from __future__ import annotations

import asyncio
import sys
from pydoc_data.topics import topics as texts
from typing import Any

import msgspec
import pytest

from flamecore.abc.source import EdgeContext, Reader
from flamecore.errors import SourceError
from flamestream_demo.pages import Page, Pydoc, flamestream_source, revised, topics


def source(**options: Any) -> Pydoc:
    return Pydoc(msgspec.convert(options, Pydoc.Options), EdgeContext("pages", Page))


async def drain(reader: Reader, limit: int = 7) -> tuple[list[Page], list[int]]:
    values: list[Page] = []
    positions: list[int] = []
    while (batch := await reader.read(limit)) is not None:
        assert 1 <= len(batch.values) <= limit
        assert len(batch.values) == len(batch.positions)
        assert not batch.rejected
        values += batch.values
        positions += batch.positions
    assert await reader.read(limit) is None
    await reader.aclose()
    return values, positions


def read(origin: Pydoc, position: int | None = None) -> tuple[list[Page], list[int]]:
    async def run() -> tuple[list[Page], list[int]]:
        (partition,) = origin.partitions()
        return await drain(await origin.open(partition, position))

    return asyncio.run(run())


def test_pages_are_the_topics_by_name_numbered_from_one() -> None:
    pages, positions = read(source())
    assert [page.title for page in pages] == sorted(texts)
    assert [page.id for page in pages] == list(range(1, len(texts) + 1))
    assert all(page.text == texts[page.title] for page in pages)
    assert positions == list(range(len(texts)))


def test_a_repeated_page_keeps_its_id_and_its_words_which_move() -> None:
    pages, _ = read(source(repeat=3, limit=2))
    assert [page.id for page in pages] == [1, 2] * 3
    for number in (0, 1):
        versions = [page.text for page in pages[number::2]]
        assert len(set(versions)) == 3
        assert len({tuple(sorted(text.split())) for text in versions}) == 1


def test_every_topic_has_every_version() -> None:
    for page in topics():
        assert revised(page, 1) == page
        assert all(revised(page, version).text.split() for version in (2, 100, 255))


def test_reading_resumes_after_any_position() -> None:
    origin = source(repeat=2, limit=3)
    pages, positions = read(origin)
    for at in positions:
        assert read(origin, at) == (pages[at + 1 :], positions[at + 1 :])


@pytest.mark.parametrize("position", [6, -2])
def test_a_missing_position_is_refused(position: int) -> None:
    with pytest.raises(SourceError, match="there are 6 records") as caught:
        read(source(repeat=2, limit=3), position)
    assert caught.value.source == "pages"
    assert caught.value.position == position


def test_a_described_position_names_topic_and_version() -> None:
    reader = asyncio.run(source(repeat=2, limit=3).open(""))
    assert reader.describe(4) == f"topic {sorted(texts)[1]!r}, version 2"


def test_a_python_without_the_topics_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", None)
    with pytest.raises(SourceError, match="came without the module"):
        topics()


@pytest.mark.parametrize("options", [{"repeat": 0}, {"repeat": 256}, {"limit": 0}, {"path": "x"}, {"repeat": "2"}])
def test_options_are_strict(options: dict[str, Any]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(options, Pydoc.Options)


def test_the_source_is_replayable_and_bounded() -> None:
    assert flamestream_source() is Pydoc
    assert source().capabilities.replayable
    assert source().capabilities.bounded
    assert source().fingerprint() == source().fingerprint()
    assert len({source(**options).fingerprint() for options in ({}, {"repeat": 2}, {"limit": 2})}) == 3
