"""The end of `flamestream worker` by a signal, whatever becomes of its job meanwhile."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from flamecore.cli.commands import worker
from flamecore.errors import JobError, PeerGoneError

GONE = PeerGoneError("it has ended", address="w0", peer="control")


class Node:
    """A node that gets signals as it runs, and then ends in some way."""

    signals: tuple[signal.Signals, ...] = ()
    end: Exception | None = None
    waits = True
    welcome = True
    runs = 0

    def __init__(self, bootstrap: object) -> None:
        pass

    async def run(self) -> None:
        type(self).runs += 1
        try:
            for number in self.signals:
                signal.raise_signal(number)
            if self.waits:
                await asyncio.sleep(60)
        finally:
            if self.end is not None:
                raise self.end


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> type[Node]:
    class Fresh(Node):
        pass

    @contextmanager
    def joining(*_: Any, **__: Any) -> Iterator[dict[str, Any]]:
        yield {"job_name": "words"}

    monkeypatch.setattr(worker, "joining", joining)
    monkeypatch.setattr(worker.threading.Timer, "start", lambda _: None)  # that of one that does not end
    monkeypatch.setattr("flamecore.runtime.cluster.node_process.NodeProcess", Fresh)
    return Fresh


def serve() -> None:
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    try:
        worker.serve("socket:///nowhere", name="w0", role="worker", job="words")
    finally:
        assert handlers == [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]


@pytest.mark.parametrize("waits", [True, False], ids=["it is told", "the job has ended, too"])
@pytest.mark.parametrize("end", [None, GONE], ids=["well", "without a control"])
@pytest.mark.parametrize("welcome", [True, False])
def test_the_signal_decides_how_a_node_ends(
    waits: bool, end: Exception | None, welcome: bool, node: type[Node]
) -> None:
    node.waits, node.end, node.welcome = waits, end, welcome
    node.signals = (signal.SIGTERM,)
    serve()
    node.signals = (signal.SIGINT,)
    with pytest.raises(KeyboardInterrupt):
        serve()
    assert node.runs == 2, "it waits for no other job"


def test_the_first_signal_counts(node: type[Node]) -> None:
    node.signals = (signal.SIGTERM, signal.SIGTERM)
    serve()
    node.signals = (signal.SIGINT, signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt):
        serve()


def test_a_second_interrupt_ends_it_at_once(node: type[Node]) -> None:
    node.signals, node.end = (signal.SIGTERM, signal.SIGINT), JobError("not reached in peace")
    with pytest.raises((KeyboardInterrupt, JobError)):
        serve()


def test_an_error_of_its_own_is_shown_in_spite_of_a_signal(node: type[Node]) -> None:
    node.signals, node.end = (signal.SIGINT,), JobError("the disk is full")
    with pytest.raises(JobError, match="the disk is full"):
        serve()


def test_a_node_without_signals_ends_as_its_job_does(node: type[Node]) -> None:
    node.waits = False
    serve()
    node.end = GONE
    with pytest.raises(PeerGoneError):
        serve()
