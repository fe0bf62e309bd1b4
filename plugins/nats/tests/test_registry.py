"""The registry against its contract: restarts, no JetStream, no permission."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from flamecore.abc.registry import JobRegistry, RegistryContext
from flamecore.errors import ConfigError, RegistryError, TransportError
from flamecore.testing.checks.registries import RegistryTests
from flamecore.testing.progress import patience
from flamestream_nats.options import RegistryOptions
from flamestream_nats.registry import NatsRegistry, flamestream_registry
from flamestream_nats.testing import NatsServer

LIMIT_S = 20.0


def made(url: str, **options: Any) -> NatsRegistry:
    return NatsRegistry(RegistryOptions(servers=(url,), **options), RegistryContext(node="here"))


class TestRegistry(RegistryTests):
    @pytest.fixture(autouse=True)
    def _serve(self, storing: NatsServer) -> None:
        self.server = storing

    def make(self) -> JobRegistry:
        return made(self.server.url)


def test_the_module_provides_the_registry() -> None:
    assert flamestream_registry() is NatsRegistry
    registry = NatsRegistry(None, RegistryContext())
    assert registry.options == RegistryOptions()
    assert registry.capabilities.shared
    asyncio.run(registry.aclose())


async def trouble(registry: JobRegistry) -> RegistryError:
    """Return the error of a request; answers that were on their way are skipped."""
    while True:
        try:
            await registry.get("a")
        except RegistryError as error:
            return error


def test_entries_survive_the_server(storing: NatsServer) -> None:
    async def run() -> None:
        async with patience(LIMIT_S):
            registry = made(storing.url)
            await registry.open()
            try:
                revision = await registry.create("a", b"x")
                storing.kill()
                await trouble(registry)
                storing.start()
                while True:
                    try:
                        assert await registry.get("a") == (b"x", revision)
                        break
                    except RegistryError:
                        continue  # it is not back yet
            finally:
                await registry.aclose()

    asyncio.run(run())


def test_a_server_that_stays_away_is_given_up() -> None:
    async def run(server: NatsServer) -> None:
        async with patience(LIMIT_S):
            registry = made(server.url, reconnect_timeout_s=0.1, request_timeout_s=0.2)
            await registry.open()
            server.stop()
            try:
                while "has been away for 0.1 s" not in (await trouble(registry)).what:
                    pass
            finally:
                await registry.aclose()

    with NatsServer(jetstream=True) as server:
        asyncio.run(run(server))


def fails(url: str, **options: Any) -> RegistryError:
    async def run() -> None:
        registry = made(url, **options)
        try:
            await registry.open()
        finally:
            await registry.aclose()

    with pytest.raises(RegistryError) as caught:
        asyncio.run(run())
    return caught.value


def test_a_server_that_is_not_there_is_an_error() -> None:
    with NatsServer() as server:
        url = server.url
    error = fails(url)
    assert error.what == f"nothing listens at {url}"
    assert "servers under [registry]" in error.hint
    assert error.registry == "nats"


def test_a_server_without_jetstream_is_refused() -> None:
    with NatsServer() as server:
        error = fails(server.url)
    assert "the registry at" in error.what
    assert "nats-server -js" in error.hint


def test_a_user_without_permission_is_refused() -> None:
    users = [{"user": "ann", "password": "pw", "permissions": {"publish": "other.>", "subscribe": "other.>"}}]
    with NatsServer(jetstream=True, settings={"authorization": {"users": users}}) as server:
        error = fails(server.url, user="ann", password="pw", request_timeout_s=0.5)
        assert "forbids what the job needs" in error.what
        assert "$KV.flamestream.>" in error.hint
        assert "does not let this process in" in fails(server.url).what


def test_a_user_needs_only_the_documented_permissions() -> None:
    permissions = {"publish": ["$JS.API.>", "$KV.jobs.>"], "subscribe": "_INBOX.>"}
    users = [{"user": "ann", "password": "pw", "permissions": permissions}]

    async def run(url: str) -> None:
        registry = made(url, user="ann", password="pw", bucket="jobs")
        await registry.open()
        revision = await registry.create("a/b", b"x")
        assert await registry.get("a/b") == (b"x", revision)
        assert await registry.keys() == ["a/b"]
        await registry.aclose()

    with NatsServer(jetstream=True, settings={"authorization": {"users": users}}) as server:
        asyncio.run(run(server.url))


def test_unusable_options_are_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        made("nats://127.0.0.1:4222", bucket="a b")
    assert caught.value.path == "registry.bucket"
    with pytest.raises(TransportError, match="is not on this machine, and messages would go there without TLS"):
        asyncio.run(made("nats://192.0.2.1:4222").open())
