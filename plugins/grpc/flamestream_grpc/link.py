"""Link to another process: connects, writes, reads replies, and reconnects.

All channels to that process share one stream of a gRPC call. A message of the stream holds one frame, or as many as
were waiting for the one before to be written.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from typing import Any, Final, Protocol

import grpc
from grpc import aio

from flamecore.errors import ConnectError, FlameError, FrameError, PeerGoneError
from flamecore.toolkit.frames import Framing
from flamestream_grpc.incoming import GOODBYE, refused, told
from flamestream_grpc.options import Options
from flamestream_grpc.outgoing import Outgoing

METHOD: Final = "/flamestream.Transport/Link"
HELLO: Final = "flamestream-hello-bin"
INSTANCE: Final = "flamestream-instance"
LOCATION: Final = "flamestream-location-bin"
TOKEN: Final = "flamestream-token-bin"

_BATCH_BYTES: Final = 256 * 2**10
"""Most bytes put together in one write; larger frames go alone. Up to that size a write costs about the same."""
_PAUSE_S: Final = 0.02
_PAUSE_MOST_S: Final = 0.2
_FAREWELL_S: Final = 1.0
_HOPELESS: Final = frozenset(
    {
        grpc.StatusCode.UNAUTHENTICATED,
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.UNIMPLEMENTED,
    }
)
"""Status codes that another attempt would give again."""


_NOBODY: Final = re.compile(r"Connection refused|No such file")
"""The system's errors where nothing listens, as gRPC passes them on."""


class Home(Protocol):
    """The transport, as its links see it."""

    options: Options
    framing: Framing
    location: str
    instance: str

    @property
    def waits(self) -> bool:
        """Return whether to wait for a process that is not there yet."""

    def dial(self, location: str) -> aio.Channel:
        """Return a gRPC channel to a location."""

    def metadata(self) -> list[tuple[str, str | bytes]]:
        """Return the metadata this process shows at the beginning of a call."""

    def count_refused(self, error: FrameError) -> None:
        """Count a refused message."""

    def link_ended(self, link: Link, error: FlameError, *, lost: bool) -> None:
        """Remove a link that has ended; `lost` if its process is gone without closing."""


class _BrokenError(Exception):
    """A connection could not be made, or broke.

    Args:
        why: The reason in gRPC's words.
        hopeless: Whether another attempt would fail the same way.
        late: Whether time was up before the reason was known.
    """

    def __init__(self, why: str, *, hopeless: bool = False, late: bool = False) -> None:
        super().__init__(why)
        self.hopeless = hopeless
        self.late = late


def _broken(error: aio.AioRpcError) -> _BrokenError:
    return _BrokenError(error.details() or str(error.code()), hopeless=error.code() in _HOPELESS)


class Link:
    """The link to one location.

    Args:
        location: The other process's location.
        home: The transport.
    """

    def __init__(self, location: str, home: Home) -> None:
        self.location = location
        self.options = home.options
        self.framing = home.framing
        self.instance = ""
        """Instance of the process that has answered; empty before."""
        self.channels: dict[tuple[str, str], Outgoing] = {}
        self._home = home
        self._queue: deque[bytes] = deque()
        self._woken = asyncio.Event()
        self._closing = False
        self._error: FlameError | None = None
        self._call: Any = None
        self._moved = True
        self._task = asyncio.create_task(self._run(), name=f"link to {location}")

    # -- for channels ------------------------------------------------------------------------------------------------

    @property
    def carries(self) -> bool:
        return bool(self.instance) and self._error is None

    def post(self, data: bytes) -> None:
        self._queue.append(data)
        self._woken.set()

    def channel(self, sender: str, receiver: str) -> Outgoing:
        """Return the channel between two addresses; create it if there is none."""
        key = (sender, receiver)
        channel = self.channels.get(key)
        if channel is None:
            channel = self.channels[key] = Outgoing(sender, receiver, self)
        return channel

    # -- its end -----------------------------------------------------------------------------------------------------

    def end(self, error: FlameError) -> None:
        """Fail all channels: there is no process at the other end any more."""
        if self._error is not None:
            return
        self._error = error
        self._queue.clear()
        for channel in self.channels.values():
            channel.fail(error)
        if asyncio.current_task() is not self._task:
            self._task.cancel()

    async def aclose(self) -> None:
        """Say goodbye, and wait a little until the peer has read it."""
        self._closing = True
        self._woken.set()
        if not self._task.done():
            if self._call is not None:
                await asyncio.wait((self._task,), timeout=_FAREWELL_S)
            self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    def disconnect(self) -> None:
        """Break the connection, as a network would; the link mends it at once."""
        if self._call is not None:
            self._call.cancel()

    def repeat(self) -> None:
        """Write all unconfirmed frames again."""
        for channel in self.channels.values():
            self._queue.extend(channel.kept)
        self._woken.set()

    # -- its life ----------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        error: FlameError
        lost = False
        try:
            error = await self._live()
        except ConnectError as caught:
            error = caught
        except PeerGoneError as caught:
            error, lost = caught, not self._closing
        except Exception as caught:  # noqa: BLE001 - senders get the error, and so does the job
            text = f"the way to {self.location} has failed: {caught!r}"
            error, lost = PeerGoneError(text, address="", peer=self.location), not self._closing
            error.__cause__ = caught
        self.end(error)
        self._home.link_ended(self, error, lost=lost)

    async def _live(self) -> PeerGoneError:
        """Connect, and carry frames over successive connections until the peer closes.

        Returns:
            The error for those that send later.

        Raises:
            ConnectError: There never was a connection.
            PeerGoneError: The peer is lost.
        """
        clock = asyncio.get_running_loop().time
        channel, call = await self._connect(clock() + self.options.connect_timeout_s)
        broken_since = 0.0
        while True:
            try:
                broken = await self._carry(call)
            finally:
                self._call = None
                await channel.close()
            if broken is None:
                return PeerGoneError(f"{self.location} has closed", address="", peer=self.location)
            # A connection that breaks before it has carried a frame has not mended anything.
            if self._moved or not any(channel.kept for channel in self.channels.values()):
                broken_since = clock()
            elif clock() < broken_since + self.options.reconnect_timeout_s:
                await asyncio.sleep(_PAUSE_S)
            else:
                broken.hopeless = True
            self._moved = False
            try:
                if broken.hopeless:
                    raise broken
                channel, call = await self._connect(broken_since + self.options.reconnect_timeout_s)
            except (_BrokenError, ConnectError) as error:
                raise PeerGoneError(
                    f"{self.location} is gone without having closed: {broken}",
                    hint="" if error is broken else f"It cannot be reached any more: {error}",
                    address="",
                    peer=self.location,
                ) from error

    async def _connect(self, deadline: float) -> tuple[aio.Channel, Any]:
        """Try to connect until it works; return the channel and its call.

        Args:
            deadline: In time of the event loop's clock; one attempt is made in any case.

        Raises:
            ConnectError: The deadline has passed, or no attempt can work.
        """
        clock = asyncio.get_running_loop().time
        attempts, pause_s = 0, _PAUSE_S
        known: _BrokenError | None = None
        while True:
            attempts += 1
            channel = self._home.dial(self.location)
            try:
                return channel, await self._attempt(channel, deadline)
            except _BrokenError as error:
                await channel.close()
                if error.hopeless:
                    raise self._unreachable(f"{self.location} does not let this process in: {error}") from error
                if not self._home.waits and not self.instance:
                    what = "nothing listens" if _NOBODY.search(str(error)) else "there is no answer"
                    raise self._unreachable(f"{what} at {self.location}: {error}") from error
                # The last attempt has little time: an earlier one's error says more.
                known = known if known is not None and error.late else error
                if clock() + pause_s >= deadline:
                    text = f"there is no answer at {self.location}, tried {attempts} times: {known}"
                    raise self._unreachable(text) from error
            except BaseException:
                await channel.close()
                raise
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, _PAUSE_MOST_S)

    async def _attempt(self, channel: aio.Channel, deadline: float) -> Any:
        """Start a call, and wait until the peer has answered.

        Raises:
            _BrokenError: The call fails.
            PeerGoneError: Another process answers than before.
        """
        call = channel.stream_stream(METHOD)(metadata=aio.Metadata(*self._home.metadata()))
        try:
            async with asyncio.timeout_at(max(deadline, asyncio.get_running_loop().time() + _PAUSE_S)):
                await call.wait_for_connection()
            # The process is there; but its event loop may be busy with a user's function.
            async with asyncio.timeout(self.options.connect_timeout_s):
                metadata = await call.initial_metadata()
            instance = str(dict(iter(metadata or ())).get(INSTANCE, ""))  # a mapping that older ones get wrong
            if not instance:
                raise _BrokenError(str(await call.details()), hopeless=await call.code() in _HOPELESS)
        except TimeoutError:
            raise _BrokenError("no answer in time", late=True) from None
        except aio.AioRpcError as error:
            raise _broken(error) from error
        if self.instance and instance != self.instance:
            raise PeerGoneError(f"{self.location} is another process now", address="", peer=self.location)
        self.instance = instance
        return call

    async def _carry(self, call: Any) -> _BrokenError | None:
        """Write and read until the connection ends; return its error, None if closed."""
        self._queue = deque(data for channel in self.channels.values() for data in channel.kept)
        self._woken.set()
        self._call = call
        for channel in self.channels.values():
            channel.admit()
        writing = asyncio.create_task(self._write(call))
        hearing = asyncio.create_task(self._hear(call))
        try:
            await asyncio.wait((writing, hearing), return_when=asyncio.FIRST_COMPLETED)
            if not hearing.done():  # there is nothing more to write, or writing fails: the end is near
                await asyncio.wait((hearing,), timeout=_FAREWELL_S)
            if not hearing.done() or hearing.cancelled():
                return _BrokenError("it was broken off")
            await hearing
            if writing.done() and not writing.cancelled() and not isinstance(writing.exception(), _BrokenError):
                await writing
        except _BrokenError as error:
            return error
        finally:
            for task in (writing, hearing):
                task.cancel()
            await asyncio.gather(writing, hearing, return_exceptions=True)
            call.cancel()
        return None

    async def _write(self, call: Any) -> None:
        """Write the queue; if this process closes, say goodbye after it, and end."""
        try:
            while True:
                await self._woken.wait()
                while self._queue:
                    await call.write(self._batch())
                self._woken.clear()
                if self._closing:
                    await call.write(self.framing.wrap(GOODBYE))
                    await call.done_writing()
                    return
        except aio.AioRpcError as error:
            raise _broken(error) from error
        except asyncio.InvalidStateError as error:  # gRPC raises it when the call has ended already
            raise _BrokenError(str(error)) from error

    def _batch(self) -> bytes:
        queue = self._queue
        data = queue.popleft()
        if not queue or len(data) + len(queue[0]) > _BATCH_BYTES:
            return data
        parts, size = [data], len(data)
        while queue and size + len(queue[0]) <= _BATCH_BYTES:
            parts.append(queue.popleft())
            size += len(parts[-1])
        return b"".join(parts)

    async def _hear(self, call: Any) -> None:
        """Process the peer's replies until it closes."""
        try:
            while (data := await call.read()) is not aio.EOF:
                for frame in self.framing.unwrap_all(data):
                    if frame == GOODBYE:
                        return
                    news = told(frame)
                    channel = self.channels.get((news.sender, news.receiver))
                    if channel is None:
                        raise refused("told", f"a reply for {news.sender} and {news.receiver}, which have no channel")
                    if channel.told(news.arrived, news.read, news.nobody):
                        self._moved = True
        except FrameError as error:
            if error.reason in ("refused", "again"):  # not by this process, but by the peer
                raise _BrokenError(error.what, hopeless=error.reason == "refused") from error
            self._home.count_refused(error)
            raise _BrokenError(error.what) from error
        except aio.AioRpcError as error:
            raise _broken(error) from error

    def _unreachable(self, what: str) -> ConnectError:
        return ConnectError(
            what,
            hint="Is that process running, with the same job, token and TLS? One that does not take this process's "
            "certificate looks as if it closed. connect_timeout_s under [transport.grpc] says how long to try.",
            address="",
            peer=self.location,
            location=self.location,
        )
