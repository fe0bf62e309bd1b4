"""Locations to listen at and to connect to, and the errors if they cannot be used."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
import subprocess
import sys
import tomllib
from pathlib import Path
from textwrap import dedent
from typing import Any

import msgspec
import pytest
import structlog

from flamecore.abc.transport import Endpoint, JobAddress, TransportContext
from flamecore.errors import ConfigError, ConnectError, PeerGoneError, TransportClosedError, TransportError
from flamecore.events import TRANSPORT_EXPOSED
from flamecore.testing.progress import patience
from flamestream_grpc import GrpcTransport, Options, environment
from flamestream_grpc.options import joined, parse
from flamestream_grpc.safety import exposed

LIMIT_S = 10.0


async def flood(endpoint: Endpoint) -> None:
    """Send until it fails, at intervals."""
    while True:
        endpoint.send_nowait("b/0", "hello")
        await asyncio.sleep(0.001)


FILES: dict[str, Any] = {"tls_ca": "a.pem", "tls_key": "k.pem", "tls_certificate": "c.pem"}


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("127.0.0.1", ("127.0.0.1", 0)),
        ("127.0.0.1:80", ("127.0.0.1", 80)),
        ("host.example:0", ("host.example", 0)),
        ("[::1]:80", ("::1", 80)),
        ("[::1]", ("::1", 0)),
    ],
)
def test_addresses_are_parsed(text: str, place: tuple[str, int]) -> None:
    assert parse(text) == place
    assert parse(joined(*place)) == place


@pytest.mark.parametrize("text", ["", ":80", "host:", "host:port", "host:99999", "::1", "unix:80", "[]:1", "unix:/a"])
def test_impossible_addresses_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"transport\.grpc\.listen is") as caught:
        parse(text)
    assert caught.value.path == "transport.grpc.listen"


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"listen": "nowhere:"}, "listen"),
        ({"listen": "0.0.0.0:0", **FILES}, "listen"),
        ({"listen": "[::]", **FILES}, "listen"),
        ({"advertise": "host:80"}, "advertise"),
        ({"listen": "127.0.0.1", "advertise": "host:"}, "advertise"),
        ({"tls_ca": "a.pem"}, "tls_certificate"),
        ({"tls_ca": "a.pem", "tls_certificate": "c.pem"}, "tls_key"),
        ({"tls_key": "k.pem", "tls_certificate": "c.pem"}, "tls_ca"),
    ],
)
def test_unusable_options_are_refused(options: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        GrpcTransport(Options(**options), TransportContext())
    assert caught.value.path == f"transport.grpc.{key}"


@pytest.mark.parametrize(
    ("address", "location"),
    [
        ("grpc://node1:7070", "node1:7070"),
        ("grpc://[::1]:7070", "[::1]:7070"),
        ("unix:///run/words/supervisor.sock", "unix:/run/words/supervisor.sock"),
    ],
)
def test_addresses_of_jobs(address: str, location: str) -> None:
    assert GrpcTransport.address_of(address) == JobAddress(location)


@pytest.mark.parametrize("address", ["grpc://", "grpc://node1", "grpc://node1:0", "grpc://:7070", "grpc://node1:http"])
def test_no_addresses_of_jobs(address: str) -> None:
    with pytest.raises(ConfigError, match="no address of a job over gRPC"):
        GrpcTransport.address_of(address)


def test_others_join_at_an_address_that_leads_there() -> None:
    outlook = GrpcTransport(Options(listen="127.0.0.1:7070"), TransportContext(token="secret")).outlook()
    assert GrpcTransport.address_of(outlook.join) == JobAddress("127.0.0.1:7070")


def test_the_readme_shows_the_defaults() -> None:
    text = (Path(__file__).parents[1] / "README.md").read_text("utf-8")
    table = tomllib.loads(text.partition("```toml")[2].partition("```")[0])["transport"]["grpc"]
    assert table == msgspec.structs.asdict(Options())


@pytest.mark.parametrize(
    "wrong",
    [{"window_frames": 0}, {"window_bytes": -1}, {"max_frame_bytes": 2**40}, {"keepalive_s": 0}, {"send_timout_s": 1}],
)
def test_values_of_the_wrong_kind_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(wrong, Options)


@pytest.mark.parametrize(
    ("location", "missing"),
    [
        ("unix:/tmp/x.sock", []),
        ("127.0.0.1:80", []),
        ("127.1.2.3:80", []),
        ("[::1]:80", []),
        ("localhost:80", []),
        ("0.0.0.0:80", ["TLS", "a token of the job"]),
        ("10.0.0.1:80", ["TLS", "a token of the job"]),
        ("localhost.example:80", ["TLS", "a token of the job"]),
    ],
)
def test_places_reachable_from_elsewhere_need_tls_and_a_token(location: str, missing: list[str]) -> None:
    assert exposed(location, Options(insecure=True), "") == missing
    assert exposed(location, Options(**FILES), "token") == []
    if missing:
        for options, token in ((Options(), "token"), (Options(**FILES), "")):
            with pytest.raises(TransportError, match="is not on this machine") as caught:
                exposed(location, options, token)
            assert "insecure = true" in caught.value.hint


def test_other_machines_are_not_listened_to_in_the_open(mesh: Any) -> None:
    async def run() -> None:
        async with mesh() as made:
            with pytest.raises(TransportError, match="without TLS"):
                await made.add("a", Options(listen="0.0.0.0", advertise="127.0.0.1"))
            with structlog.testing.capture_logs() as logs:
                b = await made.add("b", Options(listen="0.0.0.0", advertise="127.0.0.1", insecure=True))
            assert logs == [
                {"event": TRANSPORT_EXPOSED, "log_level": "warning", "location": b.location, "missing": "TLS"}
            ]
            a = await made.add("a")
            receiver, sender = await b.bind("b/0"), await a.bind("a/0")
            await sender.send("b/0", "by way of what is advertised")
            assert (await receiver.receive()).message == "by way of what is advertised"

    asyncio.run(run())


def test_other_machines_are_not_sent_to_in_the_open(mesh: Any) -> None:
    async def run() -> None:
        async with mesh() as made:
            a = await made.add("a")
            made.locations["b"] = "198.51.100.1:80"
            sender = await a.bind("a/0")
            with pytest.raises(
                TransportError, match="is not on this machine alone, and messages would go there without TLS"
            ):
                sender.send_nowait("b/0", "hello")

    asyncio.run(run())


def test_a_socket_belongs_to_its_user_alone(mesh: Any) -> None:
    async def run() -> None:
        async with mesh() as made:
            a = await made.add("worker/a")
            path = Path(a.location.removeprefix("unix:"))
            assert path == Path(made.folder) / "worker-a.sock"
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            await a.aclose()
            assert not path.exists()

    asyncio.run(run())


def test_a_socket_that_is_listened_to_is_not_replaced(mesh: Any) -> None:
    async def run() -> None:
        async with mesh() as made:
            await made.add("a")
            with pytest.raises(TransportError, match="is taken"):
                await made.add("a")

    asyncio.run(run())


def test_a_stale_socket_is_replaced(mesh: Any) -> None:
    async def run() -> None:
        async with mesh() as made:
            with socket.socket(socket.AF_UNIX) as left:
                left.bind(f"{made.folder}/a.sock")
            await made.add("a")

    asyncio.run(run())


@pytest.mark.parametrize(
    ("folder", "text"), [("", "has no folder for sockets"), ("/tmp/" + "x" * 120, "too long for a unix socket")]
)
def test_a_place_that_can_hold_no_socket_is_refused(mesh: Any, folder: str, text: str) -> None:
    async def run() -> None:
        async with mesh() as made:
            with pytest.raises(TransportError, match=text) as caught:
                await made.add("a", folder=folder)
            assert "listen" in caught.value.hint

    asyncio.run(run())


def test_a_port_in_use_is_refused(mesh: Any) -> None:
    async def run() -> None:
        async with mesh() as made:
            a = await made.add("a", Options(listen="127.0.0.1"))
            with pytest.raises(TransportError, match=f"cannot listen at {a.location}"):
                await made.add("b", Options(listen=a.location))

    asyncio.run(run())


def test_missing_or_wrong_certificates_are_refused(mesh: Any, certificates: Any, tmp_path: Path) -> None:
    async def run() -> None:
        async with mesh() as made:
            good = {"tls_ca": certificates.authority, "tls_key": certificates.key, "tls_certificate": certificates.key}
            (tmp_path / "text").write_text("no certificate")
            for name, text in (("none", "cannot be read: No such file"), ("text", "no PEM file")):
                wrong = tmp_path / name
                files: dict[str, Any] = {key: str(path) for key, path in (good | {"tls_key": wrong}).items()}
                with pytest.raises(ConfigError, match=text) as caught:
                    await made.add("a", Options(listen="127.0.0.1", **files))
                assert caught.value.path == "transport.grpc.tls_key"
            files = {key: str(path) for key, path in good.items()}
            with pytest.raises(ConfigError, match="cannot be used"):  # the certificate is a key
                await made.add("a", Options(listen="127.0.0.1", **files))

    asyncio.run(run())


@pytest.mark.parametrize("location", ["unix:{folder}/nobody.sock", "127.0.0.1:9"])
def test_a_place_where_nobody_listens_is_an_error(mesh: Any, location: str) -> None:
    async def run() -> None:
        async with mesh() as made:
            a = await made.add("a", Options(connect_timeout_s=0.2))
            made.locations["b"] = location.format(folder=made.folder)
            sender = await a.bind("a/0")
            assert not sender.send_nowait("b/0", "hello")
            for _ in range(2):
                async with patience(LIMIT_S):
                    with pytest.raises(ConnectError, match=f"there is no answer at {made.locations['b']}") as caught:
                        await sender.send("b/0", "hello")
                assert caught.value.location == made.locations["b"]
                assert "connect_timeout_s" in caught.value.hint
            assert made.lost == {}

    asyncio.run(run())


def test_a_peer_that_listens_later_is_waited_for(mesh: Any) -> None:
    async def run() -> None:
        async with mesh() as made:
            a = await made.add("a")
            made.locations["b"] = f"unix:{made.folder}/b.sock"
            sender = await a.bind("a/0")
            sends = asyncio.create_task(sender.send("b/0", "hello"))
            await asyncio.wait((sends,), timeout=0.2)
            b = await made.add("b")
            receiver = await b.bind("b/0")
            async with patience(LIMIT_S):
                await sends
                assert (await receiver.receive()).message == "hello"

    asyncio.run(run())


async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Greet like a mail server."""
    writer.write(b"220 hello\r\n")
    await reader.read()
    writer.close()


def test_a_place_where_something_else_listens_is_an_error(mesh: Any) -> None:
    async def run() -> None:
        async with mesh() as made:
            server = await asyncio.start_server(greet, "127.0.0.1", 0)
            made.locations["b"] = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
            a = await made.add("a", Options(connect_timeout_s=0.2))
            sender = await a.bind("a/0")
            async with patience(LIMIT_S):
                with pytest.raises(ConnectError):
                    await sender.send("b/0", "hello")
            server.close()

    asyncio.run(run())


def test_a_last_attempt_without_an_answer_hides_no_reason(mesh: Any) -> None:
    async def run() -> None:
        connections: list[asyncio.StreamWriter] = []

        async def answer_once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            connections.append(writer)
            if len(connections) == 1:
                await greet(reader, writer)

        async with mesh() as made:
            server = await asyncio.start_server(answer_once, "127.0.0.1", 0)
            made.locations["b"] = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
            a = await made.add("a", Options(connect_timeout_s=2.0))
            sender = await a.bind("a/0")
            async with patience(LIMIT_S):
                with pytest.raises(
                    ConnectError, match=r"there is no answer at .*, tried \d+ times: (?!no answer in time)"
                ):
                    await sender.send("b/0", "hello")
            server.close()
            for connection in connections:
                connection.close()
            assert len(connections) > 1

    asyncio.run(run())


def test_an_address_that_is_not_bound_is_an_error(mesh: Any) -> None:
    """The address is unknown, known to be here, or known to be at another process."""

    async def run() -> None:
        async with mesh() as made:
            a, b = await made.add("a"), await made.add("b")
            sender = await a.bind("a/0")
            for to in ("c/0", "a/1"):
                with pytest.raises(PeerGoneError):
                    sender.send_nowait(to, "hello")
            await sender.send("b/0", "hello")
            async with patience(LIMIT_S):
                with pytest.raises(PeerGoneError, match="no endpoint is bound to b/0"):
                    await flood(sender)
            receiver = await b.bind("b/0")
            async with patience(LIMIT_S):
                while (got := receiver.receive_nowait()) is None:
                    try:
                        sender.send_nowait("b/0", "late")
                    except PeerGoneError:  # for an earlier message
                        continue
                    finally:
                        await asyncio.sleep(0.001)
            assert got.sender == "a/0"
            await a.aclose()
            with pytest.raises(TransportClosedError):
                await a.bind("a/2")

    asyncio.run(run())


@pytest.mark.parametrize(("client", "named"), [("1.76.0", True), ("1.85.1", True), ("1.86.0", False), ("2.0", False)])
def test_grpc_gets_only_settings_its_version_knows(monkeypatch: pytest.MonkeyPatch, client: str, named: bool) -> None:
    for name in ("GRPC_VERBOSITY", "GRPC_ENABLE_FORK_SUPPORT", "GRPC_EXPERIMENTS", environment.CIPHERS):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(environment, "version", lambda _: client)
    assert ("GRPC_EXPERIMENTS" in environment.missing()) == named
    monkeypatch.setenv("GRPC_EXPERIMENTS", "mine")
    assert environment.missing() == {
        "GRPC_VERBOSITY": "NONE",
        "GRPC_ENABLE_FORK_SUPPORT": "0",
        environment.CIPHERS: environment.REFUSING_CIPHER,
    }


def test_grpc_writes_no_lines_of_its_own() -> None:
    """The transport reports errors in its own words; gRPC would log them as well."""
    code = """
        import asyncio
        import flamestream_grpc
        from grpc import aio

        async def main():
            try:
                aio.server().add_insecure_port("unix:/there/is/no/such/folder")
            except RuntimeError:
                print("refused")

        asyncio.run(main())
    """
    environ = {key: value for key, value in os.environ.items() if not key.startswith("GRPC_")}
    done = subprocess.run([sys.executable, "-c", dedent(code)], env=environ, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("refused\n", "")


def test_only_importing_the_transport_imports_its_client() -> None:
    """Naming it does not import gRPC, and neither does importing the core."""
    code = "import sys, flamecore, flamecore.runtime.config.plugins; sys.exit('grpc' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
