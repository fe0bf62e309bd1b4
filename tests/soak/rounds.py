"""One round: a job drawn by chance, run to its end under fire, its outputs held against plain loops."""

from __future__ import annotations

import json
import os
import random
import re
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import soak_flow
from processes import Node, Run, wait_until_gone
from shots import Gun, size, stored

from flamecore.testing.nats_server import NatsServer

LIMIT_S = 300.0
"""How long a round may take."""

_RECOVERED = re.compile(r"job\.recovered.*?took_ms'?\"?[=:] ?([0-9.]+)")


class Round(NamedTuple):
    """What a round runs.

    Attributes:
        seed: Of inputs, victims and moments.
        transport, acker, place, clock, store: As in the job's configuration.
        interval_s: Between snapshots.
        kills: How many shots there are to be.
        size: Lines of the first front.
    """

    seed: int
    transport: str
    acker: str
    place: str
    clock: str
    store: str
    interval_s: float
    kills: int
    size: int
    stuck: bool

    @classmethod
    def draw(cls, seed: int, transport: str, kills: int, size: int) -> Round:
        chance = random.Random(seed)
        return cls(
            seed,
            transport,
            chance.choice(("centralized", "local", "sharded")),
            chance.choice(("supervisor", "worker", "own")),
            chance.choice(("sequence", "wall")),
            chance.choice(("sqlite", "sqlite", "directory", *(("nats",) if transport == "nats" else ()))),
            chance.choice((0.03, 0.1, 0.5)),
            kills,
            size,
            chance.random() < 0.3,
        )

    def settings(self, folder: Path, server: NatsServer | None) -> list[str]:
        acker = f"acker.{self.acker}."
        return [
            f"transport.use={self.transport}",
            *([f'transport.nats.servers=["{server.url}"]'] if server else []),
            f"acker.use={self.acker}",
            *([f'{acker}inner="sharded"'] if self.acker == "local" and self.seed % 2 else []),
            f"deploy.acker={self.place}",
            "deploy.restarts=1000",
            *(["deploy.silence_timeout_s=1.5", "deploy.start_timeout_s=10"] if self.stuck else []),
            f"job.name=soak-{self.seed}",  # rounds may share a store
            f"job.clock={self.clock}",
            "job.guarantee=exactly_once",
            "job.max_in_flight=512",
            f"state.use={self.store}",
            *([f"state.path={folder / 'state'}"] if self.store != "nats" else []),
            f"state.interval_s={self.interval_s}",
            *(f"source.{name}.path={folder / name}" for name in soak_flow.SOURCES),
            *(f"sink.{name}.path={folder / f'{name}.{use}'}" for name, use in soak_flow.SINKS.items()),
        ]

    def arguments(self, folder: Path, server: NatsServer | None) -> list[str]:
        edges = [f"--source={name}={use}" for name, use in soak_flow.SOURCES.items()]
        edges += [f"--sink={name}={use}" for name, use in soak_flow.SINKS.items()]
        settings = [f"--set={setting}" for setting in self.settings(folder, server)]
        return [str(Path(soak_flow.__file__).resolve()), "-q", "-w", "4", *edges, *settings]


class Result(NamedTuple):
    """What a round has met."""

    killed: int
    victims: Counter[str]
    moments: Counter[str]
    took_s: float
    recovered_ms: list[float]


def play(round_: Round, folder: Path, server: NatsServer | None = None) -> Result:
    """Run it.

    Raises:
        AssertionError: The outputs are wrong, the job fails, does not end, or leaves a process behind.
    """
    chance = random.Random(round_.seed + 1)
    inputs = soak_flow.drawn(chance, round_.size)
    soak_flow.write(inputs, folder)
    began = time.monotonic()
    environ = {"SOAK_CLOCK": str(folder / "clock"), "PYTHONPATH": os.pathsep.join(_path())}
    run = Run(folder, round_.arguments(folder, server), environ)
    gun = Gun(
        run,
        chance,
        stored=lambda: stored(folder / "state"),
        delivered=lambda: size(folder / "counts.jsonl"),
        stuck=round_.stuck,
        server=server,
        clock=folder / "clock",
    )
    killed = 0
    try:
        while not run.over():
            if gun.victims.total() < round_.kills:
                killed += gun.fire()
            else:
                time.sleep(0.02)
                run.nodes()
            assert time.monotonic() - began < LIMIT_S, f"the job does not end; its log:\n{run.said()}"
        assert run.process.returncode == 0, f"it ended with {run.process.returncode}; its log:\n{run.said()}"
        left: list[Node] = wait_until_gone(run.met)
        assert not left, f"processes are left behind: {left}"
    finally:
        run.end()
    soak_flow.check(inputs, outputs(folder), sequence=round_.clock == "sequence")
    _check_state(round_, folder, server)
    recovered = [float(found) for found in _RECOVERED.findall(run.said(10**7))]
    return Result(killed, gun.victims, gun.moments, time.monotonic() - began, recovered)


def _path() -> list[str]:
    """Where the job's processes look for modules: first for what sets their clocks wrong."""
    before = os.environ.get("PYTHONPATH")
    return [str(Path(__file__).resolve().parent / "clock"), *([before] if before else [])]


def _check_state(round_: Round, folder: Path, server: NatsServer | None) -> None:
    """What is stored is whole."""
    settings = [setting for setting in round_.settings(folder, server) if not setting.startswith("deploy.")]
    command = [sys.executable, "-m", "flamecore", "snapshot", "verify", "--job", f"soak-{round_.seed}"]
    chosen = [f"--set={setting}" for setting in settings if setting.startswith(("state.", "transport."))]
    done = subprocess.run([*command, *chosen], cwd=folder, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, f"the state is not whole:\n{done.stdout}{done.stderr}"


def outputs(folder: Path) -> dict[str, list[Any]]:
    """What the sinks hold."""
    found: dict[str, list[Any]] = {}
    for name, use in soak_flow.SINKS.items():
        path = folder / f"{name}.{use}"
        if use == "sqlite":
            with closing(sqlite3.connect(path)) as database:
                found[name] = [row[0] for row in database.execute(f"SELECT value FROM {name} ORDER BY seq")]
        else:
            lines = map(json.loads, path.read_text().splitlines())
            found[name] = [list(value.values()) if isinstance(value, dict) else value for value in lines]
    return found
