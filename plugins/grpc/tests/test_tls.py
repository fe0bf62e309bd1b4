"""TLS between processes: admission, versions, and replaced certificates."""

from __future__ import annotations

import asyncio
import os
import shutil
import ssl
import subprocess
import sys
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from textwrap import dedent
from typing import Any

import pytest
from structlog.testing import capture_logs

from flamecore.errors import ConfigError, ConnectError
from flamecore.events import CERTIFICATES_REFUSED, CERTIFICATES_REPLACED
from flamecore.testing.faults import Proxy
from flamecore.testing.progress import patience
from flamestream_grpc import Options
from flamestream_grpc.certificates import read

LIMIT_S = 10.0
YESTERDAY = datetime.now(UTC) - timedelta(days=1)
SOON = 0.3


def replace(old: Any, new: Any, *names: str) -> None:
    """Replace files by new ones, each atomically."""
    for name in names or ("authority", "key", "certificate"):
        beside = getattr(old, name).with_suffix(".new")
        shutil.copy(getattr(new, name), beside)
        beside.replace(getattr(old, name))


async def spoken(location: str, certificates: Any, version: ssl.TLSVersion) -> str:
    """Return the version of TLS negotiated by a client that offers `version` at most.

    Raises:
        OSError: The server accepts none.
    """
    context = ssl.create_default_context(cafile=str(certificates.authority))
    context.load_cert_chain(certificates.certificate, certificates.key)
    context.maximum_version = version
    context.set_alpn_protocols(["h2"])
    host, _, port = location.rpartition(":")
    async with patience(LIMIT_S):
        _, writer = await asyncio.open_connection(host, int(port), ssl=context)
    found: str = writer.get_extra_info("ssl_object").version()
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()
    return found


def test_nothing_below_tls_1_3_is_spoken(pair: Any, certificates: Any) -> None:
    async def run() -> None:
        async with pair({"listen": "127.0.0.1", **certificates.files()}) as (made, here, there):
            ours, theirs = await here.bind("here/0"), await there.bind("there/0")
            await ours.send("there/0", "hello")
            assert (await theirs.receive()).message == "hello"
            assert await spoken(made.locations["there"], certificates, ssl.TLSVersion.TLSv1_3) == "TLSv1.3"
            with pytest.raises((OSError, ssl.SSLError)):
                await spoken(made.locations["there"], certificates, ssl.TLSVersion.TLSv1_2)
            assert there.wire.lost == []
            await there.wire.later("aclose")

    asyncio.run(run())


LISTENER = """
    import asyncio, sys

    exec(sys.argv[1])

    from flamecore.abc.transport import TransportContext
    from flamecore.runtime.codec.codec import Codec
    from flamestream_grpc import GrpcTransport, Options


    async def main() -> None:
        authority, certificate, key = sys.argv[2:]
        options = Options(listen="127.0.0.1", tls_ca=authority, tls_certificate=certificate, tls_key=key)
        context = TransportContext(job="tests", incarnation=1, codec=Codec(), node="n", token="t")
        transport = GrpcTransport(options, context)
        print(await transport.start(), flush=True)
        await asyncio.to_thread(sys.stdin.read)
        await transport.aclose()


    asyncio.run(main())
"""
"""Listens until its input ends; before that it runs a line of Python."""


def listener(first: str, certificates: Any, **environment: str) -> subprocess.Popen[str]:
    """Start a process that runs a line of Python first.

    Its environment has no variables of gRPC but the given ones.
    """
    kept = {key: value for key, value in os.environ.items() if not key.startswith("GRPC_")}
    files = map(str, (certificates.authority, certificates.certificate, certificates.key))
    return subprocess.Popen(
        [sys.executable, "-c", dedent(LISTENER), first, *files],
        env=kept | environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("first", ["pass", "import flamestream_grpc, grpc"])
def test_a_new_process_speaks_tls_1_3_only(certificates: Any, first: str) -> None:
    process = listener(first, certificates)
    try:
        assert process.stdout is not None
        location = process.stdout.readline().strip()
        assert asyncio.run(spoken(location, certificates, ssl.TLSVersion.TLSv1_3)) == "TLSv1.3"
        with pytest.raises((OSError, ssl.SSLError)):
            asyncio.run(spoken(location, certificates, ssl.TLSVersion.TLSv1_2))
    finally:
        _, said = process.communicate()
    assert (process.returncode, said) == (0, "")


@pytest.mark.parametrize(
    ("first", "environment", "hint"),
    [
        ("import grpc", {}, "import flamestream_grpc first"),
        ("import grpc; grpc.ssl_channel_credentials()", {}, "import flamestream_grpc first"),
        ("pass", {"GRPC_SSL_CIPHER_SUITES": "ECDHE-ECDSA-AES128-GCM-SHA256"}, "unset it"),
    ],
)
def test_a_process_that_would_speak_tls_1_2_does_not_listen(
    certificates: Any, first: str, environment: dict[str, str], hint: str
) -> None:
    said, error = listener(first, certificates, **environment).communicate()
    assert said == ""
    assert "TransportError: cannot listen at 127.0.0.1:" in error
    assert "gRPC would speak TLS 1.2 there, and 1.3 is the least" in error
    assert hint in error


def test_the_environment_may_refuse_tls_1_2_for_whoever_imports_grpc_first(certificates: Any) -> None:
    process = listener("import grpc", certificates, GRPC_SSL_CIPHER_SUITES="ECDHE-PSK-CHACHA20-POLY1305")
    assert process.stdout is not None
    location = process.stdout.readline().strip()
    process.communicate()
    assert location.startswith("127.0.0.1:")


STRANGERS: dict[str, Any] = {
    "without TLS": lambda authority, strangers: {},
    "of another authority": lambda authority, strangers: strangers.files(),
    "of another authority, which it hides": lambda authority, strangers: (
        strangers.files() | {"tls_ca": str(authority.issue().authority)}
    ),
    "expired": lambda authority, strangers: authority.issue("expired", not_after=YESTERDAY).files(),
}


@pytest.mark.parametrize("files", STRANGERS.values(), ids=STRANGERS)
def test_a_process_that_shows_no_good_certificate_is_not_let_in(
    pair: Any, authority: Any, certificates: Any, strangers: Any, files: Any
) -> None:
    """The other processes go on."""

    async def run() -> None:
        async with pair({"listen": "127.0.0.1", **certificates.files()}) as (made, here, there):
            ours, theirs = await here.bind("here/0"), await there.bind("there/0")
            await ours.send("there/0", 1)
            wrong = Options(listen="127.0.0.1", connect_timeout_s=SOON, **files(authority, strangers))
            stranger = await (await made.add("stranger", wrong)).bind("stranger/0")
            with pytest.raises(ConnectError, match="there is no answer") as caught:
                await stranger.send("there/0", "let me in")
            assert "certificate" in caught.value.hint
            await ours.send("there/0", 2)
            assert [(await theirs.receive()).message for _ in range(2)] == [1, 2]
            assert theirs.receive_nowait() is None
            assert (made.lost, there.wire.lost) == ({}, [])
            await there.wire.later("aclose")

    asyncio.run(run())


@pytest.mark.parametrize(("hosts", "how"), [(["198.51.100.1"], {}), ([], {"not_after": YESTERDAY})])
def test_a_process_without_a_good_certificate_gets_nothing(
    pair: Any, authority: Any, certificates: Any, remote: Any, hosts: list[str], how: dict[str, Any]
) -> None:
    """The certificate names another host, or has expired."""

    async def run() -> None:
        wrong = authority.issue("wrong", *hosts, **how)
        # Time for a handshake on a busy machine: the fault is known only after it.
        here_too: dict[str, Any] = {"listen": "127.0.0.1", "connect_timeout_s": 2.0}
        async with pair(here_too | certificates.files()) as (made, here, _):
            ours = await here.bind("here/0")
            other = remote(here_too | wrong.files(), made.context("other"))
            made.locations["other"] = await other.start()
            try:
                await other.bind("other/0")
                with pytest.raises(ConnectError, match=r"Hostname Verification|certificate has expired"):
                    await ours.send("other/0", "hello")
                assert made.lost == {}
            finally:
                other.wire.close()

    asyncio.run(run())


def test_new_certificates_are_used_from_the_next_connection_on(pair: Any, remote: Any, authorities: Any) -> None:
    """The authority may be new too: certificates of the former are refused then."""
    first, second = authorities("first"), authorities("second")
    used, former, new = first.issue("used"), first.issue("former"), second.issue("new")
    # Whatever else the machine does: a peer that is given up would leave the test waiting for its message.
    options: dict[str, Any] = {"listen": "127.0.0.1", "connect_timeout_s": SOON, "reconnect_timeout_s": 60.0}

    async def run() -> None:
        async with pair(options | used.files()) as (made, here, there):
            ours, theirs = await here.bind("here/0"), await there.bind("there/0")
            await ours.send("there/0", "under the first")
            with capture_logs() as logs:
                replace(used, new)
                await ours.send("there/0", "over the same connection")
                here.disconnect()
                await ours.send("there/0", "under the second")
                got = [(await theirs.receive()).message for _ in range(3)]
                assert got == ["under the first", "over the same connection", "under the second"]
            assert [log["event"] for log in logs] == [CERTIFICATES_REPLACED]
            late = await (await made.add("late", Options(**options, **former.files()))).bind("late/0")
            for to in ("here/0", "there/0"):
                with pytest.raises(ConnectError):
                    await late.send(to, "let me in")
            member = remote(options | new.files(), made.context("member"))
            made.locations["member"] = await member.start()
            try:
                speaker = await member.bind("member/0")
                for to in (ours, theirs):
                    await speaker.send(to.address, "I am new")
                    assert (await to.receive()).message == "I am new"
                await ours.send("member/0", "welcome")
                assert (await speaker.receive()).message == "welcome"
                await member.wire.later("aclose")
            finally:
                member.wire.close()
            assert (made.lost, there.wire.lost) == ({}, [])
            await there.wire.later("aclose")

    asyncio.run(run())


def test_unusable_new_files_change_nothing(mesh: Any, authorities: Any) -> None:
    """The files may be replaced one by one."""
    authority = authorities("one")
    used, former, new = authority.issue("used"), authority.issue("former"), authority.issue("new")

    async def run() -> None:
        async with mesh() as made:
            a, b = await made.add("a", used.options()), await made.add("b", former.options())
            sender, receiver = await a.bind("a/0"), await b.bind("b/0")
            await sender.send("b/0", 0)
            with capture_logs() as logs:
                replace(used, new, "certificate")
                for number in (1, 2):
                    a.disconnect()
                    await sender.send("b/0", number)
                    assert (await receiver.receive()).message == number - 1
                assert [log["event"] for log in logs] == [CERTIFICATES_REFUSED]
                assert "cannot be used" in logs[0]["reason"]
                replace(used, new, "key")
                a.disconnect()
                await sender.send("b/0", 3)
                assert [(await receiver.receive()).message for _ in range(2)] == [2, 3]
                assert [log["event"] for log in logs] == [CERTIFICATES_REFUSED, CERTIFICATES_REPLACED]
            used.key.unlink()
            a.disconnect()
            await sender.send("b/0", 4)
            assert (await receiver.receive()).message == 4
            assert made.lost == {}

    asyncio.run(run())


@pytest.mark.parametrize("wrong", ["key", "authority"])
def test_files_that_do_not_belong_together_are_refused_at_once(certificates: Any, strangers: Any, wrong: str) -> None:
    text = b"-----BEGIN CERTIFICATE-----\nnothing\n-----END CERTIFICATE-----\n"
    broken = strangers.authority.with_name("broken.pem")
    broken.write_bytes(text)
    files = certificates.files() | {"key": {"tls_key": str(strangers.key)}, "authority": {"tls_ca": str(broken)}}[wrong]
    with pytest.raises(ConfigError, match="cannot be used") as caught:
        read(Options(**files))
    assert caught.value.path == {"key": "transport.grpc.tls_certificate", "authority": "transport.grpc.tls_ca"}[wrong]


def test_a_key_with_a_password_is_refused_without_asking_for_it(certificates: Any, tmp_path: Any) -> None:
    from cryptography.hazmat.primitives import serialization as pem

    key = pem.load_pem_private_key(certificates.key.read_bytes(), None)
    closed = tmp_path / "key.pem"
    closed.write_bytes(
        key.private_bytes(pem.Encoding.PEM, pem.PrivateFormat.PKCS8, pem.BestAvailableEncryption(b"secret"))
    )
    with pytest.raises(ConfigError, match="encrypted"):
        read(Options(**certificates.files() | {"tls_key": str(closed)}))


class Lengthening(Proxy):
    """A network that damages the length of one record of TLS: whoever reads it waits for bytes that never come."""

    damages = False

    def _flipped(self, data: bytes) -> bytes:
        application_data, more_bytes = 23, 1 << 13
        if not self.damages or data[0] != application_data:  # a read begins with a record: the sender waits for answers
            return data
        self.damages = False
        self.flips += 1
        return data[:3] + (int.from_bytes(data[3:5]) | more_bytes).to_bytes(2) + data[5:]


def test_a_connection_that_waits_for_bytes_that_never_come_is_replaced(mesh: Any, certificates: Any) -> None:
    """TLS notices a flipped bit when it has the whole record; if the bit is in its length, there may be no more."""

    async def run() -> None:
        async with mesh() as made:
            options = certificates.options(keepalive_s=0.3)
            a, b = await made.add("a", options), await made.add("b", options)
            async with Lengthening(made.locations["b"]) as proxy:
                made.locations["b"] = proxy.location
                sender, receiver = await a.bind("a/0"), await b.bind("b/0")
                await sender.send("b/0", "before")
                assert (await receiver.receive()).message == "before"
                proxy.damages = True
                await sender.send("b/0", "after")
                async with patience(LIMIT_S):
                    assert (await receiver.receive()).message == "after"
                assert proxy.flips == 1
                assert made.lost == {}

    asyncio.run(run())
