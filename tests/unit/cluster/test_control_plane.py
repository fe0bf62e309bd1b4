"""The messages that the control accepts, of nodes and of clients, and the events that it makes of them."""

from __future__ import annotations

import asyncio
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast, get_args, get_type_hints

import pytest

import flamecore
from flamecore.errors import JobError
from flamecore.model.messages import (
    CLIENT,
    NODE,
    OPERATOR,
    Begin,
    Halted,
    Join,
    Left,
    NodeFailed,
    NodeReport,
    Opened,
    Ready,
    Rescale,
    Settled,
    Stop,
    Upgrade,
    Watched,
)
from flamecore.runtime.cluster import membership
from flamecore.runtime.cluster.client import Client
from flamecore.runtime.cluster.control_plane import ROLES, ControlPlane, Denied, Said
from flamecore.runtime.cluster.membership import Membership
from flamecore.runtime.engine.epoch import FaultError
from flamecore.runtime.parts.counters import NodeStats

SAID: list[Any] = [
    Join("w1", "worker", "127.0.0.1:7070", 1, "1.0"),
    NodeReport("w1", {}),
    NodeReport("w1", {"at": 1.5, "items_out": {"out": 3}, "min_times": {0: 7}}),
    NodeReport("w1", asdict(NodeStats(latency={3: 4}))),
    Opened("w1", "epoch"),
    NodeFailed("w1", "JobError", "it failed"),
    Rescale(3),
    Upgrade(b"{}", False),
    Watched("w1", "node/w1.a", "stopped"),
]
EVERY: list[Any] = [*SAID, Ready("w1", "epoch"), Halted("w1"), Left("w1")]
NOT_SAID: list[Any] = [
    [[]],
    5,
    None,
    b"text",
    {"node": "w1"},
    Begin(),
    Stop(True),
    Settled(3),
    NodeReport("w1", {"items_in": "many"}),
    NodeReport("w1", {"min_times": {"first": 1}}),
    Upgrade(b" " * (2**20 + 1), False),
]


def control() -> ControlPlane:
    return ControlPlane(Membership())


@pytest.mark.parametrize("message", SAID)
def test_what_nodes_and_clients_say_is_heard(message: Any) -> None:
    plane = control()
    assert plane.door.admits("node/w1", message)
    assert not plane.door.refused


@pytest.mark.parametrize("message", NOT_SAID)
def test_what_nobody_says_is_refused_and_counted(message: Any) -> None:
    plane = control()
    assert not plane.door.admits("node/w1", message)
    assert plane.door.refused == {"node/w1": 1}


def sent_to_control() -> set[str]:
    """Return the kinds of messages that any process sends to the control, by the source of core and plugins."""
    root = Path(flamecore.__file__).parent
    rooms = [root / "runtime" / "cluster", *root.parent.glob("plugins/*/flamestream_*")]
    found = set()
    for path in (path for room in rooms for path in room.rglob("*.py")):
        text = path.read_text("utf-8")
        found.update(re.findall(r"\b(?:send|tell)\w*\(CONTROL, ([A-Z]\w+)\(", text))
    return found | {kind.__name__ for kind in get_args(get_type_hints(Client.ask)["request"])}


def test_the_table_of_roles_has_every_kind_of_message_to_the_control() -> None:
    assert sent_to_control() == {kind.__name__ for kind in ROLES}


@pytest.mark.parametrize("role", [CLIENT, OPERATOR, NODE, "worker/", "rear/", ""])
@pytest.mark.parametrize("kind", ROLES)
def test_a_message_is_taken_from_its_roles_only(kind: type, role: str) -> None:
    plane = with_a_node()
    message: Any = next(message for message in EVERY if type(message) is kind)
    sender = f"{role}w1.a"
    plane.receive(sender, message)
    assert bool(plane.door.refused) == (role not in ROLES[kind])
    denied = [event for event in events(plane) if isinstance(event, Denied)]
    assert [event.address for event in denied] == [sender] * (role in (CLIENT, OPERATOR) and role not in ROLES[kind])


def test_a_client_whose_request_is_too_large_is_answered() -> None:
    class Large:
        sent = False

        async def receive(self) -> tuple[str, Any]:
            if self.sent:
                await asyncio.Event().wait()
            self.sent = True
            return "operator/a", Upgrade(b" " * (2**20 + 1), False)

    async def run() -> Any:
        plane, endpoint = control(), cast("Any", Large())
        listening = asyncio.create_task(plane.listen(endpoint))
        event = await plane.events.get()
        listening.cancel()
        await asyncio.wait((listening,))
        return event

    assert asyncio.run(run()) == Denied("operator/a", "the job does not take this Upgrade")


def with_a_node() -> ControlPlane:
    plane = control()
    plane.members.join(SAID[0], "node/w1.a")
    plane.members.begin_epoch("epoch")
    return plane


def events(plane: ControlPlane) -> list[Any]:
    return [plane.events.get_nowait() for _ in range(plane.events.qsize())]


@pytest.mark.parametrize(
    ("sender", "message"),
    [
        ("operator/a", Rescale(3)),
        ("client/a", Join("a", "observer", "127.0.0.1:7071", 2, "1.0")),
        ("node/w2.a", Join("w2", "worker", "127.0.0.1:7072", 3, "1.0")),
        ("node/w1.b", Opened("w1", "epoch")),
    ],
)
def test_a_message_of_no_node_is_for_the_job(sender: str, message: Any) -> None:
    plane = with_a_node()
    plane.receive(sender, message)
    assert events(plane) == [Said(sender, message)]
    assert not plane.members.opened


def test_a_message_of_a_node_changes_the_membership_alone() -> None:
    plane = with_a_node()
    for message in (Opened("w1", "an earlier epoch"), Ready("w1", "epoch"), NodeReport("w1", {"items_in": 7})):
        plane.receive("node/w1.a", message)
    assert (plane.members.opened, plane.members.ready, plane.members.reports["w1"].items_in) == (set(), {"w1"}, 7)
    assert events(plane) == []


def test_the_last_counts_of_an_epoch_are_not_those_of_the_next_one() -> None:
    plane = with_a_node()
    for message in (NodeReport("w1", {"items_in": 7}), Halted("w1")):
        plane.receive("node/w1.a", message)
    assert plane.members.halted == {"w1"}
    assert plane.members.reports == {}


@pytest.mark.parametrize(("kind", "repairable"), [("PeerGoneError", True), ("CorruptError", True), ("JobError", False)])
def test_a_failed_node_ends_the_epoch_or_the_job(kind: str, repairable: bool) -> None:
    plane = with_a_node()
    plane.receive("node/w1.a", NodeFailed("w1", kind, "it failed", "part/1"))
    (event,) = events(plane)
    assert isinstance(event.error, FaultError if repairable else JobError)
    assert str(event.error).startswith("w1 failed: it failed")
    assert getattr(event.error, "blob", "part/1") == "part/1"


def test_a_node_that_cannot_reach_another_says_which() -> None:
    plane = with_a_node()
    plane.members.join(Join("w2", "worker", "127.0.0.1:7072", 3, "1.0"), "node/w2.a")
    plane.receive("node/w1.a", NodeFailed("w1", "PeerGoneError", "127.0.0.1:7072 is gone", "", "127.0.0.1:7072"))
    (event,) = events(plane)
    assert event.unreachable == "w2"
    assert str(event.error).startswith("w1 failed: w2 at 127.0.0.1:7072 is gone")


def test_all_ways_to_lose_a_node_are_one_event() -> None:
    plane = with_a_node()
    plane.receive("node/w1.a", Left("w1"))
    plane.died("w1", "was killed", ["a line\n"])
    plane.lost("127.0.0.1:7070", OSError("a broken pipe"))
    plane.lost("127.0.0.1:9999", OSError("of a client"))
    told = [(event.name, event.how, event.location, event.error.what.splitlines()[0]) for event in events(plane)]
    assert told == [
        ("w1", "left", "", "w1 was told to end, where it runs"),
        ("w1", "died", "", "w1 was killed; its last lines:"),
        ("w1", "cut", "127.0.0.1:7070", "the connection to w1 is lost: a broken pipe"),
    ]


def test_no_message_is_received_before_the_last_one_is_acted_on() -> None:
    """Those that wait are bounded by the transport, and a queue of events would not be."""

    class Flood:
        taken = 0

        async def receive(self) -> tuple[str, Any]:
            self.taken += 1
            return "operator/a", Rescale(self.taken)

    async def run() -> None:
        plane, flood = control(), Flood()
        endpoint: Any = flood
        listening = asyncio.create_task(plane.listen(endpoint))
        for count in (1, 2, 3):
            assert await plane.events.get() == Said("operator/a", Rescale(count))
            await asyncio.sleep(0)
            assert flood.taken == count
            plane.events.task_done()
        listening.cancel()

    asyncio.run(run())


WATCHER = "node/watcher.a"


class Clock:
    """The monotonic clock of the membership."""

    now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(membership, "time", made)
    return made


def with_a_watcher(clock: Clock) -> ControlPlane:
    plane = with_a_node()
    plane.receive(WATCHER, Join("watcher", "watcher", "at-watcher", 2, "1.0"))
    plane.receive(WATCHER, Watched("w1", "node/w1.a", "running"))
    assert plane.members.silence_of("w1") == 0.0, f"by the clock that stands at {clock.now}"
    return plane


def test_a_watched_node_is_there_as_long_as_its_watcher_says_so(clock: Clock) -> None:
    plane = with_a_watcher(clock)
    assert (plane.state("w1"), plane.watches("127.0.0.1:7070")) == ("running", True)
    plane.receive(WATCHER, Watched("w1", "node/w1.a", "stopped"))
    assert plane.state("w1") == "stopped"
    clock.now += 31
    assert (plane.state("w1"), plane.watches("127.0.0.1:7070")) == (None, False)
    plane.members.hear_all()
    assert plane.state("w1") == "stopped"
    assert events(plane) == []


def test_a_watcher_says_that_its_node_is_gone_and_its_last_words(clock: Clock) -> None:
    plane = with_a_watcher(clock)
    plane.receive(WATCHER, Watched("w1", "node/w1.a", "gone", "a line\nanother"))
    (event,) = events(plane)
    assert (event.name, event.how, event.location) == ("w1", "gone", "127.0.0.1:7070")
    assert event.error.what == "w1 (process 1) has ended; its last words:\n    a line\n    another"


def test_a_node_whose_watcher_is_gone_is_judged_by_its_own_messages_from_then_on(clock: Clock) -> None:
    plane = with_a_watcher(clock)
    clock.now += 20
    plane.lost("at-watcher", OSError("it was killed"))
    assert (plane.state("w1"), plane.members.silence_of("w1")) == (None, 0.0)
    assert events(plane) == []
    assert WATCHER not in plane.members.locations


def test_a_watcher_of_an_earlier_process_changes_nothing(clock: Clock) -> None:
    plane = with_a_watcher(clock)
    plane.members.leave("w1")
    plane.members.join(SAID[0], "node/w1.b")
    for state in ("stopped", "gone"):
        plane.receive(WATCHER, Watched("w1", "node/w1.a", state))  # type: ignore[arg-type]
    assert plane.state("w1") is None
    assert events(plane) == []


def test_a_second_watcher_of_a_node_is_refused(clock: Clock) -> None:
    plane = with_a_watcher(clock)
    plane.receive("node/rogue.a", Watched("w1", "node/w1.a", "stopped"))
    assert plane.state("w1") == "running"
    assert plane.door.refused == {"node/rogue.a": 1}


def test_a_silent_node_that_is_there_is_in_the_status(clock: Clock) -> None:
    plane = with_a_watcher(clock)
    assert "state" not in plane.members.described()["w1"]  # type: ignore[operator]
    plane.members.waited["w1"] = "stopped"
    clock.now += 12.04
    described: Any = plane.members.described()["w1"]
    assert (described["state"], described["silent_s"]) == ("stopped", 12.0)
