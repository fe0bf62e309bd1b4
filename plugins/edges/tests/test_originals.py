"""Originals of records in files, for dead letters: their bytes and their payload."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from flamecore.abc.source import EdgeContext, Source
from flamestream_edges.csv import CsvOptions, CsvSource
from flamestream_edges.files import LineOptions
from flamestream_edges.jsonl import JsonlSource
from flamestream_edges.lines import Lines
from flamestream_edges.reading.linereader import ORIGINAL_BYTES

MARK = b"\xef\xbb\xbf"


def originals(source: Source, path: Path, limit: int = 100) -> list[tuple[bytes | None, Any]]:
    """Return every record of a file: its original and its payload, None if malformed."""

    async def read() -> list[tuple[bytes | None, Any]]:
        found: list[tuple[Any, Any]] = []
        reader = await source.open(str(path))
        try:
            while (batch := await reader.read(limit)) is not None:
                found += zip(batch.positions, batch.values, strict=True)
                found += [(bad.position, None) for bad in batch.rejected]
            return [(reader.original(position), value) for position, value in sorted(found, key=lambda one: one[0])]
        finally:
            await reader.aclose()

    return asyncio.run(read())


def lines(path: Path, **options: Any) -> Lines:
    return Lines(LineOptions(path=str(path), **options), EdgeContext("lines", str))


@pytest.mark.parametrize("limit", [1, 100])
@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n"])
@pytest.mark.parametrize("between", [b"\n", b"\r\n"])
def test_a_line_is_had_as_it_was_read(tmp_path: Path, between: bytes, end: bytes, limit: int) -> None:
    path = tmp_path / "in.txt"
    parts = [b"first", b"", "zwölf".encode(), b"x" * 200_000, b"\xd0\xff", b"last"]
    path.write_bytes(MARK + between.join(parts) + end)
    found = originals(lines(path), path, limit)
    assert [original for original, _ in found] == parts
    for original, value in found:
        assert original is not None
        if value is not None:
            assert lines(path).decode_original(original) == value
    with pytest.raises(ValueError, match="utf-8"):
        lines(path).decode_original(b"\xd0\xff")


def test_a_line_beyond_the_limit_has_no_original(tmp_path: Path) -> None:
    path = tmp_path / "in.txt"
    path.write_bytes(b"a\n" + b"x" * (2 * ORIGINAL_BYTES) + b"\nb\n")
    assert [original for original, _ in originals(lines(path), path)] == [b"a", None, b"b"]


def test_json_is_decoded_again(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_text('{"a": 1}\n\n{"a": \n[2]\n')
    source = JsonlSource(LineOptions(path=str(path)), EdgeContext("records"))
    assert originals(source, path) == [(b'{"a": 1}', {"a": 1}), (b'{"a": ', None), (b"[2]", [2])]
    assert source.decode_original(b'{"a": 2}') == {"a": 2}
    with pytest.raises(ValueError, match="truncated"):
        source.decode_original(b'{"a": ')


@pytest.mark.parametrize("between", ["\n", "\r\n"])
def test_a_row_is_had_with_all_its_lines_and_read_with_the_header(tmp_path: Path, between: str) -> None:
    path = tmp_path / "in.csv"
    rows = ["a,b", '1,"x', 'y"', "", "2,z,3", "4,w"]
    path.write_bytes(between.join(rows).encode())
    source = CsvSource(CsvOptions(path=str(path)), EdgeContext("rows"))
    long = f'1,"x{between}y"'.encode()
    found = originals(source, path)
    head = b"a,b\n"
    assert [original for original, _ in found] == [head + row for row in (long, b"2,z,3", b"4,w")]
    assert source.decode_original(head + long) == found[0][1]
    assert source.decode_original(b"a,b\n2,z") == {"a": "2", "b": "z"}
    with pytest.raises(ValueError, match="3 fields where 2"):
        source.decode_original(b"a,b\n2,z,3")
    with pytest.raises(ValueError, match="not CSV: unexpected end"):
        source.decode_original(b'a,b\n2,"z')
    with pytest.raises(ValueError, match="0 records where one"):
        source.decode_original(b"a,b\n")
    named = CsvSource(CsvOptions(path=str(path), columns=("c", "d")), EdgeContext("rows"))
    assert named.decode_original(head + long) == {"c": "1", "d": found[0][1]["b"]}
    bare = CsvSource(CsvOptions(path=str(path), columns=("c", "d"), header=False), EdgeContext("rows"))
    assert originals(bare, path)[1] == (long, bare.decode_original(long))
