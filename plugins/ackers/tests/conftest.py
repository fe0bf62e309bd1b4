"""Builds the ackers of this plugin as a job does, by name."""

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
    """`acker(name, **options)` gives what the kit wants: a function that builds the acker for a plan."""
    return lambda name, **options: lambda plan: build(name, options, plan)
