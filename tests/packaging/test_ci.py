"""The last line of .ci/run: it must be right, and a run of nothing must fail."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

REPORT = Path(__file__).resolve().parents[2] / ".ci" / "report.py"
SUM = Path(__file__).resolve().parents[2] / ".ci" / "sum.py"


def summed(folder: Path, code: int = 0) -> tuple[str, int]:
    """The last line, and the exit code."""
    done = subprocess.run([sys.executable, SUM, folder, str(code)], capture_output=True, text=True, check=False)
    return done.stdout.splitlines()[-1], done.returncode


def report(folder: Path, name: str, tests: int, failures: int = 0, errors: int = 0, skipped: int = 0) -> None:
    counts = f'tests="{tests}" failures="{failures}" errors="{errors}" skipped="{skipped}"'
    (folder / f"{name}.xml").write_text(f'<testsuites><testsuite name="pytest" {counts}/></testsuites>')


def test_sums_up(tmp_path: Path) -> None:
    report(tmp_path, "one", 10, skipped=2)
    report(tmp_path, "two", 5)
    assert summed(tmp_path) == ("13 passed, 0 failed, 2 skipped", 0)


def test_errors_are_failures(tmp_path: Path) -> None:
    report(tmp_path, "one", 10, failures=1, errors=2)
    assert summed(tmp_path) == ("7 passed, 3 failed, 0 skipped", 1)


@pytest.mark.parametrize("skipped", [0, 3])
def test_a_run_of_nothing_fails(tmp_path: Path, skipped: int) -> None:
    report(tmp_path, "one", skipped, skipped=skipped)
    assert summed(tmp_path) == (f"0 passed, 0 failed, {skipped} skipped", 1)


def test_no_report_at_all_fails(tmp_path: Path) -> None:
    assert summed(tmp_path) == ("0 passed, 0 failed, 0 skipped", 1)


def test_a_report_that_was_cut_short_fails(tmp_path: Path) -> None:
    report(tmp_path, "one", 1)
    (tmp_path / "two.xml").write_text("<testsuites><testsuite")
    assert summed(tmp_path) == ("1 passed, 1 failed, 0 skipped", 1)


def test_what_is_not_a_test_can_fail_too(tmp_path: Path) -> None:
    report(tmp_path, "one", 1)
    assert summed(tmp_path, code=1) == ("1 passed, 0 failed, 0 skipped", 1)


@pytest.mark.parametrize(("ends", "wanted"), [("pass", 0), ("import os; os._exit(0)", 1)])
def test_a_run_that_ends_in_the_midst_of_it_fails(tmp_path: Path, ends: str, wanted: int) -> None:
    tests, found = tmp_path / "test_it.py", tmp_path / "reports" / "it.xml"
    tests.write_text(f"def test_it():\n    {ends}\n")
    subprocess.run([sys.executable, REPORT, "begin", found], check=True)
    run = [sys.executable, "-m", "pytest", "-q", "--rootdir", tmp_path, f"--junit-xml={found}", tests]
    assert subprocess.run(run, check=False, cwd=tmp_path, stdout=subprocess.DEVNULL).returncode == 0
    assert subprocess.run([sys.executable, REPORT, "end", found], check=False).returncode == wanted
    assert summed(found.parent)[1] == wanted
