"""check says all that is wrong, and graph draws, without starting anything."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from flamecore.cli import main
from flamecore.suggest import install_command

pytestmark = pytest.mark.usefixtures("installed")

FLOW = """
import flamecore as fc
flow = fc.Flow("words")
flow.source("lines", str).flat_map(str.split).key_by(lambda word: word).count().sink("counts")
"""


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "words-app.py").write_text(FLOW, "utf-8")
    (tmp_path / "book.txt").write_text("to be or not to be\n", "utf-8")
    monkeypatch.chdir(tmp_path)
    return "words-app.py"


def call(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments), prog_name="flamestream")


def checked(*arguments: str) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads(call("check", *arguments, "--json").stdout)
    return facts


def write_job(text: str) -> str:
    Path("job.toml").write_text(f"schema = 1\n[job]\nflow = 'words-app.py:flow'\n{text}", "utf-8")
    return "job.toml"


def test_a_right_job_passes(app: str) -> None:
    done = call("check", app, "-w", "3", "--source", "lines=lines", "--set", "source.lines.path=book.txt")
    assert done.exit_code == 0
    assert "no problems found" in done.stderr
    assert f"lines: lines (path = '{Path('book.txt').absolute()}'), replayable" in done.stdout
    assert "counts: stdout, at_least_once" in done.stdout
    facts = checked(app, "-w", "3", "--source", "lines=lines", "--set", "source.lines.path=book.txt")
    assert facts["ok"] is True
    assert facts["problems"] == []
    assert facts["workers"] == 3
    assert facts["sources"] == {"lines": {"use": "lines", "options": {"path": str(Path("book.txt").absolute())}}}
    assert facts["sinks"] == {"counts": {"use": "stdout", "options": {}}}


def test_workers_of_one_process_are_said_to_take_turns(app: str) -> None:
    source = ("--source", "lines=lines", "--set", "source.lines.path=book.txt")
    assert "note           the 3 workers take turns in one process" in call("check", app, "-w", "3", *source).stdout
    assert len(checked(app, "-w", "3", *source)["notes"]) == 1
    for other in (("-w", "1"), ("-w", "3", "--on", "processes")):
        assert checked(app, *other, *source)["notes"] == []
        assert "note " not in call("check", app, *other, *source).stdout


def test_a_flow_that_is_drawn_wrong_shows_the_engine_too_if_asked(app: str) -> None:
    Path(app).write_text(FLOW.replace(".count()", ".fold(0, 0)"), "utf-8")
    plain, whole = call("graph", app), call("graph", app, "-v")
    assert "takes a function, not 0" in plain.stderr
    assert "stream.py" not in plain.stderr
    assert "stream.py" in whole.stderr


def test_an_input_that_is_missing_is_refused(app: str) -> None:
    done = call("check", app, "--source", "lines=lines", "--set", "source.lines.path=gone.txt")
    assert done.exit_code == 2
    assert "gone.txt" in done.stderr


def test_all_problems_are_printed_at_once(app: str) -> None:
    job = write_job("""
workrs = 2
clock = "moon"
on_error = "dead_letter"
[transport]
use = "carrier_pigeon"
[acker]
use = "local"
[acker.local]
inner = "centralised"
[source.lines]
use = "lines"
path = "no_such_book.txt"
[source.lnes]
use = "stdin"
[sink.counts]
use = "jsonl"
pth = "out"
[hooks]
use = ["audit"]
""")
    facts = checked(job)
    assert facts["ok"] is False
    found = [(problem["type"], problem.get("path") or problem.get("name")) for problem in facts["problems"]]
    assert found == [
        ("UnknownKeyError", "job.workrs"),
        ("ConfigError", "job.clock"),
        ("UnknownPluginError", "carrier_pigeon"),
        ("UnknownPluginError", "audit"),
        ("UnknownKeyError", "source.lnes"),
        ("SourceError", None),
        ("UnknownKeyError", "sink.counts.pth"),
        ("ConfigError", "dead_letter"),
        ("UnknownPluginError", "centralised"),
    ]
    done = call("check", job)
    assert done.exit_code == 2
    assert "problem 9 of 9" in done.stderr
    assert "no_such_book.txt" in done.stderr
    assert "Did you mean 'centralized'?" in done.stderr


def test_exactly_once_is_refused_with_reason_and_alternative(app: str) -> None:
    arguments = ["--source", "lines=stdin", "--set", "job.guarantee=exactly_once", "--set", "job.clock=wall"]
    facts = checked(app, *arguments)
    assert [problem["path"] for problem in facts["problems"]] == ["job.clock", "source.lines", "sink.counts"]
    done = call("check", app, *arguments)
    assert done.exit_code == 2
    for word in ("stdin", "stdout", "sqlite", "at_least_once", "sequence"):
        assert word in done.stderr
    assert call("run", app, *arguments).exit_code == 2


EXACT = """
guarantee = "exactly_once"
[source.lines]
use = "lines"
path = "book.txt"
[sink.counts]
use = "sqlite"
path = "counts.db"
"""


def test_exactly_once_is_accepted_where_it_can_be_kept(app: str) -> None:
    assert checked(write_job(EXACT))["problems"] == []
    assert not Path("counts.db").exists()


def test_exactly_once_by_the_wall_clock_needs_state(app: str) -> None:
    job = write_job(EXACT)
    (problem,) = checked(job, "--set", "job.clock=wall")["problems"]
    assert problem["path"] == "job.clock"
    assert '[state] use = "sqlite"' in problem["hint"]
    state = ("--set", "state.use=sqlite", "--set", "state.path=state")
    assert checked(job, "--set", "job.clock=wall", *state)["problems"] == []


def test_exactly_once_includes_dead_letters(app: str) -> None:
    job = write_job(EXACT)
    dead = ("--set", "job.on_error=dead_letter", "--set", "dead_letter.use=stdout")
    (problem,) = checked(job, *dead)["problems"]
    assert problem["path"] == "dead_letter"
    assert "promises only at_least_once" in problem["message"]


def test_a_source_without_driver_is_refused(app: str) -> None:
    done = call("check", app)
    assert done.exit_code == 2
    assert "--source lines=stdin" in done.stderr


def test_a_flow_that_cannot_work_is_refused(app: str) -> None:
    Path(app).write_text(FLOW.replace('.sink("counts")', ""), "utf-8")
    facts = checked(app)
    assert [problem["type"] for problem in facts["problems"]] == ["GraphError"]
    assert call("run", app).exit_code == 2
    assert call("graph", app).exit_code == 2


def test_secrets_are_not_shown(app: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BOOK", "book.txt")
    job = write_job(
        "[transport.nats]\ntoken = 's3cret'\n[source.lines]\nuse = 'lines'\npath = '${BOOK}'\npassword = 's3cret'"
    )
    done = call("check", job)
    assert done.exit_code == 2
    assert "source.lines.password" in done.stderr
    assert "s3cret" not in done.output
    assert "${BOOK}" in done.stdout


def test_a_job_file_and_config_exclude_each_other(app: str) -> None:
    job = write_job("workers = 7\n[source.lines]\nuse = 'stdin'")
    assert checked(app, "--config", job)["workers"] == 7
    assert checked(job)["workers"] == 7
    assert call("check", job, "--config", job).exit_code == 2
    assert call("check", "gone.toml").exit_code == 2
    assert call("check", app, "--config", "gone.toml").exit_code == 2


def test_flow_of_a_job_file_is_relative_to_it(app: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_job("[source.lines]\nuse = 'stdin'")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert checked(str(tmp_path / "job.toml"))["problems"] == []
    # APP is what was typed here, whatever file the configuration comes from.
    assert call("check", app, "--config", str(tmp_path / "job.toml")).exit_code == 2
    assert call("check", f"../{app}", "--config", str(tmp_path / "job.toml")).exit_code == 0


def test_a_job_file_without_a_flow_is_refused(app: str) -> None:
    Path("job.toml").write_text("schema = 1\n", "utf-8")
    done = call("check", "job.toml")
    assert done.exit_code == 2
    assert "names no flow" in done.stderr


# -- graph -----------------------------------------------------------------------------------------------------------


def test_graph_is_drawn(app: str) -> None:
    done = call("graph", app)
    assert done.exit_code == 0
    assert done.stdout.startswith("flowchart LR\n")
    assert call("graph", app, "--format", "dot").stdout.startswith('digraph "words" {')
    assert call("graph", app, "--format", "gif").exit_code == 2
    assert call("graph", write_job("")).stdout == done.stdout


def test_graph_writes_a_file(app: str) -> None:
    done = call("graph", app, "--output", "words.dot")
    assert (done.exit_code, done.stdout) == (0, "")
    assert Path("words.dot").read_text("utf-8").startswith("digraph")
    facts = json.loads(call("graph", app, "--output", "words.mmd", "--json").stdout)
    assert facts["output"] == "words.mmd"
    assert Path("words.mmd").read_text("utf-8").startswith("flowchart")


def test_graph_prints_json(app: str) -> None:
    facts = json.loads(call("graph", app, "--json").stdout)
    assert [vertex["kind"] for vertex in facts["vertices"]] == ["source", "map", "drift", "sink"]
    assert facts["edges"][0] == {"from": "lines", "to": "flat_map:split", "feedback": False}


def test_graph_without_graphviz_names_the_extra(app: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "graphviz", None)
    done = call("graph", app, "--output", "words.svg")
    assert done.exit_code == 3
    assert install_command("flamestream", "graphviz") in done.stderr
    assert not Path("words.svg").exists()
