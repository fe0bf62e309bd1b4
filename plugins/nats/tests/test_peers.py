"""Heartbeats between processes, and when a silent process is given up."""

from __future__ import annotations

from typing import Any

import pytest

from flamecore.errors import PeerGoneError
from flamestream_nats.channels.exchange import _until_next
from flamestream_nats.channels.peers import EVERY, MISSES, FailureDetector, Peers
from flamestream_nats.options import Options


class Watched:
    """Two peers, and the heartbeats sent to them."""

    def __init__(self, **options: Any) -> None:
        self.beats: list[str] = []
        self.lost: dict[str, PeerGoneError] = {}
        self.keys: dict[str, str] = {}
        self.peers = Peers(Options(**options), beat=self.beat, lost=self.lost.__setitem__)
        for location in ("here", "there"):
            self.peers.heard(location)
        self.ticks = 0

    def beat(self, location: str, key: str) -> None:
        self.beats.append(location)
        self.keys[location] = key

    def tick(self, *, without: str = "", silent: bool = False) -> list[str]:
        """Pass one heartbeat with `without` unconnected; return the peers written to."""
        self.beats.clear()
        self.peers.tick(all_due=self.ticks % EVERY == 0)
        self.ticks += 1
        for location in self.beats:
            if location == without:
                self.peers.missed(self.keys[location])
            elif not silent:
                self.peers.heard(location)
        return list(self.beats)


def test_a_connected_peer_is_pinged_now_and_then() -> None:
    watched = Watched()
    assert [watched.tick() for _ in range(2 * EVERY)] == [["here", "there"], *[[]] * (EVERY - 1)] * 2


def test_a_disconnected_peer_is_pinged_every_time_until_it_is_given_up() -> None:
    watched = Watched()
    ticks = 0
    while not watched.lost:
        beats = watched.tick(without="there")
        assert ("there" in beats) == (ticks < MISSES), "from the first that got nobody, one each time"
        assert ("here" in beats) == (ticks % EVERY == 0)
        ticks += 1
    assert ticks == MISSES + 1
    assert "the server has had no connection to it for 1 s" in str(watched.lost["there"])
    assert list(watched.peers) == ["here"]
    assert watched.peers.has_left("there")


def test_a_peer_that_returns_in_time_is_not_given_up() -> None:
    watched = Watched()
    for _ in range(5):
        for _ in range(MISSES - 1):
            watched.tick(without="there")
        watched.tick()
        watched.tick()
    assert not watched.lost


def test_a_connected_but_silent_peer_gets_longer() -> None:
    watched = Watched(silence_timeout_s=3, heartbeat_s=0.5)
    while not watched.lost:
        watched.tick(silent=True)
    assert watched.ticks == 7
    assert "has said nothing for 3 s" in str(watched.lost["there"])


@pytest.mark.parametrize(("now", "left_s"), [(100.0, 0.25), (100.05, 0.2), (100.2, 0.3), (99.999, 0.251)])
def test_processes_of_one_machine_wake_together(monkeypatch: pytest.MonkeyPatch, now: float, left_s: float) -> None:
    monkeypatch.setattr("time.time", lambda: now)
    assert _until_next(0.25) == pytest.approx(left_s)


def test_the_first_word_of_a_peer_after_an_outage_is_reported() -> None:
    """Until then it may take as long as the outage might, and so may its addresses."""
    watched = Watched(reconnect_timeout_s=3)
    assert not watched.peers.heard("there")
    watched.peers.renew()
    for _ in range(8):
        watched.tick(without="there", silent=True)
    assert not watched.lost
    assert watched.peers.heard("there")
    assert not watched.peers.heard("there")
    for _ in range(MISSES + 1):
        watched.tick(without="there")
    assert list(watched.lost) == ["there"]


def test_an_address_gets_the_usual_limit_once_its_process_is_back() -> None:
    detector = FailureDetector(Options(reconnect_timeout_s=3))
    detector.renew()
    for _ in range(8):
        detector.missed()
        assert detector.tick() == ""
    assert detector.in_outage
    detector.back()
    assert not detector.in_outage
    for number in range(MISSES):
        detector.missed()
        assert bool(detector.tick()) == (number == MISSES - 1)
