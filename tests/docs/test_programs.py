"""Every program and every command in the documentation is run, and prints what the text says it prints.

Each page has a folder of its own, with a copy of `examples/`, and is worked through from top to bottom:

* a `python` block runs, and what it defines is there for the blocks after it; one that starts with `>>>` is a session;
* a block that starts with a comment that is a file name (`# job.toml`) becomes that file;
* other `toml` blocks must be TOML;
* in a `console` block each `$ command` runs, and prints the lines below it, if there are any; `...` stands for any
  text. A command that fails is a failure, unless it says so: `; echo "exit code $?"`;
* `<!--- skip: next -->` leaves out the next block, which changes the machine, or never ends.
"""

from __future__ import annotations

import doctest
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from sybil import Example, Sybil
from sybil.evaluators.python import PythonEvaluator
from sybil.parsers.markdown import CodeBlockParser, PythonCodeBlockParser, SkipParser

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    [
        *(ROOT / "docs").rglob("*.md"),
        *ROOT.glob("*.md"),
        *(ROOT / "plugins").glob("*/README.md"),
    ]
)
FILE_NAME = re.compile(r"# ([\w/.-]+\.\w+)\n")
MOST_S = 60

_python = PythonEvaluator()
_same = doctest.OutputChecker().check_output


def write_file(source: str) -> bool:
    """Make the file that a block is, if it is one."""
    match = FILE_NAME.match(source)
    if match is None:
        return False
    path = Path(match[1])
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(source, "utf-8")
    return True


def evaluate_python(example: Example) -> None:
    if not write_file(example.parsed):
        _python(example)


def evaluate_toml(example: Example) -> None:
    if not write_file(example.parsed):
        tomllib.loads(example.parsed)


def evaluate_console(example: Example) -> str | None:
    for step in re.split(r"^\$ ", example.parsed, flags=re.MULTILINE):
        if not step.strip():
            continue
        # A command goes on in the next line after a backslash.
        command, wanted = re.match(r"((?:.*\\\n)*.*)\n?((?:.*\n?)*)", step).groups()  # type: ignore[union-attr]
        found, code = run(command)
        if code:
            return f"{example.path}:{example.line}: $ {command}\nends with exit code {code}:\n{found}"
        if wanted.strip() and not _same(wanted, found, doctest.ELLIPSIS | doctest.REPORT_NDIFF):
            return f"{example.path}:{example.line}: $ {command}\nprints\n{found}\nand the page says\n{wanted}"
    return None


def run(command: str) -> tuple[str, int]:
    """Return the outputs of a command, and its exit code."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    done = subprocess.run(
        ["bash", "-c", command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=MOST_S,
        env={**os.environ, "PATH": path, "COLUMNS": "110", "PYTHONWARNINGS": "error"},
    )
    return re.sub(r"[ \t]+$", "", done.stdout, flags=re.MULTILINE), done.returncode


class PythonParser(PythonCodeBlockParser):
    """Python blocks, of which some are files."""

    def __init__(self) -> None:
        super().__init__(doctest_optionflags=doctest.ELLIPSIS | doctest.REPORT_NDIFF)
        self.codeblock_parser = CodeBlockParser("python", evaluate_python)


sybil = Sybil(
    [
        PythonParser(),
        CodeBlockParser("toml", evaluate_toml),
        CodeBlockParser("console", evaluate_console),
        SkipParser(),
    ]
)


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_the_programs_of_a_page_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(ROOT / "examples", tmp_path / "examples", ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    known = set(sys.modules)
    try:
        for example in sybil.parse(page):
            example.evaluate()
    finally:
        for name in set(sys.modules) - known:
            if str(getattr(sys.modules[name], "__file__", None) or "").startswith(str(tmp_path)):
                del sys.modules[name]


def test_there_are_pages_with_programs() -> None:
    assert len(PAGES) > 10
