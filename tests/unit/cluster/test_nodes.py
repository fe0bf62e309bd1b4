"""The nodes that are dismissed, and those that may come back."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from flamecore.model.messages import Join, Stop
from flamecore.runtime.cluster.membership import Membership
from flamecore.runtime.cluster.nodes import NodeManager


def test_a_joined_node_that_died_while_idle_gets_parts_when_it_returns() -> None:
    members, sent = Membership("job"), list[Any]()
    host: Any = SimpleNamespace(release=lambda _: None)
    sender: Any = SimpleNamespace(send=lambda to, message: sent.append((to, message)))
    context: Any = None
    nodes = NodeManager(members, context, host, sender, None)
    a, b = (Join(name, "worker", f"at-{name}", 1, "1.0") for name in ("a", "b"))
    members.join(a, "node/a.1")
    members.join(b, "node/b.1")
    members.standby = {"a", "b"}
    members.leave("b")
    nodes.dismiss_standby()
    assert sent == [("node/a.1", Stop(False))]
    members.join(b, "node/b.2")
    assert members.named("worker") == ["b"]
