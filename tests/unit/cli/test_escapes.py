"""Text from outside: nothing of it acts on a terminal, or forges a line, whichever way it comes."""

from __future__ import annotations

import asyncio
import collections
import json
import logging
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from flamecore import escapes, events, logs
from flamecore.cli.output import json_option, print_error, print_json, say
from flamecore.errors import ConfigError, SourceError
from flamecore.toolkit.local_processes import pass_on

ACTING = ["\x1b[2J", "\x9b31m", "\r", "\b", "\x00", "\x7f", "\u202e", "\u2028", "\ud800"]


@pytest.mark.parametrize("text", ACTING)
def test_a_letter_that_acts_is_visible(text: str) -> None:
    told = escapes.line(f"a{text}b")
    assert told.isprintable()
    assert told == escapes.block(f"a{text}b")
    assert json.loads(f'"{told}"') == f"a{text}b", "it is the letter, as JSON writes it"


@pytest.mark.parametrize("text", ["plain", "größe 数 \N{SNOWMAN} \N{FAMILY}", "a\tb", ""])
def test_all_other_letters_stay(text: str) -> None:
    assert escapes.line(text) == escapes.block(text) == text


def test_the_end_of_a_line_is_visible_or_makes_no_new_beginning() -> None:
    assert escapes.line("a\nerror: b") == "a\\nerror: b"
    assert escapes.block("a\nerror: b\n    c\n\nd") == "a\n  error: b\n    c\n\n  d"


@pytest.mark.parametrize("text", ACTING)
def test_errors_hold_no_text_that_acts(text: str) -> None:
    error = SourceError(f"file {text}\nerror: forged", hint=f"Look at {text}")
    for told in (str(error), error.what, error.hint):
        assert all(line.isprintable() for line in told.split("\n"))
    assert "\nerror" not in str(error)


def commands(text: str) -> click.Command:
    @click.command
    @json_option
    @click.pass_context
    def command(ctx: click.Context) -> None:
        error = ConfigError(f"a {text}\nerror: forged", path="a")
        error.add_note(f"note {text}\nerror: forged")
        print_error(ctx, error)
        say(f"out {text}\nforged")
        say(f"err {text}\nforged", err=True)
        print_json({"text": text.encode(errors="replace").decode()})

    return command


@pytest.mark.parametrize("text", ACTING)
def test_commands_write_no_text_that_acts(text: str) -> None:
    done = CliRunner().invoke(commands(text))
    rows = (done.stdout + done.stderr).split("\n")
    assert all(row.isprintable() for row in rows)
    assert not [row for row in rows if row.startswith(("forged", "error: forged"))]
    assert len([row for row in rows if row]) == 7


def test_where_the_log_is_json_words_for_people_are_lines_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(logs.VARIABLE, "json")
    code = """if True:
        import click
        from flamecore import logs
        from flamecore.cli.output import say
        logs.to_stderr(alone=True)
        say("to people \x9b\\nforged", err=True)
        import warnings, logging, threading, gc
        warnings.warn("a warning")
        logging.getLogger("library").warning("of a library \x1b[2J")
        thread = threading.Thread(target=lambda: 1 / 0)
        thread.start()
        thread.join()
        raise ValueError("uncaught\\x1b")
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    told = [json.loads(line) for line in done.stderr.splitlines()]
    assert all(line.isprintable() for line in done.stderr.splitlines())
    assert [line["event"] for line in told] == [events.COMMAND_NOTED] + [events.LIBRARY_LOGGED] * 4
    assert [line.get("message", "").split(":")[0] for line in told[3:]] == ["ZeroDivisionError", "ValueError"]
    assert {line["level"] for line in told} == {"info", "warning", "error"}


@pytest.mark.parametrize("kind", ["text", "json"])
def test_lines_of_the_log_hold_no_text_that_acts(kind: str) -> None:
    code = f"""if True:
        from flamecore import logs
        logs.to_stderr()
        for text in {[text.encode(errors="surrogatepass") for text in ACTING]}:
            text = text.decode(errors="surrogatepass") + "\\nlevel=error event=forged"
            logs.logger().warning("node.refused", node=text, **{{text: 1}})
    """
    environment = {"FLAMESTREAM_LOG": kind}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    rows = done.stderr.splitlines()
    assert all(row.isprintable() for row in rows)
    assert len(rows) == len(ACTING), done.stderr
    if kind == "json":
        assert [json.loads(row)["event"] for row in rows] == ["node.refused"] * len(ACTING)


def test_logs_of_libraries_hold_no_text_that_acts() -> None:
    record = logging.LogRecord("library\x1b", logging.WARNING, "", 1, "a\x1b[2J\nforged", None, None)
    for formatter in (logs.JsonLines(), logs.TextLines()):
        told = formatter.format(record)
        assert all(row.isprintable() for row in told.split("\n"))
        assert "\nforged" not in told


@pytest.mark.parametrize("kind", ["text", "json"])
@pytest.mark.parametrize("text", ACTING)
def test_lines_of_other_processes_are_passed_on_without_text_that_acts(
    text: str, kind: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(logs.VARIABLE, kind)

    async def run() -> None:
        words = asyncio.StreamReader()
        words.feed_data(f"says {text}\n".encode(errors="replace"))
        words.feed_data(json.dumps({"event": "node.refused", "text": text}).encode() + b"\n")
        words.feed_data(b'["no line of a log"]\n')
        words.feed_eof()
        await pass_on(f"w{text}", words, collections.deque())

    asyncio.run(run())
    rows = capsys.readouterr().err.splitlines()
    assert all(row.isprintable() for row in rows)
    if kind == "json":
        told = [json.loads(row) for row in rows]
        assert [line["event"] for line in told] == [events.NODE_PRINTED, "node.refused", events.NODE_PRINTED]
        assert [line["process"] for line in told] == [f"w{text}"] * 3
    assert len(rows) == 3 or text == "\r"


BY_ITSELF: dict[str, Any] = {
    "flamecore/cli/output.py": 2,  # `say` and `print_json`
    "flamecore/cli/commands/graph.py": 1,  # a picture in a format of its own, as data
    "plugins/windows/flamestream_windows/command.py": 1,  # the same
    "plugins/demo/flamestream_demo/kill.py": 3,  # which clears the terminal, on purpose
    "flamecore/toolkit/local_processes.py": 1,  # lines of processes: `_told`
    "flamecore/runtime/cluster/node_process.py": 2,  # before and after there is a log
    "flamecore/logs.py": 1,  # an exception that nobody catches, as JSON
    "plugins/edges/flamestream_edges/stdio.py": 1,  # data
    "plugins/spark/flamestream_spark/submit.py": 1,  # a path of this installation
}


def test_nothing_else_writes_to_a_terminal() -> None:
    root = Path(__file__).parents[3]  # of the sources, also where what is tested is the wheel
    writes = re.compile(r"(?<![\w.])print\(|click\.s?echo\(|sys\.std(?:err|out)\.write\(")
    found = {}
    for room in (root / "flamecore", *root.glob("plugins/*/flamestream_*")):
        for path in room.rglob("*.py"):
            if "testing" not in path.parts and (count := len(writes.findall(path.read_text("utf-8")))):
                found[str(path.relative_to(root))] = count
    assert found == BY_ITSELF
