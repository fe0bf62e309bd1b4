"""The messages of a process: letters to its addresses, answers, heartbeats."""

from __future__ import annotations

import asyncio
import secrets
import struct
import time
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from flamecore.abc.transport import TransportContext
from flamecore.errors import FlameError, FrameError, PeerGoneError, TransportError
from flamecore.events import MESSAGE_REFUSED
from flamecore.logs import logger
from flamecore.toolkit.frames import Frame, Framing
from flamestream_nats.channels.envelope import Envelope, Kind, Letter, refused
from flamestream_nats.channels.outgoing import Outgoing
from flamestream_nats.channels.peers import EVERY, MISSES, Peers
from flamestream_nats.channels.subjects import Subjects, safe
from flamestream_nats.client import Heard
from flamestream_nats.connection import Connection
from flamestream_nats.options import Options

if TYPE_CHECKING:
    from flamestream_nats.channels.endpoint import NatsEndpoint

_TOLD: Final = 100
"""Most undecodable messages that are logged, for each reason."""
_LEAST_PAYLOAD: Final = 1024


def _until_next(interval_s: float) -> float:
    """Return the seconds until the machine's clock is at a multiple of `interval_s`.

    It is more than half an interval. Processes of one machine thus wake together, and read at once what the others
    sent.
    """
    left_s = interval_s - time.time() % interval_s
    return left_s if left_s > interval_s / 2 else left_s + interval_s


class Exchange:
    """The `Line` of a process's channels to the other processes of its job.

    Args:
        options: The transport's options, checked.
        context: The transport's context.
    """

    def __init__(self, options: Options, context: TransportContext) -> None:
        self.options = options
        self.context = context
        self.location = f"{safe(context.node or 'node')}-{secrets.token_hex(4)}"
        self.endpoints: dict[str, NatsEndpoint] = {}
        self.refused: Counter[str] = Counter()
        self.error: FlameError | None = None
        """Set once the server is lost for good."""
        self._subjects = Subjects(options.prefix, context.job, context.incarnation)
        self.home = self._subjects.node(self.location, "-")
        self._envelope = Envelope(Framing(context.job, context.incarnation), context.token)
        self._connection = Connection(
            options, self.location, up=self._mended, failed=self._server_lost, waits=context.waits
        )
        self._peers = Peers(options, beat=self._beat, lost=self._lost, watched=context.watched)
        self._channels: dict[str, Outgoing] = {}
        self._keys = 0
        self._overheard = False  # a stranger subscribes to everything, so the server never says that nobody is there
        self._asked: dict[str, asyncio.Future[bool]] = {}
        self._told: set[str] = set()
        self._ticking: asyncio.Task[None] | None = None

    # -- life ----------------------------------------------------------------------------------------------------------

    def watched(self, location: str) -> bool:
        return self.context.watched(location)

    async def open(self) -> None:
        """Connect, and subscribe to this process's subjects. Raises as `Connection.open`."""
        await self._connection.open()
        try:
            await self._begin()
        except BaseException:
            await self.aclose()
            raise

    async def _begin(self) -> None:
        if self._connection.max_payload < _LEAST_PAYLOAD:
            raise TransportError(
                f"{self.options.shown} takes no more than {self._connection.max_payload} bytes a message; at least "
                f"{_LEAST_PAYLOAD} are needed",
                hint="Raise max_payload in the server's configuration.",
                address=self.location,
                peer=self.options.shown,
            )
        await self._connection.subscribe(self._subjects.node(self.location, "*"), self._on_answer)
        self._ticking = asyncio.create_task(self._tick())

    async def _tick(self) -> None:
        """Run the timers every `heartbeat_s`, about, while the server is there."""
        interval_s = self.options.heartbeat_s
        try:
            while True:
                await asyncio.sleep(_until_next(interval_s))
                if self._connection.is_up:
                    for channel in tuple(self._channels.values()):
                        channel.tick()
                    self._peers.tick(all_due=round(time.time() / interval_s) % EVERY == 0)
        except Exception as error:  # noqa: BLE001 - handed to the job, which ends with it
            self._server_lost(TransportError(f"the transport fails: {error!r}", address=self.location, peer=""))

    def disconnect(self) -> None:
        """Break the connection to the server."""
        self._connection.disconnect()

    def repeat(self) -> None:
        """Send again everything that is not known to have arrived."""
        for channel in self._channels.values():
            channel.repeat()

    async def leave(self) -> None:
        """Tell the others that this process ends."""
        for location in self._peers:
            frame = Frame(self.location, location, 0, b"")
            self.post(Kind.LEAVING, 0, 0, frame, self._subjects.node(location, "-"), self.home)
        await self._connection.flush(self.options.send_timeout_s)

    async def aclose(self) -> None:
        """Disconnect from the server."""
        if self._ticking is not None:
            self._ticking.cancel()
        await self._connection.aclose()

    # -- addresses -----------------------------------------------------------------------------------------------------

    async def listen(self, endpoint: NatsEndpoint) -> None:
        """Subscribe an endpoint to its address; all can reach it once this returns.

        Raises:
            TransportError: Another process listens there.
        """
        if await self._is_taken(endpoint):
            raise TransportError(
                f"{endpoint.address} is bound already, by another process of job {self.context.job!r}",
                hint="Does another run of this job go on?",
                address=endpoint.address,
                peer="",
            )
        subject = self._subjects.at(endpoint.address)
        endpoint.subscription = await self._connection.subscribe(subject, lambda got: self._on_letter(endpoint, got))

    async def _is_taken(self, endpoint: NatsEndpoint) -> bool:
        """Return whether another process is bound to the address, however busy it is."""
        while True:
            mended = await self._connection.back()
            answer = await self._who(endpoint.address)
            if answer is not None or self._overheard:
                return bool(answer)
            # It is busy or absent; if absent, a stranger subscribes to everything: `nats sub '>'`.
            overheard = await self._who(f"nobody/{secrets.token_hex(4)}") is None
            if await self._connection.back() == mended:
                self._overheard = overheard
                return not overheard
            # No process was asked: the server was away.

    async def _who(self, address: str) -> bool | None:
        """Ask whether an address is bound; return None if its subscriber is silent."""
        key = self._key("w")
        answer = self._asked[key] = asyncio.get_running_loop().create_future()
        subject, reply = self._subjects.at(address), self._subjects.node(self.location, key)
        try:
            self.post(Kind.WHO, 0, 0, Frame(address, address, 0, b""), subject, reply)
            async with asyncio.timeout(self.options.heartbeat_s * (1 if self._overheard else MISSES)):
                taken: bool = await answer
                return taken
        except TimeoutError:
            return None
        finally:
            del self._asked[key]

    async def release(self, endpoint: NatsEndpoint) -> None:
        """Unsubscribe an endpoint that closes, so that others may bind its address."""
        if self.error is None:
            if endpoint.subscription is not None:
                await self._connection.unsubscribe(endpoint.subscription)
            await self._connection.flush(self.options.send_timeout_s)

    def forget(self, endpoint: NatsEndpoint) -> None:
        """Remove a closed endpoint and its channels."""
        if self.endpoints.get(endpoint.address) is endpoint:
            del self.endpoints[endpoint.address]
        own = endpoint.address
        self._channels = {key: channel for key, channel in self._channels.items() if channel.sender != own}

    # -- for its endpoints and channels ------------------------------------------------------------------------------

    def connect(self, endpoint: NatsEndpoint, to: str) -> Outgoing:
        """Create a channel to an address of another process.

        Raises:
            PeerGoneError: No endpoint ever bound it, or its process is gone.
        """
        if self.error is not None:
            raise self.error
        location = self.context.locate(to) if self.context.locate is not None else ""
        if location:
            if self._peers.has_left(location):
                raise PeerGoneError(f"{location}, where {to} was, is gone", address=endpoint.address, peer=to)
            self._peers.heard(location)
        self._channels = {key: channel for key, channel in self._channels.items() if channel.error is None}
        key = self._key("c")
        reply = self._subjects.node(self.location, key)
        channel = Outgoing(self, endpoint.address, endpoint.birth, to, self._subjects.at(to), reply, location)
        self._channels[key] = channel
        return channel

    def _key(self, kind: str) -> str:
        self._keys += 1
        return f"{kind}{self._keys}"

    def room(self, sender: str, receiver: str) -> int:
        return self._connection.max_payload - self._envelope.overhead(sender, receiver)

    def post(self, kind: Kind, flags: int, birth: int, frame: Frame, subject: str, reply: str) -> bytes:
        data = self._envelope.seal(kind, flags, birth, frame, subject, reply)
        self.post_again(subject, reply, data)
        return data

    def post_again(self, subject: str, reply: str, data: bytes) -> None:
        self._connection.post(subject, reply, data)

    def decode(self, body: bytes) -> Any:
        return self.context.codec.decode(body)

    def origin(self, reply: str) -> tuple[str, int]:
        """Return the process and the number of its channel that own a way back.

        Raises:
            FrameError: The subject is not of this job and incarnation, or names no channel.
        """
        location, key = self._subjects.location(reply)
        if not key[1:].isdecimal():
            raise refused("origin", "a message without a way back")
        return location, int(key[1:])

    def heard(self, location: str) -> None:
        """Note that a message of a process has arrived."""
        if self._peers.heard(location):
            for channel in self._channels.values():
                if channel.location == location and channel.detector.in_outage:
                    channel.detector.back()

    # -- arrivals -----------------------------------------------------------------------------------------------------

    def _on_letter(self, endpoint: NatsEndpoint, heard: Heard) -> None:
        """Handle a message to an address of this process."""
        try:
            letter = self._envelope.open(heard.data, heard.subject, heard.reply)
            if letter.kind is Kind.WHO:
                frame = Frame(endpoint.address, endpoint.address, 0, b"")
                self.post(Kind.HERE, 0, endpoint.birth, frame, heard.reply, self.home)
            else:
                endpoint.letter(letter, heard.reply)
        except (FrameError, struct.error) as error:
            self._refuse(error)

    def _on_answer(self, heard: Heard) -> None:
        """Handle an answer to this process, or notice of a missing subscriber."""
        key = heard.subject.rpartition(".")[2]
        if heard.nobody:
            return self._nobody(key)
        try:
            letter = self._envelope.open(heard.data, heard.subject, heard.reply)
            location, _ = self._subjects.location(heard.reply)
            if not location:
                raise refused("origin", "a message without a way back")
            self._answer(key, letter, location)
        except (FrameError, struct.error) as error:
            self._refuse(error)
        return None

    def _nobody(self, key: str) -> None:
        if (answer := self._asked.get(key)) is not None and not answer.done():
            answer.set_result(False)
        elif (channel := self._channels.get(key)) is not None:
            channel.detector.missed()
        else:
            self._peers.missed(key)

    def _answer(self, key: str, letter: Letter, location: str) -> None:
        kind, frame = letter.kind, letter.frame
        if kind is Kind.LEAVING:
            return self._left(location, PeerGoneError(f"{location} has ended", address=self.location, peer=location))
        self.heard(location)
        if kind is Kind.STATE or kind is Kind.CLOSED:
            channel = self._channels.get(key)
            if channel is None:
                return None  # an answer to one that is closed
            if (channel.sender, channel.receiver) != (frame.sender, frame.receiver):
                raise refused("address", "an answer to another channel than it names")
            if kind is Kind.STATE:
                channel.state(letter, location)
            else:
                self._closed_there(key, channel)
        elif kind is Kind.HERE and (answer := self._asked.get(key)) is not None and not answer.done():
            answer.set_result(True)
        elif kind is not Kind.HERE and kind is not Kind.BEAT:
            raise refused("kind", "a message that is not meant for a process")
        return None

    def _closed_there(self, key: str, channel: Outgoing) -> None:
        """Fail a channel whose receiver has closed; a later send may find its successor."""
        channel.bye()
        gone = f"{channel.receiver} is closed"
        channel.fail(PeerGoneError(gone, address=channel.sender, peer=channel.receiver))
        del self._channels[key]
        endpoint = self.endpoints.get(channel.sender)
        if endpoint is not None and endpoint.outgoing.get(channel.receiver) is channel:
            del endpoint.outgoing[channel.receiver]

    def _refuse(self, error: FrameError | struct.error) -> None:
        reason = error.reason if isinstance(error, FrameError) else "body"
        self.refused[reason] += 1
        if isinstance(error, FrameError) and error.peer and self.refused[reason] <= _TOLD:
            logger().warning(MESSAGE_REFUSED, address=error.address, sender=error.peer, kind=error.what)

    # -- failures ------------------------------------------------------------------------------------------------------

    def _mended(self) -> None:
        self._peers.renew()
        for endpoint in self.endpoints.values():
            endpoint.renew()

    def _beat(self, location: str, key: str) -> None:
        reply = self._subjects.node(self.location, key)
        frame = Frame(self.location, location, 0, b"")
        self.post(Kind.BEAT, 0, 0, frame, self._subjects.node(location, "-"), reply)

    def broken(self, channel: Outgoing, error: FlameError) -> None:
        channel.fail(error)
        self._lost(channel.location, error)

    def _lost(self, location: str, error: FlameError) -> None:
        self._left(location, error)
        if self.context.lost is not None and location not in self._told:
            self._told.add(location)
            self.context.lost(location, error)

    def _left(self, location: str, error: FlameError) -> None:
        """End all channels from and to a process."""
        self._peers.left(location)
        for channel in self._channels.values():
            if channel.location == location:
                channel.fail(error)
        for endpoint in self.endpoints.values():
            for incoming in endpoint.incoming.values():
                if incoming.location == location:
                    incoming.ended.set()

    def _server_lost(self, error: FlameError) -> None:
        self.error = error
        for channel in self._channels.values():
            channel.fail(error)
        for endpoint in self.endpoints.values():
            for incoming in endpoint.incoming.values():
                incoming.ended.set()
        for answer in self._asked.values():
            if not answer.done():
                answer.set_exception(error)
        if self.context.lost is not None:
            self.context.lost("", error)
