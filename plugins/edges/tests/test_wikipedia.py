"""Source `wikipedia`: real dumps, broken dumps, and bounded memory."""

from __future__ import annotations

import asyncio
import gc
import random
import tracemalloc
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from flamecore.abc.source import EdgeContext
from flamecore.errors import ConfigError, SourceError
from flamestream_edges.reading.seal import Seals
from flamestream_edges.wikipedia import Page, Wikipedia

ReadAll = Callable[..., Any]


def pages_of(path: Path, type_: Any = object, **options: Any) -> Wikipedia:
    return Wikipedia(Wikipedia.Options(path=str(path), **options), EdgeContext("pages", type_))


def by_tree(path: Path) -> list[Page]:
    """Return the pages as parsed by a parser that keeps the whole tree."""
    pages = ElementTree.parse(path).getroot()
    return [Page(int(page.attrib["id"]), page.attrib["title"], "".join(page.itertext())) for page in pages]


def test_real_dumps_are_read(wikipedia_dumps: list[Path], read_all: ReadAll) -> None:
    for path in wikipedia_dumps:
        found = read_all(pages_of(path, Page))
        assert not found.rejected
        assert found.values == by_tree(path)
        assert all(type(page) is Page for page in found.values)


def test_reading_real_dumps_resumes_after_any_page(wikipedia_dumps: list[Path]) -> None:
    async def run(path: Path) -> None:
        source = pages_of(path)
        expected = by_tree(path)
        reader = await source.open(str(path))
        batch = await reader.read(10_000)
        assert batch is not None
        seen, positions = list(batch.values), list(batch.positions)
        while (batch := await reader.read(10_000)) is not None:
            seen += batch.values
            positions += batch.positions
        assert seen == expected
        lines = path.read_text("utf-8-sig").split("\n")
        for index in random.Random(0).sample(range(len(expected)), min(20, len(expected))):
            line = int(reader.describe(positions[index]).rpartition(" ")[2])
            assert f'<page id="{expected[index].id}"' in lines[line - 1]
            again = await source.open(str(path), tuple(positions[index]))
            rest: list[Any] = []
            while (batch := await again.read(10_000)) is not None:
                rest += batch.values
            assert rest == expected[index + 1 :]
            await again.aclose()
        await reader.aclose()

    for path in wikipedia_dumps:
        asyncio.run(run(path))


def test_a_real_dump_cut_anywhere_gives_the_whole_pages_and_one_error(
    wikipedia_dumps: list[Path], tmp_path: Path, read_all: ReadAll
) -> None:
    smallest = min(wikipedia_dumps, key=lambda path: path.stat().st_size)
    data, pages = smallest.read_bytes(), by_tree(smallest)
    ends = [index + len(b"</page>") for index in range(len(data)) if data.startswith(b"</page>", index)]
    path = tmp_path / "cut.xml"
    random_cuts = random.Random(1).sample(range(len(data) - len(b"\n</pages>")), 25)
    for cut in [0, 1, 10, 60, *ends, *random_cuts]:
        path.write_bytes(data[:cut])
        found = read_all(pages_of(path))
        assert found.values == pages[: sum(end <= cut for end in ends)]
        assert len(found.rejected) == 1
        line = data[:cut].count(b"\n") + 1
        assert found.places[0] in (f"{path} line {line}", f"{path} line {line - 1}"), cut
        assert "offset" in found.rejected[0].reason
        assert isinstance(found.rejected[0].raw, str), "the place is shown as text, wherever the file was cut"


@pytest.mark.parametrize(
    ("text", "ids", "line", "reason"),
    [
        ("<pages>\n<page id='1' title='a'>x</page>\n<page id='2' title='b'>x</oops></pages>", [1], 3, "mismatched tag"),
        (
            "<pages>\n<page id='1' title='a'>x</page>\n& <page id='2' title='b'>x</page></pages>",
            [1],
            3,
            "not well-formed",
        ),
        ("<pages>\n<page id='1' title='a'>&nbsp;</page></pages>", [], 2, "undefined entity"),
        ("<pages>\n<page id='1' title='a'>x</page></pages>\n<pages/>", [1], 3, "junk after document element"),
        ("<mediawiki>\n<page><title>a</title></page></mediawiki>", [], 1, "the outermost element is <mediawiki>"),
        ("", [], 1, "the file ends too early"),
        ("no XML", [], 1, "syntax error"),
        ("<pages>\n<page id='1' title='\ufffe'>x</page></pages>", [], 2, "not well-formed"),
    ],
)
def test_broken_xml_ends_its_file_after_the_pages_before(
    tmp_path: Path, read_all: ReadAll, text: str, ids: list[int], line: int, reason: str
) -> None:
    path = tmp_path / "broken.xml"
    path.write_text(text)
    found = read_all(pages_of(path), 1)
    assert [page.id for page in found.values] == ids
    assert found.places == [f"{path} line {line}"]
    assert reason in found.rejected[0].reason


def test_undecodable_bytes_are_broken_xml(tmp_path: Path, read_all: ReadAll) -> None:
    path = tmp_path / "broken.xml"
    path.write_bytes(b"<pages><page id='1' title='a'>x</page>\n<page id='2' title='b'>x \xff y</page></pages>")
    found = read_all(pages_of(path))
    assert [page.id for page in found.values] == [1]
    assert "inside page '2' 'b' that starts in line 2" in found.rejected[0].reason
    assert b"x \xff y" in found.rejected[0].raw


def test_malformed_pages_are_rejected_one_by_one(tmp_path: Path, read_all: ReadAll) -> None:
    path = tmp_path / "odd.xml"
    lines = [
        "<pages>",
        "<page id='1' title='good'>1</page>",
        "<page title='a'/>",
        "<page id='3'>x</page>",
        "<page id='four' title='4'>x</page>",
        "<siteinfo><name>x</name></siteinfo>",
        f"<page id='6' title='long'>{'x' * 101}</page>",
        "<page id='7' title='good'>7</page></pages>",
    ]
    path.write_text("\n".join(lines))
    found = read_all(pages_of(path, max_page_chars=100))
    assert [page.id for page in found.values] == [1, 7]
    assert found.places == [f"{path} line {line}" for line in (3, 4, 5, 6, 7)]
    reasons = [bad.reason for bad in found.rejected]
    assert "page 'a' has no attribute id" in reasons[0]
    assert "page '3' has no attribute title" in reasons[1]
    assert "id that is no number: 'four'" in reasons[2]
    assert "<siteinfo> where <page> is expected" in reasons[3]
    assert found.rejected[2].raw == "<page id='four' title='4'>"
    assert "has 101 characters, and max_page_chars is 100" in reasons[4]


def test_pages_become_the_flow_s_own_type_if_it_has_the_fields(tmp_path: Path, read_all: ReadAll) -> None:
    class Own(NamedTuple):
        id: int
        title: str
        text: str

    path = tmp_path / "one.xml"
    path.write_text("<pages><page id='1' title='a'>x</page></pages>")
    assert type(read_all(pages_of(path, Own)).values[0]) is Own
    with pytest.raises(ConfigError, match="the flow declares str, and wikipedia gives Page"):
        pages_of(path, str)


def test_a_position_in_another_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "one.xml"
    path.write_text("<pages><page id='1' title='a'>x</page></pages>")
    seal = f"46-{'0' * 16}-{'0' * 16}"
    for position in ((10, 1, 1), "x", 7, (1, 2), (10, 1, seal)):
        with pytest.raises(SourceError, match="is no position in"):
            asyncio.run(pages_of(path).open(str(path), position))
    for offset in (1000, 10):
        with pytest.raises(SourceError, match=r"has been read up to|when it was read"):
            asyncio.run(pages_of(path).open(str(path), (offset, 1, 1, seal)))
    with path.open("rb") as file:
        right = Seals(file.fileno(), 0).seal_at(file.fileno(), 2)
    with pytest.raises(SourceError, match=r"cannot be read on from .*: its first page is at 7"):
        asyncio.run(pages_of(path).open(str(path), (2, 1, 1, right)))


def test_entities_that_grow_without_end_are_refused(tmp_path: Path, read_all: ReadAll) -> None:
    path = tmp_path / "laughs.xml"
    entities = "".join(f'<!ENTITY e{n} "{f"&e{n - 1};" * 10}">' for n in range(1, 12))
    path.write_text(f'<!DOCTYPE p [<!ENTITY e0 "ha">{entities}]><pages><page id="1" title="a">&e11;</page></pages>')
    found = read_all(pages_of(path, max_page_chars=10_000))
    assert not found.values
    assert "amplification" in found.rejected[0].reason


def test_no_more_than_a_few_pages_are_held(tmp_path: Path) -> None:
    """Forty times the pages take no more memory."""

    def peak(pages: int) -> int:
        path = tmp_path / f"{pages}.xml"
        with path.open("w") as file:
            file.write("<pages>")
            for number in range(pages):
                file.write(f"<page id='{number}' title='page {number}'>{'some text ' * 500}</page>\n")
            file.write("</pages>")

        async def run() -> int:
            reader = await pages_of(path).open(str(path))
            count = 0
            while (batch := await reader.read(100)) is not None:
                count += len(batch.values)
            await reader.aclose()
            return count

        gc.collect()
        tracemalloc.start()
        try:
            assert asyncio.run(run()) == pages
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    peak(50)
    few, many = peak(50), peak(2000)
    assert many < 1.5 * few, f"{many:,} bytes for 10 MB, and {few:,} for a fortieth of it"
