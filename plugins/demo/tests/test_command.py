"""`flamestream demo`, run in separate processes, on a terminal and elsewhere."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import sys
from importlib.metadata import entry_points
from typing import Any

import commands
import pytest

from flamecore.testing.progress import Patience
from flamestream_demo.pages import revised, topics
from flamestream_demo.testing import plain_index
from flamestream_demo.text import stem, stems
from flamestream_demo.view import IndexView

DEMO = [sys.executable, "-c", "from flamecore.cli import main; main()", "demo"]
LIMIT_S = 60

pytestmark = pytest.mark.skipif(
    not entry_points(group="flamestream.command", name="demo"), reason="flamestream is not installed"
)


def demo(*arguments: str) -> subprocess.CompletedProcess[str]:
    return commands.call("demo", *arguments)


def facts(*arguments: str, code: int = 0) -> dict[str, Any]:
    done = demo("--json", *arguments)
    assert done.returncode == code, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.fixture(scope="module")
def view() -> IndexView:
    """Return the view that the demo must have in the end."""
    made = IndexView()
    made.apply(plain_index(revised(page, version) for version in (1, 2) for page in topics()))
    return made


@pytest.mark.parametrize("workers", ["1", "3"])
def test_figures_are_those_of_a_plain_loop(view: IndexView, workers: str) -> None:
    found = facts("--repeat", "2", "--workers", workers)
    assert found["pages"] == 2 * len(topics())
    assert found["tokens"] == 2 * sum(len(stems(page.text)) for page in topics())
    assert found["words"] == len(view.postings)
    assert found["changes"] == view.changes
    assert found["busiest"] == [{"word": word, "pages": pages} for word, pages in view.busiest(10)]
    assert found["workers"] == int(workers)
    assert found["pages_per_s"] > 0
    assert 0 < found["latency_p50_ms"] <= found["latency_p99_ms"]
    assert found["drained"] is False
    if workers == "1":
        assert found["replays"] == 0


def test_without_a_terminal_there_is_a_plain_summary() -> None:
    done = demo("--repeat", "1")
    assert done.returncode == 0
    assert done.stderr == ""
    assert "\x1b" not in done.stdout
    for name in ("pages", "tokens", "distinct words", "index changes", "pages/s", "release latency p99", "replays"):
        assert re.search(rf"^{name} +[\d,.]+( ms)?$", done.stdout, re.MULTILINE), name
    assert re.search(r"^the +\d+$", done.stdout, re.MULTILINE)


def test_query_gives_the_postings_of_the_stem(view: IndexView) -> None:
    found = facts("--repeat", "2", "--query", "Yielded")
    titles = {page.id: page.title for page in topics()}
    assert found["word"] == stem("yield") == "yield"
    assert found["postings"] == [
        {"page": page, "title": titles[page], "version": held.version, "positions": list(held.positions)}
        for page, held in sorted(view.postings["yield"].items())
    ]
    assert any(posting["title"] == "yield" and posting["version"] == 2 for posting in found["postings"])

    text = demo("--repeat", "2", "--query", "Yielded")
    assert text.returncode == 0
    assert text.stdout.startswith("'Yielded', looked up as 'yield': ")
    assert len(text.stdout.splitlines()) == 2 + len(found["postings"])


def test_a_missing_word_gives_the_nearest_and_exit_code_1() -> None:
    done = demo("--repeat", "1", "--query", "yieldable")
    assert done.returncode == 1
    assert done.stdout == ""
    assert "no page holds 'yieldable'" in done.stderr
    assert "yield" in done.stderr.partition("nearest:")[2]
    assert facts("--repeat", "1", "--query", "yieldable", code=1)["postings"] == []


@pytest.mark.parametrize(
    "arguments", [["--query", "two words"], ["--query", "!"], ["--workers", "0"], ["--repeat", "256"]]
)
def test_senseless_arguments_are_refused_before_anything_runs(arguments: list[str]) -> None:
    done = demo(*arguments)
    assert done.returncode == 2
    assert arguments[0] in done.stderr
    assert done.stdout == ""


class Terminal:
    """A demo on a separate terminal: both its outputs, as they come."""

    def __init__(self, *arguments: str) -> None:
        import pty

        self._screen, theirs = pty.openpty()
        environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100", "LINES": "40"}
        self.process = subprocess.Popen(
            [*DEMO, *arguments], stdin=theirs, stdout=theirs, stderr=theirs, env=environment
        )
        os.close(theirs)
        self.seen = ""

    def read_until(self, pattern: str) -> None:
        """Read until the output matches a pattern, or to the end if it never does."""
        limit = Patience(LIMIT_S)
        while not re.search(pattern, self.seen):
            ready, _, _ = select.select([self._screen], [], [], limit.left_s)
            if not ready:
                assert not limit.passed(), f"nothing more came for {LIMIT_S} s after {self.seen[-200:]!r}"
                continue
            try:
                chunk = os.read(self._screen, 65536)
            except OSError:  # Linux: the other side has ended
                chunk = b""
            if not chunk:
                return
            self.seen += re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", chunk.decode("utf-8", "replace"))

    def close(self) -> int:
        self.read_until(r"(?!)")
        os.close(self._screen)
        return self.process.wait(LIMIT_S)


on_a_terminal = pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")


@on_a_terminal
def test_on_a_terminal_a_table_counts_and_the_summary_stays() -> None:
    terminal = Terminal("--repeat", "8")
    assert terminal.close() == 0
    frames = [int(found.replace(",", "")) for found in re.findall(r"pages +([\d,]+)\s", terminal.seen)]
    assert frames[0] == 0, "the first frame comes before the first page"
    assert len(frames) >= 3
    assert frames == sorted(frames)
    assert frames[-1] == 8 * len(topics())
    assert "words on most pages" in terminal.seen


@on_a_terminal
def test_ctrl_c_ends_early_with_a_summary_of_what_was_read() -> None:
    terminal = Terminal("--repeat", "255")
    terminal.read_until(r"index changes +[1-9]")
    terminal.process.send_signal(signal.SIGINT)
    assert terminal.close() == 0
    assert "stopped early" in terminal.seen
    summary = terminal.seen.rpartition("inverted index of")[2]
    found = re.search(r"pages +([\d,]+)", summary)
    assert found is not None
    assert 0 < int(found[1].replace(",", "")) < 255 * len(topics())
