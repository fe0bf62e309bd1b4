"""Files that were read to their end: they are opened again only if they are longer, or may have changed."""

from __future__ import annotations

import asyncio
import os
import sys
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from flamecore.abc.source import EdgeContext, Reader, Source
from flamecore.errors import SourceError
from flamestream_edges.csv import CsvSource
from flamestream_edges.jsonl import JsonlSource
from flamestream_edges.lines import Lines
from flamestream_edges.reading import openfiles, seal

FILES = 20


class Form(NamedTuple):
    """A kind of file: its source, and the text of two records and of a third one."""

    driver: Any
    text: str
    more: str


FORMS = [
    Form(Lines, "a\nb\n", "c\n"),
    Form(JsonlSource, '"a"\n"b"\n', '"c"\n'),
    Form(CsvSource, "text\na\nb\n", "c\n"),
]
forms = pytest.mark.parametrize("form", FORMS, ids=lambda form: form.driver.name)

_watched: dict[str, int] | None = None


def _count_opened(event: str, args: tuple[object, ...]) -> None:
    if _watched is not None and event == "open" and str(args[0]) in _watched:
        _watched[str(args[0])] += 1


@pytest.fixture(scope="module", autouse=True)
def audit_hook() -> None:
    sys.addaudithook(_count_opened)  # it cannot be removed


@pytest.fixture
def paths(tmp_path: Path) -> list[str]:
    return [str(tmp_path / f"{number:03}") for number in range(FILES)]


@pytest.fixture
def opened(paths: list[str]) -> Iterator[dict[str, int]]:
    """Yield how often each file has been opened by readers."""
    global _watched
    _watched = dict.fromkeys(paths, 0)
    yield _watched
    _watched = None


@pytest.fixture
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the files be old enough for each later change to have another time."""
    monkeypatch.setattr(seal, "SETTLED_NS", -(1 << 62))


def make(form: Form, paths: list[str], opened: dict[str, int]) -> Source:
    for path in paths:
        Path(path).write_text(form.text)
    opened |= dict.fromkeys(paths, 0)
    source: Source = form.driver(form.driver.Options(path=tuple(paths)), EdgeContext("in"))
    return source


async def last_positions(source: Source, paths: list[str]) -> list[Any]:
    """Read all files in turn, and return the last position of each."""
    readers = [await source.open(path) for path in paths]
    found: list[Any] = [None] * len(paths)
    for _ in range(3):
        for number, reader in enumerate(readers):
            if (batch := await reader.read(1)) is not None:
                found[number] = batch.positions[-1]
    for reader in readers:
        assert await reader.read(1) is None
        await reader.aclose()
    return found


async def rest_of(reader: Reader) -> list[Any]:
    values: list[Any] = []
    while (batch := await reader.read(10)) is not None:
        values += batch.values
    assert await reader.read(10) is None
    return values


@pytest.mark.usefixtures("settled")
@forms
def test_a_small_file_is_opened_once_and_not_again_by_a_later_run(
    form: Form, paths: list[str], opened: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(openfiles.OPEN_FILES, "_most", lambda: 2)

    async def main() -> None:
        source = make(form, paths, opened)
        positions = await last_positions(source, paths)
        assert opened == dict.fromkeys(paths, 1)

        opened.update(dict.fromkeys(paths, 0))
        readers = [await source.open(path, position) for path, position in zip(paths, positions, strict=True)]
        longer = paths[7]
        with Path(longer).open("a") as file:
            file.write(form.more)
        opened[longer] = 0
        values = [await rest_of(reader) for reader in readers]
        assert sum(map(len, values)) == 1
        assert len(values[7]) == 1
        assert {path for path, times in opened.items() if times} == {longer}
        for reader in readers:
            await reader.aclose()

    asyncio.run(main())


def test_the_inputs_of_a_job_that_keeps_state_are_told_apart_without_opening_them(
    paths: list[str], opened: dict[str, int]
) -> None:
    make(FORMS[0], paths, opened)
    source = Lines(Lines.Options(path=tuple(paths)), EdgeContext("in", keeps_state=True))
    first = source.fingerprint()
    assert source.fingerprint() == first
    assert not any(opened.values())
    os.utime(paths[3], ns=(1, 1))
    assert source.fingerprint() != first
    Path(paths[3]).unlink()
    with pytest.raises(SourceError, match="there is no file"):
        source.fingerprint()


def changed(path: str, form: Form) -> None:
    """Change a file, but neither its size nor the time that programs can set."""
    before = Path(path).stat()
    with Path(path).open("r+") as file:
        file.write(form.text.replace("a", "z"))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert Path(path).stat().st_size == before.st_size


@forms
@pytest.mark.parametrize("when", ["before the run", "before the read", "shortly after it was read"])
def test_a_change_that_keeps_size_and_time_is_an_error(
    form: Form, when: str, paths: list[str], opened: dict[str, int], request: pytest.FixtureRequest
) -> None:
    if when != "shortly after it was read":
        request.getfixturevalue("settled")

    async def main() -> None:
        source = make(form, paths[:1], opened)
        (position,) = await last_positions(source, paths[:1])
        if when == "before the read":
            reader = await source.open(paths[0], position)
            changed(paths[0], form)
            await reader.read(1)
        changed(paths[0], form)
        await source.open(paths[0], position)

    with pytest.raises(SourceError, match="begins with other bytes than when it was read"):
        asyncio.run(main())


@pytest.mark.usefixtures("settled")
def test_a_position_of_another_kind_is_refused_in_a_file_that_is_unchanged(
    paths: list[str], opened: dict[str, int]
) -> None:
    async def main() -> None:
        (position,) = await last_positions(make(FORMS[0], paths[:1], opened), paths[:1])
        source = CsvSource(CsvSource.Options(path=paths[0]), EdgeContext("in"))
        await source.open(paths[0], position)

    with pytest.raises(SourceError, match="is no position"):
        asyncio.run(main())


def test_a_reader_of_csv_keeps_little_between_two_batches(paths: list[str], opened: dict[str, int]) -> None:
    async def main() -> None:
        source = make(FORMS[2], paths, opened)
        readers = [await source.open(paths[0])]
        await readers[0].read(1)
        tracemalloc.start()
        try:
            for path in paths:
                readers.append(await source.open(path))
                await readers[-1].read(1)
            assert tracemalloc.get_traced_memory()[0] < 10_000 * len(paths)
        finally:
            tracemalloc.stop()
        for reader in readers:
            await reader.aclose()

    asyncio.run(main())
