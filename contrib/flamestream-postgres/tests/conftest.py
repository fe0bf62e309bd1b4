"""A server for all tests, if PostgreSQL is installed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from flamestream_postgres.server import NoServerError, Server


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """Yield a server that goes on running, for tests that do not stop it."""
    try:
        made = Server()
    except NoServerError as error:
        pytest.skip(str(error))
    with made:
        yield made
