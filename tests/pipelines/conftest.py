"""Fixtures of tests of whole jobs: the transports between processes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(params=[pytest.param("grpc", marks=pytest.mark.grpc), pytest.param("nats", marks=pytest.mark.nats)])
def over(request: pytest.FixtureRequest) -> Iterator[list[str]]:
    """Yield settings that choose a transport between processes."""
    chosen = [f"transport.use={request.param}"]
    if request.param == "grpc":
        yield chosen
        return
    from flamestream_nats.testing import NatsServer

    with NatsServer() as server:
        yield [*chosen, f'transport.nats.servers=["{server.url}"]']


@pytest.fixture(params=[pytest.param("grpc", marks=pytest.mark.grpc)])
def grpc(request: pytest.FixtureRequest) -> list[str]:
    """Return settings for tests where one transport is as good as another."""
    return [f"transport.use={request.param}"]
