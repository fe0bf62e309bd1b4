"""FLAMESTREAM_TIER and FLAMESTREAM_DRAW: how many cases of each test run, and which."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

CONFTEST = Path(__file__).resolve().parents[2] / "conftest.py"
TESTS = """
import pytest

def test_without_parameters(): pass

@pytest.mark.parametrize("number", range(20))
def test_of_twenty(number): pass

@pytest.mark.parametrize("number", [1, *(pytest.param(n, marks=pytest.mark.grpc) for n in (2, 3))])
@pytest.mark.parametrize("other", [1, 2])
def test_of_several_marks(number, other): pass

class Kit:
    def test_of_a_kit(self): pass

    @pytest.mark.parametrize("size", [1, 2])
    def test_of_a_kit_with_sizes(self, size): pass

""" + "".join(
    f"""
@pytest.mark.variant("{of}")
class Test{name}(Kit): pass
"""
    for name, of in {"Files": "files", "Memory": "memory", "Synced": "files", "Zipped": "files"}.items()
)


SPARK = """
import pytest

@pytest.fixture
def spark(): pass

def test_without_a_jvm(): pass

def test_in_the_session(spark): pass

@pytest.mark.jvm
def test_in_a_session_of_its_own(): pass

@pytest.mark.smoke
def test_of_the_smoke(spark): pass
"""

FETCHING = """
import pytest

@pytest.fixture
def jars(): pass

@pytest.fixture
def connector(jars): pass

def test_with_jars(jars): pass

def test_with_jars_of_a_fixture(connector): pass

def test_with_a_server(kafka): pass

def test_with_neither(): pass
"""


def played(folder: Path, *options: str, **settings: str) -> list[str]:
    """Return the lines of a run of the tests."""
    (folder / "test_it.py").write_text(TESTS)
    shutil.copy(CONFTEST, folder)
    (folder / "pytest.ini").write_text("[pytest]\nmarkers =\n  grpc\n  jvm\n  smoke\n  variant\n")
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("FLAMESTREAM_", "TOX_"))}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options]
    done = subprocess.run(command, cwd=folder, env={**environ, **settings}, capture_output=True, text=True, check=False)
    return done.stdout.splitlines()


def collected(folder: Path, tier: str, draw: int, *options: str) -> list[str]:
    """Return the cases that run, in their order."""
    lines = played(folder, "-q", "--collect-only", *options, FLAMESTREAM_TIER=tier, FLAMESTREAM_DRAW=str(draw))
    return [line.partition("::")[2] for line in lines if "::" in line]


def counts(cases: list[str]) -> Counter[str]:
    """Return the number of cases of each test outside of classes."""
    return Counter(case.partition("[")[0] for case in cases if "::" not in case)


def test_every_test_keeps_a_part_of_its_cases(tmp_path: Path) -> None:
    some = collected(tmp_path, "quick", 12)
    assert counts(some) == {"test_without_parameters": 1, "test_of_twenty": 2, "test_of_several_marks": 1}
    everything = collected(tmp_path, "whole", 12)
    assert counts(everything) == {"test_without_parameters": 1, "test_of_twenty": 20, "test_of_several_marks": 6}
    assert some == [case for case in everything if case in some], "the order stays"


def test_tests_of_a_kit_run_for_a_part_of_the_variants_of_a_driver(tmp_path: Path) -> None:
    def kits(draw: int) -> list[tuple[str, str]]:
        cases = (case.split("::") for case in collected(tmp_path, "quick", draw) if "::" in case)
        return [(test.partition("[")[0], kit.removeprefix("Test")) for kit, test in cases]

    every, files = ("test_of_a_kit", "test_of_a_kit_with_sizes"), ("Files", "Synced", "Zipped")
    seen: set[tuple[str, str]] = set()
    for draw in range(6):
        found = kits(draw)
        assert Counter(test for test, kit in found if kit == "Memory") == dict.fromkeys(every, 1)
        assert Counter(test for test, kit in found if kit in files) == dict.fromkeys(every, 1)
        seen.update(found)
    assert seen >= {(test, kit) for test in every for kit in files}


def test_tests_of_spark_without_a_jvm_run_in_every_tier(tmp_path: Path) -> None:
    folder = tmp_path / "plugins" / "spark"
    folder.mkdir(parents=True)
    (folder / "test_them.py").write_text(SPARK)
    few = {"test_without_a_jvm": 1, "test_of_the_smoke": 1}
    assert counts(collected(tmp_path, "quick", 12, "plugins")) == few
    every = {**few, "test_in_the_session": 1, "test_in_a_session_of_its_own": 1}
    assert counts(collected(tmp_path, "whole", 12, "plugins")) == every


def test_nothing_is_fetched_by_maven_but_in_the_whole(tmp_path: Path) -> None:
    folder = tmp_path / "plugins"
    folder.mkdir()
    (folder / "test_them.py").write_text(FETCHING)
    for tier in ("quick", "more"):
        assert counts(collected(tmp_path, tier, 12, "plugins")) == {"test_with_neither": 1}
    every = ("test_with_jars", "test_with_jars_of_a_fixture", "test_with_a_server", "test_with_neither")
    assert counts(collected(tmp_path, "whole", 12, "plugins")) == dict.fromkeys(every, 1)


def test_a_part_is_of_those_that_are_chosen(tmp_path: Path) -> None:
    for draw in (1, 2):
        assert counts(collected(tmp_path, "quick", draw, "-m", "grpc")) == {"test_of_several_marks": 1}


def test_the_draw_is_the_commit_and_random_if_the_tree_is_changed(tmp_path: Path) -> None:
    def number() -> str:
        (line,) = (line for line in played(tmp_path, "--collect-only") if "FLAMESTREAM_DRAW=" in line)
        return line.partition("FLAMESTREAM_DRAW=")[2].partition(":")[0]

    def git(*command: str) -> str:
        settings = ("-c", "user.name=me", "-c", "user.email=me@example.org")
        return subprocess.run(
            ["git", *settings, *command], cwd=tmp_path, capture_output=True, text=True, check=True
        ).stdout

    drawn = number()
    git("init", "--quiet")
    (tmp_path / ".gitignore").write_text("__pycache__\n")
    git("add", ".")
    git("commit", "--quiet", "--message", "it")
    assert number() == str(int(git("rev-parse", "HEAD")[:8], 16))
    (tmp_path / "more.py").touch()
    assert number() not in (drawn, str(int(git("rev-parse", "HEAD")[:8], 16)))


def test_a_failure_says_how_to_repeat_it(tmp_path: Path) -> None:
    (tmp_path / "test_wrong.py").write_text("def test_wrong():\n    assert False\n")
    lines = played(tmp_path, FLAMESTREAM_TIER="quick", FLAMESTREAM_DRAW="7")
    command = "FLAMESTREAM_TIER=quick FLAMESTREAM_DRAW=7 pytest 'test_wrong.py::test_wrong'"
    assert any(line.endswith(command) for line in lines), lines
    assert any("left out" in line and "FLAMESTREAM_TIER=whole" in line for line in lines)
