"""Peers of this process, and how long a peer may be silent.

The server does not report that a process is gone, but it reports a message without a subscriber. So each process writes
to its peers every other `heartbeat_s`, and every `heartbeat_s` to a peer that was not connected the last time. A peer
that is not connected four times in a row is gone. A peer that is connected and silent may be busy with a long call of a
user's function, and has `silence_timeout_s`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from flamecore.errors import PeerGoneError
from flamestream_nats.options import Options

MISSES: Final = 4
EVERY: Final = 2
"""Ticks per heartbeat to a peer that is not in doubt: each heartbeat costs both processes."""


class FailureDetector:
    """Failure detector for a peer, run every `heartbeat_s` of a connected server."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._limit = MISSES
        self._missed = False
        self._misses = 0
        self._silences = 0

    def heard(self) -> None:
        """Note that the peer has answered."""
        self._limit = MISSES
        self._missed = False
        self._misses = self._silences = 0

    @property
    def in_outage(self) -> bool:
        """Return whether the peer may still be reconnecting after an outage of the server."""
        return self._limit > MISSES

    def back(self) -> None:
        """Shorten the limit again: the peer's process is back after an outage."""
        self._limit = MISSES
        self._missed = False
        self._misses = 0

    def missed(self) -> None:
        """Note that the server has no subscriber for the peer."""
        self._missed = True

    @property
    def in_doubt(self) -> bool:
        """Return whether the peer was not connected the last time."""
        return self._misses > 0

    def renew(self) -> None:
        """Allow the peer as long to reconnect as this process had, after an outage."""
        self.heard()
        self._limit = max(MISSES, round(self._options.reconnect_timeout_s / self._options.heartbeat_s))

    def tick(self, *, watched: bool = False) -> str:
        """Count one `heartbeat_s`; return why the peer is gone, or an empty string.

        Args:
            watched: Whether it may be silent, since somebody else says when it is gone.
        """
        interval_s = self._options.heartbeat_s
        self._misses = self._misses + 1 if self._missed else 0
        self._missed = False
        if self._misses >= self._limit:
            return f"the server has had no connection to it for {self._misses * interval_s:g} s"
        self._silences += 1
        if not watched and self._silences * interval_s > self._options.silence_timeout_s:
            return f"it is connected, and has said nothing for {self._options.silence_timeout_s:g} s"
        return ""


class Peers:
    """The peers of one process, by location.

    Args:
        options: The transport's options.
        beat: Called with (location, key) when a heartbeat to a peer is due.
        lost: Called with (location, why) when a peer is gone.
        watched: See `TransportContext.watched`: such a peer may be silent.
    """

    def __init__(
        self,
        options: Options,
        *,
        beat: Callable[[str, str], None],
        lost: Callable[[str, PeerGoneError], None],
        watched: Callable[[str], bool] = lambda location: False,
    ) -> None:
        self._options, self._watched = options, watched
        self._beat = beat
        self._lost = lost
        self._peers: dict[str, FailureDetector] = {}
        self._keys: dict[str, str] = {}
        self._left: set[str] = set()  # messages sent before their farewell may arrive after it

    def __iter__(self) -> Iterator[str]:
        return iter(tuple(self._peers))

    def heard(self, location: str) -> bool:
        """Note a letter of a process; return whether it is its first since an outage."""
        peer = self._peers.get(location)
        if peer is not None:
            first = peer.in_outage
            peer.heard()
            return first
        if location not in self._left:
            self._peers[location] = FailureDetector(self._options)
            self._keys[f"p{len(self._keys)}"] = location
        return False

    def missed(self, key: str) -> None:
        """Note that the heartbeat sent with `key` had no subscriber."""
        peer = self._peers.get(self._keys.get(key, ""))
        if peer is not None:
            peer.missed()

    def left(self, location: str) -> None:
        """Forget a process that has ended normally, or is known to be lost."""
        self._peers.pop(location, None)
        self._left.add(location)

    def has_left(self, location: str) -> bool:
        """Return whether a process has ended or is lost."""
        return location in self._left

    def renew(self) -> None:
        """Give all peers time to reconnect: the connection is mended."""
        for peer in self._peers.values():
            peer.renew()

    def tick(self, *, all_due: bool = True) -> None:
        """Count one `heartbeat_s`: report lost peers, and send heartbeats that are due.

        Args:
            all_due: Whether a heartbeat is due to all peers, or only to those in doubt.
        """
        for key, location in self._keys.items():
            peer = self._peers.get(location)
            if peer is None:
                continue
            if reason := peer.tick(watched=self._watched(location)):
                self.left(location)
                error = PeerGoneError(f"{location} is gone: {reason}", address="", peer=location)
                self._lost(location, error)
            elif all_due or peer.in_doubt:
                self._beat(location, key)
