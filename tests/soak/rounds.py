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
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import soak_flow
from campaign import Result
from crowd import Crowd, Door, environment
from disk import Disk
from processes import Run, wait_until_gone
from shots import Gun, size, stored

if TYPE_CHECKING:
    from flamestream_nats.testing import NatsServer


LIMIT_S = 300.0
"""How long a round may take."""

_RECOVERED = re.compile(r"job\.recovered.*?took_ms'?\"?[=:] ?([0-9.]+)")


class Round(NamedTuple):
    """The settings of one round.

    Attributes:
        seed: Seed of inputs, victims and moments.
        parts: Parts of `soak_flow` that are in its flow.
        workers: Number of workers at first.
        transport, acker, place, clock, store: As in the job's configuration.
        interval_s: Seconds between snapshots.
        kills: Number of shots.
        size: Records of the first file of each source.
        stuck: Whether a process that stands still is soon told of.
        door: Processes that may reach the job: `nobody`; `more`, requests for more or fewer workers; or `elsewhere`,
            workers that are started elsewhere, too.
        small: Whether its state and outputs are on a disk that is full for a while.
        only_kills: Whether nothing but kills happens to its processes.
    """

    seed: int
    parts: tuple[str, ...]
    workers: int
    transport: str
    acker: str
    place: str
    clock: str
    store: str
    interval_s: float
    kills: int
    size: int
    stuck: bool
    door: str
    small: bool
    only_kills: bool = False

    @classmethod
    def draw(cls, seed: int, transport: str, kills: int, size: int) -> Round:
        chance = random.Random(seed)
        return cls(
            seed,
            # Where there is a cycle, one worker may own all keys: others are spread when they are alone.
            chance.choice((("counts", "index", "row"), ("index",), ("row",), ("cycle",), tuple(soak_flow.PARTS))),
            chance.choice((2, 3, 4)),
            transport,
            chance.choice(("centralized", "local", "sharded")),
            chance.choice(("supervisor", "worker", "own")),
            chance.choice(("sequence", "wall")),
            chance.choice(("sqlite", "sqlite", "directory", *(("nats",) if transport == "nats" else ()))),
            chance.choice((0.03, 0.1, 0.5)),
            kills,
            size,
            chance.random() < 0.3,
            chance.choice(("nobody", "more", "elsewhere")),
            chance.random() < 0.25 and os.geteuid() == 0,  # who else may mount one?
        )

    @property
    def job(self) -> str:
        """Return the name of the job; rounds may share a store."""
        return f"soak-{self.seed}"

    def wanted(self) -> dict[str, int]:
        """Return the number of nodes of each role from elsewhere, with spare workers."""
        return {"worker": 8, **({"acker": 4} if self.place == "own" else {})} if self.door == "elsewhere" else {}

    def short(self, part: str) -> Round:
        """Return this round with one part of the flow, and no faults but kills."""
        workers = min(self.workers, 3)
        return self._replace(parts=(part,), workers=workers, stuck=False, door="nobody", small=False, only_kills=True)

    def settings(self, folder: Path, server: NatsServer | None) -> list[str]:
        """Return the settings of the job.

        `folder` has its state and its outputs.
        """
        acker = f"acker.{self.acker}."
        return [
            f"transport.use={self.transport}",
            *([f'transport.nats.servers=["{server.url}"]'] if server else []),
            f"acker.use={self.acker}",
            *([f'{acker}inner="sharded"'] if self.acker == "local" and self.seed % 2 else []),
            f"deploy.acker={self.place}",
            "deploy.restarts=1000",
            *(["deploy.silence_timeout_s=1.5", "deploy.start_timeout_s=10"] if self.stuck else []),
            f"job.name={self.job}",
            *(["deploy.start=join"] if self.door == "elsewhere" else []),
            f"job.clock={self.clock}",
            "job.guarantee=exactly_once",
            "job.max_in_flight=512",
            f"state.use={self.store}",
            *([f"state.path={folder / 'state'}"] if self.store != "nats" else []),
            f"state.interval_s={self.interval_s}",
            *(f"sink.{name}.path={path}" for name, path in _outputs(self.parts, folder).items()),
        ]

    def arguments(self, folder: Path, disk: Path, server: NatsServer | None, more: list[str]) -> list[str]:
        """Return arguments of `flamestream run` and `upgrade`, without the flow.

        Args:
            folder: Where its inputs are.
            disk: Where its state and its outputs are.
            server: NATS server that it uses, if it does.
            more: Settings.
        """
        parts = [(name, soak_flow.PARTS[name]) for name in self.parts]
        more = [*more, *(f"source.{part.source}.path={folder / part.source}" for _, part in parts)]
        edges = [f"--source={part.source}={part.reader}" for _, part in parts]
        edges += [f"--sink={name}={part.writer}" for name, part in parts]
        settings = [f"--set={setting}" for setting in (*self.settings(disk, server), *more)]
        return [*edges, *settings]


def play(round_: Round, folder: Path, server: NatsServer | None = None) -> Result:
    """Run it.

    Raises:
        AssertionError: The outputs are wrong, the job fails, does not end, or leaves a process behind.
    """
    chance = random.Random(round_.seed + 1)
    inputs = soak_flow.drawn(chance, round_.parts, round_.size)
    soak_flow.write(inputs, folder)
    began = time.monotonic()
    with ExitStack() as stack:
        disk, place = None, folder
        if round_.small:
            disk = Disk(folder / "disk")
            stack.callback(disk.close)
            place = disk.folder
        run, crowd, door, arguments = stack.enter_context(_started(round_, folder, place, server))
        gun = Gun(
            run,
            chance,
            stored=lambda: stored(place / "state"),
            delivered=lambda: sum(map(size, _outputs(round_.parts, place).values())),
            server=server,
            clock=folder / "clock",
            door=door,
            disk=disk,
            versions=[[str(version), *arguments] for version in _versions(folder)],
            only_kills=round_.only_kills,
        )
        stack.callback(gun.end)

        def said() -> str:
            return run.said() + (crowd.said() if crowd is not None else "")

        while not run.over():
            if gun.victims.total() + gun.troubles.total() < round_.kills:
                gun.fire()
            else:
                time.sleep(0.02)
                run.nodes()
            assert time.monotonic() - began < LIMIT_S, f"the job does not end; its log:\n{said()}"
        assert run.process.returncode == 0, f"it ended with {run.process.returncode}; its log:\n{said()}"
        left = [*wait_until_gone(run.met), *(crowd.left() if crowd is not None else ())]
        assert not left, f"processes are left behind: {left}\n{said()}"
        gun.answers()
        soak_flow.check(inputs, outputs(round_.parts, place), sequence=round_.clock == "sequence")
        _check_state(round_, place, server)
    recovered = [float(found) for found in _RECOVERED.findall(run.said(10**7))]
    return Result(+gun.victims, +gun.troubles, +gun.moments, time.monotonic() - began, recovered)


@contextmanager
def _started(
    round_: Round, folder: Path, place: Path, server: NatsServer | None
) -> Iterator[tuple[Run, Crowd | None, Door | None, list[str]]]:
    """Yield the run, the nodes from elsewhere, their door, and the arguments."""
    environ = {
        "SOAK_CLOCK": str(folder / "clock"),
        "SOAK_PARTS": ",".join(round_.parts),
        "PYTHONPATH": os.pathsep.join(_path()),
    }
    door, crowd = None, None
    if round_.door != "nobody":
        door = Door.of(round_.job, round_.transport, server.url if server else "")
        environ = environment(environ)
    if round_.wanted() and door is not None:
        crowd = Crowd(folder, door, round_.wanted(), environ, random.Random(round_.seed + 2))
    arguments = round_.arguments(folder, place, server, door.settings if door is not None else [])
    for path in _versions(folder):
        path.write_text(f"{Path(soak_flow.__file__).read_text()}\n# {path.stem}\n")
    flow = [str(_versions(folder)[0]), "-q", "-w", str(round_.workers)]
    pardoned = [*(["Make room"] if round_.small else []), *(["nothing listens at nats:"] if server else [])]
    run = Run(folder, [*flow, *arguments], environ, others=crowd, pardoned=pardoned)
    try:
        yield run, crowd, door, arguments
    finally:
        run.end()
        if crowd is not None:
            crowd.end()


def _versions(folder: Path) -> list[Path]:
    """Return the files of the flow, in several versions that do the same."""
    return [folder / f"version_{number}.py" for number in range(2)]


def _path() -> list[str]:
    """Return the module path of the job's processes.

    The module that sets their clocks wrong is first.
    """
    before = os.environ.get("PYTHONPATH")
    return [str(Path(__file__).resolve().parent / "clock"), *([before] if before else [])]


def _check_state(round_: Round, place: Path, server: NatsServer | None) -> None:
    """Check that the stored state is whole."""
    settings = [setting for setting in round_.settings(place, server) if not setting.startswith("deploy.")]
    command = [sys.executable, "-m", "flamecore", "snapshot", "verify", "--job", round_.job]
    chosen = [f"--set={setting}" for setting in settings if setting.startswith(("state.", "transport."))]
    done = subprocess.run([*command, *chosen], cwd=place, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, f"the state is not whole:\n{done.stdout}{done.stderr}"


def _outputs(parts: tuple[str, ...], folder: Path) -> dict[str, Path]:
    """Return the files of the sinks."""
    return {name: folder / f"{name}.{soak_flow.PARTS[name].writer}" for name in parts}


def outputs(parts: tuple[str, ...], folder: Path) -> dict[str, list[Any]]:
    """Return the outputs that the sinks hold."""
    found: dict[str, list[Any]] = {}
    for name, path in _outputs(parts, folder).items():
        if path.suffix == ".sqlite":
            with closing(sqlite3.connect(path)) as database:
                found[name] = [row[0] for row in database.execute(f"SELECT value FROM {name} ORDER BY seq")]
        else:
            lines = map(json.loads, path.read_text().splitlines())
            found[name] = [list(value.values()) if isinstance(value, dict) else value for value in lines]
    return found
