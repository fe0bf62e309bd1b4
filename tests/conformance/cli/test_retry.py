"""flamestream retry, as a process: records that failed are read again, once, whatever happens on the way."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.usefixtures("installed")

LIMIT_S = 60
COMMAND = [sys.executable, "-c", "from flamecore.cli import main; main(prog_name='flamestream')"]

APP = """
import os
from pathlib import Path

import flamecore as fc


def check(record):
    word = record["word"] if isinstance(record, dict) else record
    if word in os.environ.get("BAD", "").split(","):
        raise ValueError(f"{word} is refused")
    if word == os.environ.get("KILL") and not Path("killed").exists():
        Path("killed").touch()
        os.kill(os.getpid(), 9)
    return word


def built(name, type_):
    flow = fc.Flow(name)
    words = flow.source("words", type_).map(check)
    words.merge(flow.source("others", str)).key_by(lambda word: word).count().sink("counts")
    return flow


plain = built("plain", str)
rows = built("rows", dict[str, str])
"""

JOB = """
schema = 1
[job]
flow = "app.py:plain"
on_error = "dead_letter"
[source.words]
use = "lines"
path = "words.txt"
[source.others]
use = "lines"
path = "others.txt"
[sink.counts]
use = "jsonl"
path = "counts.jsonl"
[dead_letter]
use = "jsonl"
path = "dead.jsonl"
"""

STATE = """
[state]
use = "directory"
path = "state"
"""


@pytest.fixture(autouse=True)
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("app.py").write_text(APP)
    Path("job.toml").write_text(JOB)
    Path("words.txt").write_text("a\nx\na\ny\nz\n")
    Path("others.txt").write_text("")


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


def retry(*arguments: str, **environment: str) -> int:
    return run("retry", "dead.jsonl", "-q", *arguments, **environment).returncode


def counts(name: str = "counts.jsonl") -> list[list[object]]:
    return [json.loads(line) for line in Path(name).read_text().splitlines()]


def letters() -> list[str]:
    return [json.loads(line)["original"] for line in Path("dead.jsonl").read_text().splitlines()]


def letter(original: str | None, source: str = "words") -> str:
    return json.dumps({"source": source, "position": "", "original": original, "original_base64": None}) + "\n"


@pytest.mark.parametrize("state", ["", STATE], ids=["without state", "with state"])
@pytest.mark.parametrize("workers", ["1", "3"])
def test_records_are_read_again_until_none_fails_and_no_more(state: str, workers: str) -> None:
    Path("job.toml").write_text(JOB + state)
    more = ("--set", f"job.workers={workers}")
    assert run("run", "job.toml", "-q", BAD="x,y,z").returncode == 0
    assert counts() == [["a", 1], ["a", 2]]
    assert retry(*more, BAD="y,z") == 0
    assert counts() == [["a", 1], ["a", 2], ["x", 1]]
    assert letters() == ["x", "y", "z", "y", "z"], "what fails again is a letter again"
    assert retry(*more, BAD="y,z") == 1, "all have failed"
    for _ in range(3):
        assert retry(*more) == 0
        assert counts() == [["a", 1], ["a", 2], ["x", 1], ["y", 1], ["z", 1]]
    assert [path.name for path in Path().glob("dead.jsonl.retried*")] == ["dead.jsonl.retried"], "no state is left"


def test_a_job_that_keeps_state_goes_on_with_it_and_runs_on_behind() -> None:
    Path("job.toml").write_text(JOB + STATE)
    Path("words.txt").write_text("a\nx\na\n")
    assert run("run", "job.toml", "-q", BAD="a").returncode == 0
    assert retry() == 0
    assert counts() == [["x", 1], ["a", 1], ["a", 2]]
    with open("words.txt", "a") as file:
        file.write("a\nx\n")
    assert run("run", "job.toml", "-q").returncode == 0
    assert counts() == [["x", 1], ["a", 1], ["a", 2], ["a", 3], ["x", 2]]


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGKILL")
@pytest.mark.parametrize("state", ["", STATE], ids=["without state", "with state"])
def test_a_retry_that_is_killed_or_fails_goes_on_and_nothing_comes_twice(state: str) -> None:
    Path("job.toml").write_text(JOB + state)
    words = [f"w{number}" for number in range(50)]
    Path("words.txt").write_text("\n".join(["a", *words, ""]))
    assert run("run", "job.toml", "-q", "--set", "job.max_failed=1.0", BAD=",".join(words)).returncode == 0
    assert retry(KILL="w30") == -9
    assert retry("--set", "job.on_error=fail", BAD="w40") == 1
    for _ in range(2):
        assert retry() == 0
        assert counts() == [["a", 1], *([word, 1] for word in words)]
    assert letters() == words


def test_rows_are_read_again_with_corrections_when_their_file_is_gone() -> None:
    job = JOB.replace('use = "lines"\npath = "words.txt"', 'use = "csv"\npath = "words.csv"\non_error = "dead_letter"')
    Path("job.toml").write_text(job.replace(":plain", ":rows"))
    Path("words.csv").write_text('word,n\na,1\n"x\ny",2\nz,3,4\n')
    assert run("run", "job.toml", "-q", BAD="x\ny").returncode == 0
    assert letters() == ['word,n\n"x\ny",2', "word,n\nz,3,4"]
    Path("words.csv").write_text("")
    Path("dead.jsonl").write_text(Path("dead.jsonl").read_text().replace("z,3,4", "z,3"))
    assert retry() == 0
    assert counts() == [["a", 1], ["x\ny", 1], ["z", 1]]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (letter("a", "gone"), "a letter is of source 'gone', which flow 'plain' has not"),
        ("no letter\n", "at byte 0 is no dead letter"),
    ],
)
def test_letters_of_another_job_are_refused_and_nothing_is_begun(text: str, why: str) -> None:
    Path("dead.jsonl").write_text(text)
    done = run("retry", "dead.jsonl")
    assert (done.returncode, why in done.stderr) == (2, True)
    assert not Path("dead.jsonl.retried").exists()
    assert not Path("counts.jsonl").exists()


def test_letters_without_an_original_are_counted() -> None:
    Path("dead.jsonl").write_text(letter(None) + letter("a"))
    done = run("retry", "dead.jsonl", "-q")
    assert (done.returncode, done.stderr) == (0, "dead.jsonl: 1 of 2 letters have no original, and are left out\n")
    assert counts() == [["a", 1]]
