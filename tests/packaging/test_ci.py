"""The last line of .ci/run: it must be right, and a run of nothing must fail."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

CI = Path(__file__).resolve().parents[2] / ".ci"
REPORT, SUM = CI / "report.py", CI / "sum.py"


def summed(folder: Path, code: int = 0, envs: Sequence[tuple[str, Any]] = ()) -> tuple[str, int]:
    """Return the last line and the exit code."""
    journal = folder / "journal.json"
    journal.write_text(json.dumps({"testenvs": dict(envs)}))
    return last_line(folder, journal, code)


def last_line(folder: Path, journal: Path, code: int = 0) -> tuple[str, int]:
    command = [sys.executable, SUM, folder, str(code), journal]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.splitlines()[-1], done.returncode


def env(*commands: str) -> dict[str, Any]:
    """Return an environment's entry in tox's journal, after these commands."""
    ran = {"test": [{"command": command.split(), "retcode": 0} for command in commands]} if commands else {}
    return {**ran, "result": {"success": True, "exit_code": 0, "duration": 1.0}}


def report(folder: Path, name: str, tests: int, failures: int = 0, errors: int = 0, skipped: int = 0) -> None:
    counts = f'tests="{tests}" failures="{failures}" errors="{errors}" skipped="{skipped}"'
    (folder / f"{name}.xml").write_text(f'<testsuites><testsuite name="pytest" {counts}/></testsuites>')


def test_reports_are_summed_up(tmp_path: Path) -> None:
    report(tmp_path, "one", 10, skipped=2)
    report(tmp_path, "two", 5)
    assert summed(tmp_path) == ("13 passed, 0 failed, 2 skipped", 0)


def test_errors_are_failures(tmp_path: Path) -> None:
    report(tmp_path, "one", 10, failures=1, errors=2)
    assert summed(tmp_path) == ("7 passed, 3 failed, 0 skipped", 1)


def test_the_sum_says_why_tests_were_skipped(tmp_path: Path) -> None:
    tests = "import pytest\n" + "".join(f"def test_{n}():\n    pytest.skip('there is no {n % 2}')\n" for n in range(3))
    (tmp_path / "test_it.py").write_text(tests + "def test_it():\n    pass\n")
    run = [sys.executable, "-m", "pytest", "-q", "--rootdir", tmp_path, f"--junit-xml={tmp_path / 'it.xml'}", tmp_path]
    subprocess.run(run, check=True, cwd=tmp_path, stdout=subprocess.DEVNULL)
    (tmp_path / "journal.json").write_text('{"testenvs": {}}')
    command = [sys.executable, SUM, tmp_path, "0", tmp_path / "journal.json"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert said[:3] == ["it: 1 passed, 0 failed, 3 skipped", "skipped 2: there is no 0", "skipped 1: there is no 1"]


@pytest.mark.parametrize("skipped", [0, 3])
def test_a_run_without_tests_fails(tmp_path: Path, skipped: int) -> None:
    report(tmp_path, "one", skipped, skipped=skipped)
    assert summed(tmp_path) == (f"0 passed, 0 failed, {skipped} skipped", 1)


def test_a_run_without_reports_fails(tmp_path: Path) -> None:
    assert summed(tmp_path) == ("0 passed, 0 failed, 0 skipped", 1)


def test_a_report_that_was_cut_short_fails(tmp_path: Path) -> None:
    report(tmp_path, "one", 1)
    (tmp_path / "two.xml").write_text("<testsuites><testsuite")
    assert summed(tmp_path) == ("1 passed, 1 failed, 0 skipped", 1)


def test_an_environment_that_ran_nothing_fails(tmp_path: Path) -> None:
    report(tmp_path, "py311", 1)
    ran = ("py311", env("python .ci/report.py begin x", "pytest"))
    assert summed(tmp_path, envs=[ran, ("py312", env())]) == ("1 passed, 1 failed, 0 skipped", 1)
    assert summed(tmp_path, envs=[ran, ("py312", {})]) == ("1 passed, 0 failed, 0 skipped", 0), "it was not chosen"


def test_an_environment_of_tests_without_a_report_fails(tmp_path: Path) -> None:
    report(tmp_path, "py311", 1)
    envs = [("lint", env("ruff check")), ("py311", env("python .ci/report.py begin x", "pytest"))]
    assert summed(tmp_path, envs=envs) == ("1 passed, 0 failed, 0 skipped", 0)
    envs.append(("py312", env("python .ci/report.py begin x", "pytest")))
    assert summed(tmp_path, envs=envs) == ("1 passed, 1 failed, 0 skipped", 1)


@pytest.mark.parametrize("journal", [None, "", "{}"])
def test_without_the_word_of_tox_it_fails(tmp_path: Path, journal: str | None) -> None:
    report(tmp_path, "py311", 1)
    if journal is not None:
        (tmp_path / "journal.json").write_text(journal)
    assert last_line(tmp_path, tmp_path / "journal.json") == ("1 passed, 1 failed, 0 skipped", 1)


def test_a_failed_check_that_is_no_test_fails_the_run(tmp_path: Path) -> None:
    report(tmp_path, "one", 1)
    assert summed(tmp_path, code=1) == ("1 passed, 0 failed, 0 skipped", 1)


@pytest.mark.parametrize(("ends", "wanted"), [("pass", 0), ("import os; os._exit(0)", 1)])
def test_an_interrupted_run_fails(tmp_path: Path, ends: str, wanted: int) -> None:
    tests, found = tmp_path / "test_it.py", tmp_path / "reports" / "it.xml"
    tests.write_text(f"def test_it():\n    {ends}\n")
    subprocess.run([sys.executable, REPORT, "begin", found], check=True)
    run = [sys.executable, "-m", "pytest", "-q", "--rootdir", tmp_path, f"--junit-xml={found}", tests]
    assert subprocess.run(run, check=False, cwd=tmp_path, stdout=subprocess.DEVNULL).returncode == 0
    assert subprocess.run([sys.executable, REPORT, "end", found], check=False).returncode == wanted
    assert summed(found.parent)[1] == wanted


def test_a_run_of_which_tox_says_nothing_fails(tmp_path: Path) -> None:
    report(tmp_path, "one", 1)
    done = subprocess.run([sys.executable, SUM, tmp_path, "0"], capture_output=True, text=True, check=False)
    assert (done.stdout.splitlines()[-1], done.returncode) == ("1 passed, 1 failed, 0 skipped", 1)
