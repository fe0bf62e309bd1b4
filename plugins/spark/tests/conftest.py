"""Fixtures of all tests: one session of Spark."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from flamestream_spark.session.session import session


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """Yield a session that runs four tasks at once, on this machine."""
    with session("local[4]", {"spark.sql.shuffle.partitions": "2", "spark.sql.session.timeZone": "UTC"}) as made:
        yield made
