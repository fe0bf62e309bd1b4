"""Access over TLS and with credentials; refusals that help and show no secret."""

from __future__ import annotations

import asyncio
import gc
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trustme
from ephemeral_port_reserve import reserve

from flamecore.abc.transport import TransportContext
from flamecore.errors import ConfigError, ConnectError, FlameError, TransportError
from flamecore.runtime.tasks.event_loop import run
from flamecore.testing.progress import patience
from flamestream_nats import NatsTransport, Options
from flamestream_nats.testing import NatsServer, ServerTls

SECRET = "s3cret-w0rd"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Write certificates of the server, a client, their CA, and a foreign CA."""
    folder = tmp_path_factory.mktemp("tls")
    ca, other = trustme.CA(), trustme.CA()
    made = {"ca": ca.cert_pem, "other": other.cert_pem}
    for name, issued in (("server", ca.issue_cert("127.0.0.1")), ("client", ca.issue_cert("worker"))):
        made[name] = issued.cert_chain_pems[0]
        made[f"{name}_key"] = issued.private_key_pem
    paths = {}
    for name, blob in made.items():
        paths[name] = str(folder / f"{name}.pem")
        blob.write_to_path(paths[name])
    return paths


async def talk(url: str, **options: Any) -> None:
    """Send a message from one process to another."""
    context = TransportContext(job="test", codec=_Text(), token="t0ken")
    left, right = (NatsTransport(Options(**{"servers": (url,), **options}), context) for _ in range(2))
    try:
        async with patience(10):
            a, b = await left.bind("worker/0"), await right.bind("worker/1")
            await a.send("worker/1", "hello")
            assert (await b.receive()).message == "hello"
    finally:
        await left.aclose()
        await right.aclose()


class _Text:
    def encode(self, text: str) -> bytes:
        return text.encode()

    def decode(self, data: bytes) -> str:
        return data.decode()


def fails(url: str, **options: Any) -> FlameError:
    """Return the error of a process that cannot start; check that it shows no secret.

    The errors behind it must not show one either.
    """
    with pytest.raises(FlameError):
        run(talk(url, **options))  # which warns of what is left
    with pytest.raises(FlameError) as caught:
        asyncio.run(talk(url, **options))
    gc.collect()  # a connection that a failed start has left open is an error of this test, not of a later one
    error: BaseException | None = caught.value
    while error is not None:
        assert SECRET not in f"{error} {error!r} {vars(error)}"
        error = error.__cause__ or error.__context__
    return caught.value


# -- no server ---------------------------------------------------------------------------------------------------------


def test_a_server_that_is_not_there_is_an_error() -> None:
    port = reserve()
    error = fails(f"nats://127.0.0.1:{port}", user="ann", password=SECRET)
    assert isinstance(error, ConnectError)
    assert error.location == f"nats://127.0.0.1:{port}"
    assert error.what == f"nothing listens at nats://127.0.0.1:{port}"
    assert f"nats-server -a 127.0.0.1 -p {port}" in error.hint


def test_a_server_that_is_just_being_started_is_waited_for() -> None:
    """Both may be started by one file, or the server restarted while the job starts."""

    async def together(server: NatsServer) -> None:
        talking = asyncio.create_task(talk(server.url))
        await asyncio.sleep(0.1)
        assert not talking.done()
        await asyncio.to_thread(server.start)
        await talking

    server = NatsServer(port=reserve())
    try:
        asyncio.run(together(server))
    finally:
        server.__exit__(None, None, None)


def test_credentials_in_an_address_are_not_shown() -> None:
    port = reserve()
    error = fails(f"nats://ann:{SECRET}@127.0.0.1:{port}")
    assert error.what == f"nothing listens at nats://127.0.0.1:{port}"


def test_a_port_of_another_service_is_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        error = fails(f"nats://127.0.0.1:{port}", connect_timeout_s=0.2)
    assert isinstance(error, ConnectError)
    assert "gives no answer within 0.2 s" in error.what


def test_an_unknown_host_is_an_error() -> None:
    error = fails("tls://no-such-host.invalid:4222")
    assert isinstance(error, ConnectError)
    assert "tls://no-such-host.invalid:4222" in error.what


def test_one_server_of_several_is_enough(server: NatsServer) -> None:
    gone = f"nats://127.0.0.1:{reserve()}"
    asyncio.run(talk("", servers=(gone, server.url)))


def test_a_server_with_too_small_messages_is_refused() -> None:
    with NatsServer(max_payload=1000) as server:
        error = fails(server.url)
    assert isinstance(error, TransportError)
    assert "takes no more than 1000 bytes a message; at least 1024 are needed" in error.what


# -- credentials -------------------------------------------------------------------------------------------------------


def test_a_user_needs_the_right_password() -> None:
    with NatsServer(users={"ann": SECRET}) as server:
        asyncio.run(talk(server.url, user="ann", password=SECRET))
        asyncio.run(talk(server.url.replace("//", f"//ann:{SECRET}@")))
        for wrong in ({}, {"user": "ann", "password": f"not {SECRET}"}, {"token": SECRET}):
            error = fails(server.url, **wrong)
            assert isinstance(error, ConnectError)
            assert (
                error.what == f"the NATS server at {server.url} does not let this process in: Authorization Violation"
            )
            assert "[transport.nats]" in error.hint


def test_a_client_needs_the_right_token() -> None:
    with NatsServer(token=SECRET) as server:
        asyncio.run(talk(server.url, token=SECRET))
        assert "does not let this process in" in fails(server.url, token=f"{SECRET}!").what


def test_a_client_needs_the_right_key() -> None:
    nkeys = pytest.importorskip("nkeys", reason="needs nkeys: pip install 'nats-py[nkeys]'")
    seeds = [nkeys.encode_seed(bytes([number]) * 32, nkeys.PREFIX_BYTE_USER) for number in (1, 2)]
    good, other = (bytes(seed).decode() for seed in seeds)
    with NatsServer(nkeys=[nkeys.from_seed(seeds[0]).public_key.decode()]) as server:
        asyncio.run(talk(server.url, nkey_seed=good))
        for wrong in (other, ""):
            assert "does not let this process in" in fails(server.url, nkey_seed=wrong).what
        error = fails(server.url, nkey_seed=SECRET)
        assert isinstance(error, ConfigError)
        assert error.path == "transport.nats.nkey_seed"


def test_a_permission_the_server_denies_is_an_error(job: Any) -> None:
    """The job of a user who may not publish gets an error, and does not hang."""
    permissions = {"publish": {"deny": "flamestream.*.*.at.worker.1"}}
    users = [{"user": "ann", "password": SECRET, "permissions": permissions}]

    async def run(server: NatsServer) -> None:
        async with job(server.url, {"user": "ann", "password": SECRET}) as made, patience(10):
            left = await made.join("left")
            a = await left.bind("worker/0")
            a.send_nowait("worker/1", "hello")
            where, error = await made.next_lost()
            assert where == "", "nobody can be reached any more"
            assert isinstance(error, ConnectError)
            assert "forbids what the job needs" in error.what
            assert "flamestream.>" in error.hint
            with pytest.raises(ConnectError):
                a.send_nowait("worker/1", "hello")

    with NatsServer(settings={"authorization": {"users": users}}) as server:
        asyncio.run(run(server))


def test_a_user_needs_nothing_but_the_prefix() -> None:
    permissions = {"publish": "my.prefix.>", "subscribe": "my.prefix.>"}
    users = [{"user": "ann", "password": SECRET, "permissions": permissions}]
    with NatsServer(settings={"authorization": {"users": users}}) as server:
        asyncio.run(talk(server.url, user="ann", password=SECRET, prefix="my.prefix"))


# -- TLS ---------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def secured(files: dict[str, str]) -> Any:
    with NatsServer(tls=ServerTls(Path(files["server"]), Path(files["server_key"]))) as server:
        yield server


@pytest.fixture(scope="module")
def mutual(files: dict[str, str]) -> Any:
    tls = ServerTls(Path(files["server"]), Path(files["server_key"]), Path(files["ca"]))
    with NatsServer(tls=tls, users={"ann": SECRET}) as server:
        yield server


def test_tls_connects_with_the_right_authority(secured: NatsServer, files: dict[str, str]) -> None:
    assert secured.url.startswith("tls://")
    asyncio.run(talk(secured.url, tls_ca=files["ca"]))
    asyncio.run(talk(secured.url.replace("tls://", "nats://"), tls_ca=files["ca"]))


@pytest.mark.parametrize("options", [{"tls_ca": "other"}, {}])
def test_a_server_without_a_trusted_certificate_is_refused(
    secured: NatsServer, files: dict[str, str], options: dict[str, str]
) -> None:
    error = fails(secured.url, **{key: files[name] for key, name in options.items()})
    assert isinstance(error, ConnectError)
    assert error.what.startswith(f"no TLS with {secured.url}: ")
    assert "tls_ca" in error.hint


def test_both_sides_show_certificates(mutual: NatsServer, files: dict[str, str]) -> None:
    known = {"tls_ca": files["ca"], "user": "ann", "password": SECRET}
    asyncio.run(talk(mutual.url, **known, tls_certificate=files["client"], tls_key=files["client_key"]))
    assert isinstance(fails(mutual.url, **known), ConnectError)


def test_a_server_without_tls_gets_nothing_if_tls_is_asked_for(files: dict[str, str]) -> None:
    """A man in the middle that claims to have no TLS gets no password."""
    heard: list[bytes] = []

    async def play(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'INFO {"server_id":"x","version":"2.0.0","max_payload":1048576,"headers":true}\r\n')
        heard.append(await reader.read())
        writer.close()

    async def run() -> None:
        listener = await asyncio.start_server(play, "127.0.0.1", 0)
        async with listener:
            url = f"tls://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
            with pytest.raises(ConnectError, match="does not speak it; nothing was said to it"):
                await talk(url, tls_ca=files["ca"], user="ann", password=SECRET)

    asyncio.run(run())
    assert set(heard) == {b""}


@pytest.mark.parametrize(
    ("change", "key"),
    [
        (lambda files: {"tls_ca": "/no/such/file.pem"}, "tls_ca"),
        (lambda files: {"tls_ca": files["ca"], "tls_certificate": files["client"], "tls_key": files["ca"]}, "tls_cert"),
    ],
)
def test_unusable_files_are_refused(files: dict[str, str], change: Callable[[Any], dict[str, str]], key: str) -> None:
    error = fails("tls://127.0.0.1:4222", **change(files))
    assert isinstance(error, ConfigError)
    assert error.path.startswith(f"transport.nats.{key}")
    assert "cannot be used" in error.what


# -- other machines ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "options", "token", "missing"),
    [
        ("nats://192.0.2.1:4222", {}, "t0ken", "TLS"),
        ("nats://192.0.2.1:4222", {}, "", "TLS and a token of the job"),
        ("tls://192.0.2.1:4222", {}, "", "a token of the job"),
        ("nats://nats.example:4222", {"servers": ("nats://127.0.0.1:4222", "nats://nats.example:4222")}, "t", "TLS"),
    ],
)
def test_an_unprotected_way_to_another_machine_is_refused(
    url: str, options: dict[str, Any], token: str, missing: str
) -> None:
    transport = NatsTransport(Options(**{"servers": (url,), **options}), TransportContext(token=token))
    with pytest.raises(TransportError, match=f"{url} is not on this machine.* without {missing}") as caught:
        asyncio.run(transport.start())
    assert not isinstance(caught.value, ConnectError)
    assert "insecure = true" in caught.value.hint


def test_an_unprotected_way_that_is_allowed_gives_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    from structlog.testing import capture_logs

    options = Options(servers=("nats://ann:pw@192.0.2.1:4222",), insecure=True, connect_timeout_s=0.05)
    transport = NatsTransport(options, TransportContext(token="t0ken"))
    with capture_logs() as logs, pytest.raises(ConnectError):
        asyncio.run(transport.start())
    (line,) = logs
    assert line == {
        "event": "transport.exposed",
        "log_level": "warning",
        "location": "nats://192.0.2.1:4222",
        "missing": ["TLS"],
    }
