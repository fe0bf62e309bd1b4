"""The nodes that are dismissed, and those that may come back."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from flamecore.errors import JobError
from flamecore.model.messages import Join, Stop
from flamecore.runtime.cluster.control_plane import Lost
from flamecore.runtime.cluster.membership import Membership
from flamecore.runtime.cluster.nodes import NodeManager


def test_a_joined_node_that_died_while_idle_gets_parts_when_it_returns() -> None:
    members, sent = Membership(), list[Any]()
    host: Any = SimpleNamespace(release=lambda _: None)
    sender: Any = SimpleNamespace(send=lambda to, message: sent.append((to, message)))
    context: Any = None
    nodes = NodeManager("job", members, context, host, sender, None, asyncio.Queue())
    a, b = (Join(name, "worker", f"at-{name}", 1, "1.0") for name in ("a", "b"))
    members.join(a, "node/a.1")
    members.join(b, "node/b.1")
    members.standby = {"a", "b"}
    members.leave("b")
    nodes.dismiss_standby()
    assert sent == [("node/a.1", Stop(False))]
    members.join(b, "node/b.2")
    assert members.named("worker") == ["b"]


def managed(*names: str) -> tuple[NodeManager, list[str]]:
    """Return a manager of nodes that host a part each, and the log of its host."""
    members, log = Membership(), list[str]()
    nobody: Any = None
    host: Any = SimpleNamespace(
        kill=lambda name: log.append(f"kill {name}"), lost=lambda name: log.append(f"lost {name}")
    )
    for name in names:
        members.join(Join(name, "worker", f"at-{name}", 1, "1.0"), f"node/{name}.1")
        members.hosts[f"worker/{name}"] = name
    return NodeManager("job", members, nobody, host, nobody, None, asyncio.Queue()), log


def lost(name: str, how: Any, location: str = "") -> Lost:
    return Lost(name, how, JobError(f"{name} is gone"), location)


def test_an_epoch_ends_with_a_node_that_is_missed() -> None:
    for how, told in (("died", []), ("left", ["lost a"]), ("silent", ["kill a"]), ("cut", ["lost a"])):
        nodes, log = managed("a", "b")
        assert nodes.remove(lost("a", how, "at-a" if how == "cut" else ""))
        assert list(nodes.members.nodes) == ["b"]
        assert log == told


def test_an_epoch_goes_on_without_a_node_that_nobody_misses() -> None:
    nodes, log = managed("a", "b")
    nodes.members.standby = {"a"}
    assert not nodes.remove(lost("a", "died")), "it has no part"
    del nodes.members.hosts["worker/b"]
    assert not nodes.remove(lost("b", "left")), "it is spare"
    assert log == ["lost b"]
    assert not nodes.remove(lost("b", "left")), "it has left already"
    assert log == ["lost b"]


def test_a_lost_connection_of_an_earlier_process_is_no_loss() -> None:
    """The grace for last words is over, and another process of the name has joined meanwhile."""
    nodes, log = managed("a")
    assert not nodes.remove(lost("a", "cut", "at-another-place"))
    assert list(nodes.members.nodes) == ["a"]
    nodes.leaving = True
    assert not nodes.remove(lost("a", "cut", "at-a"))
    assert log == []
