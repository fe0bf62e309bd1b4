"""The interpreters and versions that .ci/run tests on: all that are here and are promised, and no other."""

from __future__ import annotations

import configparser
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CI = ROOT / ".ci"
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

    def ask(self) -> tuple[list[str], str, int]:
        """Return the options for tox, what is said of the interpreters, and the exit code."""
        done = subprocess.run(
            [sys.executable, CI / "pythons.py", self.pyproject],
            env={**os.environ, "PATH": f"{self.path}:/bin:/usr/bin", "PYENV_ROOT": str(self.pyenv)},
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        return done.stdout.splitlines(), done.stderr, done.returncode


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


FAIL_IF_MISSING = ["--skip-missing-interpreters", "false", "--discover"]


def test_interpreters_of_the_path_and_of_pyenv(machine: Machine) -> None:
    on_path = machine.add(machine.path, "3.91")
    machine.add(machine.pyenv / "versions" / "3.91.4" / "bin", "3.91")
    machine.add(machine.pyenv / "versions" / "3.92.9" / "bin", "3.92")
    newest = machine.add(machine.pyenv / "versions" / "3.92.10" / "bin", "3.92")
    last = machine.add(machine.pyenv / "versions" / "3.93.0" / "bin", "3.93")
    machine.add(machine.pyenv / "versions" / "3.94.0" / "bin", "3.94")  # not promised
    options, said, code = machine.ask()
    assert options == [*FAIL_IF_MISSING, on_path, newest, last]
    assert said.splitlines() == [f"Python 3.91: {on_path}", f"Python 3.92: {newest}", f"Python 3.93: {last}"]
    assert code == 0


def test_versions_that_are_not_here_are_left_out(machine: Machine) -> None:
    only = machine.add(machine.path, "3.92")
    options, said, code = machine.ask()
    assert options == [*FAIL_IF_MISSING, only, "--skip-env", "py(391|393)-"]
    assert "Python 3.91: not here\n" in said
    assert code == 0


def test_a_shim_without_a_version_hides_no_interpreter(machine: Machine) -> None:
    shim = machine.add(machine.path, "3.91", code=127)
    real = machine.add(machine.pyenv / "versions" / "3.91.4" / "bin", "3.91")
    options, said, _ = machine.ask()
    assert options[:4] == [*FAIL_IF_MISSING, real]
    assert f"{shim} is not used" in said
    assert "127" in said


@pytest.mark.parametrize(
    "answer", ["pypy {version} with GIL", "cpython 3.50 with GIL", "cpython {version} without GIL"]
)
def test_other_pythons_are_not_taken_for_it(machine: Machine, answer: str) -> None:
    real = machine.add(machine.path, "3.91")
    other = machine.add(machine.path, "3.92", answer)
    options, said, _ = machine.ask()
    assert options == [*FAIL_IF_MISSING, real, "--skip-env", "py(392|393)-"]
    assert f"{other} is not used: it is {answer.format(version='3.92')}" in said


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
    assert f"py3{{{','.join(minor)}}}-{{core,spark,grpc," in tox["tox"]["env_list"]
    assert f"py3{minor[0]}-{{core,kit,grpc,nats,hosts,spark}}" in tox["tox"]["labels"]
    assert [f"py3{version}-core" in tox["tox"]["labels"] for version in minor[1:-1]] == [True] * (len(minor) - 2)
    assert f"py3{minor[-1]}-{{core,kit,grpc}}" in tox["tox"]["labels"]
    assert PROJECT["project"]["requires-python"] == f">=3.{minor[0]}"


@pytest.mark.parametrize("grpc", [True, False])
@pytest.mark.parametrize("nats", [True, False])
def test_one_environment_has_the_clients_that_a_test_needs(
    tox: configparser.ConfigParser, grpc: bool, nats: bool
) -> None:
    selections = re.findall(r'-m "([^"]+)" \{\[tests\]folders\}', tox["testenv"]["commands"])
    assert sum(eval(selection, {"grpc": grpc, "nats": nats}) for selection in selections) == 1, selections


def test_no_file_of_tests_is_left_out(tox: configparser.ConfigParser) -> None:
    named = [tox["tests"]["folders"], *(tox[env]["commands"] for env in ("testenv", "testenv:docs", "testenv:package"))]
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
    shutil.copy(machine.pyproject, folder)
    home = folder / "home" / "bin"
    home.mkdir(parents=True)
    (home / "python").write_text(f'#!/bin/sh\n[ "$2" = pip ] && exit 0\nexec "{sys.executable}" "$@"\n')
    (home / "tox").write_text(
        "#!/bin/sh\n"
        'printf "%s\\n" "$@" >asked\n'
        'echo "$FLAMESTREAM_SEEDS $FLAMESTREAM_CASES" >shares\n'
        'cp left.xml "$FLAMESTREAM_REPORTS/py392-core.xml"\n'
        'cp left.json "$6"\n'
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
    environ |= {"FLAMESTREAM_CI_VENV": str(checkout / "home"), **settings}
    command = ["bash", checkout / ".ci" / "run", *arguments]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False, timeout=100)
    return done.returncode, done.stdout.splitlines()


@pytest.mark.parametrize(
    ("arguments", "matrix", "chosen"),
    [
        ((), None, ["-m", "ci"]),
        ((), "whole", []),
        (("-e", "py392-core"), None, ["-e", "py392-core"]),
        (("-e", "py392-core"), "whole", ["-e", "py392-core"]),
    ],
)
def test_a_run_asks_for_its_part_of_the_matrix(
    machine: Machine, checkout: Path, arguments: tuple[str, ...], matrix: str | None, chosen: list[str]
) -> None:
    code, lines = run(machine, checkout, *arguments, **({"FLAMESTREAM_CI_MATRIX": matrix} if matrix else {}))
    assert (code, lines[-1]) == (0, "2 passed, 0 failed, 0 skipped")
    asked = (checkout / "asked").read_text().splitlines()
    cores = os.cpu_count() or 1
    assert asked[:5] == ["run-parallel", "--parallel", str(2 * cores), "--parallel-no-spinner", "--result-json"]
    assert asked[6:] == [*FAIL_IF_MISSING, str(machine.path / "python3.92"), "--skip-env", "py(391|393)-", *chosen]


@pytest.mark.parametrize(("matrix", "shares"), [(None, " "), ("whole", "1 1")])
def test_the_whole_matrix_has_all_seeds_and_cases(
    machine: Machine, checkout: Path, matrix: str | None, shares: str
) -> None:
    run(machine, checkout, **({"FLAMESTREAM_CI_MATRIX": matrix} if matrix else {}))
    assert (checkout / "shares").read_text() == f"{shares}\n"


def test_a_run_knows_no_other_matrix(machine: Machine, checkout: Path) -> None:
    assert run(machine, checkout, FLAMESTREAM_CI_MATRIX="hole")[0] == 2
    assert not (checkout / "asked").exists()


def test_an_interpreter_that_tox_skips_fails_the_run(machine: Machine, checkout: Path) -> None:
    journal = json.loads((checkout / "left.json").read_text())
    journal["testenvs"]["py391-core"] = {"result": {"success": True, "exit_code": 0}}
    (checkout / "left.json").write_text(json.dumps(journal))
    code, lines = run(machine, checkout)
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
