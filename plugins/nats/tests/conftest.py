"""What the tests of the transport share: a server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from flamecore.errors import MissingDependencyError
from flamecore.testing.nats_server import NatsServer, program


@pytest.fixture(scope="session")
def server() -> Iterator[NatsServer]:
    """A server that goes on running; for tests that leave it alone."""
    try:
        program()
    except MissingDependencyError as error:
        pytest.skip(str(error))
    with NatsServer() as made:
        yield made
