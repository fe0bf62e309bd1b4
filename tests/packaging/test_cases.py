"""FLAMESTREAM_CASES: the part of each test's cases that a version of Python runs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

CONFTEST = Path(__file__).resolve().parents[2] / "conftest.py"
TESTS = """
import pytest

def test_without_parameters(): pass

@pytest.mark.parametrize("number", range(8))
def test_of_eight(number): pass

@pytest.mark.parametrize("number", [1, *(pytest.param(n, marks=pytest.mark.grpc) for n in (2, 3))])
@pytest.mark.parametrize("other", [1, 2])
def test_of_several_marks(number, other): pass
"""


def collected(folder: Path, share: str, version: int, *options: str) -> list[str]:
    """Return the cases that run on a version, its minor number given, in their order."""
    (folder / "test_it.py").write_text(TESTS)
    shutil.copy(CONFTEST, folder)
    (folder / "pytest.ini").write_text("[pytest]\nmarkers = grpc\n")
    (folder / "other_version.py").write_text(
        "import collections, sys\n"
        "Version = collections.namedtuple('Version', 'major minor micro releaselevel serial')\n"
        f"def pytest_collection(): sys.version_info = Version(3, {version}, 0, 'final', 0)\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "--collect-only", "-p", "other_version", *options]
    done = subprocess.run(
        command, cwd=folder, env={**os.environ, "FLAMESTREAM_CASES": share}, capture_output=True, text=True, check=True
    )
    return [line.partition("::")[2] for line in done.stdout.splitlines() if "::" in line]


def counts(cases: list[str]) -> Counter[str]:
    return Counter(case.partition("[")[0] for case in cases)


def test_every_test_keeps_a_part_of_its_cases(tmp_path: Path) -> None:
    some = collected(tmp_path, "0.25", 12)
    assert counts(some) == {"test_without_parameters": 1, "test_of_eight": 2, "test_of_several_marks": 2}
    everything = collected(tmp_path, "1", 12)
    assert counts(everything) == {"test_without_parameters": 1, "test_of_eight": 8, "test_of_several_marks": 6}
    assert some == [case for case in everything if case in some], "the order stays"


def test_versions_in_a_row_take_different_cases(tmp_path: Path) -> None:
    of = {version: set(collected(tmp_path, "0.25", version, "-k", "eight")) for version in (10, 11, 12, 13)}
    assert {len(cases) for cases in of.values()} == {2}
    assert len(set.union(*of.values())) == 8


@pytest.mark.parametrize("mark", ["grpc", "not grpc"])
def test_a_part_is_of_those_that_run_in_the_environment(tmp_path: Path, mark: str) -> None:
    assert counts(collected(tmp_path, "0.1", 13, "-m", mark))["test_of_several_marks"] == 1
