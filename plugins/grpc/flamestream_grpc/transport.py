"""The driver: listens for calls of gRPC, and makes them."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

import grpc
from grpc import aio

from flamecore.abc.transport import JobAddress, Outlook, TransportContext
from flamecore.errors import ConfigError, TransportError
from flamecore.events import TRANSPORT_EXPOSED
from flamecore.logs import logger
from flamecore.toolkit.closing import leave_to_library, to_its_end
from flamecore.toolkit.frames import HEADER_BYTES
from flamecore.toolkit.links.server import MOST_PEERS
from flamecore.toolkit.links.transport import LinkedTransport
from flamecore.toolkit.links.unix import check_free, keep_private, path_in
from flamestream_grpc.calls import METHOD, GrpcCall, GrpcConnection
from flamestream_grpc.environment import CIPHERS, REFUSING_CIPHER
from flamestream_grpc.options import Options, check, joined, parse
from flamestream_grpc.safety import exposed, is_location
from flamestream_grpc.waking import unclogged

if TYPE_CHECKING:
    from flamestream_grpc.certificates import Certificates

_SLACK_BYTES = 2**20
"""Most bytes by which a gRPC message exceeds a frame's body: head and addresses, or a batch of small frames."""


_ELSEWHERE = "set listen to 127.0.0.1:0 under [transport.grpc]"
"""The remedy where a unix socket cannot be had."""

_KNOWN_BY = 'listen = "127.0.0.1:7070"'
"""The option of an address that is known before the job starts."""

_AHEAD_BYTES = 2**20
"""Most bytes on their way to a process that gRPC there has not read."""

_HTTP2_FRAME_BYTES = 2**20
"""Largest HTTP/2 frame. HTTP/2's own 16 KiB make a tenth more work of large messages."""


class GrpcTransport(LinkedTransport):
    """Addresses of one process, and the links to other processes."""

    name = "grpc"
    Options = Options
    schemes = ("grpc", "unix")
    unreachable_hint: ClassVar[str] = (
        "Is that process running, with the same job, token and TLS? One that does not take this process's "
        "certificate looks as if it closed, and so does one of another transport: a job over sockets is reached at "
        "socket:///PATH. connect_timeout_s under [transport.grpc] says how long to try."
    )

    def __init__(self, options: Any, context: TransportContext) -> None:
        super().__init__(options, context)
        check(self.options)
        self._listener: aio.Server | None = None
        self._certificates: Certificates | None = None

    @classmethod
    def address_of(cls, url: str) -> JobAddress:
        scheme, _, place = url.partition("://")
        if scheme == "unix":
            return JobAddress(f"unix:{place}")
        try:
            host, port = parse(place, "listen")
        except ConfigError:
            port = 0
        if not port:
            raise ConfigError(
                f"{url!r} is no address of a job over gRPC",
                hint="Write it as grpc://HOST:PORT or unix:///PATH.",
                path="",
            )
        return JobAddress(joined(host, port))

    # -- listening ---------------------------------------------------------------------------------------------------

    def outlook(self) -> Outlook:
        if self.options.secured:
            from flamestream_grpc.certificates import read

            read(self.options)
        if self.options.listen == "unix":
            path_in(self.context.folder, self.context.node, _ELSEWHERE)
            return Outlook("a unix socket in a folder of the job", known_by=_KNOWN_BY)
        host, port = parse(self.options.listen)
        missing = exposed(joined(host, port), self.options, self.context.token)
        shown, port = self._advertised(host, port)
        place = joined(shown, port) if port else f"{shown}, at any port that is free"
        join = f"grpc://{place}" if port else ""
        known_by = "" if join else _KNOWN_BY
        return Outlook(place, join=join, known_by=known_by, tls=self.options.secured, missing=tuple(missing))

    async def start(self) -> str:
        credentials = None
        if self.options.secured:
            from flamestream_grpc.certificates import Certificates  # which imports ssl

            self._certificates = Certificates(self.options)
            credentials = self._certificates.of_server()
        if self.options.listen == "unix":
            path = check_free(path_in(self.context.folder, self.context.node, _ELSEWHERE))
            await self._listen(f"unix:{path}", None)
            keep_private(path)
            self.location = f"unix:{path}"
            return self.location
        host, port = parse(self.options.listen)
        missing = exposed(joined(host, port), self.options, self.context.token)
        port = await self._listen(joined(host, port), credentials)
        if credentials is not None:
            await self._check_floor(host, port)
        self.location = joined(*self._advertised(host, port))
        if missing:
            logger().warning(TRANSPORT_EXPOSED, location=self.location, missing=" and ".join(missing))
        return self.location

    async def _check_floor(self, host: str, port: int) -> None:
        """Check that the server refuses clients of TLS 1.2; else stop listening.

        Raises:
            TransportError: They are accepted, or it cannot be found out.
        """
        from flamestream_grpc.tls_floor import speaks_tls_1_2

        hint = ""
        try:
            spoken = await speaks_tls_1_2(host, port, self.options.connect_timeout_s)
        except OSError as error:
            what = f"whether TLS 1.2 is spoken there cannot be told: {error or type(error).__name__}"
        else:
            if not spoken:
                return
            what = "gRPC would speak TLS 1.2 there, and 1.3 is the least"
            hint = f"{CIPHERS} is set otherwise: unset it."
            if os.environ.get(CIPHERS) == REFUSING_CIPHER:
                hint = (
                    "gRPC was imported before flamestream_grpc and reads its environment only then: "
                    f"import flamestream_grpc first, or start the program with {CIPHERS}={REFUSING_CIPHER}."
                )
        await self.stop_listening()
        raise TransportError(f"cannot listen at {joined(host, port)}: {what}", hint=hint, address="", peer="")

    def _advertised(self, host: str, port: int) -> tuple[str, int]:
        """Return host and port for others to connect to, given those listened at."""
        if not self.options.advertise:
            return host, port
        shown, shown_port = parse(self.options.advertise, "advertise")
        return shown, shown_port or port

    async def _listen(self, target: str, credentials: grpc.ServerCredentials | None) -> int:
        options = [
            *self._common(),
            ("grpc.so_reuseport", 0),  # or two processes could share a port, and neither would know
            ("grpc.http2.max_ping_strikes", 0),
            ("grpc.http2.min_recv_ping_interval_without_data_ms", 100),
        ]
        try:
            with unclogged(asyncio.get_running_loop()):
                return await self._serve(target, credentials, options)
        except RuntimeError as error:
            raise TransportError(
                f"cannot listen at {target}: {error}",
                hint="Is the port taken, and the host one of this machine?",
                address="",
                peer="",
            ) from error

    async def _serve(self, target: str, credentials: grpc.ServerCredentials | None, options: Any) -> int:
        """Start gRPC's server; return its port. Raises RuntimeError."""

        async def link(_: Any, context: Any) -> None:
            await self.server.serve(GrpcCall(context))

        self._listener = server = aio.server(options=options, maximum_concurrent_rpcs=MOST_PEERS)
        service, _, name = METHOD.strip("/").partition("/")
        handler = grpc.stream_stream_rpc_method_handler(link)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {name: handler}),))
        add: Callable[[str], int] = server.add_insecure_port
        if credentials is not None:
            add = lambda where: server.add_secure_port(where, credentials)  # noqa: E731
        port = add(target)
        leave_to_library(_place(target) or port)
        await server.start()
        return port

    async def stop_listening(self) -> None:
        if self._listener is not None:
            await to_its_end(self._listener.stop(0))

    def _common(self) -> list[tuple[str, Any]]:
        """Return gRPC's options for both sides."""
        keepalive_ms = max(round(self.options.keepalive_s * 1000), 1)
        most = self.options.max_frame_bytes + HEADER_BYTES + _SLACK_BYTES
        return [
            ("grpc.max_receive_message_length", most),
            ("grpc.max_send_message_length", most),
            ("grpc.keepalive_time_ms", keepalive_ms),
            ("grpc.keepalive_timeout_ms", keepalive_ms),
            ("grpc.http2.ping_timeout_ms", keepalive_ms),
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.http2.max_pings_without_data", 0),
            ("grpc.http2.bdp_probe", 0),  # measures the network, with a ping for each read: a fifth of all the work
            ("grpc.http2.lookahead_bytes", _AHEAD_BYTES),
            ("grpc.http2.max_frame_size", _HTTP2_FRAME_BYTES),
        ]

    # -- connections -------------------------------------------------------------------------------------------------

    def is_location(self, text: str) -> bool:
        return is_location(text)

    def check_exposed(self, location: str) -> None:
        exposed(location, self.options, self.context.token)

    async def dial(self, location: str, deadline: float) -> GrpcConnection:
        connection = GrpcConnection(self._channel(location), self.greeting)
        try:
            await connection.open(deadline, self.options.connect_timeout_s)
        except BaseException:
            await connection.aclose()
            raise
        return connection

    def _channel(self, location: str) -> aio.Channel:
        """Return a gRPC channel to a location."""
        leave_to_library(_place(location))
        options = [
            *self._common(),
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.enable_retries", 0),
            ("grpc.enable_http_proxy", 0),
        ]
        if location.startswith("unix:") or self._certificates is None:
            return aio.insecure_channel(location, options)
        return aio.secure_channel(location, self._certificates.of_channel(), options)

    async def reachable(self, location: str) -> bool:
        ready, refused = grpc.ChannelConnectivity.READY, grpc.ChannelConnectivity.TRANSIENT_FAILURE
        channel = self._channel(location)
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.options.reconnect_timeout_s):
                    while (state := channel.get_state(try_to_connect=True)) not in (ready, refused):
                        await channel.wait_for_state_change(state)
            # Asked again: gRPC connects also while this process is busy, and time passes.
            return channel.get_state() is ready
        finally:
            await channel.close()


def _place(location: str) -> int | str:
    """Return the port of a location, or the path of its unix socket."""
    return location.removeprefix("unix:") if location.startswith("unix:") else parse(location)[1]
