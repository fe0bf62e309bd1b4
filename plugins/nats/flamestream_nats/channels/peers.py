"""Who else is there: the processes that this one has exchanged messages with, and how long a silence may last.

The server does not tell when a process is gone, but it says so of a message that nobody is there to get. So each
process writes to its peers every other `heartbeat_s`, and to one that was not connected the last time every time. A
peer that is not connected four times in a row is gone; one that is connected and says nothing may be busy with a long
call of a user's function, and has `silence_timeout_s`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from flamecore.errors import PeerGoneError
from flamestream_nats.options import Options

MISSES: Final = 4
EVERY: Final = 2
"""To how many ticks there is one sign of life to a peer that nothing is known against: each costs both processes."""


class Patience:
    """How long one is waited for that does not answer. Told every `heartbeat_s` while the server is there."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._limit = MISSES
        self._missed = False
        self._misses = 0
        self._silences = 0

    def heard(self) -> None:
        """It has answered."""
        self._limit = MISSES
        self._missed = False
        self._misses = self._silences = 0

    @property
    def in_outage(self) -> bool:
        """Whether it may still be on its way back, since the server was away."""
        return self._limit > MISSES

    def back(self) -> None:
        """Its process is back: if it does not answer now, it is not there."""
        self._limit = MISSES
        self._missed = False
        self._misses = 0

    def missed(self) -> None:
        """The server says that nobody is connected there."""
        self._missed = True

    @property
    def in_doubt(self) -> bool:
        """Whether it was not connected the last time."""
        return self._misses > 0

    def renew(self) -> None:
        """The server was away: others may take as long as this process might have taken to come back."""
        self.heard()
        self._limit = max(MISSES, round(self._options.reconnect_timeout_s / self._options.heartbeat_s))

    def tick(self) -> str:
        """One `heartbeat_s` has passed. Returns why there is no hope any more; empty if there is."""
        interval_s = self._options.heartbeat_s
        self._misses = self._misses + 1 if self._missed else 0
        self._missed = False
        if self._misses >= self._limit:
            return f"the server has had no connection to it for {self._misses * interval_s:g} s"
        self._silences += 1
        if self._silences * interval_s > self._options.silence_timeout_s:
            return f"it is connected, and has said nothing for {self._options.silence_timeout_s:g} s"
        return ""


class Peers:
    """The peers of one process, by location.

    Args:
        options: Of the transport.
        beat: Called with (location, key) when a sign of life is due to a peer.
        lost: Called with (location, why) when one is gone.
    """

    def __init__(
        self, options: Options, *, beat: Callable[[str, str], None], lost: Callable[[str, PeerGoneError], None]
    ) -> None:
        self._options = options
        self._beat = beat
        self._lost = lost
        self._peers: dict[str, Patience] = {}
        self._keys: dict[str, str] = {}
        self._left: set[str] = set()  # what they have said before may arrive after their farewell

    def __iter__(self) -> Iterator[str]:
        return iter(tuple(self._peers))

    def heard(self, location: str) -> bool:
        """A letter of that process has come. Returns whether it is the first since the server was away."""
        peer = self._peers.get(location)
        if peer is not None:
            first = peer.in_outage
            peer.heard()
            return first
        if location not in self._left:
            self._peers[location] = Patience(self._options)
            self._keys[f"p{len(self._keys)}"] = location
        return False

    def missed(self, key: str) -> None:
        """Nobody was there to get what `beat` has sent with this key."""
        peer = self._peers.get(self._keys.get(key, ""))
        if peer is not None:
            peer.missed()

    def left(self, location: str) -> None:
        """That process has ended as it should, or is known to be lost."""
        self._peers.pop(location, None)
        self._left.add(location)

    def has_left(self, location: str) -> bool:
        """Whether that process is gone, one way or the other."""
        return location in self._left

    def renew(self) -> None:
        """The connection is mended."""
        for peer in self._peers.values():
            peer.renew()

    def tick(self, *, all_due: bool = True) -> None:
        """One `heartbeat_s` has passed.

        Args:
            all_due: Whether a sign of life is due to all, and not only to those in doubt.
        """
        for key, location in self._keys.items():
            peer = self._peers.get(location)
            if peer is None:
                continue
            if reason := peer.tick():
                self.left(location)
                error = PeerGoneError(f"{location} is gone: {reason}", address="", peer=location)
                self._lost(location, error)
            elif all_due or peer.in_doubt:
                self._beat(location, key)
