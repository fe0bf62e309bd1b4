"""The environment of the oldest versions: every dependency is held at the bound that pyproject.toml gives."""

from __future__ import annotations

import importlib.util
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def lowest() -> ModuleType:
    spec = importlib.util.spec_from_file_location("lowest", ROOT / ".ci" / "lowest.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_bounds_of_project_extras_and_tests(lowest: ModuleType) -> None:
    project = {
        "project": {
            "dependencies": ["click>=8.2", "Rich >= 14"],
            "optional-dependencies": {
                "one": ["grpcio>=1.76,<2"],
                "two": ["grpcio<2,>=1.76", "a.b_c[x,y]>=1; python>'3'"],
            },
        },
        "dependency-groups": {"test": ["pytest>=8.4"], "lint": ["ruff>=0.12"]},
    }
    found = lowest.constraints(lowest.requirements(project))
    assert found == ["a-b-c==1", "click==8.2", "grpcio==1.76", "pytest==8.4", "rich==14"]


@pytest.mark.parametrize("asked", [["click"], ["click<9"], ["click==8"], ["click>=8", "click>=8.1"], [">=8"]])
def test_a_dependency_without_one_lower_bound_is_an_error(lowest: ModuleType, asked: list[str]) -> None:
    with pytest.raises(ValueError, match="lower bound"):
        lowest.constraints(asked)


def test_every_dependency_has_a_lower_bound(lowest: ModuleType) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    names = {line.partition("==")[0] for line in lowest.constraints(lowest.requirements(project))}
    assert {"click", "grpcio", "pytest", "numpy"} <= names
