"""flamestream snapshot, state and plan, as processes, over the state of jobs that ran."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from textwrap import dedent
from typing import Any

import commands
import pytest

from flamecore.testing.progress import Patience

pytestmark = pytest.mark.usefixtures("installed")

APP = """
    from typing import NamedTuple

    import flamecore as fc


    class Total(NamedTuple):
        count: int
        size: int


    def add(total: Total, word: str) -> Total:
        return Total(total.count + 1, total.size + len(word))


    flow = fc.Flow("words")
    words = flow.source("lines", str).flat_map(str.split)
    words.key_by(lambda word: word).fold(Total(0, 0), add, name="total").sink("totals")
    words.key_by(len).count(name="length").sink("lengths")
"""

JOB = """
    schema = 1
    [job]
    flow = "app.py"
    workers = 2
    [source.lines]
    use = "lines"
    path = "*.txt"
    [sink.totals]
    use = "jsonl"
    path = "totals.jsonl"
    [sink.lengths]
    use = "jsonl"
    path = "lengths.jsonl"
    [state]
    use = "sqlite"
    path = "state"
"""


def flame(*arguments: str) -> subprocess.CompletedProcess[str]:
    return commands.call(*arguments, env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"})


def facts(*arguments: str, code: int = 0) -> Any:
    done = flame(*arguments, "--json")
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout)


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a folder with a job, which has not run."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "app.py").write_text(dedent(APP))
    (tmp_path / "job.toml").write_text(dedent(JOB))
    (tmp_path / "a.txt").write_text("to be or not to be\nthat is the question\n")
    return tmp_path


@pytest.fixture
def done(job: Path) -> Path:
    """Make a folder with a job that has run to its end."""
    assert flame("run", "job.toml", "-q").returncode == 0
    return job


def edit(path: Path, *changes: tuple[str, str]) -> None:
    text = path.read_text()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    path.write_text(text)


def spoil(folder: Path, pick: Callable[[str], bool]) -> str:
    """Change a byte of the last blob that is picked; returns its name."""
    with closing(sqlite3.connect(folder / "state" / "words.db")) as database, database:
        name = max(name for (name,) in database.execute("SELECT name FROM blobs") if pick(name))
        (data,) = database.execute("SELECT data FROM blobs WHERE name = ?", (name,)).fetchone()
        database.execute("UPDATE blobs SET data = ? WHERE name = ?", (data[:-1] + bytes([data[-1] ^ 1]), name))
    return name


# -- snapshot ----------------------------------------------------------------------------------------------------------


def test_commands_that_only_read_create_nothing(job: Path) -> None:
    for command in (
        ("snapshot", "list"),
        ("snapshot", "verify"),
        ("state", "get", "total", "be"),
        ("plan", "job.toml"),
    ):
        done = flame(*command)
        assert done.returncode == 1
        assert f"there is no state of job 'words': {job / 'state' / 'words.db'} does not exist" in done.stderr
    assert not (job / "state").exists()


def test_list_and_show_print_snapshots(done: Path) -> None:
    listed = facts("snapshot", "list")
    assert (listed["job"], listed["beginning"], listed["damaged"]) == ("words", True, [])
    (snapshot,) = listed["snapshots"]
    assert (snapshot["number"], snapshot["epoch"], snapshot["time"], snapshot["finished"]) == (1, 1, 2, True)
    shown = facts("snapshot", "show", "1")
    assert shown["operations"]["total"] == {
        "kind": "drift",
        "state": "Total(count: int, size: int)",
        "form": "fold from Total",
        "parts": 2,
    }
    assert [(front["source"], front["partition"], front["ended"]) for front in shown["fronts"]] == [
        ("lines", "a.txt", True)
    ]
    assert shown["sinks"] == [{"name": "lengths", "phase": 1}, {"name": "totals", "phase": 1}]
    lines = flame("snapshot", "show").stdout.splitlines()
    assert "operation      length: drift, int, in 2 parts" in lines
    assert "front          1, lines: a.txt, has been read to its end" in lines
    table = flame("snapshot", "list").stdout.splitlines()
    assert table[0].split() == ["SNAPSHOT", "EPOCH", "TIME", "AGE", "WORKERS", "PARTS", "BYTES"]
    assert table[1].split()[:3] == ["1", "1", "2"]
    missing = flame("snapshot", "show", "7")
    assert missing.returncode == 1
    assert "There are: 1." in missing.stderr


def test_the_store_can_be_given_without_the_job_file(done: Path) -> None:
    named = ("--set", "state.use=sqlite", "--set", f"state.path={done / 'state'}", "--job", "words")
    os.chdir(done / "state")
    assert facts("snapshot", "list", *named)["snapshots"][0]["number"] == 1
    assert facts("state", "get", "length", "3", *named)["value"] == 2
    nobody = flame("snapshot", "list", *named[:-2])
    assert nobody.returncode == 2
    assert "the job whose state is meant is not given" in nobody.stderr
    nowhere = flame("snapshot", "list", "--job", "words")
    assert nowhere.returncode == 2
    assert "no state is kept" in nowhere.stderr


def test_verify_names_the_damage_and_the_snapshot_to_resume_from(done: Path) -> None:
    verdict = facts("snapshot", "verify")
    assert (verdict["sound"], verdict["startable"], verdict["goes_on_from"]) == (True, True, 1)
    (done / "b.txt").write_text("more\n")
    assert flame("run", "job.toml", "-q").returncode == 0
    part = spoil(done, lambda name: name.startswith("part/"))
    verdict = facts("snapshot", "verify", code=1)
    assert (verdict["sound"], verdict["startable"], verdict["goes_on_from"]) == (False, True, 1)
    assert [[each["blob"] for each in snapshot["damaged"]] for snapshot in verdict["snapshots"]] == [[part], []]
    said = flame("snapshot", "verify").stdout
    assert f"snapshot 2: DAMAGED\n  blob {part} of the state cannot be used: its checksum is wrong" in said
    assert said.endswith("the job would continue from snapshot 1\n")


def test_verify_says_that_a_job_cannot_resume(done: Path) -> None:
    journal = spoil(done, lambda name: name.startswith("journal/"))
    verdict = facts("snapshot", "verify", code=1)
    assert (verdict["startable"], verdict["goes_on_from"]) == (False, None)
    assert [each["blob"] for each in verdict["damaged"]] == [journal]
    assert "the times of its records are not known" in flame("snapshot", "verify").stdout


def test_prune_deletes_blobs_no_snapshot_needs(done: Path) -> None:
    (done / "b.txt").write_text("more\n")
    assert flame("run", "job.toml", "-q").returncode == 0
    with closing(sqlite3.connect(done / "state" / "words.db")) as database, database:
        database.execute("INSERT INTO blobs VALUES ('words', 'part/00000001/000000000077/0000', 0, X'00')")
        database.execute("INSERT INTO blobs VALUES ('words', 'part/00000002/000000000077/0000', 0, X'00')")
    assert facts("snapshot", "prune", "--dry-run")["deleted"] == ["part/00000001/000000000077/0000"]
    assert flame("snapshot", "prune").stdout == "deleted 1 part\n"
    assert facts("snapshot", "prune")["deleted"] == [], "what is of the last epoch may just be written"
    assert facts("snapshot", "verify")["sound"]


# -- state -------------------------------------------------------------------------------------------------------------


def test_get_prints_the_value_of_a_key(done: Path) -> None:
    assert flame("state", "get", "total", "be").stdout == "Total(count=2, size=4)\n"
    assert facts("state", "get", "total", "be")["value"] == [2, 4]
    found = facts("state", "get", "length", "2")
    assert (found["key"], found["value"], found["snapshot"]["number"]) == (2, 6, 1)
    nothing = flame("state", "get", "total", "zebra")
    assert (nothing.returncode, nothing.stdout) == (1, "")
    assert "'total' keeps nothing for 'zebra', as of snapshot 1" in nothing.stderr
    assert facts("state", "get", "total", "zebra", code=1)["found"] is False
    unknown = flame("state", "get", "totl", "be")
    assert unknown.returncode == 1
    assert "Did you mean 'total'?" in unknown.stderr


def test_get_needs_the_flow_for_values_of_its_classes(done: Path) -> None:
    named = ("--set", "state.use=sqlite", "--set", f"state.path={done / 'state'}", "--job", "words")
    os.chdir(done / "state")
    refused = flame("state", "get", "total", "be", *named)
    assert refused.returncode == 1
    assert "'app:Total', which was not declared" in refused.stderr


# -- plan --------------------------------------------------------------------------------------------------------------


def fates(plan: Any) -> dict[str, str]:
    return {each["name"]: each["fate"] for each in plan["operations"]}


def test_an_unchanged_flow_keeps_all_state(done: Path) -> None:
    plan = facts("plan", "job.toml")
    assert plan["keeps_all"]
    assert fates(plan) == {"total": "kept", "length": "kept"}
    assert {each["name"]: each["keys"] for each in plan["operations"]} == {"total": 8, "length": 4}
    assert flame("plan", "job.toml").stdout.splitlines() == [
        "snapshot 1 of job words",
        "keep         total: drift, 8 keys",
        "keep         length: drift, 4 keys",
        "keep         source lines: a.txt: it has been read to its end",
    ]


def test_new_operations_lose_no_state(done: Path) -> None:
    edit(done / "app.py", ('sink("totals")', 'key_by(lambda pair: pair[1].count).count(name="often").sink("totals")'))
    edit(done / "job.toml", ("[state]", '[sink.more]\nuse = "jsonl"\npath = "more.jsonl"\n[state]'))
    with (done / "app.py").open("a") as app:
        app.write('\nwords.key_by(str.lower).group(2, name="pairs").sink("more")\n')
    (done / "b.txt").write_text("more to be\n")
    plan = facts("plan", "job.toml")
    assert fates(plan) == {"total": "kept", "length": "kept", "often": "new", "pairs": "new"}
    assert [(each["partition"], each["fate"]) for each in plan["partitions"]] == [("a.txt", "kept"), ("b.txt", "new")]
    assert plan["sinks"] == {"new": ["more"], "gone": []}
    ran = flame("run", "job.toml", "-q")
    assert ran.returncode == 0, ran.stderr
    assert [json.loads(line) for line in (done / "more.jsonl").read_text().splitlines()] == [["more"], ["to"], ["be"]]
    assert facts("state", "get", "total", "to")["value"] == [3, 6]


def test_a_loss_must_be_accepted_before_the_next_run_goes_on_without_it(done: Path) -> None:
    edit(done / "app.py", ('name="length"', 'name="sizes"'))
    (done / "b.txt").write_text("be it so\n")
    plan = facts("plan", "job.toml", code=1)
    assert fates(plan) == {"total": "kept", "length": "dropped", "sizes": "new"}
    assert "if it is what 'length' was, give it that name" in flame("plan", "job.toml").stdout
    refused = flame("run", "job.toml", "-q")
    assert refused.returncode == 2
    assert "part of it would be lost. 'length'" in refused.stderr
    assert facts("plan", "job.toml", "--accept")["accepted"]
    ran = flame("run", "job.toml", "-q")
    assert ran.returncode == 0, ran.stderr
    assert facts("state", "get", "total", "be")["value"] == [3, 6]
    assert facts("state", "get", "sizes", "2")["value"] == 3
    assert facts("plan", "job.toml")["keeps_all"]
    assert len((done / "totals.jsonl").read_text().splitlines()) == 13


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ((("    size: int", "    sizes: int"), ("total.size", "total.sizes")), "have a field 'size'"),
        (
            (("fold(Total(0, 0), add, name=", "group(2, name="),),
            "it was that of a drift, and the operation is a grouping of window 2 now",
        ),
        (
            (
                ("def add(total: Total, word: str) -> Total:", "def add(total: str, word: str) -> str:"),
                ("Total(total.count + 1, total.size + len(word))", "total + word[0]"),
                ("fold(Total(0, 0)", 'fold(""'),
                ("flow.source(", "flow.codec(Total)\nwords = flow.source("),
            ),
            "and is declared otherwise: str",
        ),
    ],
)
def test_unreadable_state_can_be_given_up(done: Path, change: tuple[tuple[str, str], ...], why: str) -> None:
    """A class has changed its form; an operation its kind; a state its type. The other operation shares the parts."""
    edit(done / "app.py", *change)
    (done / "b.txt").write_text("be it so\n")
    plan = facts("plan", "job.toml", code=1)
    assert fates(plan) == {"total": "unreadable", "length": "kept"}
    assert why in plan["operations"][0]["why"]
    assert facts("plan", "job.toml", "--accept")["accepted"]
    for _ in range(2):
        ran = flame("run", "job.toml", "-q")
        assert ran.returncode == 0, ran.stderr
    assert facts("state", "get", "length", "2")["value"] == 9
    assert facts("state", "get", "total", "so")["found"]
    nothing = flame("state", "get", "total", "question")
    assert nothing.returncode == 1
    assert "keeps nothing" in nothing.stderr


def test_the_loss_of_a_source_before_its_end_must_be_accepted(job: Path) -> None:
    late = """
        [source.late]
        use = "sqlite"
        path = "late.db"
        poll_s = 0.05
        [sink.seen]
        use = "jsonl"
        path = "seen.jsonl"
        [state]
    """
    edit(job / "app.py", ("words = flow", 'flow.source("late", str).sink("seen")\nwords = flow'))
    edit(job / "job.toml", ("[state]", late))
    with closing(sqlite3.connect(job / "late.db")) as database, database:
        database.execute("CREATE TABLE late (text TEXT)")
        database.execute("INSERT INTO late VALUES ('one')")
    line = [sys.executable, "-m", "flamecore", "run", "job.toml", "-q"]
    with subprocess.Popen(line) as run:
        try:
            limit = Patience(30)
            while not (seen := job / "seen.jsonl").exists() or not seen.read_text():
                assert not limit.passed()
                time.sleep(0.02)
            run.terminate()
            assert run.wait(30) == 0
        finally:
            run.kill()
    edit(job / "app.py", ('flow.source("late", str).sink("seen")\n', ""))
    edit(job / "job.toml", (late, "[state]"))
    (job / "b.txt").write_text("be it so\n")
    plan = facts("plan", "job.toml", code=1)
    assert [(each["source"], each["fate"]) for each in plan["partitions"]] == [
        ("late", "dropped"),
        ("lines", "kept"),
        ("lines", "new"),
    ]
    refused = flame("run", "job.toml", "-q")
    assert refused.returncode == 2
    assert "source 'late' no longer has" in refused.stderr
    assert facts("plan", "job.toml", "--accept")["accepted"]
    ran = flame("run", "job.toml", "-q")
    assert ran.returncode == 0, ran.stderr
    assert facts("state", "get", "total", "be")["value"] == [3, 6]
    assert facts("plan", "job.toml")["keeps_all"]


def test_an_operation_and_a_sink_of_one_name_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("app.py").write_text(
        "import flamecore as fc\n"
        "flow = fc.Flow('alike')\n"
        "flow.source('lines', str).key_by(lambda line: line).count(name='counts').sink('counts')\n"
    )
    Path("in.txt").write_text("a\nb\na\n")
    job = 'schema = 1\n[job]\nflow = "app.py"\nworkers = 2\n[source.lines]\nuse = "lines"\npath = "in.txt"\n'
    job += '[sink.counts]\nuse = "jsonl"\npath = "out.jsonl"\n[state]\nuse = "sqlite"\npath = "state"\n'
    Path("job.toml").write_text(job)
    for _ in range(2):
        ran = flame("run", "job.toml", "-q")
        assert ran.returncode == 0, ran.stderr
        assert Path("out.jsonl").read_text() == '["a",1]\n["b",1]\n["a",2]\n'
    plan = flame("plan", "job.toml")
    assert plan.returncode == 0, plan.stderr
    assert "keep         counts: drift, 2 keys" in plan.stdout
    assert flame("state", "get", "counts", "a", "--app", "job.toml").stdout == "2\n"
