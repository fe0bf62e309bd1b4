"""The host `processes`: the transport it chooses, and the report of the end of nodes that cannot join."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from flamecore.abc.host import HostContext, NodeSlot
from flamecore.runtime.config.layers import Layer, from_program
from flamecore.runtime.config.plugins import PluginRegistry
from flamecore.runtime.config.read import make_config
from flamecore.testing.progress import patiently
from flamestream_processes.host import Processes

LIMIT_S = 30.0


class Bench:
    """A host, and a queue of the ends it has reported. Made within an event loop."""

    def __init__(self, folder: Path) -> None:
        self.ended: asyncio.Queue[tuple[str, str, Sequence[str]]] = asyncio.Queue()
        context = HostContext("words", make_config(Layer()), {}, died=lambda *end: self.ended.put_nowait(end))
        self.host = Processes(None, context)
        self._bootstrap: dict[str, Any] = {
            "transport": "inproc",
            "options": {},
            "job": "words",
            "job_name": "words",
            "incarnation": 1,
            "control": "",
            "token": "secret",
            "folder": str(folder),
        }

    async def start(self, name: str) -> None:
        await self.host.start([NodeSlot(name, "worker")], self._bootstrap)

    async def end(self) -> tuple[str, str, Sequence[str]]:
        return await patiently(self.ended.get(), LIMIT_S)


@pytest.fixture
def stuck(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every process started from here wait for a signal before anything else."""
    folder = tmp_path / "stuck"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text("import signal\nsignal.pause()\n", "utf-8")
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("PYTHONPATH", str(folder))


def test_its_name_leads_to_it() -> None:
    assert PluginRegistry().get("host", "processes") is Processes


@pytest.mark.parametrize(
    ("settings", "transport"),
    [
        ({}, "socket"),
        ({"job.workers": 4, "deploy.acker": "own", "registry.use": "nats"}, "socket"),
        ({"transport.socket.keepalive_s": 1}, "socket"),
        ({"transport.nats.servers": ["nats://127.0.0.1:4222"]}, "socket"),  # may be those of the registry
        ({"transport.use": "nats"}, "nats"),
        ({"transport.use": "inproc"}, "inproc"),
        ({"deploy.start": "join"}, ""),
        ({"deploy.start": "join", "transport.socket.keepalive_s": 1}, ""),
        ({"deploy.start": "join", "transport.socket.folder": "/tmp/words"}, "socket"),
        ({"transport.grpc.listen": "127.0.0.1:7070"}, ""),
        ({"transport.grpc.tls_ca": "ca.pem", "transport.socket.keepalive_s": 1}, ""),
    ],
    ids=str,
)
def test_sockets_are_chosen_for_processes_that_are_all_here(settings: dict[str, Any], transport: str) -> None:
    config = make_config(from_program({"deploy.on": "processes", **settings}), environ={})
    completed = Processes.complete(None, config)
    assert completed.transport.use == transport
    assert completed.transport.tables == config.transport.tables


def test_nothing_is_chosen_where_there_are_no_unix_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    config = make_config(from_program({"deploy.on": "processes"}), environ={})
    monkeypatch.delattr(socket, "AF_UNIX")
    assert Processes.complete(None, config) == config


def test_the_end_of_a_node_is_told_with_its_last_lines(tmp_path: Path) -> None:
    async def main() -> None:
        bench = Bench(tmp_path)
        await bench.start("w1")
        assert bench.host.running() == ["w1"]
        assert bench.host.watches("w1")
        name, what, lines = await bench.end()
        assert (name, what.partition(") ")[2]) == ("w1", "ended with code 1")
        assert lines == ("PeerGoneError: no endpoint is bound to job",)
        assert bench.host.running() == []
        await bench.host.stop(LIMIT_S)

    asyncio.run(main())


def test_a_node_that_is_killed_is_named_with_the_signal(tmp_path: Path, stuck: None) -> None:
    async def main() -> None:
        bench = Bench(tmp_path)
        await bench.start("w1")
        bench.host.kill("w1")
        name, what, _ = await bench.end()
        assert (name, what.partition(") ")[2]) == ("w1", "was killed by SIGKILL")
        await bench.host.stop(LIMIT_S)

    asyncio.run(main())


@pytest.mark.skipif(sys.platform != "linux", reason="signals for real time are Linux's")
def test_a_node_that_a_signal_without_a_name_has_killed_is_told(tmp_path: Path, stuck: None) -> None:
    async def main() -> None:
        bench = Bench(tmp_path)
        await bench.start("w1")
        os.kill(bench.host._processes["w1"].pid, signal.SIGRTMAX - 1)
        name, what, _ = await bench.end()
        assert (name, what.partition(") ")[2]) == ("w1", f"was killed by signal {signal.SIGRTMAX - 1}")
        await bench.host.stop(LIMIT_S)

    asyncio.run(main())


def test_stop_ends_nodes_that_do_not_end_and_tells_nobody(tmp_path: Path, stuck: None) -> None:
    async def main() -> None:
        bench = Bench(tmp_path)
        await bench.start("w1")
        await bench.host.stop(0.1)
        assert bench.host.running() == []
        assert bench.ended.empty()

    asyncio.run(main())
