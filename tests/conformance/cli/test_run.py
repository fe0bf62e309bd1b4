"""flamestream run, as a process: pipes, files, signals, progress, errors."""

from __future__ import annotations

import contextlib
import csv
import json
import os
import pty
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import commands
import pytest

from flamecore import events

pytestmark = [
    pytest.mark.usefixtures("installed"),
    pytest.mark.skipif(sys.platform == "win32", reason="signals and terminals of Windows are other ones"),
]

LIMIT_S = 60
COMMAND = [sys.executable, "-c", "from flamecore.cli import main; main(prog_name='flamestream')"]

APP = """
import sys
import time

import flamecore as fc

words = fc.Flow("words")
words.source("lines", str).flat_map(str.split).key_by(lambda word: word).count().sink("counts")


def stuck(line):
    if line == "block":
        print("blocked", file=sys.stderr, flush=True)
        time.sleep(600)
    return line


def kept(line):
    if line == "block":
        print("blocked", file=sys.stderr, flush=True)
        sum(range(10**18))  # code in C, which lets no handler run
    return line


keeping = fc.Flow("keeping")
keeping.source("lines", str).map(kept).sink("out")

sticky = fc.Flow("sticky")
sticky.source("lines", str).map(stuck).sink("out")

inverse = fc.Flow("inverse")
inverse.source("lines", str).map(lambda line: 10 // int(line), name="divide").sink("out")
"""


@pytest.fixture(autouse=True)
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "app.py").write_text(APP, "utf-8")
    monkeypatch.chdir(tmp_path)


def run(*arguments: str, given: str = "") -> subprocess.CompletedProcess[str]:
    return commands.call("run", *arguments, given=given or "")


@contextmanager
def started(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    pipe = subprocess.PIPE
    with subprocess.Popen([*COMMAND, "run", *arguments], stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def say(process: subprocess.Popen[str], text: str) -> None:
    assert process.stdin is not None
    process.stdin.write(text)
    process.stdin.flush()


def line_of(stream: object) -> str:
    line: str = stream.readline()  # type: ignore[attr-defined]
    return line


PIPED = ("app.py:words", "-w", "4", "--source", "lines=stdin", "--sink", "counts=stdout")
REPLACING = ("--set", "dead_letter.mode=replace")
COUNTED = "to 1\nbe 1\nor 1\nnot 1\nto 2\nbe 2\n"


def test_a_pipe_is_read_and_written() -> None:
    done = run(*PIPED, given="to be or\nnot to be\n")
    assert (done.returncode, done.stdout) == (0, COUNTED)
    assert f"event={events.JOB_ENDED}" in done.stderr
    assert "items_out.counts=6" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_an_empty_pipe_gives_nothing() -> None:
    done = run(*PIPED)
    assert (done.returncode, done.stdout) == (0, "")


def test_quiet_prints_only_errors() -> None:
    done = run(*PIPED, "-q", given="to be")
    assert (done.returncode, done.stdout, done.stderr) == (0, "to 1\nbe 1\n", "")
    done = run("app.py:inverse", "-q", "--source", "lines=stdin", given="0")
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")


def test_verbose_names_the_parts_that_start() -> None:
    done = run(*PIPED, "-v", given="to be")
    assert (done.returncode, done.stdout) == (0, "to 1\nbe 1\n")
    line = next(line for line in done.stderr.splitlines() if f"event={events.JOB_STARTED}" in line)
    for pair in ("workers=4", "source.lines=stdin", "sink.counts=stdout", "acker=centralized", "clock=sequence"):
        assert pair in line.split()


def test_events_are_named_alike_and_all_known() -> None:
    named = {value for key, value in vars(events).items() if key.isupper() and isinstance(value, str)}
    assert named == events.ALL
    assert all(re.fullmatch(r"[a-z_]+\.[a-z_]+ed", name) for name in named)


def test_a_job_file_writes_to_a_file_and_takes_another_driver() -> None:
    Path("job.toml").write_text("""
schema = 1
[job]
flow = "app.py:words"
workers = 2
[source.lines]
use = "lines"
path = "book.txt"
[sink.counts]
use = "sqlite"
path = "counts.db"
""")
    Path("book.txt").write_text("to be or\nnot to be\n")
    done = run("job.toml", "--sink", "counts=jsonl", "--set", "sink.counts.path=OUT.jsonl")
    assert (done.returncode, done.stdout) == (0, "")
    assert not Path("counts.db").exists()
    assert [json.loads(line) for line in Path("OUT.jsonl").read_text().splitlines()][-1] == ["be", 2]
    assert run("job.toml").returncode == 0
    assert Path("counts.db").exists()


SHOUT = """
    import sys

    from flamecore.abc.hooks import hookimpl
    from flamecore.abc.sink import Sink


    class Shout(Sink):
        name = "shout"
        guarantee = "at_least_once"
        writes_to_stdout = {writes}

        async def write(self, time, payloads):
            sys.stdout.writelines(f"{{payload}}!\\n" for payload in payloads)


    @hookimpl
    def flamestream_sink():
        return Shout
"""


@pytest.mark.parametrize("writes", [True, False])
def test_a_sink_says_that_stdout_is_its_own(distributions: Any, monkeypatch: pytest.MonkeyPatch, writes: bool) -> None:
    monkeypatch.setenv("PYTHONPATH", str(distributions.folder))
    distributions.add(
        "flamestream-shout",
        modules={"shouting": SHOUT.format(writes=writes)},
        entry_points={"flamestream.sink": {"shout": "shouting"}},
    )
    done = run(*PIPED[:-1], "counts=shout", "--json", "-q", given="to be")
    assert done.stdout.startswith("('to', 1)!\n('be', 1)!\n")
    assert ("items_out" in done.stdout, "items_out" in done.stderr) == (not writes, writes)


def test_the_json_summary_goes_where_no_data_goes() -> None:
    done = run(*PIPED, "--json", "-q", given="to be")
    assert done.stdout == "to 1\nbe 1\n"
    assert json.loads(done.stderr)["items_out"] == {"counts": 2}
    done = run(*PIPED[:-1], "counts=jsonl", "--set", "sink.counts.path=o.jsonl", "--json", given="to be")
    summary = json.loads(done.stdout)
    assert summary["items_in"] == 1
    assert summary["drained"] is False


def test_the_json_of_an_error_goes_where_no_data_goes() -> None:
    done = run("app.py:inverse", "--json", "-q", "--source", "lines=stdin", given="5\n0\n")
    assert (done.returncode, done.stdout) == (1, "2\n")
    facts = json.loads(done.stderr.splitlines()[-1])
    assert facts["exit_code"] == 1
    assert facts["error"]["vertex"] == "divide"
    options = ("--sink", "out=jsonl", "--set", "sink.out.path=o.jsonl")
    done = run("app.py:inverse", "--json", "-q", "--source", "lines=stdin", *options, given="0\n")
    assert json.loads(done.stdout)["error"]["type"] == "OperationError"


def test_a_failing_function_ends_the_job_with_its_record() -> None:
    done = run("app.py:inverse", "--source", "lines=stdin", given="5\n2\n0\n1\n")
    assert (done.returncode, done.stdout) == (1, "2\n5\n")
    log, *error = done.stderr.splitlines()
    assert f"event={events.JOB_FAILED}" in log
    text = "\n".join(error)
    line = next(number for number, text in enumerate(APP.splitlines(), 1) if "10 // int" in text)
    assert len(error) <= 15
    for word in ("'divide'", "ZeroDivisionError", "'0'", "line 3", f"app.py:{line}"):
        assert word in text
    assert "flamecore" not in text
    assert "Traceback" in run("app.py:inverse", "-v", "--source", "lines=stdin", given="0\n").stderr


def test_on_error_decides_the_fate_of_failing_records() -> None:
    skipping = run("app.py:inverse", "--source", "lines=stdin", "--set", "job.on_error=skip", given="5\n0\n1\n")
    assert (skipping.returncode, skipping.stdout) == (0, "2\n10\n")
    options = (
        "--set",
        "job.on_error=dead_letter",
        "--set",
        "dead_letter.use=jsonl",
        "--set",
        "dead_letter.path=dead.jsonl",
    )
    done = run("app.py:inverse", "--source", "lines=stdin", *options, given="5\n0\n1\n")
    assert (done.returncode, done.stdout) == (0, "2\n10\n")
    letters = [json.loads(line) for line in Path("dead.jsonl").read_text().splitlines()]
    assert [(letter["vertex"], letter["record"]) for letter in letters] == [("divide", "'0'")]
    assert "ZeroDivisionError" in letters[0]["reason"]
    assert run("app.py:inverse", "--source", "lines=stdin", *options, given="1\n0\n").returncode == 0
    again = [json.loads(line) for line in Path("dead.jsonl").read_text().splitlines()]
    assert [letter["position"] for letter in again] == ["stdin line 2", "stdin line 2"], (
        "a second run adds to the first"
    )
    assert run("app.py:inverse", "--source", "lines=stdin", *options, *REPLACING, given="1\n0\n").returncode == 0
    assert len(Path("dead.jsonl").read_text().splitlines()) == 1
    assert ("dead_letters=1" in done.stderr, "items_out.dead_letter" in done.stderr) == (True, False)


@pytest.mark.parametrize("use", ["csv", "sqlite"])
def test_the_fields_of_a_dead_letter_are_columns(use: str) -> None:
    options = ("--set", "job.on_error=dead_letter", "--set", f"dead_letter.use={use}", "--set", "dead_letter.path=dead")
    assert run("app.py:inverse", "--source", "lines=stdin", *options, given="5\n0\n").returncode == 0
    if use == "csv":
        with Path("dead").open(newline="") as file:
            (letter,) = csv.DictReader(file)
    else:
        with contextlib.closing(sqlite3.connect("dead")) as database:
            database.row_factory = sqlite3.Row
            (letter,) = map(dict, database.execute("SELECT * FROM dead_letter"))
    assert (letter["source"], letter["vertex"], letter["position"]) == ("lines", "divide", "stdin line 2")
    assert "ZeroDivisionError" in letter["reason"]


def test_quiet_still_says_how_many_records_are_missing() -> None:
    done = run("app.py:inverse", "-q", "--source", "lines=stdin", "--set", "job.on_error=skip", given="5\n0\n1\n")
    assert (done.returncode, done.stdout) == (0, "2\n10\n")
    assert done.stderr == "inverse: 1 of 3 records left out (0 rejected, 1 failed)\n"


def test_a_job_whose_records_all_fail_does_not_end_with_0() -> None:
    skipping = ("app.py:inverse", "-q", "--source", "lines=stdin", "--set", "job.on_error=skip")
    done = run(*skipping, given="0\n0\n")
    assert (done.returncode, done.stdout) == (1, "")
    assert "2 of 2 records failed" in done.stderr
    assert run(*skipping, "--set", "job.max_failed=2", given="0\n0\n").returncode == 0


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (("gone.py",), 2, "no file"),
        (("app.py",), 2, "several flows"),
        (("app.py:words",), 2, "--source lines=stdin"),
        (("app.py:words", "--source", "lines=stdni"), 2, "Did you mean 'stdin'?"),
        (("app.py:words", "--source", "lines"), 2, "NAME=DRIVER"),
        (("app.py:words", "-w", "0"), 2, "0"),
        (("app.py:words", "--source", "lines=lines", "--set", "source.lines.path=gone.txt"), 2, "gone.txt"),
    ],
)
def test_a_job_that_cannot_start_is_refused(arguments: tuple[str, ...], code: int, text: str) -> None:
    done = run(*arguments)
    assert (done.returncode, done.stdout) == (code, "")
    assert text in done.stderr
    assert "Traceback" not in done.stderr


def test_a_reader_that_closes_the_pipe_ends_the_job_quietly() -> None:
    with started(*PIPED) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        say(process, "a b\n")
        assert line_of(process.stdout) == "a 1\n"
        process.stdout.close()
        say(process, "a b\n" * 10_000)
        assert process.wait(LIMIT_S) == 1
        assert process.stderr.read() == ""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_drains_the_job(number: signal.Signals) -> None:
    with started(*PIPED, "--json") as process:
        assert process.stderr is not None
        say(process, "to be or\n")
        assert [line_of(process.stdout) for _ in range(3)] == ["to 1\n", "be 1\n", "or 1\n"]
        process.send_signal(number)
        assert process.wait(LIMIT_S) == 0
        said, log, summary = process.stderr.read().splitlines()
        assert said.startswith("draining")
        assert f"event={events.JOB_DRAINED}" in log
        assert json.loads(summary)["drained"] is True


def test_the_second_signal_ends_the_job_at_once() -> None:
    with started("app.py:sticky", "--source", "lines=stdin") as process:
        say(process, "block\n")
        assert line_of(process.stderr) == "blocked\n"
        process.send_signal(signal.SIGINT)
        assert line_of(process.stderr).startswith("draining")
        process.send_signal(signal.SIGINT)
        assert line_of(process.stderr) == "stopped\n"
        assert process.wait(LIMIT_S) == 130


@pytest.mark.skipif(sys.platform != "linux", reason="needs a call of glibc")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_second_signal_ends_a_job_whose_interpreter_is_kept(number: signal.Signals) -> None:
    with started("app.py:keeping", "--source", "lines=stdin") as process:
        say(process, "block\n")
        assert line_of(process.stderr) == "blocked\n"
        sent = 0
        while process.poll() is None:  # two that come at once are one
            process.send_signal(number)
            sent += 1
            time.sleep(0.05)
        assert process.returncode == -number
        assert sent > 1


def test_progress_is_printed_in_lines() -> None:
    with started(*PIPED, "--progress-interval", "0.05") as process:
        say(process, "to be\n")
        while "items_out.counts=2" not in (line := line_of(process.stderr)):
            assert f"event={events.JOB_PROGRESSED}" in line
        keys = dict(pair.split("=", 1) for pair in line.split())
        assert keys["job"] == "words"
        assert {"timestamp", "level", "items_in", "latency_p50_ms", "elapsed_s"} <= keys.keys()


def logged(said: str) -> list[dict[str, Any]]:
    """Lines of JSON, all of them events with a time and a level."""
    lines: list[dict[str, Any]] = [json.loads(line) for line in said.splitlines()]
    assert all({"timestamp", "level", "event"} <= line.keys() for line in lines)
    assert {line["event"] for line in lines} <= events.ALL
    return lines


@pytest.mark.parametrize("variable", [False, True])
def test_the_log_may_be_lines_of_json(variable: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    option = ("--log", "json")
    monkeypatch.setenv("FLAMESTREAM_EVENT_LOOP", "asyncio")  # which logs the name of its selector
    if variable:
        monkeypatch.setenv("FLAMESTREAM_LOG", "json")
        option = ()
    done = run(*PIPED, *option, "-vv", given="to be")
    assert (done.returncode, done.stdout) == (0, "to 1\nbe 1\n")
    lines = {line["event"]: line for line in logged(done.stderr)}
    assert lines[events.JOB_STARTED]["source.lines"] == "stdin"
    assert lines[events.JOB_ENDED]["items_out.counts"] == 2
    assert lines[events.LIBRARY_LOGGED]["logger"] == "asyncio"
    failed = run("app.py:inverse", *option, "--source", "lines=stdin", given="0")
    assert failed.returncode == 1
    error = logged(failed.stderr)[-1]
    assert (error["event"], error["error"], error["exit_code"]) == (events.COMMAND_FAILED, "OperationError", 1)
    assert "ZeroDivisionError" in error["message"]
    refused = run("gone.py", *option)
    (error,) = logged(refused.stderr)
    assert (error["level"], error["error"], error["exit_code"]) == ("error", "ConfigError", 2)


def test_a_terminal_gets_lines_of_json_too() -> None:
    _, seen = on_terminal(*PIPED, "--log", "json", "--progress-interval", "0.05", given="to be\n", stdout=False)
    assert {line["event"] for line in logged(seen)} == {events.JOB_PROGRESSED, events.JOB_ENDED}


def test_a_signal_is_answered_by_an_event_where_the_log_is_json() -> None:
    with started(*PIPED, "--log", "json") as process:
        assert process.stderr is not None
        say(process, "to be or\n")
        assert line_of(process.stdout) == "to 1\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(LIMIT_S) == 0
        assert [line["event"] for line in logged(process.stderr.read())] == [events.JOB_DRAINED]


def on_terminal(*arguments: str, given: str, stdout: bool) -> tuple[str, str]:
    """Run with a terminal as stderr (and stdout); returns what was written to stdout, and to the terminal."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
    out = theirs if stdout else subprocess.PIPE
    pipe = subprocess.PIPE
    process = subprocess.Popen(
        [*COMMAND, "run", *arguments], stdin=pipe, stdout=out, stderr=theirs, text=True, env=environment
    )
    with process:
        os.close(theirs)
        say(process, given)
        seen = b""
        while not any(end in seen for end in (b"drained", b"done", events.JOB_ENDED.encode())):
            seen += os.read(ours, 65536)
            if (
                (b"0/s" in seen or events.JOB_PROGRESSED.encode() in seen)
                and process.stdin is not None
                and not process.stdin.closed
            ):
                process.stdin.close()
        written = process.stdout.read() if process.stdout else ""
        assert process.wait(LIMIT_S) == 0
    os.close(ours)
    return written, seen.decode()


def test_a_terminal_shows_a_live_table() -> None:
    written, seen = on_terminal(*PIPED, given="to be or\nnot to be\n", stdout=False)
    assert written == COUNTED
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", seen)
    assert re.search(r"out counts\s+6\s+\d+/s", plain)
    assert plain.splitlines()[-1].startswith("words done: 2 in, 6 out")
    assert "event=" not in plain


def test_the_table_stays_out_of_data() -> None:
    Path("book.txt").write_text("to be or\nnot to be\n")
    arguments = ("--source", "lines=lines", "--set", "source.lines.path=book.txt")
    _, seen = on_terminal("app.py:words", *arguments, given="", stdout=True)
    lines = seen.replace("\r", "").splitlines()
    assert lines[:-1] == COUNTED.splitlines()
    assert "words done" in lines[-1]


def test_a_job_in_a_pipe_imports_only_modules_it_uses() -> None:
    code = """if True:
        import sys
        from flamecore.cli import main
        main(sys.argv[1:], standalone_mode=False)
        print(sorted({"rich", "structlog", "sqlite3", "xml.etree.ElementTree", "graphviz"} & set(sys.modules)))
    """
    command = [sys.executable, "-c", code, "run", *PIPED, "-q"]
    done = subprocess.run(command, input="to be", capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def screen_of(written: str) -> list[str]:
    """Return what a terminal shows in the end, as far as the table needs."""
    lines, row, column = [""], 0, 0
    for part in re.findall(r"\x1b\[[0-9;?]*[A-Za-z]|\r|\n|[^\x1b\r\n]+", written):
        if part == "\r":
            column = 0
        elif part == "\n":
            row += 1
            lines += [""] * (row + 1 - len(lines))
        elif part.startswith("\x1b"):
            count = int(re.sub(r"\D", "", part) or 1)
            if part.endswith("A"):
                row = max(0, row - count)
            elif part.endswith("K"):
                lines[row] = ""
        else:
            lines[row] = lines[row][:column].ljust(column) + part + lines[row][column + len(part) :]
            column += len(part)
    return [line.rstrip() for line in lines if line.strip()]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_no_part_of_the_table_is_left_behind_after_a_signal(number: signal.Signals) -> None:
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
    pipe = subprocess.PIPE
    process = subprocess.Popen(
        [*COMMAND, "run", *PIPED], stdin=pipe, stdout=pipe, stderr=theirs, text=True, env=environment
    )
    with process:
        os.close(theirs)
        say(process, "to be or\nnot to be\n")
        seen = b""
        while seen.count(b"out counts") < 2:
            seen += os.read(ours, 65536)
        process.send_signal(number)
        while b"drained" not in seen:
            seen += os.read(ours, 65536)
        assert process.wait(LIMIT_S) == 0
    os.close(ours)
    shown = screen_of(seen.decode())
    assert shown[0].startswith("draining"), shown
    assert [line[:13] for line in shown[1:]] == ["words drained"], shown
