"""The flows of the conformance suite, for every test that asks for `case`."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest


def _flows() -> ModuleType:
    """Import the module `flows.py` beside this file, which is in no package."""
    name = "flamestream_conformance_flows"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name("flows.py"))
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "case" in metafunc.fixturenames:
        cases = _flows().CASES
        metafunc.parametrize("case", cases, ids=[case.name for case in cases])
