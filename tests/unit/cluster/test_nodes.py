"""The nodes that are dismissed, and those that may come back."""

from __future__ import annotations

import asyncio
import re
import time
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from flamecore import events
from flamecore._version import __version__
from flamecore.errors import JobError, PeerGoneError
from flamecore.model.messages import Halted, Join, Left, NodeFailed, NodeReport, Refusal, Stop, Welcome
from flamecore.runtime.cluster.control_plane import Lost
from flamecore.runtime.cluster.membership import Membership
from flamecore.runtime.cluster.nodes import NodeManager
from flamecore.runtime.engine.epoch import FaultError


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


def joined_elsewhere() -> tuple[NodeManager, list[Any]]:
    """Return a manager of two nodes that were started elsewhere, and the messages sent to them."""
    members, sent = Membership(), list[Any]()
    host: Any = SimpleNamespace(kill=lambda _: None, came=lambda *_: ())

    async def reach(to: str, message: object) -> None:
        assert isinstance(message, Welcome)

    sender: Any = SimpleNamespace(endpoint=SimpleNamespace(send=reach), send=lambda to, msg: sent.append((to, msg)))
    context: Any = SimpleNamespace(code="this version")
    for name in ("a", "b"):
        members.join(Join(name, "worker", f"at-{name}", 1, __version__), f"node/{name}.1")
    nodes = NodeManager("job", members, context, host, sender, None, asyncio.Queue())
    nodes.answer = lambda client, message: sent.append((client, message))  # type: ignore[method-assign]
    return nodes, sent


def test_a_node_started_elsewhere_that_is_slow_to_halt_comes_back() -> None:
    """Nobody would start another in its place, and the job would wait for one."""
    nodes, sent = joined_elsewhere()
    with capture_logs() as logs:
        nodes.give_up("a", 5.0)
    assert [(log["event"], log["node"], log["limit_s"]) for log in logs] == [(events.NODE_ABANDONED, "a", 5.0)]
    assert nodes.members.named("worker") == ["b"]
    nodes.answer_stray("node/a.1", NodeReport("a", {}))
    assert sent == [], "it is still about to end its parts"
    come_back(nodes, "node/a.1", Halted("a"))
    assert nodes.members.named("worker") == ["a", "b"]
    assert nodes.members.addresses["a"] == "node/a.1"
    assert sent == []


def come_back(nodes: NodeManager, address: str, message: object) -> None:
    """Act on a message of a slow node, to the end."""

    async def act() -> None:
        nodes.answer_stray(address, message)
        await asyncio.gather(*nodes._coming.values())

    asyncio.run(act())


def test_a_slow_node_that_is_gone_meanwhile_does_not_come_back() -> None:
    nodes, _ = joined_elsewhere()
    nodes.give_up("a", 5.0)

    async def refuse(to: str, message: object) -> None:
        raise PeerGoneError("it has ended", address="", peer=to)

    endpoint: Any = SimpleNamespace(send=refuse)
    nodes.sender.endpoint = endpoint
    come_back(nodes, "node/a.1", Halted("a"))
    assert nodes.members.named("worker") == ["b"]


def test_a_slow_node_whose_parts_fail_before_they_end_comes_back() -> None:
    """Each of them notices that another process is gone, for which they are to end."""
    nodes, sent = joined_elsewhere()
    nodes.give_up("a", 5.0)
    nodes.answer_stray("node/a.1", NodeFailed("a", "PeerGoneError", "b is gone"))
    assert sent == []
    come_back(nodes, "node/a.1", Halted("a"))
    assert nodes.members.named("worker") == ["a", "b"]


def test_a_slow_node_that_ends_does_not_come_back() -> None:
    nodes, sent = joined_elsewhere()
    nodes.give_up("a", 5.0)
    nodes.answer_stray("node/a.1", Left("a"))
    assert (sent, nodes._coming) == ([], {})
    assert nodes.members.named("worker") == ["b"]


def test_a_slow_node_of_another_version_is_told_so() -> None:
    nodes, sent = joined_elsewhere()
    nodes.give_up("a", 5.0)
    nodes.context.code = "another"
    come_back(nodes, "node/a.1", Halted("a"))
    ((to, message),) = sent
    assert to == "node/a.1"
    assert "another version of the flow" in message.text
    assert nodes.members.named("worker") == ["b"]


@pytest.mark.parametrize("when", ["before it has ended its parts", "as it comes back"])
def test_a_slow_node_whose_name_is_taken_is_told_so(when: str) -> None:
    """And the other one, which has parts by now, keeps the name."""
    nodes, sent = joined_elsewhere()
    nodes.give_up("a", 5.0)
    other = Join("a", "worker", "at-another", 2, __version__)

    async def act() -> None:
        if when == "as it comes back":
            nodes.answer_stray("node/a.1", Halted("a"))
        nodes._welcome("node/a.2", other)
        nodes.answer_stray("node/a.1", NodeReport("a", {}))
        await asyncio.gather(*nodes._coming.values())

    asyncio.run(act())
    assert nodes.members.addresses["a"] == "node/a.2"
    assert nodes.members.nodes["a"] is other
    to, message = sent[0]
    assert to == "node/a.1"
    assert "another process has joined by the name of a" in message.text


def test_a_slow_node_is_told_of_the_end_of_the_job() -> None:
    """It has no part, and would find nobody when it has ended its parts."""
    nodes, _ = joined_elsewhere()
    told = list[tuple[str, object]]()

    async def send(to: str, message: object) -> None:
        told.append((to, message))

    async def stop(timeout_s: float) -> None:
        return

    nodes.sender.endpoint = SimpleNamespace(send=send)  # type: ignore[assignment]
    nodes.host.stop = stop  # type: ignore[method-assign]
    nodes.give_up("a", 5.0)
    asyncio.run(nodes.leave(1.0))
    assert sorted(told, key=str) == [("node/a.1", Stop(False)), ("node/b.1", Stop(False))]
    nodes.answer_stray("node/a.1", Halted("a"))
    assert nodes.members.named("worker") == ["b"], "it comes too late"


@pytest.mark.parametrize(("place", "refused"), [("worker", True), ("supervisor", True), ("own", False)])
def test_a_process_for_trackers_is_refused_where_they_are_elsewhere(place: str, *, refused: bool) -> None:
    """It would wait without a word."""
    nodes, sent = joined_elsewhere()
    config = SimpleNamespace(deploy=SimpleNamespace(acker=place))
    context: Any = SimpleNamespace(spec=SimpleNamespace(config=config))
    nodes.context = context
    nodes._welcome("node/t.1", Join("t", "acker", "at-t", 1, __version__))
    assert ("t" in nodes.members.nodes) is not refused
    assert len(sent) == refused
    assert all('[deploy] acker = "' in message.text for _, message in sent)


def test_a_node_that_was_declared_dead_is_told_why_it_ends() -> None:
    nodes, sent = joined_elsewhere()
    nodes.declare_dead("a")
    nodes.answer_stray("node/a.1", NodeReport("a", {}))
    ((to, message),) = sent
    assert to == "node/a.1"
    assert isinstance(message, Refusal)
    assert nodes.members.named("worker") == ["b"]


def test_an_error_says_of_late_nodes_whether_they_compute_are_stopped_or_answer() -> None:
    nodes, _ = managed("a", "b", "c", "d")
    deploy = SimpleNamespace(start_timeout_s=0.05, silence_timeout_s=1.0, start="local")
    context: Any = SimpleNamespace(
        spec=SimpleNamespace(config=SimpleNamespace(deploy=deploy), settings=None), plan=SimpleNamespace(workers=4)
    )
    nodes.context = context
    nodes.state_of = {"a": "running", "b": "stopped", "c": "running"}.get
    nodes.members._heard |= dict.fromkeys("ad", time.monotonic() - 20)

    async def wait() -> FaultError:
        epoch: Any = SimpleNamespace(outcome=asyncio.get_running_loop().create_future())
        with pytest.raises(FaultError) as caught:
            await nodes.wait_until(lambda: False, epoch, "loaded their state", lambda: set("abcd"))
        return caught.value

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(NodeManager, "required", property(lambda _: {"worker": 4}))
        said = str(asyncio.run(wait()).error)
    assert re.search(
        r"loaded their state \(of 4 workers: a, b, c, d\); a \(process 1\) is computing, and has said nothing for "
        r"20\.\d s; b \(process 1\) is stopped; c \(process 1\) waits, and answers; d \(process 1\) has said nothing "
        r"for 20\.\d s\n",
        said,
    ), said


def test_nodes_that_wait_for_others_hear_that_the_job_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """They would give up, and leave a job that they could have gone on with."""
    monkeypatch.setattr("flamecore.runtime.cluster.nodes._REMIND_S", 0.02)
    nodes, sent = joined_elsewhere()
    deploy = SimpleNamespace(start_timeout_s=0.2, start="join")
    context: Any = SimpleNamespace(spec=SimpleNamespace(config=SimpleNamespace(deploy=deploy)))
    nodes.context = context
    monkeypatch.setattr(NodeManager, "required", property(lambda _: {"worker": 3}))

    async def wait() -> None:
        epoch: Any = SimpleNamespace(outcome=asyncio.get_running_loop().create_future())

        def wake() -> None:  # as each report of a node does
            nodes.members.wake()
            asyncio.get_running_loop().call_later(0.002, wake)

        wake()
        with pytest.raises(JobError, match="not all workers have joined"):
            await nodes.wait_until(lambda: False, epoch, "joined")

    with capture_logs() as logs:
        asyncio.run(wait())
    assert len(logs) >= 2
    assert {(log["event"], log["to"], log["joined"]) for log in logs} == {
        (events.NODES_AWAITED, "joined", "of 3 workers: a, b")
    }
    assert sent == [("node/a.1", Welcome()), ("node/b.1", Welcome())] * len(logs)
