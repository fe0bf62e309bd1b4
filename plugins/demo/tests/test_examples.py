"""The examples, run as in their README."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Callable, Iterable
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import commands
import pytest

from flamestream_demo.pages import Page
from flamestream_demo.testing import plain_index
from flamestream_demo.view import IndexView

ChangeLog = Callable[[Iterable[Page]], list[tuple[object, ...]]]

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
JOB = EXAMPLES / "inverted_index" / "job.toml"
LIMIT_S = 60

pytestmark = [
    pytest.mark.skipif(not EXAMPLES.is_dir(), reason="the examples are not in the wheel"),
    pytest.mark.skipif(
        not entry_points(group="flamestream.source", name="wikipedia"), reason="flamestream is not installed"
    ),
]

PAGES = [
    Page(7, "Литва", "Команда & команды: «ёлка»"),
    Page(3, "Two", "A team < a command"),
    Page(7, "Литва", "Новая команда"),
]
DUMP = """<?xml version='1.0' encoding='utf-8'?>
<pages>
    <page id="7" title="Литва">Команда &amp; команды: «ёлка»</page>
    <page id="3" title="Two">A team &lt; a command</page>
    <page id="7" title="Литва">Новая команда</page>
</pages>
"""


@pytest.fixture
def dump(tmp_path: Path) -> Path:
    file = tmp_path / "dump.xml"
    file.write_text(DUMP, encoding="utf-8-sig")
    return file


def flamestream(*arguments: str | Path, folder: Path, given: str = "") -> str:
    done = commands.call(*arguments, cwd=folder, given=given)
    assert done.returncode == 0, done.stderr
    return done.stdout


def run_index(dump: Path, *arguments: str | Path) -> str:
    return flamestream("run", JOB, "--set", f"source.pages.path={dump}", *arguments, folder=dump.parent)


def rows(file: Path, query: str) -> list[Any]:
    database = sqlite3.connect(file)
    try:
        return database.execute(query).fetchall()
    finally:
        database.close()


def from_json(lines: str) -> list[tuple[object, ...]]:
    found = []
    for line in lines.splitlines():
        record = json.loads(line)
        assert [*record] == ["change", "word", "page", "version", "first", "count", "positions"]
        found.append((*[*record.values()][:-1], tuple(record["positions"])))
    return found


def test_changes_go_to_sqlite(dump: Path, changes_by_dictionary: ChangeLog) -> None:
    run_index(dump, "--set", f"sink.index.path={dump.parent / 'index.db'}")
    query = 'SELECT change, word, page, version, first, count, positions FROM "index" ORDER BY seq'
    found = [(*row[:-1], tuple(json.loads(row[-1]))) for row in rows(dump.parent / "index.db", query)]
    assert found == changes_by_dictionary(PAGES)
    assert ("remove", "команд", 7, 1, 0, 2, ()) in found


def test_changes_go_to_json_lines_and_to_standard_output(dump: Path, changes_by_dictionary: ChangeLog) -> None:
    out = dump.parent / "OUT.jsonl"
    run_index(dump, "--sink", "index=jsonl", "--set", f"sink.index.path={out}", "-w", "4")
    printed = run_index(dump, "--sink", "index=stdout")
    assert out.read_text("utf-8") == printed
    assert from_json(printed) == changes_by_dictionary(PAGES)


def test_pages_may_come_as_json_lines(dump: Path, changes_by_dictionary: ChangeLog) -> None:
    file = dump.with_suffix(".jsonl")
    file.write_text("".join(json.dumps(page._asdict()) + "\n" for page in PAGES), "utf-8")
    printed = run_index(file, "--source", "pages=jsonl", "--sink", "index=stdout")
    assert from_json(printed) == changes_by_dictionary(PAGES)


def test_the_query_of_the_readme_prints_the_postings_there_are(wikipedia: Path, tmp_path: Path) -> None:
    readme = (JOB.parent / "README.md").read_text("utf-8")
    block = re.search(r"```sql\n(.*?)```", readme, re.DOTALL)
    assert block is not None
    # The second dump holds page 7 twice, so there are postings of an earlier version to be left out.
    dump = wikipedia / "test_index_ranking_storage_small_dump.xml"
    database = tmp_path / "index.db"
    flamestream(
        "run", JOB, "--set", f"source.pages.path={dump}", "--set", f"sink.index.path={database}", folder=tmp_path
    )
    import xml.etree.ElementTree as ET

    view = IndexView()
    view.apply(
        plain_index(
            Page(int(page.attrib["id"]), page.attrib["title"], page.text or "")
            for page in ET.parse(dump).getroot().iter("page")
        )
    )
    words = [word for word, pages in view.postings.items() if any(held.version > 1 for held in pages.values())][:20]
    assert words
    for word in words:
        found = rows(database, block[1].replace("команд", word))
        assert found == [
            (page, held.version, len(held.positions), json.dumps(held.positions, separators=(",", ":")))
            for page, held in sorted(view.postings[word].items())
        ]


@pytest.mark.parametrize("workers", ["1", "4"])
def test_word_count_prints_one_line_an_update(workers: str, tmp_path: Path) -> None:
    printed = flamestream(
        "run",
        EXAMPLES / "word_count.py",
        "-w",
        workers,
        "--source",
        "lines=stdin",
        "--sink",
        "counts=stdout",
        folder=tmp_path,
        given="to be or\nnot to be\n",
    )
    assert printed.split("\n") == ["to 1", "be 1", "or 1", "not 1", "to 2", "be 2", ""]
