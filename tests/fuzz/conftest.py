"""The targets, which the fuzzer imports as `tests.fuzz`: tests do not import from the folder they are in."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="session")
def targets() -> ModuleType:
    """Return the module of the targets."""
    for name in ("schemas", "targets"):
        spec = importlib.util.spec_from_file_location(f"tests.fuzz.{name}", Path(__file__).with_name(f"{name}.py"))
        assert spec is not None
        assert spec.loader is not None
        module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return module
