"""Workers on Spark: whole jobs, what they are refused for, and how they end."""

from __future__ import annotations

from typing import Any

import pytest

from flamecore.registry import Registry
from flamecore.testing.transport_flows import Cell, check_cell


@pytest.mark.parametrize("cell", [Cell("local", 2, "worker", "spark"), Cell("centralized", 1, "own", "spark")], ids=str)
def test_flows_give_what_the_reference_interpreter_gives(spark: Any, cell: Cell) -> None:
    check_cell(Registry().get("transport", "grpc"), cell, limit_s=100)
    assert spark.range(3).count() == 3, "a session that was there is never stopped"
