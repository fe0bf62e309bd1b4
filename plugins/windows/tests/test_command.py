"""The command that draws windows takes a flow and its settings as `run` does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from flamestream_windows.command import command

FLOW = """
from datetime import datetime

import flamecore as fc
import flamestream_windows as w
from flamestream_windows import watermarks

flow = fc.Flow("takings")
late = watermarks.bounded_disorder(seconds=2)
orders = w.event_time(flow.source("orders", tuple[str, datetime]), lambda order: order[1], watermark=late)
orders.key_by(lambda order: order[0]).window(w.fixed(seconds=10)).count(name="takings").sink("out")
"""


@pytest.mark.parametrize("how", ["options", "config"])
def test_the_sources_of_a_script_are_given_as_for_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("takings.py").write_text(FLOW)
    Path("orders.jsonl").write_text(
        '["north", "2026-11-30T09:00:01Z"]\n["south", "2026-11-30T09:00:03Z"]\n["north", "2026-11-30T09:00:12Z"]\n'
    )
    Path("job.toml").write_text('schema = 1\n[source.orders]\nuse = "jsonl"\npath = "orders.jsonl"\n')
    given = {
        "options": ["--source", "orders=jsonl", "--set", "source.orders.path=orders.jsonl", "--workers", "2"],
        "config": ["--config", "job.toml"],
    }
    done = CliRunner().invoke(command, ["takings.py", *given[how], "--json", "-o", "run.svg"])
    assert done.exit_code == 0, done.output
    drawn = json.loads(done.stdout)
    assert (drawn["elements"], drawn["keys"]) == (3, 2)
    assert Path("run.svg").read_text().startswith("<svg")
