"""Jobs that read the folder that they write, by whatever path."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pytest

from flamecore.abc.source import EdgeContext
from flamestream_spark.sink import SparkSink
from flamestream_spark.source import SparkSource


class Row(NamedTuple):
    number: int


def source(**options: Any) -> SparkSource:
    return SparkSource(SparkSource.Options(**options), EdgeContext("rows", Row))


@pytest.mark.parametrize(
    ("read", "own"),
    [
        ("out", True),
        ("out/*.parquet", True),
        ("out/part-1.parquet", True),
        ("in/../out/", True),
        ("link", True),
        ("file://{here}/out", True),
        ("{here}", True),
        ("in", False),
        ("s3a://bucket/out", False),
    ],
)
def test_a_source_knows_the_folder_that_a_sink_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: str, own: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("in").mkdir()
    Path("link").symlink_to("out")
    (place,) = SparkSink(SparkSink.Options(path="out"), EdgeContext("out", Row)).writes()
    assert source(path=read.format(here=tmp_path)).reads(place) is own


def test_tables_and_queries_are_not_known() -> None:
    (place,) = SparkSink(SparkSink.Options(path="out"), EdgeContext("out", Row)).writes()
    assert not source(table="out").reads(place)
    assert not source(sql="SELECT * FROM out").reads(place)
