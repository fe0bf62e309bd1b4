"""Resuming from a position in a file that has grown, was cut, or was replaced."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from flamecore.abc.source import EdgeContext, Source
from flamecore.errors import SourceError
from flamecore.runtime.codec.codec import Codec
from flamestream_edges.csv import CsvSource
from flamestream_edges.jsonl import JsonlSource
from flamestream_edges.lines import Lines
from flamestream_edges.reading.seal import HEAD_BYTES, TAIL_BYTES
from flamestream_edges.reading.splitting import CHUNK_BYTES
from flamestream_edges.wikipedia import Wikipedia


class Form(NamedTuple):
    """A kind of file: its source, its head, and a record of a number and a filling."""

    driver: Any
    begin: str
    record: Callable[[int, str], str]


FORMS = [
    Form(Lines, "", lambda number, filling: f"{number} {filling}\n"),
    Form(JsonlSource, "", lambda number, filling: f'["{number} {filling}"]\n'),
    Form(CsvSource, "text\n", lambda number, filling: f'"{number}\n{filling}"\n'),
    Form(Wikipedia, "<pages>\n", lambda number, filling: f"<page id='{number}' title='{number}'>{filling}</page>\n"),
]
forms = pytest.mark.parametrize("form", FORMS, ids=lambda form: form.driver.name)


def source_of(form: Form, path: Path) -> Source:
    source: Source = form.driver(form.driver.Options(path=str(path)), EdgeContext("records"))
    return source


def read(form: Form, path: Path, position: Any = None) -> tuple[list[Any], list[Any]]:
    """Return the values and positions from a position on."""

    async def run() -> tuple[list[Any], list[Any]]:
        values: list[Any] = []
        positions: list[Any] = []
        reader = await source_of(form, path).open(str(path), position)
        try:
            while (batch := await reader.read(7)) is not None:
                values += batch.values
                positions += batch.positions
        finally:
            await reader.aclose()
        return values, positions

    return asyncio.run(run())


def text_of(form: Form, records: int, filling: str = "x") -> str:
    return form.begin + "".join(form.record(number, filling) for number in range(records))


@forms
@pytest.mark.parametrize("filling", ["", "x" * 100, "x" * 5000], ids=len)
def test_positions_are_plain_and_the_same_wherever_reading_began(form: Form, filling: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text(text_of(form, 40, filling))
    values, positions = read(form, path)
    assert len(values) == 40
    codec = Codec()
    for place in (0, 11, 38):
        position = codec.decode(codec.encode(positions[place]))
        assert type(position) is tuple
        assert position == positions[place]
        assert {type(part) for part in position} == {int, str}
        assert read(form, path, position) == (values[place + 1 :], positions[place + 1 :])


@forms
@pytest.mark.parametrize("records", [1, 5, 300])
def test_a_file_that_has_grown_is_read_on(form: Form, records: int, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text(text_of(form, records, "x" * 300))
    _, positions = read(form, path)
    path.write_text(text_of(form, records + 300, "x" * 300))
    values, _ = read(form, path)
    for place in {0, records // 2, records - 1} & set(range(len(positions))):
        assert read(form, path, positions[place])[0] == values[place + 1 :]


@forms
@pytest.mark.parametrize(
    ("spoil", "what"),
    [
        (lambda text, offset: text[: offset - 1], "bytes long, and has been read up to"),
        (lambda text, offset: "", "is 0 bytes long, and has been read up to"),
        (lambda text, offset: "\n" + text[1:], "begins with other bytes than when it was read up to"),
        (lambda text, offset: text[: offset - 3] + "#" + text[offset - 2 :], "has other bytes before offset"),
        (lambda text, offset: text[: offset - TAIL_BYTES] + "#" + text[offset - TAIL_BYTES + 1 :], "has other bytes"),
        (lambda text, offset: text[:HEAD_BYTES] + "more" + text[HEAD_BYTES:], "has other bytes before offset"),
    ],
    ids=["shorter", "empty", "other", "last record", "a KiB before", "in the midst"],
)
def test_a_file_that_has_become_another_is_refused(form: Form, spoil: Any, what: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    text = text_of(form, 1000, "x" * 96)
    path.write_text(text)
    position = read(form, path)[1][-1]
    path.write_text(spoil(text, position[0]))
    with pytest.raises(SourceError) as caught:
        read(form, path, position)
    error: Any = caught.value
    assert str(path) in error.what
    assert what in error.what
    assert error.position == f"{path} line {position[1]}"
    assert "Put the old file back" in error.hint


@pytest.mark.parametrize("form", FORMS[:3], ids=lambda form: form.driver.name)
def test_a_last_line_that_goes_on_after_it_was_read_is_refused(form: Form, tmp_path: Path) -> None:
    path = tmp_path / "file"
    text = text_of(form, 3)
    path.write_text(text[:-1])
    _, positions = read(form, path)
    for end in ("\n", "\r\n"):
        path.write_text(text[:-1] + end + form.record(3, "x"), newline="")  # its end has come, and another
        values, _ = read(form, path)
        assert read(form, path, positions[-1])[0] == values[3:]
    path.write_text(text[:-1] + "yz\n")
    with pytest.raises(SourceError, match="without a line end, and now goes on"):
        read(form, path, positions[-1])


@pytest.mark.parametrize("driver", [Lines, JsonlSource, CsvSource])
def test_reading_resumes_behind_lines_that_are_too_long(driver: Any, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("".join(f'"{"x" * length}"\n' for length in (5, 3000, 9, 70_000, 100, 2999)))
    options = {"header": False, "columns": ("text",)} if driver is CsvSource else {}

    async def run(position: Any = None) -> list[Any]:
        source = driver(driver.Options(path=str(path), max_line_bytes=2900, **options), EdgeContext("records"))
        reader = await source.open(str(path), position)
        found = []
        while (batch := await reader.read(1)) is not None:
            found += [*batch.positions, *(bad.position for bad in batch.rejected)]
        await reader.aclose()
        return found

    positions = asyncio.run(run())
    assert [position[1] for position in positions] == [1, 2, 3, 4, 5, 6]
    for place, position in enumerate(positions):
        assert asyncio.run(run(position)) == positions[place + 1 :]


@forms
@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda text, reached: text[:-3], "was shortened while it was read, from"),  # behind the bytes already read
        (lambda text, reached: text[: reached - 3], "was shortened while it was read, from"),
        (lambda text, reached: "", "bytes to 0"),
        (lambda text, reached: text.replace("x", "y"), "was overwritten while it was read"),
    ],
    ids=["cut behind", "cut before", "emptied", "same length"],
)
def test_a_file_that_is_changed_in_place_while_it_is_read_is_refused(
    form: Form, change: Any, what: str, tmp_path: Path
) -> None:
    path = tmp_path / "file"
    text = text_of(form, 3000, "x" * 96) + ("</pages>" if form.driver is Wikipedia else "")
    path.write_text(text)
    found: list[Any] = []

    async def run() -> None:
        reader = await source_of(form, path).open(str(path))
        try:
            first = await reader.read(1)
            assert first is not None
            with open(path, "r+") as file:  # as `copytruncate` does
                changed = change(text, CHUNK_BYTES)
                file.write(changed)
                file.truncate(len(changed))
            while (batch := await reader.read(100)) is not None:
                found.extend([*batch.values, *batch.rejected])
        finally:
            await reader.aclose()

    with pytest.raises(SourceError) as caught:
        asyncio.run(run())
    assert f"{path} {what}" in caught.value.what or caught.value.what.endswith(what)
    assert "Rename a file that a job reads" in caught.value.hint
    assert all(str(value).count("x") + str(value).count("y") >= 96 for value in found)  # no part of a record


@pytest.mark.skipif(not Path("/proc/version").exists(), reason="there is no /proc")
def test_a_file_of_the_kernel_which_has_no_size_is_read(read_all: Any) -> None:
    path = Path("/proc/version")
    assert path.stat().st_size == 0
    assert read_all(source_of(FORMS[0], path)).values == path.read_text().splitlines()
