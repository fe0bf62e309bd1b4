"""Layout of a message: a frame, its kind, and proof of the job's token.

    proof 16 (if the job has a token) | kind 1 | flags 1 | birth 8 | frame (flamecore.toolkit.frames)

Any client that may publish on the server can write to every process of a job. The proof, a keyed BLAKE2b hash of the
message and both subjects, shows that the sender belongs to the job; messages without it are refused unread. It does not
encrypt: TLS does that. `birth` is a random number of the sending endpoint; it tells the endpoint from a successor of
the same address.
"""

from __future__ import annotations

import hmac
import struct
from enum import IntEnum
from hashlib import blake2b
from typing import Final, NamedTuple

from flamecore.errors import FrameError
from flamecore.toolkit.frames import HEADER_BYTES, Frame, Framing

_HEAD: Final = struct.Struct(">BBQ")
_PROOF_BYTES: Final = 16


class Kind(IntEnum):
    """Kind of a message. The first four go to an address, the others to a process."""

    DATA = 1
    """Part of a message, in the order of the frames' numbers. Flags: `MORE`, `TELL`."""
    PROBE = 2
    """Asks what has arrived. The frame's number is that of the last frame before it; body: number of the probe."""
    BYE = 3
    """The sender's end of a channel is closed, or forgotten."""
    WHO = 4
    """Asks whether anybody is bound to the address."""
    STATE = 5
    """Number of the last frame that has arrived. Body: numbers of the last read and the probe answered. Flag: `ASK`."""
    CLOSED = 6
    """The receiver's end of a channel is closed: it wants a `BYE`."""
    HERE = 7
    """Answers `WHO`."""
    BEAT = 8
    """The process is alive."""
    LEAVING = 9
    """The process ends normally."""


MORE: Final = 1
"""More parts of the same message follow."""
TELL: Final = 2
"""The sender wants to know when this message has been read."""
ASK: Final = 4
"""The receiver misses frames and wants a probe."""


class Letter(NamedTuple):
    """An opened message of the server."""

    kind: Kind
    flags: int
    birth: int
    frame: Frame


class Envelope:
    """Seal of the messages of one job and incarnation.

    Args:
        framing: Wrapper of the frames.
        token: The job's secret; if empty, messages carry no proof.
    """

    def __init__(self, framing: Framing, token: str) -> None:
        self._framing = framing
        key = blake2b(token.encode(), digest_size=32, person=b"flamestream").digest()
        self._keyed = blake2b(key=key, digest_size=_PROOF_BYTES) if token else None

    def overhead(self, sender: str, receiver: str) -> int:
        """Return the number of bytes a sealed frame has beyond its body."""
        addresses = len(sender.encode()) + 1 + len(receiver.encode())
        return (_PROOF_BYTES if self._keyed else 0) + _HEAD.size + HEADER_BYTES + addresses

    def seal(self, kind: Kind, flags: int, birth: int, frame: Frame, subject: str, reply: str) -> bytes:
        """Return the bytes of a letter to publish to `subject`, with `reply` as way back."""
        data = _HEAD.pack(kind, flags, birth) + self._framing.wrap(frame)
        return self._prove(data, subject, reply) + data

    def open(self, data: bytes, subject: str, reply: str) -> Letter:
        """Open the bytes of a message, as they arrived.

        Raises:
            FrameError: The message is not of this job and incarnation, or lacks the proof.
        """
        if self._keyed:
            proof, data = data[:_PROOF_BYTES], data[_PROOF_BYTES:]
            if not hmac.compare_digest(proof, self._prove(data, subject, reply)):
                raise refused("token", "a message without proof of the job's token")
        if len(data) < _HEAD.size:
            raise refused("short", "bytes that are no message")
        kind, flags, birth = _HEAD.unpack_from(data)
        frame = self._framing.unwrap(data[_HEAD.size :])
        try:
            return Letter(Kind(kind), flags, birth, frame)
        except ValueError:
            raise refused("kind", "a message of an unknown kind") from None

    def _prove(self, data: bytes, subject: str, reply: str) -> bytes:
        if self._keyed is None:
            return b""
        keyed = self._keyed.copy()
        keyed.update(f"{subject}\n{reply}\n".encode())
        keyed.update(data)
        return keyed.digest()


def refused(reason: str, what: str, address: str = "", peer: str = "") -> FrameError:
    """Return the error of a dropped message; `reason` is the word it is counted by."""
    return FrameError(f"refused {what}", address=address, peer=peer, reason=reason)
