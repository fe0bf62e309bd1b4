"""The last counts of a job on several processes: what an input holds back at its end, as in one process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from textwrap import dedent
from typing import Any

APP = """
    from datetime import timedelta

    import flamecore as fc
    import flamestream_windows as w

    flow = fc.Flow("held")
    trades = w.event_time(flow.source("trades", dict), lambda r: r["at"], unit="s", name="times of trades")
    rates = w.event_time(flow.source("rates", dict), lambda r: r["at"], unit="s", name="times of rates")
    by_key = trades.key_by(lambda r: r["key"])
    valued = by_key.as_of(rates.key_by(lambda r: r["key"]), keep=timedelta(days=1), name="valued")
    valued.map(lambda pair: pair[0]["at"]).sink("out")
    trades.merge(rates).key_by(lambda r: r["key"]).window(w.fixed(seconds=10)).count(name="count").sink("counts")
"""


def summary(folder: Path, *settings: str) -> dict[str, Any]:
    """Run the job in a new folder; return its last counts."""
    folder.mkdir()
    (folder / "app.py").write_text(dedent(APP))
    lines = {"trades": [(at, at % 7) for at in range(300)], "rates": [(at, at % 7) for at in range(0, 60, 5)]}
    for name, found in lines.items():
        text = "".join(json.dumps({"at": at, "key": key}) + "\n" for at, key in found)
        (folder / f"{name}.jsonl").write_text(text)
    edges = [f"--source={name}=jsonl" for name in lines] + [f"--sink={name}=jsonl" for name in ("out", "counts")]
    paths = [f"--set=source.{name}.path={name}.jsonl" for name in lines]
    paths += [f"--set=sink.{name}.path={name}.jsonl" for name in ("out", "counts")]
    state = ["--set=state.use=sqlite", "--set=state.path=state"]
    command = [sys.executable, "-m", "flamecore", "run", "app.py", "-q", "--json", *edges, *paths, *state]
    command += [f"--set={setting}" for setting in settings]
    done = subprocess.run(command, cwd=folder, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def test_the_last_counts_of_processes_tell_what_an_input_holds_back(tmp_path: Path, over: list[str]) -> None:
    here = summary(tmp_path / "here")
    spread = summary(tmp_path / "spread", *over, "deploy.start_timeout_s=60", "job.workers=3")
    assert here["held"]["valued"] == 300 - here["items_out"]["out"] > 200
    assert here["held"]["count"] > 200
    assert here["held_for"] == {"valued": "rates/0", "count": "rates/0"}
    assert here["released_by"]["valued"] == "at_end=\"close\" of 'times of rates'"
    for name in ("held", "held_for", "released_by", "items_out"):
        assert spread[name] == here[name]
