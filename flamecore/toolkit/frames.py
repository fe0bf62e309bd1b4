r"""The frame around a message that leaves its process.

It is enough to refuse foreign bytes before parsing them:

    magic 4 | version 1 | reserved 1 | addresses' length 2 | body length 4 | incarnation 4 | sequence 8 | job 8 |
    checksum 8; then "sender\0receiver", then the body

All numbers are big-endian and unsigned. `job` is a hash of the job's id; `sequence` counts the frames of one channel
from 1, so a gap shows a loss. The checksum (xxh3, 64 bits) covers everything else. It detects damage, not malice: the
transport decides who may send (unix sockets, TLS, tokens).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

import xxhash

from flamecore.errors import FrameError

MAGIC: Final = b"FLMS"
VERSION: Final = 1
MAX_BODY_BYTES: Final = 64 * 2**20
"""Largest accepted body, unless the transport sets another limit."""

_HEAD: Final = struct.Struct(">4sBxHIIQQ")
_SUM: Final = struct.Struct(">Q")
HEADER_BYTES: Final = _HEAD.size + _SUM.size


class Frame(NamedTuple):
    """One message on its way: its addresses, its number in the channel, and its bytes."""

    sender: str
    receiver: str
    sequence: int
    body: bytes


class Framing:
    """The encoding of the frames of one job and incarnation.

    Args:
        job: Id of the job.
        incarnation: The number of its start; frames of another are refused.
        max_body_bytes: Largest body.
    """

    def __init__(self, job: str, incarnation: int = 0, *, max_body_bytes: int = MAX_BODY_BYTES) -> None:
        self.incarnation = incarnation
        self.max_body_bytes = max_body_bytes
        self.job = job
        self._job = xxhash.xxh3_64_intdigest(job.encode())

    def wrap(self, frame: Frame) -> bytes:
        """Return the bytes of a frame.

        Raises:
            FrameError: Its body is larger than a receiver would accept.
        """
        addresses = f"{frame.sender}\0{frame.receiver}".encode()
        if len(frame.body) > self.max_body_bytes:
            raise FrameError(
                f"a message of {len(frame.body)} bytes from {frame.sender} to {frame.receiver} is larger than "
                f"{self.max_body_bytes}",
                hint="Make the payloads smaller, or raise the transport's limit at every worker.",
                address=frame.sender,
                peer=frame.receiver,
                reason="oversized",
            )
        head = _HEAD.pack(MAGIC, VERSION, len(addresses), len(frame.body), self.incarnation, frame.sequence, self._job)
        rest = addresses + frame.body
        return head + _SUM.pack(_checksum(head, rest)) + rest

    def unwrap_all(self, data: bytes) -> Iterator[Frame]:
        """Yield the frames of bytes that hold one after the other, in that order.

        Raises:
            FrameError: As `unwrap`, at the refused frame. Frames behind it cannot be found.
        """
        at = 0
        while at < len(data):
            end = len(data)
            if end - at >= HEADER_BYTES:
                _, _, addresses, body, *_ = _HEAD.unpack_from(data, at)
                # By lengths that are not checked yet: if they are wrong, this frame is refused, and
                # with it what follows.
                end = min(at + HEADER_BYTES + addresses + body, end)
            yield self.unwrap(data[at:end])
            at = end

    def unwrap(self, data: bytes) -> Frame:
        """Return the frame in some bytes.

        Raises:
            FrameError: They are no whole, undamaged frame of this job, version and incarnation; the text says why.
        """
        if len(data) < HEADER_BYTES:
            raise _refused("short", f"{len(data)} bytes are no frame")
        magic, version, addresses, body, incarnation, sequence, job = _HEAD.unpack_from(data)
        if magic != MAGIC:
            raise _refused("magic", "bytes that are no frame")
        if version != VERSION:
            raise _refused("version", f"a frame of version {version}; this is version {VERSION}")
        if body > self.max_body_bytes:
            raise _refused(
                "oversized", f"a frame that claims a body of {body} bytes; {self.max_body_bytes} is the limit"
            )
        if len(data) != HEADER_BYTES + addresses + body:
            raise _refused("length", f"a frame of {len(data)} bytes that claims {HEADER_BYTES + addresses + body}")
        rest = data[HEADER_BYTES:]
        if _SUM.unpack_from(data, _HEAD.size)[0] != _checksum(data[: _HEAD.size], rest):
            raise _refused("damaged", "a damaged frame")
        if job != self._job:
            raise _refused("job", "a frame of another job")
        if incarnation != self.incarnation:
            raise _refused(
                "incarnation", f"a frame of incarnation {incarnation}; this is incarnation {self.incarnation}"
            )
        try:
            sender, receiver = rest[:addresses].decode().split("\0")
        except ValueError:
            raise _refused("addresses", "a frame with broken addresses") from None
        return Frame(sender, receiver, sequence, rest[addresses:])


class Sequences:
    """The sequence numbers of channels: numbers sent frames, and detects lost ones."""

    def __init__(self) -> None:
        self._sent: dict[tuple[str, str], int] = {}
        self._received: dict[tuple[str, str], int] = {}

    def next(self, sender: str, receiver: str) -> int:
        """Return the number of the next frame of a channel, from 1."""
        channel = (sender, receiver)
        number = self._sent[channel] = self._sent.get(channel, 0) + 1
        return number

    def admit(self, frame: Frame) -> bool:
        """Return whether a frame is the next of its channel; False for a repeated one.

        The caller drops repeated frames.

        Raises:
            FrameError: Frames before it are missing: the channel has lost them.
        """
        channel = (frame.sender, frame.receiver)
        expected = self._received.get(channel, 0) + 1
        if frame.sequence < expected:
            return False
        if frame.sequence > expected:
            raise FrameError(
                f"{frame.sequence - expected} frames from {frame.sender} to {frame.receiver} were lost before "
                f"number {frame.sequence}",
                hint="The job ends rather than continue with a gap.",
                address=frame.receiver,
                peer=frame.sender,
                reason="gap",
            )
        self._received[channel] = frame.sequence
        return True


def _checksum(head: bytes, rest: bytes) -> int:
    state = xxhash.xxh3_64(head)
    state.update(rest)
    return state.intdigest()


def _refused(reason: str, what: str) -> FrameError:
    return FrameError(f"refused {what}", address="", peer="", reason=reason)
