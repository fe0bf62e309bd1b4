"""Fixtures of tests of whole jobs: the transports between processes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from tempfile import TemporaryDirectory

import pytest

GRPC = pytest.param("grpc", marks=pytest.mark.grpc)
NATS = pytest.param("nats", marks=pytest.mark.nats)


@pytest.fixture(params=["socket", GRPC, NATS])
def over(request: pytest.FixtureRequest) -> Iterator[list[str]]:
    """Yield settings that choose a transport between processes."""
    with chosen(request.param) as settings:
        yield settings


@pytest.fixture(params=["socket", GRPC, NATS])
def joinable(request: pytest.FixtureRequest) -> Iterator[list[str]]:
    """Yield settings that choose a transport by which a job can be joined from elsewhere.

    The last one says where, but over gRPC, where each job takes a port of its own.
    """
    with chosen(request.param) as settings, TemporaryDirectory(prefix="fs") as folder:
        yield [*settings, f"transport.socket.folder={folder}"] if request.param == "socket" else settings


@contextmanager
def chosen(transport: str) -> Iterator[list[str]]:
    """Yield the settings that choose a transport, with its server running meanwhile."""
    settings = [f"transport.use={transport}"]
    if transport != "nats":
        yield settings
        return
    from flamestream_nats.testing import NatsServer

    with NatsServer() as server:
        yield [*settings, f'transport.nats.servers=["{server.url}"]']


@pytest.fixture(params=[GRPC])
def grpc(request: pytest.FixtureRequest) -> list[str]:
    """Return settings for tests where one transport is as good as another."""
    return [f"transport.use={request.param}"]
