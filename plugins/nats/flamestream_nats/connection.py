"""The connection to the server: publishes, subscribes, reports its breaks.

Messages posted while it is broken are dropped. The callers know which messages have not arrived, and post them again
when the connection is back.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Any, Final
from urllib.parse import urlsplit

from nats import errors
from nats.aio.client import Server
from nats.aio.msg import Msg
from nats.js import JetStreamContext

from flamecore.errors import ConnectError, FlameError, SendTimeout, TransportClosedError, TransportError
from flamecore.toolkit.closing import to_its_end
from flamestream_nats.client import DirectClient, Heard, ended
from flamestream_nats.explain import explained, is_tls, reason
from flamestream_nats.options import ServerOptions, check_seed, ssl_context

_LONGEST_PAUSE_S: Final = 0.5
_PING_S: Final = 5
_ATTEMPTS: Final = 3
_START_S: Final = 1.0
_START_PAUSE_S: Final = 0.05
"""Time allowed to a server that is just starting or breaks connections, and the pause between two attempts."""


class Connection:
    """One connection of one process.

    Args:
        options: Options of the transport, registry, store, source or sink, checked.
        name: Name of this process in the server's own lists.
        up: Called when a broken connection is mended.
        failed: Called once, when it cannot be mended or when the server refuses something.
        waits: Whether to wait for a server that is just starting.
    """

    def __init__(
        self,
        options: ServerOptions,
        name: str,
        *,
        up: Callable[[], None],
        failed: Callable[[FlameError], None],
        waits: bool = True,
    ) -> None:
        self.options = options
        self._waits = waits
        self.name = name
        self.is_up = False
        self._up = up
        self._failed = failed
        self._client = self._made()
        self._servers = {urlsplit(server).netloc.rpartition("@")[2] for server in options.servers}
        self._errors: list[Exception] = []
        self._hopeless = asyncio.Event()
        self._opened = False
        self._closing = False
        self._letters: list[tuple[str, str, bytes]] = []
        self._limit: asyncio.TimerHandle | None = None
        self._error: FlameError | None = None
        self._mended = 0
        self._broken = asyncio.Event()  # set while it is broken
        self._back = asyncio.Event()  # set while it is not broken, or broken for good

    def _made(self) -> DirectClient:
        return DirectClient(secured=self.options.secured, broken=lambda error: self._fail(self._explain(error)))

    @property
    def max_payload(self) -> int:
        """Return the server's largest message, in bytes."""
        return int(self._client.max_payload)

    async def open(self) -> None:
        """Connect.

        Raises:
            ConnectError: No server can be reached in time, or none lets this process in.
            ConfigError: A file for TLS cannot be used.
            MissingDependencyError: A key pair needs a package that is not installed.
        """
        arguments = self._arguments()
        try:
            async with asyncio.timeout(self.options.connect_timeout_s):
                await self._come_in(arguments)
        except TimeoutError as error:
            raise self._explain(self._errors[-1] if self._errors else error) from error
        except (OSError, errors.Error) as error:
            raise self._explain(error) from error
        self._opened = self.is_up = True
        self._back.set()

    async def _come_in(self, arguments: dict[str, Any]) -> None:
        """Try until a server accepts this process, or there is no point in trying."""
        closed = 0
        starts_until = asyncio.get_running_loop().time() + _START_S
        while True:
            try:
                return await self._attempt(arguments)
            except ConnectionRefusedError:
                if not self._waits or asyncio.get_running_loop().time() > starts_until:
                    raise
                await asyncio.sleep(_START_PAUSE_S)
            except (ConnectionResetError, BrokenPipeError, errors.UnexpectedEOF):
                # The server may have said why it refuses this process, and have closed before that was read. Or the
                # network has broken the connection, as it may again.
                closed += 1
                if closed >= _ATTEMPTS and asyncio.get_running_loop().time() > starts_until:
                    raise
                await asyncio.sleep(_START_PAUSE_S)

    async def _attempt(self, arguments: dict[str, Any]) -> None:
        """Try every server once. Raises the error of the last one."""
        client = self._client = self._made()
        self._errors.clear()
        self._hopeless.clear()
        connecting = asyncio.create_task(client.connect(**arguments))
        hopeless = asyncio.create_task(self._hopeless.wait())
        try:
            await asyncio.wait((connecting, hopeless), return_when=asyncio.FIRST_COMPLETED)
            if not connecting.done():
                raise self._errors[-1]
            connecting.result()
            if not client.is_connected:
                raise errors.UnexpectedEOF
        except BaseException:
            await to_its_end(_given_up(client, connecting))
            raise
        finally:
            hopeless.cancel()
            await asyncio.wait((hopeless,))

    def _arguments(self) -> dict[str, Any]:
        options = self.options
        if options.nkey_seed:
            check_seed(options)
        return {
            "servers": list(options.servers),
            "name": self.name,
            "error_cb": self._on_error,
            "disconnected_cb": self._on_disconnect,
            "reconnected_cb": self._on_reconnect,
            "closed_cb": self._on_close,
            "connect_timeout": options.connect_timeout_s,
            "reconnect_time_wait": 0.1,
            "max_reconnect_attempts": -1,
            "reconnect_to_server_handler": self._next_server,
            "ping_interval": _PING_S,
            "tls": ssl_context(options),
            "user": options.user or None,
            "password": options.password or None,
            "token": options.token or None,
            "nkeys_seed_str": options.nkey_seed or None,
        }

    def jetstream(self, timeout_s: float) -> JetStreamContext:
        """Return the JetStream API of an open connection, with a limit for each request."""
        return self._client.jetstream(timeout=timeout_s)

    async def request(self, subject: str, data: bytes, timeout_s: float, headers: dict[str, str] | None = None) -> Msg:
        """Publish a message, and wait for the answer."""
        return await self._client.request(subject, data, timeout=timeout_s, headers=headers)

    @property
    def server_version(self) -> str:
        """Return the version of the connected server."""
        return str(self._client.connected_server_version)

    @property
    def has_jetstream(self) -> bool:
        """Return whether the connected server has JetStream; others of its cluster may."""
        return self._client.has_jetstream

    async def subscribe(self, subject: str, handle: Callable[[Heard], None]) -> int:
        """Subscribe `handle` to a subject; wait for a server that is away.

        Messages arrive from when this returns; the result is the subscription's number.

        Raises:
            SendTimeout: The server is connected, and silent.
            ConnectError: The server refuses, or stays away.
        """
        try:
            number = await self._client.hear(subject, handle)
        except errors.Error as error:
            raise self._explain(error) from error
        # The client subscribes again by itself at the next server if the connection breaks meanwhile.
        while not await self.flush(self.options.connect_timeout_s):
            await self.back()
        return number

    async def back(self) -> int:
        """Wait until the connection is not broken; return how often it has been mended.

        Raises:
            ConnectError: It is broken for good.
        """
        await self._back.wait()
        if self._error is not None:
            raise self._error
        return self._mended

    async def unsubscribe(self, number: int) -> None:
        """Unsubscribe."""
        await self._client.hear_no_more(number)

    def post(self, subject: str, reply: str, data: bytes) -> None:
        """Publish a message after all posted before; drop it if the connection is broken.

        Messages posted in one turn of the event loop go out together, at its end.
        """
        if not self.is_up:
            return
        if len(data) > self.max_payload:
            self._fail(self._too_large(subject, data))
            return
        if not self._letters:
            asyncio.get_running_loop().call_soon(self._push)
        self._letters.append((subject, reply, data))

    def publish(self, letters: list[tuple[str, str, bytes, bytes]]) -> None:
        """Publish (subject, way back, headers, data) tuples at once, in order.

        They are dropped while the connection is broken.

        Args:
            letters: Each no larger than `max_payload`; an empty way back if there is none; headers in wire format.
        """
        self._push()
        if self.is_up:
            self._client.say_with_headers(letters)

    def _too_large(self, subject: str, data: bytes) -> TransportError:
        """Return the error of a part that was cut for a server with a larger limit."""
        return TransportError(
            f"a message of {len(data)} bytes; {self.options.shown} takes no more than {self.max_payload} any more",
            hint="Servers of one cluster need one max_payload.",
            address=subject,
            peer=self.options.shown,
        )

    def _push(self) -> None:
        letters, self._letters = self._letters, []
        if self.is_up:
            self._client.say(letters)

    async def flush(self, limit_s: float) -> bool:
        """Wait until the server has everything posted; return False on a break.

        Raises:
            SendTimeout: The server is connected, and silent.
            ConnectError: The server refuses.
        """
        self._push()
        if not self.is_up:
            return False
        flushing = asyncio.create_task(self._client.flush(math.ceil(limit_s)))
        breaking = asyncio.create_task(self._broken.wait())
        try:
            await asyncio.wait((flushing, breaking), return_when=asyncio.FIRST_COMPLETED)
            if not self.is_up or breaking.done():
                return False
            flushing.result()
        except errors.TimeoutError as error:
            raise SendTimeout(
                f"{self.options.shown} has not said within {limit_s:g} s that it has what was sent",
                hint="Is the network between here and there in order?",
                address=self.name,
                peer=self.options.shown,
                timeout_s=limit_s,
            ) from error
        except errors.Error as error:
            raise self._explain(error) from error
        finally:
            for task in (flushing, breaking):
                task.cancel()
            await asyncio.gather(flushing, breaking, return_exceptions=True)
        return True

    def disconnect(self) -> None:
        """Break the connection, as a network would; the client mends it at once."""
        if self.is_up:
            self._push()
            self._client.break_off()

    async def aclose(self) -> None:
        """Disconnect from the server, at once."""
        self._closing = True
        self.is_up = False
        self._end(TransportClosedError("the connection is closed", address=self.name, peer=self.options.shown))
        if self._limit is not None:
            self._limit.cancel()
        await to_its_end(self._client.close())

    # -- callbacks of the client -----------------------------------------------------------------------------------

    async def _on_error(self, error: Exception) -> None:
        if not self._opened:
            # All servers have been tried, or one has answered and refuses this process: others of its cluster will too.
            self._errors.append(error)
            if len(self._errors) >= len(self._servers) or not isinstance(error, OSError) or is_tls(error):
                self._hopeless.set()
            return
        self._errors = [error]
        if self.is_up and not isinstance(error, OSError | errors.StaleConnectionError | errors.SlowConsumerError):
            self._fail(self._explain(error))

    async def _on_disconnect(self) -> None:
        if self._closing or not self.is_up:
            return
        self.is_up = False
        self._broken.set()
        self._back.clear()
        limit_s = self.options.reconnect_timeout_s
        self._limit = asyncio.get_running_loop().call_later(limit_s, self._give_up)

    def _give_up(self) -> None:
        limit_s, why = self.options.reconnect_timeout_s, f": {reason(self._errors[-1])}" if self._errors else ""
        self._fail(
            ConnectError(
                f"the NATS server at {self.options.shown} has been away for {limit_s:g} s{why}",
                hint="Look after the server; reconnect_timeout_s says how long it may be away.",
                address=self.name,
                peer=self.options.shown,
                location=self.options.shown,
            )
        )

    async def _on_reconnect(self) -> None:
        if self._limit is not None:
            self._limit.cancel()
        if not self._closing:
            self.is_up = True
            self._mended += 1
            self._broken.clear()
            self._back.set()
            self._up()

    async def _on_close(self) -> None:
        if not self._closing and self._opened:
            error = self._client.last_error or ConnectionError("the connection was closed")
            self._fail(self._explain(error))

    def _next_server(self, servers: list[Server], _: dict[str, Any]) -> tuple[Server, float]:
        """Return the next server to try and the seconds to wait before.

        Only configured servers are tried, the least tried one first.
        """
        own = [server for server in servers if server.uri.netloc.rpartition("@")[2] in self._servers]
        server = min(own, key=lambda server: server.reconnects)
        return server, min(0.025 * 2**server.reconnects, _LONGEST_PAUSE_S) if server.reconnects else 0.0

    def _fail(self, error: FlameError) -> None:
        if not self._closing:
            self._closing = True
            self.is_up = False
            self._end(error)
            self._failed(error)

    def _end(self, error: FlameError) -> None:
        """Fail or release all callers of `back`."""
        self._error = self._error or error
        self._broken.set()
        self._back.set()

    def _explain(self, error: BaseException) -> FlameError:
        return explained(error, self.options, self.name)


async def _given_up(client: DirectClient, connecting: asyncio.Task[Any]) -> None:
    """End an attempt to connect."""
    await ended(connecting)
    await client.close()
