"""flamestream retry, as a process: records that failed are read again, once, whatever happens on the way."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import commands
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
    return commands.call(*arguments, env={**os.environ, **environment})


def retry(*arguments: str, **environment: str) -> int:
    return run("retry", "dead.jsonl", "-q", *arguments, **environment).returncode


def counts(name: str = "counts.jsonl") -> list[list[object]]:
    return [json.loads(line) for line in Path(name).read_text().splitlines()]


def letters() -> list[str]:
    return [json.loads(line)["original"] for line in Path("dead.jsonl").read_text().splitlines() if line]


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
    for _ in range(3):
        assert letters() == ["x", "y", "z"], "a record that fails again has one letter"
        assert run("verify-output", "dead.jsonl").returncode == 0
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
def test_outputs_in_partitions_stay_without_state() -> None:
    for use in ("jsonl", "csv"):
        sink = (f"sink.counts.use={use}", "sink.counts.path=parts", "sink.counts.order=partitioned")
        settings = [argument for each in sink for argument in ("--set", each)]
        assert run("run", "job.toml", "-q", *settings, BAD="x,y,z").returncode == 0
        before = {path: path.read_bytes() for path in sorted(Path().glob("parts/**/*")) if path.is_file()}
        assert before
        refused = run("retry", "dead.jsonl", *settings)
        assert refused.returncode == 2
        assert "'counts' takes no outputs but those of its own job" in refused.stderr
        assert "[state]" in refused.stderr
        assert {path: path.read_bytes() for path in before} == before
        assert letters() == ["x", "y", "z"]
        shutil.rmtree("parts")
        Path("dead.jsonl").unlink()


def test_outputs_in_partitions_are_added_to_with_state() -> None:
    Path("job.toml").write_text(JOB + STATE)
    settings = ("--set", "sink.counts.path=parts", "--set", "sink.counts.order=partitioned")
    assert run("run", "job.toml", "-q", *settings, BAD="x,y,z").returncode == 0
    assert retry(*settings) == 0
    merged = run("merge-output", "parts").stdout.splitlines()
    assert [json.loads(line) for line in merged] == [["a", 1], ["a", 2], ["x", 1], ["y", 1], ["z", 1]]


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
        ("no letter\n", "line 1 is no dead letter"),
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


@pytest.mark.parametrize("state", ["", STATE], ids=["without state", "with state"])
@pytest.mark.parametrize(
    ("before", "after"),
    [("x", "a much longer word"), ("long", "y"), ("x", "z")],
    ids=["longer", "shorter", "as long"],
)
def test_letters_are_corrected_in_their_own_file(state: str, before: str, after: str) -> None:
    Path("job.toml").write_text(JOB + state)
    Path("words.txt").write_text("a\nx\nlong\n")
    assert run("run", "job.toml", "-q", BAD="x,long").returncode == 0
    text = Path("dead.jsonl").read_text()
    Path("dead.jsonl").write_text(text.replace(f'"original":"{before}"', f'"original":"{after}"'))
    (other,) = {"x", "long"} - {before}
    assert retry(BAD=f"{before},{other}") == 0
    assert counts() == [["a", 1], [after, 1]]
    assert letters() == [after, other], "no letter is lost: the one that fails again comes last"
    assert retry() == 0
    assert counts() == [["a", 1], [after, 1], [other, 1]]
    assert run("run", "job.toml", "-q").returncode == 0, "the job goes on"


def _emptied() -> None:
    Path("dead.jsonl").write_text("")


def _deleted() -> None:
    Path("dead.jsonl").unlink()


def _without_the_first_line() -> None:
    Path("dead.jsonl").write_text("".join(Path("dead.jsonl").read_text().splitlines(keepends=True)[1:]))


def _with_another_line_and_no_end() -> None:
    with open("dead.jsonl", "a") as file:
        file.write("\n" + letter("b").rstrip())


@pytest.mark.parametrize("retried", [False, True], ids=["no retry", "a retry"])
@pytest.mark.parametrize("edit", [_emptied, _deleted, _without_the_first_line, _with_another_line_and_no_end])
def test_a_job_with_state_goes_on_whatever_became_of_its_letters(edit: Callable[[], None], retried: bool) -> None:
    Path("job.toml").write_text(JOB + STATE)
    assert run("run", "job.toml", "-q", BAD="x,y,z").returncode == 0
    edit()
    left = letters() if Path("dead.jsonl").exists() else []
    if retried:
        assert retry() == (2 if edit is _deleted else 0)
        assert counts() == [["a", 1], ["a", 2], *([word, 1] for word in left)]
    with open("words.txt", "a") as file:
        file.write("u\nv\n")
    assert run("run", "job.toml", "-q", BAD="v").returncode == 0
    assert letters() == [*left, "v"], "new letters come behind those that were left"
    assert retry(BAD="a") == 0
    assert sorted(counts()) == sorted([["a", 1], ["a", 2], ["u", 1], ["v", 1], *([word, 1] for word in left)])


@pytest.mark.parametrize("state", ["", STATE], ids=["without state", "with state"])
def test_a_line_that_is_no_json_is_named_and_nothing_is_begun_or_lost(state: str) -> None:
    Path("job.toml").write_text(JOB + state)
    assert run("run", "job.toml", "-q", BAD="x,y,z").returncode == 0
    lines = Path("dead.jsonl").read_text().splitlines(keepends=True)
    Path("dead.jsonl").write_text("".join([*lines[:1], lines[1][5:], *lines[2:]]))
    done = run("retry", "dead.jsonl")
    assert (done.returncode, "dead.jsonl: line 2 is no dead letter" in done.stderr) == (2, True)
    Path("dead.jsonl").write_text("".join(lines))
    assert retry() == 0
    assert counts()[2:] == [["x", 1], ["y", 1], ["z", 1]]


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGKILL")
@pytest.mark.parametrize("state", ["", STATE], ids=["without state", "with state"])
@pytest.mark.parametrize("edit", [_emptied, _deleted, _without_the_first_line])
def test_a_killed_retry_goes_on_with_its_letters_whatever_became_of_them(edit: Callable[[], None], state: str) -> None:
    Path("job.toml").write_text(JOB + state)
    words = [f"w{number}" for number in range(50)]
    Path("words.txt").write_text("\n".join(["a", *words, ""]))
    assert run("run", "job.toml", "-q", "--set", "job.max_failed=1.0", BAD=",".join(words)).returncode == 0
    assert retry(KILL="w30") == -9
    edit()
    again = run("retry", "dead.jsonl")
    assert (again.returncode, "dead.jsonl has changed; a retry" in again.stderr) == (0, True)
    assert counts() == [["a", 1], *([word, 1] for word in words)]
    assert run("run", "job.toml", "-q", "--set", "sink.counts.mode=append").returncode == 0


WINDOWS = """
import flamecore as fc
import flamestream_windows as w

flow = fc.Flow("hours")
timed = w.event_time(flow.source("words", dict), lambda record: record["at"], unit="s")
sums = timed.key_by(lambda record: record["key"]).window(w.fixed(seconds=10)).count()
sums.map(lambda pane: [pane.key, pane.window.start // 1_000_000, pane.value]).sink("counts")
"""


@pytest.mark.parametrize("state", ["", STATE], ids=["without state", "with state"])
def test_letters_go_into_windows_and_hold_none_back_later(state: str) -> None:
    Path("app.py").write_text(WINDOWS)
    job = JOB.replace("app.py:plain", "app.py").replace('[source.others]\nuse = "lines"\npath = "others.txt"\n', "")
    Path("job.toml").write_text(
        job.replace('use = "lines"\npath = "words.txt"', 'use = "jsonl"\npath = "words.txt"') + state
    )
    Path("words.txt").write_text('{"at": 1, "key": "a"}\n{"at": 3}\n{"at": 4, "key": "a"}\n')
    assert run("run", "job.toml", "-q").returncode == 0
    before = [] if state else [["a", 0, 2]]
    assert counts() == before
    Path("dead.jsonl").write_text(
        Path("dead.jsonl").read_text().replace('{\\"at\\": 3}', '{\\"at\\": 3, \\"key\\": \\"b\\"}')
    )
    assert retry() == 0
    assert counts() == ([] if state else [["a", 0, 2], ["b", 0, 1]])
    if state:
        with Path("words.txt").open("a") as file:
            file.write('{"at": 25, "key": "a"}\n')
        assert run("run", "job.toml", "-q").returncode == 0
        assert sorted(counts()) == [["a", 0, 2], ["b", 0, 1]], "the front of the letters is gone"
