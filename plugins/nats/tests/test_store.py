"""The store against its contract: restarts, killed writers, a full server."""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from nats import errors

import flamecore as fc
from flamecore.abc.store import Store, StoreContext
from flamecore.errors import ConfigError, CorruptError, StoreError
from flamecore.runtime.config.layers import Layer
from flamecore.runtime.config.read import make_config
from flamecore.runtime.config.resolve import resolve
from flamecore.testing.bench.stores import refusal, using
from flamecore.testing.checks.stores import StoreTests
from flamestream_nats import store as store_module
from flamestream_nats.connection import Connection
from flamestream_nats.options import StoreOptions
from flamestream_nats.store import NatsStore, _token, flamestream_store
from flamestream_nats.testing import NatsServer


@pytest.mark.variant("nats")
class TestStore(StoreTests):
    large_bytes = 4 * 2**20

    @pytest.fixture(autouse=True)
    def _serve(self, storing: NatsServer) -> None:
        self.server = storing

    def make(self, context: StoreContext) -> Store:
        return NatsStore(StoreOptions(servers=(self.server.url,)), context)


@pytest.fixture(scope="module")
def small_messages() -> Iterator[NatsServer]:
    with NatsServer(jetstream=True, max_payload=16_384) as server:
        yield server


@pytest.mark.variant("nats")
class TestSmallMessages(TestStore):
    """A server that takes small messages only."""

    large_bytes = 300_000

    @pytest.fixture(autouse=True)
    def _serve(self, small_messages: NatsServer) -> None:
        self.server = small_messages


def made(url: str, job: str = "", **options: Any) -> NatsStore:
    return NatsStore(StoreOptions(servers=(url,), **options), StoreContext(job or secrets.token_hex(8)))


LARGE = bytes(range(256)) * 8192
"""Four pieces."""


def test_the_module_provides_the_store() -> None:
    assert flamestream_store() is NatsStore
    store = NatsStore(None, StoreContext("job"))
    assert store.options == StoreOptions()
    assert store.capabilities.durable
    assert store.capabilities.shared
    asyncio.run(store.aclose())


def test_a_job_has_a_stream() -> None:
    jobs = ("job", "my-job", "my job", "my_job", "my.job", "", "j" * 100, "j" * 101, "ж", "job=1", "*", ">")
    streams = [made("nats://127.0.0.1:4222", job)._stream for job in jobs[:5]]
    assert [stream.name for stream in streams[:2]] == ["flamestream-state-job", "flamestream-state-my-job"]
    tokens = [_token(job) for job in jobs]
    assert len(set(tokens)) == len(jobs)
    assert all(re.fullmatch(r"[A-Za-z0-9_=-]+", token) and len(token) < 130 for token in tokens)


# -- answers that are lost, and servers that go away -------------------------------------------------------------------


class LosesAnswers:
    """A connection that loses the first answer to each request of matching subjects.

    The server has carried out the request.
    """

    def __init__(self, store: NatsStore, pattern: str) -> None:
        self._request = store._connection.request
        self._pattern = re.compile(pattern)
        self.lost: set[str] = set()
        store._connection.request = self  # type: ignore[method-assign, assignment]

    async def __call__(self, subject: str, *arguments: Any) -> Any:
        answer = await self._request(subject, *arguments)
        if self._pattern.search(subject) and subject not in self.lost:
            self.lost.add(subject)
            raise errors.TimeoutError
        return answer


@pytest.mark.parametrize("data", [b"small", LARGE], ids=len)
def test_a_lost_answer_does_not_count_as_another_writer(storing: NatsServer, data: bytes) -> None:
    async def do(store: NatsStore) -> None:
        loses = LosesAnswers(store, r"\.(blob|piece)\.")
        assert await store.create("a", data)
        assert not await store.create("a", data)
        assert await store.read("a") == data
        assert len(loses.lost) == (1 if len(data) < 100 else 5)
        loses = LosesAnswers(store, r"PURGE|INFO|GET")
        await store.delete(["a"])
        assert await store.names() == []
        assert await store.create("a", b"new")
        assert loses.lost

    using(made(storing.url), do)


def test_blobs_survive_the_server(storing: NatsServer) -> None:
    async def do(store: NatsStore) -> None:
        assert await store.create("before", LARGE)
        creating = [asyncio.create_task(store.create(f"{number}", LARGE)) for number in range(5)]
        for _ in range(2):
            await asyncio.sleep(0.02)
            await asyncio.to_thread(storing.kill)
            await asyncio.to_thread(storing.start)
        assert await asyncio.gather(*creating) == [True] * 5
        assert await store.names() == ["0", "1", "2", "3", "4", "before"]
        for name in await store.names():
            assert await store.read(name) == LARGE

    using(made(storing.url), do)


def test_a_server_that_does_not_answer_is_an_error() -> None:
    with NatsServer(jetstream=True) as server:

        async def do(store: NatsStore) -> None:
            await asyncio.to_thread(server.stop)
            await store.create("a", b"data")

        error = refusal(made(server.url, request_timeout_s=0.3), do)
        assert "gives no answer within 0.3 s" in error.what
        assert error.blob == "a"


def test_a_server_away_too_long_is_an_error() -> None:
    with NatsServer(jetstream=True) as server:

        async def do(store: NatsStore) -> None:
            await asyncio.to_thread(server.stop)
            await store.create("a", b"data")

        error = refusal(made(server.url, request_timeout_s=1.0, reconnect_timeout_s=0.1), do)
        assert "has been away for 0.1 s" in error.what


# -- pieces of killed writers ------------------------------------------------------------------------------------------


async def leave_pieces(store: NatsStore, name: str) -> None:
    """Leave the pieces of a writer that was killed before its last message."""
    for number in range(3):
        await store._put_piece(f"piece.{name}.left.{number}", b"piece")


async def pieces(store: NatsStore) -> list[str]:
    return sorted((await store._stream.list("piece.>")).subjects)


def test_pieces_of_dead_writers_are_deleted(storing: NatsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    async def leave(store: NatsStore) -> None:
        await leave_pieces(store, "a")
        await leave_pieces(store, "b")
        assert await store.create("b", LARGE)

    async def look(store: NatsStore) -> int:
        assert await store.names() == ["b"]
        assert await store.read("b") == LARGE
        return len(await pieces(store))

    using(made(storing.url, "clearing"), leave)
    assert using(made(storing.url, "clearing"), look) == 3 + 3 + 4  # perhaps they are still being written
    monkeypatch.setattr(store_module, "ABANDONED", timedelta(0))
    assert using(made(storing.url, "clearing"), look) == 4


@pytest.mark.parametrize("moment", [".1", ".3", "blob"])
def test_a_blob_deleted_while_it_is_written_is_written_again(storing: NatsServer, moment: str) -> None:
    """Another process clears its pieces: after the first, the last, or before the end."""

    async def do(store: NatsStore) -> None:
        request = store._connection.request
        cleared: list[str] = []

        async def meddle(subject: str, *arguments: Any) -> Any:
            if not cleared and (subject.endswith(moment) if moment[0] == "." else ".blob." in subject):
                cleared.append(subject)
                await store._stream.purge("piece.a.>")
            return await request(subject, *arguments)

        store._connection.request = meddle  # type: ignore[method-assign, assignment]
        assert await store.create("a", LARGE)
        assert cleared
        assert await store.read("a") == LARGE
        assert len(await pieces(store)) == 4

    using(made(storing.url), do)


def test_pieces_that_lose_the_race_are_deleted(storing: NatsServer) -> None:
    async def do(store: NatsStore) -> None:
        assert sorted(await asyncio.gather(*(store.create("a", LARGE) for _ in range(3)))) == [False, False, True]
        assert len(await pieces(store)) == 4
        await store.delete(["a"])
        assert await pieces(store) == []

    using(made(storing.url), do)


def test_a_missing_piece_is_damage(storing: NatsServer) -> None:
    async def do(store: NatsStore) -> None:
        assert await store.create("a", LARGE)
        await store._stream.purge((await pieces(store))[1])
        await store.read("a")

    error = refusal(made(storing.url), do)
    assert isinstance(error, CorruptError)
    assert "of the 4 pieces of 'a'" in error.what
    assert "3 are whole" in error.what


# -- refusals of the server --------------------------------------------------------------------------------------------


def test_a_server_without_jetstream_is_refused() -> None:
    with NatsServer() as server:
        assert "nats-server -js" in refusal(made(server.url, request_timeout_s=0.2)).hint


def test_a_full_server_is_an_error(tmp_path: Path) -> None:
    settings = {"jetstream": {"store_dir": str(tmp_path), "max_file_store": 4 * 2**20}}
    with NatsServer(settings=settings) as server:

        async def do(store: NatsStore) -> None:
            assert await store.create("before", b"before")
            for data in (bytes(8 * 2**20), b"x" * 100_000):
                with pytest.raises(StoreError, match=r"refuses: .*\n.*Make room") as caught:
                    await asyncio.gather(*(store.create(f"{len(data)}/{number}", data) for number in range(50)))
                assert await store.read(caught.value.blob) is None
            await store.delete(names := await store.names())
            assert "before" in names
            assert await store.create("after", b"after")
            assert await store.read("after") == b"after"

        using(made(server.url), do)


def test_a_stream_of_another_kind_is_refused(storing: NatsServer) -> None:
    async def do(store: NatsStore) -> None:
        await store._connection.jetstream(5).add_stream(name="flamestream-state-mine", subjects=["mine.>"])

    using(made(storing.url), do)
    error = refusal(made(storing.url, "mine"))
    assert "stream flamestream-state-mine has subjects = ['mine.>']" in error.what
    assert "prefix" in error.hint


def test_an_old_server_is_refused(storing: NatsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Connection, "server_version", property(lambda self: "2.10.29"))
    error = refusal(made(storing.url))
    assert "of version 2.10.29" in error.what
    assert "2.11" in error.hint


def test_an_unknown_user_is_refused() -> None:
    with NatsServer(jetstream=True, users={"me": "secret"}) as server:
        assert using(made(server.url, user="me", password="secret"), NatsStore.names) == []
        error = refusal(made(server.url, user="me", password="wrong"))
        assert "[state]" in error.hint
        assert "wrong" not in str(error)


def test_a_user_without_permission_is_refused(storing: NatsServer) -> None:
    users = [{"user": "me", "password": "secret", "permissions": {"publish": ["$JS.API.>", "_INBOX.>"]}}]
    with NatsServer(jetstream=True, settings={"authorization": {"users": users}}) as server:
        store = made(server.url, user="me", password="secret", request_timeout_s=2.0)
        error = refusal(store, lambda store: store.create("a", b"data"))
        assert "flamestream.state.>" in error.hint


def test_impossible_options_are_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        made("http://127.0.0.1")
    assert caught.value.path == "state.servers"
    with pytest.raises(ConfigError) as caught:
        made("nats://127.0.0.1", prefix="a*")
    assert caught.value.path == "state.prefix"


def test_a_prefix_may_have_several_parts(storing: NatsServer) -> None:
    store = made(storing.url, "job", prefix="team.flames")
    assert store._stream.name == "team_flames-state-job"
    assert using(store, lambda store: store.create("a", b"data"))


def test_a_store_that_is_not_open_refuses_calls(storing: NatsServer) -> None:
    store = made(storing.url)
    for call in (store.create("a", b""), store.read("a"), store.names(), store.delete(["a"])):
        with pytest.raises(StoreError, match="not open"):
            asyncio.run(call)
    asyncio.run(store.aclose())


# -- in a job ----------------------------------------------------------------------------------------------------------


def _flow() -> fc.Flow:
    flow = fc.Flow("word-count")
    flow.source("lines", str).flat_map(str.split).key_by(str).count().sink("counts")
    return flow


def test_missing_options_are_those_of_the_transport() -> None:
    transport = {"servers": ["nats://here:1"], "token": "t", "window_frames": 7, "prefix": "p"}
    tables = {"transport": {"nats": transport}, "state": {"use": "nats", "prefix": "q", "replicas": 3}}
    spec = resolve(make_config(Layer(tables, {})), _flow(), given={"lines": [], "counts": []})
    spec.problems.raise_first()
    store = spec.store()
    assert store is not None
    assert store.context.job == "word-count"
    assert store.options == StoreOptions(servers=("nats://here:1",), token="t", prefix="q", replicas=3)


def test_a_job_keeps_its_state_there(storing: NatsServer, tmp_path: Path) -> None:
    (tmp_path / "lines.txt").write_text("a b\n" * 100)
    settings = {
        "source.lines.use": "lines",
        "source.lines.path": str(tmp_path / "lines.txt"),
        "state.use": "nats",
        "transport.nats.servers": [storing.url],
    }
    assert len(_flow().run(settings=settings, workers=2)["counts"]) == 200
    kinds = {name.partition("/")[0] for name in using(made(storing.url, "word-count"), NatsStore.names)}
    assert {"epoch", "commit", "part"} <= kinds
