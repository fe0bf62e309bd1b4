"""What tests of whole jobs share: the transports between processes."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

import pytest


@pytest.fixture(params=["grpc", "nats"])
def over(request: pytest.FixtureRequest) -> Iterator[list[str]]:
    """Settings that choose a transport between processes."""
    transport = request.param
    if find_spec({"grpc": "grpc", "nats": "nats"}[transport]) is None:
        pytest.skip(f"the client of {transport} is not installed")
    chosen = [f"transport.use={transport}"]
    if transport == "grpc":
        yield chosen
        return
    from flamestream_nats.testing import NatsServer

    with NatsServer() as server:
        yield [*chosen, f'transport.nats.servers=["{server.url}"]']


@pytest.fixture
def grpc() -> list[str]:
    """The same, where one transport is as good as another."""
    if find_spec("grpc") is None:
        pytest.skip("the client of grpc is not installed")
    return ["transport.use=grpc"]
