"""Server of the transport: admits processes, takes frames, acknowledges them.

A process that does not show the token of the job is refused before anything is read. A frame that does not belong here
is refused and counted, and ends its connection; a peer that belongs here connects again and repeats the missing frames,
without the refused one.
"""

from __future__ import annotations

import asyncio
import hmac
from collections import Counter
from typing import Any, Final, NoReturn, Protocol

from flamecore.errors import CodecError, FlameError, FrameError, PeerGoneError
from flamecore.events import MESSAGE_REFUSED
from flamecore.logs import logger
from flamecore.toolkit.frames import Frame, Framing
from flamecore.toolkit.links.budget import UNREAD_BYTES, Budget
from flamecore.toolkit.links.connection import BrokenConnectionError, Call, Refusal
from flamecore.toolkit.links.incoming import GOODBYE, Incoming, Peer, bare, refusal, refused
from flamecore.toolkit.links.options import LinkOptions

MOST_PEERS: Final = 1024
"""Most connections at a time."""
_BURST: Final = 256
"""Most frames taken before other tasks have their turn: a message may hold a million."""
_TOLD: Final = 100
"""Most refused messages that are logged."""
_LAST_WORD_S: Final = 1.0
_CLOSING_S: Final = 2 * _LAST_WORD_S
"""Time in which a call ends that is told to: each side has a last word."""


class Taker(Protocol):
    """A bound address, as the server sees it."""

    def arrive(self, channel: Incoming, message: Any, size: int) -> None:
        """Keep a message until it is read; its channel is told when it has been."""


class House(Protocol):
    """The transport, as its server sees it."""

    options: LinkOptions
    framing: Framing
    instance: str
    refused: Counter[str]

    def decode(self, body: bytes) -> Any:
        """Decode a message. Raises CodecError."""

    def taker(self, address: str) -> Taker | None:
        """Return the endpoint bound to an address here, or None."""

    def count_refused(self, error: FrameError) -> None:
        """Count a refused message."""

    def is_location(self, text: str) -> bool:
        """Return whether a process of this transport may listen at a location."""

    def watched(self, location: str) -> bool:
        """Return whether somebody else says when the process at a location is gone."""

    async def reachable(self, location: str) -> bool:
        """Return whether a process listens at a location, even if too busy to answer."""

    def peer_came(self, location: str) -> None:
        """Note that a process is at a location, maybe in the place of one that is gone."""

    def peer_lost(self, location: str, instance: str, error: FlameError) -> None:
        """Report a process that is gone, or must count as gone, without having closed."""


class Server:
    """Server for the calls of other processes.

    Args:
        house: The transport.
        token: Token that callers must show; empty if none is needed.
    """

    def __init__(self, house: House, token: str) -> None:
        self._house = house
        self._token = token.encode()
        self._unread = Budget(UNREAD_BYTES)
        self._peers: dict[str, Peer] = {}
        self._lost: set[str] = set()
        self._watches: dict[str, asyncio.Task[None]] = {}
        self._calls: set[asyncio.Task[Any]] = set()
        self._closing = asyncio.Event()

    async def aclose(self) -> None:
        """Send the last acknowledgements, and end all calls."""
        self._closing.set()
        for watch in self._watches.values():
            watch.cancel()
        await asyncio.gather(*self._watches.values(), return_exceptions=True)
        if self._calls:
            await asyncio.wait(self._calls, timeout=_CLOSING_S)

    async def break_off(self) -> None:
        """End all calls at once; their connections are broken, or will be."""
        self._closing.set()
        ending = (*self._watches.values(), *self._calls)
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)

    def instance_at(self, location: str) -> str:
        """Return the instance that has sent from a location; empty if there is none."""
        peer = self._peers.get(location)
        return peer.instance if peer is not None else ""

    def lose(self, instance: str) -> None:
        """Give a process up as lost: it is refused if it comes back."""
        self._lost.add(instance)
        for peer in [peer for peer in self._peers.values() if peer.instance == instance]:
            self._forget(peer)

    # -- a call ------------------------------------------------------------------------------------------------------

    async def serve(self, call: Call) -> None:
        """Serve a call, from its beginning to its end."""
        task = asyncio.current_task()
        assert task is not None
        self._calls.add(task)
        try:
            await self._serve(call)
        finally:
            self._calls.discard(task)

    async def _serve(self, call: Call) -> None:
        peer = await self._admitted(call)
        await call.accept(self._house.instance)
        peer.tell_all()
        over: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        reading = asyncio.create_task(self._read(peer, call))
        if peer.telling is not None:  # over an older connection, which is dead whether or not that is known here
            peer.telling.cancel()
        telling = peer.telling = asyncio.create_task(self._tell(peer, call, over))
        closing = asyncio.create_task(self._closing.wait())
        left = False
        try:
            await asyncio.wait((reading, telling, closing), return_when=asyncio.FIRST_COMPLETED)
            if reading.done():
                left = await self._outcome(peer, call, reading, telling, over)
            if not left and not closing.done():
                if telling.done() and not telling.cancelled():
                    await telling
                await call.refuse(Refusal.REPLACED, Refusal.REPLACED.value)
            if left:
                await _conclude(peer, telling, over)
            else:  # said, and heard, before the call ends: see `_outcome`
                await _conclude(peer, telling, over, self._house.framing.wrap(GOODBYE))
                await asyncio.wait((reading,), timeout=_LAST_WORD_S)
        finally:
            for task in (reading, telling, closing):
                task.cancel()
            await asyncio.gather(reading, telling, closing, return_exceptions=True)
            if peer.telling is telling and self._peers.get(peer.location) is peer:
                self._disconnected(peer, left=left)

    async def _admitted(self, call: Call) -> Peer:
        """Return the calling peer, or abort the call if it is not allowed."""
        token, hello, location, instance = call.greeting
        if not hmac.compare_digest(token, self._token):
            self._house.refused["token"] += 1
            await call.refuse(Refusal.TOKEN, "it does not show the token of this job")
        if not self._house.is_location(location) or not instance or instance in self._lost:
            self._house.refused["lost" if instance in self._lost else "unnamed"] += 1
            await call.refuse(Refusal.UNWANTED, "it was given up as lost, or is nowhere")
        try:
            self._house.framing.unwrap(hello)
        except FrameError as error:
            self._house.count_refused(error)
            await call.refuse(Refusal.UNWANTED, f"{error.what}, to begin with")
        roles = call.roles
        peer = self._peers.get(location)
        if peer is not None and peer.roles != roles:
            self._house.refused["role"] += 1
            await call.refuse(Refusal.UNWANTED, "its certificate is for another role than before")
        if peer is None or peer.instance != instance:
            if peer is not None:
                self._lose(peer, "another process has taken its place")
            peer = self._peers[location] = Peer(location, instance, self._house.options, self._unread, roles)
            self._house.peer_came(location)
        if (watch := self._watches.pop(location, None)) is not None:
            watch.cancel()
        return peer

    async def _outcome(
        self,
        peer: Peer,
        call: Call,
        reading: asyncio.Task[bool | FrameError],
        telling: asyncio.Task[None],
        over: asyncio.Future[bytes],
    ) -> bool:
        """Return whether the peer has said goodbye; abort the call if a frame is refused."""
        outcome = await reading
        if isinstance(outcome, FrameError):
            await self._refuse(outcome, peer, call, telling, over)
        return outcome

    async def _refuse(
        self, outcome: FrameError, peer: Peer, call: Call, telling: asyncio.Task[None], over: asyncio.Future[bytes]
    ) -> NoReturn:
        """Abort a call because of a refused frame, for a reason that the peer learns."""
        self._house.count_refused(outcome)
        if outcome.reason == "gap":
            self._lose(peer, outcome.what)
        # A client that writes while its connection ends may not see why: gRPC replaces the status, and a socket the
        # last bytes. So the reason is sent before, and the call ends when the peer, having read it, writes no more.
        last = refusal(outcome)
        await _conclude(peer, telling, over, self._house.framing.wrap(last))
        await _drain(call)
        await call.refuse(Refusal.DAMAGED if last.sequence else Refusal.UNWANTED, outcome.what)

    async def _read(self, peer: Peer, call: Call) -> bool | FrameError:
        """Take the peer's frames; return whether they end with a goodbye, or the error of a refused frame."""
        try:
            while (data := await call.read()) is not None:
                await self._unread.room()
                if await self._take_all(peer, data):
                    return True
                del data  # the next one may be long in coming
        except FrameError as error:
            return bare(error)
        self._house.refused["broken"] += 1
        return False

    async def _take_all(self, peer: Peer, data: bytes) -> bool:
        """Take the frames of a message; return whether the last is a goodbye.

        Raises:
            FrameError: A frame is refused.
        """
        for number, frame in enumerate(self._house.framing.unwrap_all(data), 1):
            if frame == GOODBYE:
                return True
            self._take(peer, frame)
            if not number % _BURST:
                await asyncio.sleep(0)
        return False

    def _take(self, peer: Peer, frame: Frame) -> None:
        try:
            channel = peer.channel(frame)
        except FrameError as error:
            self._log_refused(peer, frame, error.what)
            raise
        taker = self._house.taker(frame.receiver)
        size = len(frame.body)
        channel.check_room(size)
        message = None
        if taker is not None and frame.sequence == channel.arrived + 1:
            try:
                message = self._house.decode(frame.body)
            except CodecError as error:
                self._log_refused(peer, frame, error.what)
                raise refused("codec", f"a message to {frame.receiver} that cannot be decoded: {error.what}") from error
        if not peer.sequences.admit(frame):
            self._house.refused["repeated"] += 1
            peer.tell(channel, 0)
            return
        channel.arrive(frame)
        if taker is None:
            channel.refuse(size)
        else:
            taker.arrive(channel, message, size)

    def _log_refused(self, peer: Peer, frame: Frame, why: str) -> None:
        """Log a refused message with its sender, unless many were."""
        if self._house.refused["codec"] + self._house.refused["role"] + self._house.refused["channels"] < _TOLD:
            sender = f"{frame.sender}, at {peer.location}"
            logger().warning(MESSAGE_REFUSED, address=frame.receiver, sender=sender, kind=why)

    async def _tell(self, peer: Peer, call: Call, over: asyncio.Future[bytes]) -> None:
        """Send acknowledgements until `over` is set, then its result, or until it breaks."""
        last = False
        while not last:
            if not over.done():
                await peer.news()
            last = over.done()
            if data := peer.take_news(self._house.framing) + (over.result() if last else b""):
                try:
                    await call.write(data)
                except BrokenConnectionError:  # broken: everything is acknowledged again over the next connection
                    return

    # -- peers -------------------------------------------------------------------------------------------------------

    def _disconnected(self, peer: Peer, *, left: bool) -> None:
        """Forget or watch a peer whose newest connection has ended."""
        peer.rest()
        if left or self._closing.is_set() or not peer.channels:
            self._forget(peer)
            return
        self._watches[peer.location] = asyncio.create_task(self._watch(peer))

    async def _watch(self, peer: Peer) -> None:
        """Give a peer up that does not reconnect; later if it is reachable but busy."""
        options = self._house.options
        clock = asyncio.get_running_loop().time
        deadline = clock() + options.connect_timeout_s
        await asyncio.sleep(options.reconnect_timeout_s)
        while self._house.watched(peer.location) or (clock() < deadline and await self._house.reachable(peer.location)):
            await asyncio.sleep(options.reconnect_timeout_s)
        self._watches.pop(peer.location, None)
        self._lose(peer, "its connection broke, and it did not connect again")

    def _lose(self, peer: Peer, why: str) -> None:
        self.lose(peer.instance)
        if peer.channels:
            text = f"{peer.location} is gone without having closed: {why}"
            error = PeerGoneError(text, address="", peer=peer.location)
            self._house.peer_lost(peer.location, peer.instance, error)

    def _forget(self, peer: Peer) -> None:
        peer.rest()
        if self._peers.get(peer.location) is peer:
            del self._peers[peer.location]
        if (watch := self._watches.pop(peer.location, None)) is not None:
            watch.cancel()


async def _conclude(peer: Peer, telling: asyncio.Task[None], over: asyncio.Future[bytes], last: bytes = b"") -> None:
    """Send the remaining acknowledgements, and `last` after them."""
    over.set_result(last)
    peer.hurry()
    await asyncio.wait((telling,), timeout=_LAST_WORD_S)


async def _drain(call: Call) -> None:
    """Drop what still arrives, until the peer ends or `_LAST_WORD_S` have passed."""
    try:
        async with asyncio.timeout(_LAST_WORD_S):
            while await call.read() is not None:
                pass
    except TimeoutError:  # it does not listen
        return
