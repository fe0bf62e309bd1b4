"""Fixture that builds the ackers of this plugin by name, as a job does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from flamecore.abc.acker import Acker, AckerPlan
from flamestream_ackers.centralized import Centralized
from flamestream_ackers.local import Local
from flamestream_ackers.sharded import Sharded

DRIVERS: dict[str, type[Acker]] = {driver.name: driver for driver in (Centralized, Local, Sharded)}


def build(name: str, options: Any, plan: AckerPlan) -> Acker:
    driver = DRIVERS[name]
    plan = replace(plan, make=lambda inner, table: build(inner, table, plan))
    return driver(driver.Options(**options) if driver.Options else None, plan)


@pytest.fixture
def acker() -> Callable[..., Callable[[AckerPlan], Acker]]:
    """Return `acker(name, **options)`, which gives a function from plan to acker."""
    return lambda name, **options: lambda plan: build(name, options, plan)
