"""Jobs that read what they write, which are refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from flamecore.cli import main

APP = """
import flamecore as fc

flow = fc.Flow("copies")
one = flow.source("one", str)
one.sink("copies")
one.sink("others")
"""

JOB = """
schema = 1
[job]
flow = "own_output_app.py"
on_error = "dead_letter"
[source.one]
use = "lines"
path = "{read}"
[sink.copies]
use = "jsonl"
path = "{copies}"
[sink.others]
use = "csv"
path = "{others}"
[dead_letter]
use = "jsonl"
path = "{letters}"
"""


@pytest.mark.parametrize(
    ("read", "copies", "others", "letters", "why"),
    [
        ("in", "in/new.jsonl", "o", "d", "source.one reads what sink.copies writes: {here}/in/new.jsonl"),
        ("in/*.jsonl", "c", "o", "link/d.jsonl", "source.one reads what dead_letter writes: {here}/in/d.jsonl"),
        ("in", "c", "./c", "d", "sink.copies and sink.others both write {here}/c"),
    ],
)
def test_a_job_that_would_read_or_write_over_its_own_output_is_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    read: str,
    copies: str,
    others: str,
    letters: str,
    why: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("in").mkdir()
    Path("in/a.jsonl").touch()
    Path("link").symlink_to("in")
    Path("own_output_app.py").write_text(APP)
    Path("job.toml").write_text(JOB.format(read=read, copies=copies, others=others, letters=letters))
    with pytest.raises(SystemExit) as refused:
        main(["run", "job.toml"], prog_name="flamestream")
    assert refused.value.code == 2
    assert why.format(here=os.path.realpath(tmp_path)) in capsys.readouterr().err
    there = {path.name for path in Path().iterdir()} - {"__pycache__"}
    assert there == {"in", "job.toml", "link", "own_output_app.py"}
