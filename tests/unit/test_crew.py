"""Who is let go, and who may come back."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from flamecore.crew import Crew
from flamecore.members import Members
from flamecore.messages import Join, Stop


def test_a_node_from_elsewhere_that_died_while_it_rested_is_given_parts_when_it_comes_back() -> None:
    members, sent = Members("job"), list[Any]()
    host: Any = SimpleNamespace(release=lambda _: None)
    post: Any = SimpleNamespace(send=lambda to, message: sent.append((to, message)))
    crew = Crew(members, host, post, None)
    a, b = (Join(name, "worker", f"at-{name}", 1, "1.0") for name in ("a", "b"))
    members.join(a, "node/a.1")
    members.join(b, "node/b.1")
    members.resting = {"a", "b"}
    members.leave("b")
    crew.dismiss_resting()
    assert sent == [("node/a.1", Stop(False))]
    members.join(b, "node/b.2")
    assert members.named("worker") == ["b"]
