"""A last line without line end: held back, or a record."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pytest

from flamecore.abc.source import EdgeContext, Source, Unfinished
from flamecore.errors import SourceError
from flamestream_edges.csv import CsvSource
from flamestream_edges.jsonl import JsonlSource
from flamestream_edges.lines import Lines
from flamestream_edges.stdio import Stdin

Partial = Literal["auto", "hold", "record"]


class Case(NamedTuple):
    """A file in two parts, the first of which ends with a half.

    Attributes:
        driver: The driver.
        whole, half, rest: Bytes of the whole records, of the half, and of what is appended to it.
        before, after: The records of `whole`, and those that `half` and `rest` make.
        alone: The records that the half makes as it is; None: it is malformed.
    """

    driver: type[Source]
    whole: bytes
    half: bytes
    rest: bytes
    before: list[Any]
    after: list[Any]
    alone: list[Any] | None


CASES = {
    "a line": Case(Lines, b"one\n", b"tw", b"o\nthree\n", ["one"], ["two", "three"], ["tw"]),
    "a line end of two bytes": Case(Lines, b"one\r\n", b"two\r", b"\n", ["one"], ["two"], ["two\r"]),
    "a character of two bytes": Case(Lines, b"one\n", b"\xd0", b"\xbb\n", ["one"], ["\u043b"], None),
    "the first line": Case(Lines, b"", b"\xef\xbb\xbfon", b"e\n", [], ["one"], ["on"]),
    "a number": Case(JsonlSource, b"1\n\n", b"12", b"3\n4\n", [1], [123, 4], [12]),
    "an object": Case(JsonlSource, b"1\n", b'{"a": ', b"2}\n", [1], [{"a": 2}], None),
    "a row": Case(CsvSource, b"a,b\n1,2\n\n", b"3,4", b"5\n", [{"a": "1", "b": "2"}], [{"a": "3", "b": "45"}], [
        {"a": "3", "b": "4"}
    ]),
    "a row that is too short": Case(CsvSource, b"a,b\n", b"3", b",4\n", [], [{"a": "3", "b": "4"}], None),
    "a quoted field": Case(CsvSource, b"a,b\n", b'3,"x\ny', b'\nz"\n', [], [{"a": "3", "b": "x\ny\nz"}], None),
    "a quoted field in whole lines": Case(CsvSource, b"a\n1\n", b'"x\n\ny\n', b'z"\n', [{"a": "1"}], [
        {"a": "x\n\ny\nz"}
    ], None),
    "a header": Case(CsvSource, b"", b"a,b", b"c\n1,2\n", [], [{"a": "1", "bc": "2"}], []),
}  # fmt: skip


def source(driver: type[Source], path: Path | tuple[str, ...], partial: Partial, *, state: bool, **more: Any) -> Source:
    paths = str(path) if isinstance(path, Path) else path
    options = driver.Options(path=paths, partial=partial, **more)
    return driver(options, EdgeContext("log", keeps_state=state))


async def read(made: Source, position: Any = None) -> tuple[list[Any], Any, list[str], list[Unfinished | None]]:
    """Return values, the last position, why records are malformed, and what each partition has left."""
    values, bad, left = list[Any](), list[str](), list[Unfinished | None]()
    last = position
    for partition in made.partitions():
        reader = await made.open(partition, position)
        while (batch := await reader.read(2)) is not None:
            values += batch.values
            bad += [rejected.reason for rejected in batch.rejected]
            last = [last, *batch.positions][-1]
        left.append(reader.unfinished())
        await reader.aclose()
    return values, last, bad, left


@pytest.mark.parametrize(("partial", "state"), [("auto", True), ("hold", True), ("hold", False)])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_half_is_held_back_and_read_whole_later(case: Case, partial: Partial, state: bool, tmp_path: Path) -> None:
    path = tmp_path / "app.log"
    path.write_bytes(case.whole + case.half)
    made = source(case.driver, path, partial, state=state)
    values, position, bad, (left,) = asyncio.run(read(made))
    assert (values, bad) == (case.before, [])
    assert left is not None
    assert left.place == str(path)
    count = f"{len(case.half)} byte{'s' * (len(case.half) > 1)}"
    assert left.reason.startswith(f"{count} from offset {len(case.whole)} held back")
    assert 'source.log.partial = "record"' in left.reason
    assert asyncio.run(read(made, position)) == ([], position, [], [left]), "nothing has changed"
    with path.open("ab") as file:
        file.write(case.rest)
    assert asyncio.run(read(made, position))[::2] == (case.after, [])
    assert asyncio.run(read(made))[::3] == ([*case.before, *case.after], [None])


@pytest.mark.parametrize(("partial", "state"), [("auto", False), ("record", False), ("record", True)])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_half_is_a_record(case: Case, partial: Partial, state: bool, tmp_path: Path) -> None:
    path = tmp_path / "app.log"
    path.write_bytes(case.whole + case.half)
    values, _, bad, left = asyncio.run(read(source(case.driver, path, partial, state=state)))
    assert left == [None]
    assert values == [*case.before, *(case.alone or [])]
    assert len(bad) == (case.alone is None)


def test_a_half_that_was_a_record_and_goes_on_is_refused_and_the_option_named(tmp_path: Path) -> None:
    path = tmp_path / "app.log"
    path.write_bytes(b"one\ntw")
    made = source(Lines, path, "record", state=True)
    _, position, _, _ = asyncio.run(read(made))
    path.write_bytes(b"one\ntwo\n")
    with pytest.raises(SourceError, match="without a line end, and now goes on") as error:
        asyncio.run(read(made, position))
    assert 'source.log.partial = "hold"' in error.value.hint


def test_a_line_without_end_is_too_long_once_it_has_one(tmp_path: Path) -> None:
    path = tmp_path / "app.log"
    path.write_bytes(b"one\n" + b"x" * 500)
    made = source(Lines, path, "auto", state=True, max_line_bytes=100)
    values, position, bad, (left,) = asyncio.run(read(made))
    assert (values, bad) == (["one"], [])
    assert left is not None
    assert left.reason.startswith("500 bytes from offset 4 ")
    with path.open("ab") as file:
        file.write(b"\n")
    assert asyncio.run(read(made, position))[1:] == (
        position,
        ["the line is 500 bytes long, and max_line_bytes is 100"],
        [None],
    )


def test_each_file_holds_back_its_own(tmp_path: Path) -> None:
    for name, content in (("a", b"1\n2"), ("b", b"3\n"), ("c", b"4")):
        (tmp_path / name).write_bytes(content)
    values, _, _, left = asyncio.run(read(source(JsonlSource, tmp_path, "auto", state=True)))
    assert values == [1, 3]
    assert [each and each.place for each in left] == [str(tmp_path / "a"), None, str(tmp_path / "c")]


def test_white_space_at_the_end_is_nothing_that_is_left(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(b"1\n  ")
    assert asyncio.run(read(source(JsonlSource, path, "auto", state=True)))[::3] == ([1], [None])
    (left,) = asyncio.run(read(source(Lines, path, "auto", state=True)))[3]
    assert left is not None, "to lines, a line of white space is one"


def test_a_malformed_last_row_is_none_that_has_no_end(tmp_path: Path) -> None:
    path = tmp_path / "in.csv"
    path.write_bytes(b'a\n"x" y\n')
    values, _, bad, left = asyncio.run(read(source(CsvSource, path, "auto", state=True)))
    assert (values, left) == ([], [None])
    assert len(bad) == 1


def test_standard_input_ends_with_its_end(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(b"one\ntw")
    with (tmp_path / "in").open() as file:
        monkeypatch.setattr("sys.stdin", file)
        made = Stdin(Stdin.Options(), EdgeContext("log", str, keeps_state=True))
        assert asyncio.run(read(made))[::3] == (["one", "tw"], [None])


def test_the_default_changes_no_fingerprint(tmp_path: Path) -> None:
    """Outputs of a job without state, of an older version too, are resumed by it."""
    path = tmp_path / "in"
    path.write_bytes(b"one\n")
    os.utime(path, (0, 0))
    prints = {
        partial: source(Lines, path, partial, state=False).fingerprint() for partial in ("auto", "hold", "record")
    }
    assert len(set(prints.values())) == 3
