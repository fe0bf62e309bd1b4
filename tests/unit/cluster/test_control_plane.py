"""The messages that the control accepts, of nodes and of clients."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest

from flamecore.model.messages import Begin, Join, NodeFailed, NodeReport, Opened, Rescale, Settled, Stop, Upgrade
from flamecore.runtime.cluster.control_plane import ControlPlane
from flamecore.runtime.cluster.membership import Membership
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
]
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
    job: Any = None
    return ControlPlane(Membership("job"), job)


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
