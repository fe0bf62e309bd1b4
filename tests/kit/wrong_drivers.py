"""The tests that every kit of checks has in common: of drivers that are wrong on purpose, and of a right one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

from flamecore.testing.laws import LawBroken

Check = Callable[[Any], Awaitable[None]]


class WrongDrivers:
    """Holds the checks of a kit against drivers; each kit inherits it as a class that pytest collects.

    Attributes:
        checks: The checks, functions whose names begin with `check_`.
        tests: The class with a test for each check, that authors of drivers inherit.
        right: The driver that all of `wrong` inherit from.
        wrong: For each wrong driver the checks that see it, and the law that each of these finds broken.
        run: Function that runs a check to its end. In virtual time, a wait reaches its limit only where nothing else
            can happen, however busy the machine is; in real time where files, threads or processes are waited for.
    """

    checks: ClassVar[Sequence[Check]]
    tests: ClassVar[type]
    right: ClassVar[type[Any]]
    wrong: ClassVar[Mapping[type[Any], Mapping[str, str]]]
    run: Callable[[Coroutine[Any, Any, None]], None] = staticmethod(asyncio.run)

    def subject(self, driver: type[Any], folder: Path) -> Any:
        """Return what a check is given to check a driver, with nothing left of the check before."""
        raise NotImplementedError

    def broken_laws(self, driver: type[Any], folder: Path) -> dict[str, str]:
        """Return the checks that a driver fails in, by their short names, and the law that each finds broken."""
        broken = {}
        for check in self.checks:
            name = _short_name(check)
            try:
                self.run(_run(check, self.subject(driver, folder / name)))
            except LawBroken as error:
                broken[name] = error.law
        return broken

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        if "driver" in metafunc.fixturenames:
            metafunc.parametrize("driver", self.wrong, ids=lambda driver: driver.__name__)

    def test_each_fails_in_the_checks_meant_for_it(self, driver: type[Any], tmp_path: Path) -> None:
        assert self.broken_laws(driver, tmp_path) == self.wrong[driver]

    def test_the_right_one_fails_in_none(self, tmp_path: Path) -> None:
        assert self.broken_laws(self.right, tmp_path) == {}

    def test_every_check_is_needed(self) -> None:
        assert {name for caught in self.wrong.values() for name in caught} == set(map(_short_name, self.checks))

    def test_the_class_for_pytest_has_every_check(self) -> None:
        names = {name.removeprefix("test_") for name in vars(self.tests) if name.startswith("test_")}
        assert names == set(map(_short_name, self.checks))


def _short_name(check: Check) -> str:
    return check.__name__.removeprefix("check_")


async def _run(check: Check, subject: Any) -> None:
    await check(subject)
