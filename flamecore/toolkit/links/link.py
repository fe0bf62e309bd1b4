"""Link to another process: connects, writes, reads replies, and reconnects.

All channels to that process share one connection. A message of it holds one frame, or as many as were waiting for the
one before to be written.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final, Protocol

from flamecore.errors import ConnectError, FlameError, FrameError, PeerGoneError
from flamecore.toolkit.frames import Framing
from flamecore.toolkit.links.connection import BrokenConnectionError, Dialed
from flamecore.toolkit.links.incoming import GOODBYE, bare, refused, told
from flamecore.toolkit.links.options import LinkOptions
from flamecore.toolkit.links.outgoing import Outgoing

_BATCH_BYTES: Final = 256 * 2**10
"""Most bytes put together in one write; larger frames go alone. Up to that size a write costs about the same."""
_PAUSE_S: Final = 0.02
_PAUSE_MOST_S: Final = 0.2
_FAREWELL_S: Final = 1.0
_IN_VAIN: Final = 5
"""Fewest connections in a row that carry nothing before the process at the other end counts as lost."""


class Home(Protocol):
    """The transport, as its links see it."""

    options: LinkOptions
    framing: Framing

    @property
    def unreachable_hint(self) -> str:
        """Return the remedy where a process cannot be reached."""

    @property
    def waits(self) -> bool:
        """Return whether to wait for a process that is not there yet."""

    async def dial(self, location: str, deadline: float) -> Dialed:
        """Connect to a location, show the greeting of this process, and wait for an answer.

        See `LinkedTransport.dial`.
        """

    def watched(self, location: str) -> bool:
        """Return whether somebody else says when the process at a location is gone."""

    async def reachable(self, location: str) -> bool:
        """Return whether a process listens at a location, even if too busy to answer."""

    def count_refused(self, error: FrameError) -> None:
        """Count a refused message."""

    def link_ended(self, link: Link, error: FlameError, *, lost: bool) -> None:
        """Remove a link that has ended; `lost` if its process is gone without closing."""


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
        self._connection: Dialed | None = None
        self._moved = True
        self._task = asyncio.create_task(self._run(), name=f"link to {location}")

    # -- for channels ------------------------------------------------------------------------------------------------

    @property
    def send_timeout_s(self) -> float | None:
        """Return how long to wait for room; None: until the other process is said to be gone."""
        return None if self._home.watched(self.location) else self.options.send_timeout_s

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
        if not self._task.done() and self._connection is not None:
            await asyncio.wait((self._task,), timeout=_FAREWELL_S)
        await self.break_off()

    async def break_off(self) -> None:
        """End at once, without a goodbye."""
        self._closing = True
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    def disconnect(self) -> None:
        """Break the connection, as a network would; the link mends it at once."""
        if self._connection is not None:
            self._connection.abort()

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
        connection = await self._connect(clock() + self.options.connect_timeout_s)
        broken_since, in_vain, given_up = 0.0, 0, False
        while True:
            try:
                broken = await self._carry(connection)
            finally:
                self._connection = None
                await connection.aclose()
            if broken is None:
                return PeerGoneError(f"{self.location} has closed", address="", peer=self.location)
            # A connection that breaks before it has carried a frame has not mended anything.
            if self._moved or not any(channel.kept for channel in self.channels.values()):
                broken_since, in_vain, given_up = clock(), 0, False
            else:
                in_vain += 1
                late = clock() >= broken_since + self.options.reconnect_timeout_s
                given_up = late and in_vain >= _IN_VAIN
                await asyncio.sleep(_PAUSE_S)
            self._moved = False
            try:
                if broken.hopeless or given_up:
                    raise broken
                connection = await self._connect(
                    broken_since + self.options.reconnect_timeout_s, broken_since + self.options.connect_timeout_s
                )
            except (BrokenConnectionError, ConnectError) as error:
                if broken.hopeless:  # it is there
                    what = f"{self.location} does not let this process in: {broken}"
                    raise PeerGoneError(what, address="", peer=self.location, refused=True) from error
                raise PeerGoneError(
                    f"{self.location} is gone without having closed: {broken}",
                    hint="" if error is broken else f"It cannot be reached any more: {error}",
                    address="",
                    peer=self.location,
                ) from error

    async def _connect(self, deadline: float, last: float = 0.0) -> Dialed:
        """Try to connect until it works.

        Args:
            deadline: In time of the event loop's clock; one attempt is made in any case.
            last: Deadline for a process that is reachable then.

        Raises:
            ConnectError: The deadline has passed, or no attempt can work.
        """
        clock = asyncio.get_running_loop().time
        attempts, pause_s = 0, _PAUSE_S
        known: BrokenConnectionError | None = None
        while True:
            attempts += 1
            try:
                return await self._attempt(deadline)
            except BrokenConnectionError as error:
                if error.hopeless:
                    raise self._unreachable(
                        f"{self.location} does not let this process in: {error}",
                        f"This process is one of job {self.framing.job!r}, and shows the token in $FLAMESTREAM_TOKEN. "
                        "Are both those of the other process?",
                    ) from error
                if not self._home.waits and not self.instance:
                    what = "nothing listens" if error.absent else "there is no answer"
                    raise self._unreachable(f"{what} at {self.location}: {error}") from error
                # The last attempt has little time: an earlier one's error says more.
                known = known if known is not None and error.late else error
                if clock() + pause_s >= deadline:
                    # Time passes also while this process is busy, or gets none: that says nothing about the other one.
                    busy = error.late and clock() < last and await self._home.reachable(self.location)
                    if not busy and (error.absent or not self._home.watched(self.location)):
                        text = f"there is no answer at {self.location}, tried {attempts} times: {known}"
                        raise self._unreachable(text) from error
                    deadline = clock() + self.options.reconnect_timeout_s
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, _PAUSE_MOST_S)

    async def _attempt(self, deadline: float) -> Dialed:
        """Connect once.

        Raises:
            BrokenConnectionError: It fails.
            PeerGoneError: Another process answers than before.
        """
        connection = await self._home.dial(self.location, max(deadline, asyncio.get_running_loop().time() + _PAUSE_S))
        if self.instance and connection.instance != self.instance:
            await connection.aclose()
            raise PeerGoneError(f"{self.location} is another process now", address="", peer=self.location)
        self.instance = connection.instance
        return connection

    async def _carry(self, connection: Dialed) -> BrokenConnectionError | None:
        """Write and read until the connection ends; return its error, None if closed."""
        self._queue = deque(data for channel in self.channels.values() for data in channel.kept)
        self._woken.set()
        self._connection = connection
        for channel in self.channels.values():
            channel.admit()
        writing = asyncio.create_task(self._write(connection))
        hearing = asyncio.create_task(self._hear(connection))
        try:
            await asyncio.wait((writing, hearing), return_when=asyncio.FIRST_COMPLETED)
            if not hearing.done():  # there is nothing more to write, or writing fails: the end is near
                await asyncio.wait((hearing,), timeout=_FAREWELL_S)
            if not hearing.done() or hearing.cancelled():
                return BrokenConnectionError("it was broken off")
            if (broken := await hearing) is not None:
                return broken
            if (
                writing.done()
                and not writing.cancelled()
                and not isinstance(writing.exception(), BrokenConnectionError)
            ):
                await writing
        except BrokenConnectionError as error:
            return error
        finally:
            for task in (writing, hearing):
                task.cancel()
            await asyncio.gather(writing, hearing, return_exceptions=True)
            connection.abort()
        return None

    async def _write(self, connection: Dialed) -> None:
        """Write the queue; if this process closes, say goodbye after it, and end."""
        while True:
            await self._woken.wait()
            while self._queue:
                await connection.write(self._batch())
            self._woken.clear()
            if self._closing:
                await connection.write(self.framing.wrap(GOODBYE))
                await connection.finish()
                return

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

    async def _hear(self, connection: Dialed) -> BrokenConnectionError | None:
        """Process the peer's replies; return the error that ends them, None if the peer closes."""
        try:
            while (data := await connection.read()) is not None:
                for frame in self.framing.unwrap_all(data):
                    if frame == GOODBYE:
                        return None
                    news = told(frame)
                    channel = self.channels.get((news.sender, news.receiver))
                    if channel is None:
                        raise refused("told", f"a reply for {news.sender} and {news.receiver}, which have no channel")
                    if channel.told(news.arrived, news.read, news.nobody):
                        self._moved = True
        except BrokenConnectionError as error:
            return bare(error)
        except FrameError as error:
            if error.reason not in ("refused", "again"):  # by this process, not by the peer
                self._home.count_refused(error)
            return BrokenConnectionError(error.what, hopeless=error.reason == "refused")
        return None

    def _unreachable(self, what: str, hint: str = "") -> ConnectError:
        return ConnectError(
            what,
            hint=hint or self._home.unreachable_hint,
            address="",
            peer=self.location,
            location=self.location,
        )
