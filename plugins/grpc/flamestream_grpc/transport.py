"""The transport of one process: its server, its links, and its bound addresses."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections import Counter
from typing import TYPE_CHECKING, Any

import grpc
from grpc import aio

from flamecore.abc.transport import JobAddress, Outlook, Transport, TransportCapabilities, TransportContext
from flamecore.errors import ConfigError, FlameError, FrameError, PeerGoneError, TransportClosedError, TransportError
from flamecore.events import TRANSPORT_EXPOSED
from flamecore.logs import logger
from flamecore.toolkit.frames import HEADER_BYTES, Framing
from flamestream_grpc.endpoint import GrpcEndpoint
from flamestream_grpc.environment import CIPHERS, REFUSING_CIPHER
from flamestream_grpc.incoming import HELLO as HELLO_FRAME
from flamestream_grpc.link import HELLO, INSTANCE, LOCATION, TOKEN, Link
from flamestream_grpc.options import Options, check, joined, parse
from flamestream_grpc.outgoing import Outgoing
from flamestream_grpc.safety import exposed, is_location, keep_private, socket_path
from flamestream_grpc.server import Server
from flamestream_grpc.waking import unclog

if TYPE_CHECKING:
    from flamestream_grpc.certificates import Certificates

_SLACK_BYTES = 2**20
"""Most bytes by which a gRPC message exceeds a frame's body: head and addresses, or a batch of small frames."""


_AHEAD_BYTES = 2**20
"""Most bytes on their way to a process that gRPC there has not read."""

_HTTP2_FRAME_BYTES = 2**20
"""Largest HTTP/2 frame. HTTP/2's own 16 KiB make a tenth more work of large messages."""


class GrpcTransport(Transport):
    """Addresses of one process, and the links to other processes.

    Attributes:
        refused: Number of refusals by reason, one word each; `broken` are connections that ended without goodbye,
            `repeated` frames that came again after that.
        location: Location of this process for others, as returned by `start`.
    """

    name = "grpc"
    Options = Options
    schemes = ("grpc", "unix")

    def __init__(self, options: Any, context: TransportContext) -> None:
        super().__init__(options or Options(), context)
        check(self.options)
        self.framing = Framing(context.job, context.incarnation, max_body_bytes=self.options.max_frame_bytes)
        self.refused: Counter[str] = Counter()
        self.endpoints: dict[str, GrpcEndpoint] = {}
        self.location = ""
        self.instance = secrets.token_hex(16)
        self._server = Server(self, context.token)
        self._links: dict[str, Link] = {}
        self._gone: dict[str, FlameError] = {}
        self._homes: dict[str, Link] = {}  # by receiver, as `locate` has returned
        self._certificates: Certificates | None = None
        self._closed = False

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

    @property
    def capabilities(self) -> TransportCapabilities:
        return TransportCapabilities(multi_process=True, serialises=True)

    # -- listening ---------------------------------------------------------------------------------------------------

    def outlook(self) -> Outlook:
        if self.options.secured:
            from flamestream_grpc.certificates import read

            read(self.options)
        if self.options.listen == "unix":
            return Outlook("a unix socket in a folder of the job")
        host, port = parse(self.options.listen)
        missing = exposed(joined(host, port), self.options, self.context.token)
        shown, port = self._advertised(host, port)
        place = joined(shown, port) if port else f"{shown}, at any port that is free"
        join = f"grpc://{place}" if port else ""
        return Outlook(place, join=join, tls=self.options.secured, missing=tuple(missing))

    async def start(self) -> str:
        credentials = None
        if self.options.secured:
            from flamestream_grpc.certificates import Certificates  # which imports ssl

            self._certificates = Certificates(self.options)
            credentials = self._certificates.of_server()
        if self.options.listen == "unix":
            path = socket_path(self.context.folder, self.context.node)
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
        await self._server.aclose()
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
            port = await self._server.start(target, credentials, options)
        except RuntimeError as error:
            raise TransportError(
                f"cannot listen at {target}: {error}",
                hint="Is the port taken, and the host one of this machine?",
                address="",
                peer="",
            ) from error
        unclog(asyncio.get_running_loop())
        return port

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

    # -- for endpoints -----------------------------------------------------------------------------------------------

    async def bind(self, address: str) -> GrpcEndpoint:
        if self._closed:
            raise TransportClosedError("the transport is closed", address=address, peer="")
        if address in self.endpoints:
            raise TransportError(f"{address} is bound already", address=address, peer="")
        endpoint = self.endpoints[address] = GrpcEndpoint(address, self)
        return endpoint

    def encode(self, message: Any) -> bytes:
        data: bytes = self.context.codec.encode(message)
        return data

    def decode(self, body: bytes) -> Any:
        return self.context.codec.decode(body)

    def taker(self, address: str) -> GrpcEndpoint | None:
        return self.endpoints.get(address)

    def outgoing(self, sender: str, receiver: str) -> Outgoing:
        link = self._homes.get(receiver)
        if link is None:
            location = self.context.locate(receiver) if self.context.locate is not None else ""
            if location in ("", self.location) or not is_location(location):
                raise PeerGoneError(f"no endpoint is bound to {receiver}", address=sender, peer=receiver)
            if (error := self._gone.get(location)) is not None:
                raise error
            link = self._links.get(location)
            if link is None:
                exposed(location, self.options, self.context.token)
                link = self._links[location] = Link(location, self)
            self._homes[receiver] = link
        return link.channel(sender, receiver)

    def outgoing_of(self, sender: str) -> list[Outgoing]:
        return [
            channel for link in self._links.values() for channel in link.channels.values() if channel.sender == sender
        ]

    # -- for links and the server ------------------------------------------------------------------------------------

    @property
    def waits(self) -> bool:
        return self.context.waits

    def dial(self, location: str) -> aio.Channel:
        options = [
            *self._common(),
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.enable_retries", 0),
            ("grpc.enable_http_proxy", 0),
        ]
        if location.startswith("unix:") or self._certificates is None:
            return aio.insecure_channel(location, options)
        return aio.secure_channel(location, self._certificates.of_channel(), options)

    def metadata(self) -> list[tuple[str, str | bytes]]:
        token, location = self.context.token.encode(), self.location.encode()
        hello = self.framing.wrap(HELLO_FRAME)
        return [(TOKEN, token), (HELLO, hello), (LOCATION, location), (INSTANCE, self.instance)]

    def count_refused(self, error: FrameError) -> None:
        self.refused[error.reason] += 1

    def link_ended(self, link: Link, error: FlameError, *, lost: bool) -> None:
        self._drop(link)
        if isinstance(error, PeerGoneError) and self._server.instance_at(link.location) in ("", link.instance):
            self._gone[link.location] = error
        if lost:
            self._server.lose(link.instance)
            self._report(link.location, error)

    async def reachable(self, location: str) -> bool:
        ready, refused = grpc.ChannelConnectivity.READY, grpc.ChannelConnectivity.TRANSIENT_FAILURE
        channel = self.dial(location)
        try:
            async with asyncio.timeout(self.options.reconnect_timeout_s):
                while (state := channel.get_state(try_to_connect=True)) not in (ready, refused):
                    await channel.wait_for_state_change(state)
        except TimeoutError:
            return False
        finally:
            await channel.close()
        return state is ready

    def peer_came(self, location: str) -> None:
        self._gone.pop(location, None)

    def peer_lost(self, location: str, instance: str, error: FlameError) -> None:
        self._gone[location] = error
        link = self._links.get(location)
        if link is not None and link.instance in ("", instance):
            self._drop(link)
            link.end(error)
        self._report(location, error)

    def _drop(self, link: Link) -> None:
        if self._links.get(link.location) is link:
            del self._links[link.location]
        for receiver in [receiver for receiver, home in self._homes.items() if home is link]:
            del self._homes[receiver]

    def _report(self, location: str, error: FlameError) -> None:
        if self.context.lost is not None and not self._closed:
            self.context.lost(location, error)

    # -- faults for tests --------------------------------------------------------------------------------------------

    def disconnect(self) -> None:
        """Break all connections to others, as a network would; no message may be lost."""
        for link in self._links.values():
            link.disconnect()

    def repeat(self) -> None:
        """Send unconfirmed frames again; the receivers must see none of them twice."""
        for link in self._links.values():
            link.repeat()

    # -- the end -----------------------------------------------------------------------------------------------------

    async def aclose(self) -> None:
        """Close every endpoint and say goodbye; a second call does nothing.

        Raises:
            SendTimeout: A connected process has not taken its messages within `send_timeout_s`.
        """
        if self._closed:
            return
        self._closed = True
        closed = await asyncio.gather(
            *(endpoint.aclose() for endpoint in tuple(self.endpoints.values())), return_exceptions=True
        )
        await asyncio.gather(*(link.aclose() for link in tuple(self._links.values())))
        await self._server.aclose()
        for result in closed:
            if isinstance(result, BaseException):
                raise result
