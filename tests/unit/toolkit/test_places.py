"""Paths that are read, and places that are written: which of them are the same."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from flamecore.toolkit.places import covers, place_of


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("in", "in/below", "out"):
        Path(name).mkdir()
    Path("in/a.jsonl").touch()
    Path("link").symlink_to("in")
    Path("in/linked.jsonl").symlink_to(tmp_path / "out" / "counts.jsonl")
    return tmp_path


@pytest.mark.parametrize(
    ("read", "written"),
    [
        ("in/a.jsonl", "in/a.jsonl"),
        ("in/a.jsonl", "./out/../in/a.jsonl"),
        ("in/a.jsonl", "link/a.jsonl"),
        ("link/a.jsonl", "in/a.jsonl"),
        ("in", "in/new.jsonl"),
        ("link/", "in/new.jsonl"),
        ("in/*.jsonl", "link/new.jsonl"),
        ("l*/n[e]w.json?", "in/new.jsonl"),
        ("*/*.jsonl", "out/new.jsonl"),
        ("*.jsonl", "new.jsonl"),
        ("**/*.jsonl", "in/below/new.jsonl"),
        ("**", "in/below/new.jsonl"),
        ("in/linked.jsonl", "out/counts.jsonl"),
        ("file://{here}/in", "in/new.jsonl"),
        ("in/*.jsonl", "file://{here}/in/new.jsonl"),
        ("{here}/in", "in/new.jsonl"),
    ],
)
def test_a_file_that_is_written_where_is_read_is_found(folder: Path, read: str, written: str) -> None:
    assert covers(read.format(here=folder), place_of(written.format(here=folder)))


@pytest.mark.parametrize(
    ("read", "written"),
    [
        ("in/a.jsonl", "in/b.jsonl"),
        ("in", "out/new.jsonl"),
        ("in", "in/below/new.jsonl"),
        ("in", "in/.hidden"),
        ("in/*.csv", "in/new.jsonl"),
        ("*", "in/new.jsonl"),
        ("in", "inner.jsonl"),
        ("in/**/*.csv", "in/below/new.jsonl"),
        ("s3://bucket/in", "in/new.jsonl"),
    ],
)
def test_a_file_that_is_written_elsewhere_is_not(read: str, written: str) -> None:
    assert not covers(read, place_of(written))


@pytest.mark.parametrize(
    ("read", "written", "same"),
    [
        ("out", "out", True),
        ("out/*.json", "out", True),
        ("new/*.json", "new", True),
        ("out/part-1.json", "out", True),
        ("link/below", "in/below/", True),
        ("in", "in/below", True),
        ("s3://bucket/out/", "s3://bucket/out", True),
        ("s3://bucket/*", "s3://bucket/out", True),
        ("s3://bucket/out/*.parquet", "s3://bucket/out", True),
        ("s3://bucket/outer", "s3://bucket/out", False),
        ("outer", "out", False),
        ("in", "out", False),
    ],
)
def test_a_folder_that_is_written_is_found_by_all_that_is_in_it(read: str, written: str, same: bool) -> None:
    assert covers(read, place_of(written, folder=True), below=True) is same


def test_a_hard_link_is_the_file() -> None:
    os.link("in/a.jsonl", "out/b.jsonl")
    assert covers("in/a.jsonl", place_of("out/b.jsonl"))
