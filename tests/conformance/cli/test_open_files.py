"""Jobs over more files than a process may have open, as processes, in several runs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

import pytest

from flamecore.runtime.tasks.event_loop import CHOICE
from flamecore.testing.draws import TIER

pytestmark = [
    pytest.mark.usefixtures("installed"),
    pytest.mark.skipif(sys.platform == "win32", reason="Windows has no limit that could be lowered"),
]

FILES = 20_000 if os.environ.get(TIER) == "whole" else 400
LIMIT = 256 if os.environ.get(TIER) == "whole" else 96
"""Hard limit of open files."""

SOFT = 64

APP = """
import flamecore as fc

flow = fc.Flow("words")
flow.source("lines", {type}).key_by(lambda word: {word}).count().sink("counts")
"""
START = """
import resource
import sys

resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))
from flamecore.cli import main

main(prog_name="flamestream")
"""
FORMS = {  # type, its word, header of a file, line of a word
    "lines": ("str", "word", "", "{}\n"),
    "jsonl": ("str", "word", "", '"{}"\n'),
    "csv": ("dict[str, str]", 'word["word"]', "number,word\n", '1,"{}"\n'),
}


class Words:
    """A job that counts words in many files, and the lines of its output."""

    def __init__(self, folder: Path, driver: str, *options: str) -> None:
        self.folder = folder
        type_, word, self._header, self._line = FORMS[driver]
        (folder / "words.py").write_text(APP.format(type=type_, word=word))
        self._start = START.format(soft=SOFT, hard=LIMIT)
        self._options = [
            *("--source", f"lines={driver}", "--sink", "counts=jsonl", "-q"),
            *("--set", "source.lines.path=in", "--set", "sink.counts.path=out.jsonl", *options),
        ]
        (folder / "in").mkdir()
        self._counted: Counter[str] = Counter()
        self.expected: list[str] = []

    def file(self, number: int) -> Path:
        return self.folder / "in" / f"{number:05}"

    def add(self, numbers: range, lines: int) -> None:
        """Add lines to files; files that are read in turn give the lines of each place one after the other."""
        words = {number: [f"w{(number * 7 + line) % 31}" for line in range(lines)] for number in numbers}
        for number, given in words.items():
            header = "" if self.file(number).exists() else self._header
            with self.file(number).open("a") as file:
                file.write(header + "".join(map(self._line.format, given)))
        for line in range(lines):
            for number in numbers:
                word = words[number][line]
                self._counted[word] += 1
                self.expected.append(f'["{word}",{self._counted[word]}]')

    def run(self, expected: int = 0) -> str:
        """Run to the end, with an exit code; return the errors and warnings."""
        line = [sys.executable, "-c", self._start, "run", "words.py", *self._options]
        done = subprocess.run(line, cwd=self.folder, capture_output=True, encoding="utf-8", check=False)
        assert done.returncode == expected, done.stderr
        return done.stderr

    def outputs(self) -> list[str]:
        return (self.folder / "out.jsonl").read_text().splitlines()


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("driver", FORMS)
def test_a_job_reads_more_files_than_a_process_may_have_open(driver: str, workers: int, tmp_path: Path) -> None:
    job = Words(tmp_path, driver, "--set", f"job.workers={workers}")
    job.add(range(FILES), 10)
    assert job.run() == ""
    assert job.outputs() == job.expected


@pytest.mark.parametrize("workers", [1, 2])
def test_a_later_run_reads_many_files_on(workers: int, tmp_path: Path) -> None:
    job = Words(
        *(tmp_path, "lines", "--set", f"job.workers={workers}"),
        *("--set", "state.use=directory", "--set", "state.path=state"),
    )
    job.add(range(FILES), 2)
    assert job.run() == ""
    assert job.outputs() == job.expected

    job.add(range(3, FILES, 7), 3)
    job.file(5).unlink()  # all of it is in the state
    assert "event=partition.removed" in job.run()
    assert job.outputs() == job.expected

    assert job.run() == ""  # with nothing new
    assert job.outputs() == job.expected

    was = job.file(FILES - 1).read_text()
    job.file(FILES - 1).write_text(was.replace("w", "v"))
    error = job.run(2)
    assert f"{job.file(FILES - 1).relative_to(tmp_path)} begins with other bytes than when it was read" in error
    assert job.outputs() == job.expected

    job.file(FILES - 1).write_text(was)
    job.add(range(2), 1)
    assert job.run() == ""
    assert job.outputs() == job.expected


@pytest.mark.parametrize("limit", [6, 9, 12, 15, 16])
@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_a_job_that_may_open_hardly_any_file_runs_or_says_so(tmp_path: Path, limit: int, loop: str) -> None:
    if loop == "uvloop" and find_spec(loop) is None:
        pytest.skip("uvloop is not installed")
    (tmp_path / "words.py").write_text(APP.format(type="str", word="word"))
    (tmp_path / "in.txt").write_text("a\n")
    line = [sys.executable, "-c", START.format(soft=limit, hard=limit), "run", "words.py", "-q"]
    line += ["--source", "lines=lines", "--set", "source.lines.path=in.txt"]
    done = subprocess.run(
        line,
        cwd=tmp_path,
        env={**os.environ, CHOICE: loop},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if limit < 16:
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr.startswith(f"error: this process may have {limit} files open at a time"), done.stderr
    else:
        assert (done.returncode, done.stderr) == (0, "")
