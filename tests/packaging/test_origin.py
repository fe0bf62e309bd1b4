"""The tests run on the installed package, never on the folder beside them."""

from __future__ import annotations

import os
import sys
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path

import pytest

import flamecore

in_tox = pytest.mark.skipif("TOX_ENV_NAME" not in os.environ, reason="only tox installs the wheel")


@in_tox
def test_flamecore_is_the_installed_one() -> None:
    assert Path(flamecore.__file__).is_relative_to(sys.prefix)


@in_tox
def test_every_plugin_is_the_installed_one() -> None:
    groups = [group for group in entry_points().groups if group.startswith("flamestream.")]
    points = [point for group in groups for point in entry_points(group=group)]
    packages = {point.module.partition(".")[0] for point in points if point.dist and point.dist.name == "flamestream"}
    assert packages
    for package in packages:
        spec = find_spec(package)  # does not import it: its client may not be there
        assert spec is not None, package
        assert Path(spec.origin or "").is_relative_to(sys.prefix), package
