"""Values of `path`, errors if nothing is there, fingerprints, and splitting."""

from __future__ import annotations

import os
import shutil
import subprocess
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import flamecore as fc
from flamecore.abc.source import EdgeContext
from flamecore.errors import ConfigError, SourceError
from flamestream_edges.lines import Lines
from flamestream_edges.reading.splitting import RAW_BYTES, Block, Splitter, TooLong
from flamestream_edges.sqlitesource import SqliteSource

CONTEXT = EdgeContext("pages", str)
SEAL = f"8-{'0' * 16}-{'0' * 16}"


def lines(path: Any, **options: Any) -> Lines:
    return Lines(Lines.Options(path=path, **options), CONTEXT)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in ("b.txt", "a.txt", "[1].txt", "sub/c.txt", ".hidden", "out.jsonl.position"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"{name}\n")
    return tmp_path


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("a.txt", ["a.txt"]),
        ("", ["[1].txt", "a.txt", "b.txt"]),
        ("*.txt", ["[1].txt", "a.txt", "b.txt"]),
        ("**/*.txt", ["[1].txt", "a.txt", "b.txt", "sub/c.txt"]),
        ("?.txt", ["a.txt", "b.txt"]),
        ("[1].txt", ["[1].txt"]),
    ],
)
def test_a_path_is_a_file_a_directory_or_a_glob(tree: Path, pattern: str, names: list[str]) -> None:
    assert lines(str(tree / pattern)).partitions() == tuple(str(tree / name) for name in names)


def test_several_paths_are_sorted_and_a_file_named_twice_is_read_once(tree: Path) -> None:
    paths = (str(tree / "sub"), str(tree / "b.txt"), str(tree / "?.txt"))
    assert lines(paths).partitions() == tuple(str(tree / name) for name in ("a.txt", "b.txt", "sub/c.txt"))


@pytest.mark.parametrize(
    ("pattern", "what", "hint"),
    [
        ("c.txt", "there is no file", "Did you mean "),
        ("nowhere/a.txt", "there is no file", "there is: .hidden"),
        ("*.xml", "no file matches", "there is: "),
        ("empty", "has no files in it", "**"),
        ("pipe", "is neither a file nor a directory", "stdin"),
        ("x" * 300, "cannot be opened: File name too long", "Check the path"),
    ],
)
def test_the_error_of_a_missing_file_suggests_those_there_are(tree: Path, pattern: str, what: str, hint: str) -> None:
    (tree / "empty").mkdir()
    os.mkfifo(tree / "pipe")
    with pytest.raises(SourceError) as caught:
        lines(str(tree / pattern)).partitions()
    error: Any = caught.value
    assert what in error.what
    assert hint in error.hint
    assert error.source == "pages"
    assert error.position == str(tree / pattern)


def test_an_empty_path_is_an_error() -> None:
    with pytest.raises(SourceError, match="names no file"):
        lines(()).partitions()


@pytest.mark.parametrize("driver", [Lines, SqliteSource])
def test_an_empty_text_as_path_is_refused_with_its_key(driver: Any) -> None:
    with pytest.raises(ConfigError, match=r"source\.pages\.path is empty") as caught:
        driver(driver.Options(path=""), CONTEXT)
    assert caught.value.path == "source.pages.path"


def test_the_fingerprint_sees_content_name_and_options(tree: Path) -> None:
    path = str(tree / "*.txt")
    seen = {lines(path).fingerprint(), lines(path, encoding="latin-1").fingerprint(), lines(str(tree)).fingerprint()}
    assert len(seen) == 2  # the same files by another path are the same input
    (tree / "a.txt").write_text("A.txt\n")
    seen.add(lines(path).fingerprint())
    (tree / "a.txt").rename(tree / "d.txt")
    seen.add(lines(path).fingerprint())
    assert len(seen) == 4


def test_the_fingerprint_of_a_large_file_is_that_of_its_ends(tmp_path: Path) -> None:
    path = tmp_path / "large.txt"
    data = bytearray(300_000)
    seen = []
    for place in (0, 299_999, 150_000):
        data[place] = 1
        path.write_bytes(data)
        seen.append(lines(str(path)).fingerprint())
    assert seen[0] != seen[1]
    assert seen[1] == seen[2], "what is in the middle is not looked at, as documented"


@pytest.mark.parametrize(
    ("module", "kind", "command"),
    [("gzip", "gzip", "gunzip"), ("bz2", "bzip2", "bunzip2"), ("lzma", "xz", "unxz")],
)
@pytest.mark.parametrize(("name", "unpacked"), [("in a folder.{}", "in a folder"), ("packed", "packed.txt")])
def test_a_compressed_file_is_refused_with_what_unpacks_it(
    tree: Path, module: str, kind: str, command: str, name: str, unpacked: str
) -> None:
    path = tree / name.format({"gzip": "gz", "bz2": "bz2", "lzma": "xz"}[module])
    path.write_bytes(import_module(module).compress(b"one\ntwo\n"))
    with pytest.raises(SourceError, match=rf"{path.name} is compressed \({kind}\)") as caught:
        lines(str(path)).fingerprint()
    told, _, line = caught.value.hint.partition(": ")
    assert told == "Unpack it first"
    if shutil.which(command):
        subprocess.run(["sh", "-c", line], check=True)
        assert (tree / unpacked).read_text() == "one\ntwo\n"
    path.write_bytes(b"BZh is a text, too\n")
    assert lines(str(path)).fingerprint()


@pytest.mark.parametrize("state", [{}, {"state.use": "memory"}], ids=["no state", "state"])
def test_a_compressed_file_ends_a_run_before_it_begins(tree: Path, state: dict[str, str]) -> None:
    path = tree / "packed.gz"
    path.write_bytes(import_module("gzip").compress(b"one\n"))
    flow = fc.Flow("packed")
    flow.source("pages", str).sink("out")
    with pytest.raises(SourceError, match="compressed"):
        flow.run(settings={"source.pages.use": "lines", "source.pages.path": str(path), **state})


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32-le", "no-such", "rot13"])
def test_an_encoding_that_cannot_be_cut_into_lines_is_refused(encoding: str) -> None:
    with pytest.raises(ConfigError) as caught:
        lines("x", encoding=encoding)
    error: Any = caught.value
    assert error.path == "source.pages.encoding"


def test_a_position_is_checked_against_the_file(tree: Path, read_all: Any) -> None:
    import asyncio

    (tree / "a.txt").write_text("one\ntwo\n")
    source = lines(str(tree / "a.txt"))
    for position in ((4, 1), "x", (), (1, 2, 3), (4, 1, ""), (-1, 1, SEAL), (4, True, SEAL), (4, 1, SEAL)):
        with pytest.raises(SourceError):
            asyncio.run(source.open(str(tree / "a.txt"), position))


def test_a_file_that_goes_away_is_an_error_of_the_source(tree: Path) -> None:
    import asyncio

    source = lines(str(tree / "a.txt"))
    (name,) = source.partitions()
    Path(name).unlink()
    with pytest.raises(SourceError, match="cannot be opened: No such file"):
        asyncio.run(source.open(name))
    with pytest.raises(SourceError, match="cannot be read: No such file"):
        asyncio.run(source.open(name, (6, 1, SEAL)))


def split(
    data: bytes, sizes: list[int], max_line_bytes: int
) -> tuple[list[bytes], list[tuple[int, int]], list[TooLong]]:
    splitter = Splitter(max_line_bytes)
    found: list[bytes] = []
    positions: list[tuple[int, int]] = []
    too_long: list[TooLong] = []

    def take(result: tuple[TooLong | None, Block | None]) -> None:
        long, block = result
        if long is not None:
            too_long.append(long)
        if block is not None:
            found.extend(block.lines)
            positions.extend((block.end_of(index), block.first + index) for index in range(len(block.lines)))

    at = 0
    while at < len(data):
        size = min(sizes[at % len(sizes)], splitter.chunk_bytes)
        take(splitter.push(data[at : at + size]))
        at += size
    take(splitter.finish())
    return found, positions, too_long


@given(
    st.lists(st.binary(max_size=9).map(lambda line: line.replace(b"\n", b"").replace(b"\r", b"")), max_size=12),
    st.lists(st.integers(1, 12), min_size=1, max_size=5),
    st.sampled_from([b"\n", b"\r\n"]),
    st.booleans(),
)
def test_lines_do_not_depend_on_the_pieces_they_come_in(
    raw: list[bytes], sizes: list[int], end: bytes, ended: bool
) -> None:
    data = end.join(raw) + (end if ended and raw else b"")
    if data.startswith(b"\xef\xbb\xbf"):
        data = b"x" + data
    expected = data.replace(b"\r\n", b"\n").split(b"\n")
    if not expected[-1]:
        expected.pop()
    found, positions, too_long = split(data, sizes, 1000)
    assert found == expected
    assert not too_long
    assert [line for _, line in positions] == list(range(1, len(expected) + 1))
    ends = [offset for offset, _ in positions]
    for offset, line in zip(ends, expected, strict=True):
        assert data[:offset].removesuffix(end).endswith(line)
    if expected:
        assert ends[-1] == len(data)


@given(
    st.lists(st.integers(0, 30), min_size=1, max_size=8),
    st.lists(st.integers(1, 40), min_size=1, max_size=3),
    st.booleans(),
)
def test_lines_too_long_are_rejected_one_by_one(lengths: list[int], sizes: list[int], ended: bool) -> None:
    raw = [bytes([65 + index]) * length for index, length in enumerate(lengths)]
    data = b"\n".join(raw) + (b"\n" if ended else b"")
    if not ended and not raw[-1]:
        raw.pop()
    found, positions, too_long = split(data, sizes, 10)
    assert found == [line for line in raw if len(line) <= 10]
    assert [(long.length, long.head) for long in too_long] == [(len(line), line) for line in raw if len(line) > 10]
    places = sorted([*positions, *(long.position[:2] for long in too_long)])
    assert [place[1] for place in places] == list(range(1, len(raw) + 1))
    if raw:
        assert places[-1][0] == len(data)


def test_only_the_head_of_an_endless_line_is_held() -> None:
    splitter = Splitter(100_000)
    for _ in range(1000):
        splitter.push(b"x" * splitter.chunk_bytes)
        assert sum(map(len, splitter._parts)) <= 100_000 + RAW_BYTES
    long, _ = splitter.push(b"\n")
    assert long is not None
    assert (long.length, len(long.head)) == (1000 * splitter.chunk_bytes, RAW_BYTES)
