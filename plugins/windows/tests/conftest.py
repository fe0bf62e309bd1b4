"""Fixtures of the windows' tests: seeds of drawn runs, and cases, those of the plugin and those beside the checkout."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flamecore.testing import draws

HERE = Path(__file__).resolve().parent
SHARED = Path(os.environ.get("FLAMESTREAM_DATA", HERE.parents[3] / "shared" / "data")) / "trigger_cases.json"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make a test of each case: `own_case` of the plugin's own file, `shared_case` of the folder of data."""
    if "own_case" in metafunc.fixturenames:
        _parametrize(metafunc, "own_case", HERE / "cases.json")
    if "shared_case" in metafunc.fixturenames:
        if SHARED.is_file():
            _parametrize(metafunc, "shared_case", SHARED)
        else:
            reason = f"no cases at {SHARED}; set FLAMESTREAM_DATA to the folder that holds trigger_cases.json"
            metafunc.parametrize("shared_case", [pytest.param({}, marks=pytest.mark.skip(reason), id="none")])


def _parametrize(metafunc: pytest.Metafunc, name: str, path: Path) -> None:
    cases: list[dict[str, Any]] = json.loads(path.read_text("utf-8"))["cases"]
    metafunc.parametrize(name, cases, ids=[case["id"] for case in cases])


@pytest.fixture(scope="session")
def own_cases() -> list[dict[str, Any]]:
    """All cases of the plugin."""
    cases: list[dict[str, Any]] = json.loads((HERE / "cases.json").read_text("utf-8"))["cases"]
    return cases


@pytest.fixture(scope="session")
def seeds() -> Callable[..., range]:
    """Return the seeds of so many runs, or of the part of that number among parts of so many."""
    return draws.seeds
