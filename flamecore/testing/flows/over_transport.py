"""The public kit for transports, second half: whole jobs.

Call `check_flows(Mine)`, or for pytest define `class TestMine(TransportFlowTests)`. A job that runs all the flows of
`flamecore.testing.flows.standard` is deployed over the transport, with every acker, every place for its trackers and
several numbers of workers, and must give what the reference interpreter gives, item for item. If the transport claims
`multi_process`, workers (and trackers that have a place of their own) are processes, started as `flamestream run`
starts them; they find the driver by its name, so it must be installed.

All deployments of a transport between processes take a while. Unless FLAMESTREAM_TIER=whole is set a third of them
is run, chosen so that every pair of (acker, place), (acker, workers) and (place, workers) is among them.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Final, NamedTuple
from unittest import SkipTest

from flamecore.abc.config import JobConfig
from flamecore.abc.transport import Transport, TransportContext
from flamecore.runtime.config.defaults import ACKERS, FILE_OF_RECORDS, HANDED_OVER
from flamecore.runtime.config.layers import Layer
from flamecore.runtime.config.options import options_of
from flamecore.runtime.config.plugins import override
from flamecore.runtime.config.read import make_config
from flamecore.runtime.config.resolve import resolve
from flamecore.runtime.launch import job_of
from flamecore.runtime.tasks import event_loop
from flamecore.testing.draws import TIER, tier
from flamecore.testing.flows.deterministic import compare_outputs
from flamecore.testing.flows.reference import interpret
from flamecore.testing.flows.standard import flow, inputs
from flamecore.testing.laws import LawBroken
from flamecore.testing.progress import patience

PLACES: Final = ("supervisor", "worker", "own")
WORKERS: Final = (1, 2, 4)

LIMIT_S: Final = 60.0
SIZE: Final = 100
_IN_FLIGHT: Final = 256
"""Few enough that fronts have to wait for credit."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One deployment.

    Attributes:
        acker: Name of the acker.
        workers: Number of workers.
        place: Place of its trackers, see [deploy]; empty: with everything else, in one process.
        on: Host of its nodes, see [deploy].
    """

    acker: str
    workers: int
    place: str = ""
    on: str = ""

    def __str__(self) -> str:
        return "-".join(filter(None, (self.acker, self.place, str(self.workers), self.on)))


class Ran(NamedTuple):
    """A successful deployment: time it took, and outputs that were taken back."""

    cell: Cell
    elapsed_s: float
    replays: int


def all_cells(driver: type[Transport], options: Mapping[str, Any] | None = None) -> list[Cell]:
    """Return every deployment that a transport can have."""
    if not _capable(driver, options or {}):
        return [Cell(acker, workers) for acker in ACKERS for workers in WORKERS]
    return [Cell(acker, workers, place) for acker in ACKERS for workers in WORKERS for place in PLACES]


def chosen_cells(cells: Sequence[Cell], sample: Sequence[Cell] | None = None) -> list[Cell]:
    """Return the cells to run: all where that is cheap or asked for, else the sample.

    Args:
        cells: All of them.
        sample: Default: the fewest with every pair among them.
    """
    if tier().all_deployments:
        return list(cells)
    if sample is not None:
        return list(sample)
    # A Latin square: each place once with each acker, once with each number of workers.
    return [
        cell
        for cell in cells
        if not cell.place
        or (ACKERS.index(cell.acker) + WORKERS.index(cell.workers) + PLACES.index(cell.place)) % len(PLACES) == 0
    ]


def check_cell(
    driver: type[Transport],
    cell: Cell,
    options: Mapping[str, Any] | None = None,
    *,
    size: int = SIZE,
    limit_s: float = LIMIT_S,
) -> Ran:
    """Run all the flows in one deployment.

    Args:
        driver: The transport.
        cell: The deployment.
        options: The transport's options.
        size: Records for the longest source of each flow.
        limit_s: How long it may take.

    Raises:
        LawBroken: `flows`: an output differs, is missing or too many. `ends`: it does not come to an end.
        FlameError: The job failed.
    """
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="flame") as folder, override("transport", driver.name, driver):
        spec = resolve(_config(driver, cell, options or {}, _written(Path(folder), size)), flow)
        job = job_of(spec)

        async def run() -> None:
            async with patience(limit_s):
                await job.run()

        try:
            event_loop.run(run())
        except TimeoutError:
            raise LawBroken("ends", f"transport {driver.name!r}, {cell}: not at its end after {limit_s} s") from None
        got = {name: sink.values for name, sink in spec.sinks.items()}  # type: ignore[attr-defined]  # they are lists
    try:
        compare_outputs(got, _wanted(size), f"transport={driver.name!r}, {cell}")
    except AssertionError as error:
        raise LawBroken("flows", str(error)) from None
    return Ran(cell, time.monotonic() - start, job.stats().replays)


def check_flows(
    driver: type[Transport], options: Mapping[str, Any] | None = None, *, cells: Iterable[Cell] | None = None
) -> list[Ran]:
    """Run all the flows in several deployments.

    Args:
        driver: The transport.
        options: The transport's options.
        cells: The deployments; default: see `chosen_cells`.

    Raises:
        LawBroken, FlameError: As `check_cell`.
    """
    chosen = chosen_cells(all_cells(driver, options)) if cells is None else cells
    return [check_cell(driver, cell, options) for cell in chosen]


def _capable(driver: type[Transport], options: Mapping[str, Any]) -> bool:
    """Return whether a transport reaches other processes."""
    made = driver(options_of(driver, options, f"transport.{driver.name}"), TransportContext())
    return made.capabilities.multi_process


def _config(driver: type[Transport], cell: Cell, options: Mapping[str, Any], files: Mapping[str, Path]) -> JobConfig:
    layer = Layer()
    tables: dict[str, Mapping[str, Any]] = {
        "job": {"workers": cell.workers, "max_in_flight": _IN_FLIGHT},
        "transport": {"use": driver.name, driver.name: dict(options)},
        "acker": {"use": cell.acker},
        "deploy": {key: value for key, value in (("acker", cell.place), ("on", cell.on)) if value},
        "source": {name: {"use": FILE_OF_RECORDS, "path": str(path)} for name, path in files.items()},
        "sink": {sink.name: {"use": HANDED_OVER} for sink in flow.graph().sinks},
    }
    for section, table in tables.items():
        for key, value in table.items():
            layer.put((section, key), value, "the kit")
    return make_config(layer)


def _written(folder: Path, size: int) -> dict[str, Path]:
    """Write the inputs to files, which every process can read."""
    paths = {}
    for name, records in inputs(size=size).items():
        paths[name] = folder / f"{name}.jsonl"
        paths[name].write_text("".join(f"{json.dumps(record)}\n" for record in records), "utf-8")
    return paths


@cache
def _wanted(size: int) -> dict[str, list[Any]]:
    outputs = interpret(flow.graph(), inputs(size=size))
    return {name: [output.payload for output in each] for name, each in outputs.items()}


class TransportFlowTests:
    """The deployments as a class for pytest; needs no plugin. Must be given: `driver`.

    `options` are its options; options known only later (the port of a server) may be set by a fixture, on `self`.
    `sample` are the deployments that are run when not all are; default: see `chosen_cells`.

    Example:
        class TestMyFlows(TransportFlowTests):
            driver = Mine
            options = {"room": 100}
    """

    driver: type[Transport]
    options: Mapping[str, Any] = {}
    sample: Sequence[Cell] | None = None
    limit_s: float = LIMIT_S
    size: int = SIZE
    ran: ClassVar[list[Ran]]

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.ran = []

    def cells(self) -> list[Cell]:
        """Return the deployments to run."""
        return chosen_cells(all_cells(self.driver, self.options), self.sample)

    def pytest_generate_tests(self, metafunc: Any) -> None:
        """Make a test for each deployment."""
        if "cell" in metafunc.fixturenames:
            metafunc.parametrize("cell", self.cells(), ids=str)

    def test_flows(self, cell: Cell) -> None:
        self.ran.append(check_cell(self.driver, cell, self.options, size=self.size, limit_s=self.limit_s))

    def test_deployments_left_out_are_reported(self) -> None:
        """Skip if deployments were left out, with their number and the others' time."""
        total, run = len(all_cells(self.driver, self.options)), len(self.cells())
        took, replays = sum(each.elapsed_s for each in self.ran), sum(each.replays for each in self.ran)
        told = f"{type(self).__name__} over {self.driver.name!r}: {len(self.ran)} of {total} deployments run, "
        told += f"{took:.1f} s, {replays} outputs taken back on the way"
        print(told)
        if run < total:
            raise SkipTest(f"{told}; {total - run} left out, {TIER}=whole runs them")
