"""The kit for stores is tested: each wrong store fails in the checks meant for it, and only there."""

from __future__ import annotations

from pathlib import Path

import pytest
from wrong_drivers import WrongDrivers
from wrong_stores import WRONG, Files

from flamecore.testing.checks import stores as kit

LARGE_BYTES = 2**20


class TestWrongStores(WrongDrivers):
    checks = kit.CHECKS
    tests = kit.StoreTests
    right = Files
    wrong = WRONG

    def subject(self, driver: type[Files], folder: Path) -> kit.Setup:
        return kit.Setup(lambda context: driver(None, context), folder, LARGE_BYTES, driver.limit_s)


def test_a_class_without_make_says_so(tmp_path: Path) -> None:
    with pytest.raises(NotImplementedError, match="make"):
        kit.StoreTests().test_once(tmp_path)
