"""Both drivers through the public kit, and in a job that finds them by their entry points."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from flamestream_example.ndjson_gz import NdjsonGz
from flamestream_example.ticker import Ticker

import flamecore as fc
from flamecore.abc.sink import Sink
from flamecore.abc.source import EdgeContext, Source
from flamecore.testing.checks.edges import SinkTests, SourceTests


class TestTicker(SourceTests):
    expected = tuple(range(5, 25))

    def make(self, folder: Path) -> Source:
        return Ticker(Ticker.Options(start=5, stop=25), EdgeContext("numbers", int))


class TestPacedTicker(SourceTests):
    expected = tuple(range(3))

    def make(self, folder: Path) -> Source:
        return Ticker(Ticker.Options(stop=3, interval_ms=1), EdgeContext("numbers", int))


class TestNdjsonGz(SinkTests):
    def make(self, folder: Path, *, resume: bool, fingerprint: str) -> Sink:
        return NdjsonGz(NdjsonGz.Options(path=str(folder / "out.gz")), EdgeContext("out", fingerprint=fingerprint))

    def read_back(self, folder: Path) -> Sequence[Any]:
        with gzip.open(folder / "out.gz", "rt", encoding="utf-8") as lines:
            return [json.loads(line) for line in lines]


def squares() -> fc.Flow:
    flow = fc.Flow("squares")
    flow.source("numbers", int).map(lambda number: number * number).sink("squares")
    return flow


def test_a_job_finds_the_drivers(tmp_path: Path) -> None:
    path = tmp_path / "squares.jsonl.gz"
    settings = {
        "source.numbers.use": "ticker",
        "source.numbers.stop": 4,
        "sink.squares.use": "ndjson_gz",
        "sink.squares.path": str(path),
    }
    squares().run(settings=settings)
    assert gzip.decompress(path.read_bytes()) == b"0\n1\n4\n9\n"


def test_a_wrong_option_is_refused() -> None:
    with pytest.raises(fc.ConfigError) as caught:
        squares().run(settings={"source.numbers.use": "ticker", "source.numbers.intervall_ms": 4})
    assert caught.value.path == "source.numbers.intervall_ms"
    assert "interval_ms" in str(caught.value)


def test_a_missing_folder_is_refused(tmp_path: Path) -> None:
    settings = {"source.numbers.use": "ticker", "sink.squares.use": "ndjson_gz"}
    with pytest.raises(fc.SinkError, match="cannot be written"):
        squares().run(settings={**settings, "sink.squares.path": str(tmp_path / "none" / "squares.gz")})
