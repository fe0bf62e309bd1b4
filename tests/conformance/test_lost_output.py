"""A sink that has lost the outputs on which the state of its job relies."""

from __future__ import annotations

from pathlib import Path

import pytest

import flamecore as fc
from flamecore.errors import SinkError


@pytest.mark.parametrize("order", ["ordered", "partitioned"])
def test_an_output_that_is_gone_is_told_without_a_time(tmp_path: Path, order: str) -> None:
    flow = fc.Flow("lengths")
    flow.source("words", str).key_by(len).count().sink("lengths")
    (tmp_path / "words").write_text("to\nbe\nor\nnot\n")

    def run(place: str) -> None:
        settings = {"source.words.use": "lines", "source.words.path": str(tmp_path / "words")}
        settings |= {"sink.lengths.use": "jsonl", "sink.lengths.path": str(tmp_path / place)}
        flow.run(settings={**settings, "sink.lengths.order": order}, state=tmp_path / "state")

    run("out")
    with pytest.raises(
        SinkError, match=r"sink 'lengths' holds none of its output, and the state continues from [0-9]+\n"
    ) as told:
        run("elsewhere")
    assert "A sink of another name takes what comes from here on." in str(told.value)
    run("out")
