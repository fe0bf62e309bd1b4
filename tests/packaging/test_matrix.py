"""The interpreters and versions that .ci/run tests on: all that are here and are promised, and no other."""

from __future__ import annotations

import configparser
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
CI = ROOT / ".ci"
NEWEST = 4
"""A draw of the newest release of Spark."""
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))


class Machine:
    """A machine with made-up interpreters, of versions that no real one has."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path, self.pyenv = folder / "bin", folder / "pyenv"
        self.path.mkdir()
        self.pyproject = folder / "pyproject.toml"
        lines = "".join(f'"Programming Language :: Python :: {v}",' for v in ("3", "3.91", "3.92", "3.93"))
        self.pyproject.write_text(f"[project]\nclassifiers = [{lines}]\n")

    def add(self, folder: Path, version: str, answer: str = "cpython {version} with GIL", code: int = 0) -> str:
        """Put an interpreter into a folder; return its path."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"python{version}"
        words = answer.format(version=version).split(" ", 2)
        path.write_text(f"#!/bin/sh\nprintf '%s\\n' {words[0]} {words[1]} '{words[2]}' {path}\nexit {code}\n")
        path.chmod(0o755)
        return str(path)

    def ask(self, draw: int = NEWEST) -> tuple[list[str], str, int]:
        """Return the options for tox, what is said of the interpreters, and the exit code."""
        settings = {"FLAMESTREAM_DRAW": str(draw)}
        done = subprocess.run(
            [sys.executable, CI / "pythons.py", self.pyproject],
            env={**os.environ, "PATH": f"{self.path}:/bin:/usr/bin", "PYENV_ROOT": str(self.pyenv), **settings},
            capture_output=True,
            text=True,
            check=False,
        )
        return done.stdout.splitlines(), done.stderr, done.returncode


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


FAIL_IF_MISSING = ["--skip-missing-interpreters", "false"]


def test_interpreters_of_the_path_and_of_pyenv(machine: Machine) -> None:
    on_path = machine.add(machine.path, "3.91")
    machine.add(machine.pyenv / "versions" / "3.91.4" / "bin", "3.91")
    machine.add(machine.pyenv / "versions" / "3.92.9" / "bin", "3.92")
    newest = machine.add(machine.pyenv / "versions" / "3.92.10" / "bin", "3.92")
    last = machine.add(machine.pyenv / "versions" / "3.93.0" / "bin", "3.93")
    machine.add(machine.pyenv / "versions" / "3.94.0" / "bin", "3.94")  # not promised
    options, said, code = machine.ask()
    folders = os.pathsep.join(str(Path(path).parent) for path in (on_path, newest, last))
    assert options == [folders, *FAIL_IF_MISSING, "-e", "py393-clients-more,spark-more"]
    assert said.splitlines() == [f"Python 3.91: {on_path}", f"Python 3.92: {newest}", f"Python 3.93: {last}"]
    assert code == 0


def test_versions_that_are_not_here_are_left_out(machine: Machine) -> None:
    only = machine.add(machine.path, "3.92")
    options, said, code = machine.ask()
    assert options == [str(Path(only).parent), *FAIL_IF_MISSING, "-e", "py392-clients-more,spark-more"]
    assert "Python 3.91: not here\n" in said
    assert code == 0


def test_a_shim_without_a_version_hides_no_interpreter(machine: Machine) -> None:
    shim = machine.add(machine.path, "3.91", code=127)
    real = machine.add(machine.pyenv / "versions" / "3.91.4" / "bin", "3.91")
    options, said, _ = machine.ask()
    assert options[:3] == [str(Path(real).parent), *FAIL_IF_MISSING]
    assert f"{shim} is not used" in said
    assert "127" in said


@pytest.mark.parametrize(
    "answer", ["pypy {version} with GIL", "cpython 3.50 with GIL", "cpython {version} without GIL"]
)
def test_other_pythons_are_not_taken_for_it(machine: Machine, answer: str) -> None:
    real = machine.add(machine.path, "3.91")
    other = machine.add(machine.path, "3.92", answer)
    options, said, _ = machine.ask()
    assert options == [str(Path(real).parent), *FAIL_IF_MISSING, "-e", "py391-clients-more,spark-more"]
    assert f"{other} is not used: it is {answer.format(version='3.92')}" in said


def test_the_smoke_of_spark_takes_turns_with_the_releases_that_all_tests_run_on(
    machine: Machine, tox: configparser.ConfigParser
) -> None:
    machine.add(machine.path, "3.91")
    asked = Counter(machine.ask(draw)[0][-1].removeprefix("py391-clients-more,") for draw in range(40))
    older = re.search(r"py311-spark-on\{([\d,]+)\}-whole", tox["tox"]["labels"])
    assert older is not None
    releases = older[1].split(",")
    assert len(asked) > 2
    assert set(asked) - {f"spark-on{release}-more" for release in releases} == {"spark-more"}
    assert all(f"on{release}: pyspark=={release[0]}.{release[1:]}.*" in tox["testenv"]["deps"] for release in releases)


def test_nothing_to_test_on_is_a_failure(machine: Machine) -> None:
    machine.add(machine.path, "3.94")
    options, said, code = machine.ask()
    assert (options, code) == ([], 1)
    assert "3.91, 3.92, 3.93" in said


@pytest.fixture(scope="module")
def tox() -> configparser.ConfigParser:
    """Read the file tox.ini."""
    read = configparser.ConfigParser(interpolation=None)
    read.read(ROOT / "tox.ini")
    return read


def test_tox_has_the_versions_that_the_project_promises(tox: configparser.ConfigParser) -> None:
    prefix = "Programming Language :: Python :: 3."
    minor = [line.removeprefix(prefix) for line in PROJECT["project"]["classifiers"] if line.startswith(prefix)]
    assert f"py3{{{','.join(minor)}}}-{{clients,spark}}-whole," in tox["tox"]["labels"]
    assert tox["testenv:oldest"]["base_python"] == f"python3.{minor[0]}"
    assert f"py3{minor[-1]}-clients-more" in tox["tox"]["labels"]
    assert PROJECT["project"]["requires-python"] == f">=3.{minor[0]}"


def test_no_file_of_tests_is_left_out(tox: configparser.ConfigParser) -> None:
    named = [*tox["tests"].values(), *(tox[env]["commands"] for env in ("testenv", "testenv:docs", "testenv:package"))]
    searched = {word.strip("}").removeprefix("{posargs:") for word in " ".join(named).split()}
    files = [path.relative_to(ROOT) for top in ("tests", "plugins") for path in (ROOT / top).rglob("test_*.py")]
    assert [file for file in files if searched.isdisjoint(map(str, (file, *file.parents)))] == []


@pytest.fixture
def checkout(machine: Machine) -> Path:
    """Make a checkout with a tox that prints its arguments.

    It leaves the reports that the test has put there.
    """
    folder = machine.folder / "checkout"
    shutil.copytree(CI, folder / ".ci")
    draws = folder / "flamecore" / "testing" / "draws.py"
    draws.parent.mkdir(parents=True)
    shutil.copy(ROOT / "flamecore" / "testing" / "draws.py", draws)
    shutil.copy(machine.pyproject, folder)
    home = folder / "home" / "bin"
    home.mkdir(parents=True)
    (home / "python").write_text(f'#!/bin/sh\n[ "$2" = pip ] && exit 0\nexec "{sys.executable}" "$@"\n')
    (home / "tox").write_text(
        "#!/bin/sh\n"
        'echo "$@" >>asked\n'
        'cp left.xml "$FLAMESTREAM_REPORTS/py392-core.xml"\n'
        'for last; do true; done; cp left.json "$last"\n'
        "exit 0\n"
    )
    for program in home.iterdir():
        program.chmod(0o755)
    machine.add(machine.path, "3.92")
    (folder / "left.xml").write_text(
        '<testsuites><testsuite tests="2" failures="0" errors="0" skipped="0"/></testsuites>'
    )
    ran = {"result": {"success": True}, "test": [{"command": ["python", ".ci/report.py"]}]}
    (folder / "left.json").write_text(json.dumps({"testenvs": {"py392-core": ran}}))
    return folder


def run(machine: Machine, checkout: Path, *arguments: str, **settings: str) -> tuple[int, list[str]]:
    """Run .ci/run; return its exit code, and its lines."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("FLAMESTREAM_", "TOX"))}
    environ |= {"PATH": f"{machine.path}:/bin:/usr/bin", "PYENV_ROOT": str(machine.pyenv), "PYTHON": sys.executable}
    environ |= {"FLAMESTREAM_CI_VENV": str(checkout / "home"), "FLAMESTREAM_DRAW": str(NEWEST), **settings}
    command = ["bash", checkout / ".ci" / "run", *arguments]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout.splitlines()


JOURNAL = "--result-json .tox/journal"


def test_a_run_asks_for_what_the_readme_says_and_then_for_more(machine: Machine, checkout: Path) -> None:
    code, lines = run(machine, checkout)
    assert (code, lines[-1]) == (0, "2 passed, 0 failed, 0 skipped")
    here = " ".join([*FAIL_IF_MISSING, "-e", "py392-clients-more,spark-more"])
    more = f"run {here} {JOURNAL}-more.json"
    assert (checkout / "asked").read_text().splitlines() == [f"run {JOURNAL}-quick.json", more]


def test_a_run_without_interpreters_for_more_fails_and_repeats_nothing(machine: Machine, checkout: Path) -> None:
    (machine.path / "python3.92").unlink()
    code, lines = run(machine, checkout)
    assert (code, lines[-1]) == (2, "2 passed, 0 failed, 0 skipped")
    assert (checkout / "asked").read_text().splitlines() == [f"run {JOURNAL}-quick.json"]


def test_a_run_asks_for_what_it_is_told(machine: Machine, checkout: Path) -> None:
    code, lines = run(machine, checkout, "-e", "py392-core")
    assert (code, lines[-1]) == (0, "2 passed, 0 failed, 0 skipped")
    assert (checkout / "asked").read_text() == f"run -e py392-core {JOURNAL}-asked.json\n"


def test_an_interpreter_that_tox_skips_fails_the_run(machine: Machine, checkout: Path) -> None:
    journal = json.loads((checkout / "left.json").read_text())
    journal["testenvs"]["py391-core"] = {"result": {"success": True, "exit_code": 0}}
    (checkout / "left.json").write_text(json.dumps(journal))
    code, lines = run(machine, checkout, "-e", "py391-core")
    assert (code, lines[-1]) == (1, "2 passed, 1 failed, 0 skipped")
    assert any(line.startswith("py391-core: none of its commands has run") for line in lines)


STILL = """#!{python}
import signal, time

signal.signal(signal.SIGINT, signal.default_int_handler)
try:
    time.sleep(60)
except KeyboardInterrupt:
    raise SystemExit(print("tox says how far it has come")) from None
"""


def test_a_run_that_stands_still_is_interrupted(machine: Machine, checkout: Path) -> None:
    (checkout / "home" / "bin" / "tox").write_text(STILL.format(python=sys.executable))
    code, lines = run(machine, checkout, FLAMESTREAM_CI_LIMIT="5s")
    assert code == 124
    assert lines[0] == "tox says how far it has come"
    assert lines[-1] == "0 passed, 1 failed, 0 skipped"


def test_pip_makes_the_environments_where_its_configuration_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    plugin = ModuleType("tox.plugin")
    plugin.impl = lambda **_: lambda function: function  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "tox", ModuleType("tox"))
    monkeypatch.setitem(sys.modules, "tox.plugin", plugin)
    toxfile = runpy.run_path(str(ROOT / "toxfile.py"))
    lines = ["global.cert='/etc/cert'", "global.index-url='https://example.org'", ":env:.constraint='bounds.txt'"]
    assert toxfile["configured"](lines) == ["constraint", "index-url"]
    assert toxfile["configured"](lines[:1]) == []
