"""Modules that flows of these tests replace or remove are there again after each."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def modules_of_other_tests() -> Iterator[None]:
    """Restore the modules of this process: a task imports a flow anew, here in the process of all tests."""
    before = dict(sys.modules)
    yield
    sys.modules.update(before)
