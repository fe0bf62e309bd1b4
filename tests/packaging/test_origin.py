"""What is tested is what gets installed, never the folder beside the tests."""

from __future__ import annotations

import os
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

import flamecore

in_tox = pytest.mark.skipif("TOX_ENV_NAME" not in os.environ, reason="only tox installs the wheel")


@in_tox
def test_flamecore_is_the_installed_one() -> None:
    assert Path(flamecore.__file__).is_relative_to(sys.prefix)


@in_tox
def test_every_plugin_is_the_installed_one() -> None:
    import importlib

    groups = [group for group in entry_points().groups if group.startswith("flamestream.")]
    points = [point for group in groups for point in entry_points(group=group) if point.dist.name == "flamestream"]  # type: ignore[union-attr]
    assert points
    for package in {point.module.partition(".")[0] for point in points}:
        assert Path(importlib.import_module(package).__file__ or "").is_relative_to(sys.prefix), package
