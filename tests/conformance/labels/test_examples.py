"""The examples of labels: each prints what its plain program does, on any number of workers, and calls as often."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random
from types import ModuleType
from typing import Any

import pytest

import flamecore as fc
from flamecore.model.drift import Drift
from flamecore.model.graph import Graph
from flamecore.model.ordered import Ordered
from flamecore.model.vertices import Map
from flamecore.testing import assert_exactly_once
from flamecore.testing.draws import seeds
from flamecore.testing.flows.deterministic import acker_named
from flamecore.testing.simulation.simulation import Simulation

EXAMPLES = Path(__file__).resolve().parents[3] / "examples" / "labels"
NAMES = ["classifier", "search"]
DATA = {"classifier": "documents", "search": "events"}
TOPICS = {"sea": "fish net boat tide", "wood": "tree leaf deer bark", "town": "tram roof shop bell"}
"""Words of a topic; all share some."""


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
def example(name: str, monkeypatch: pytest.MonkeyPatch) -> tuple[ModuleType, ModuleType]:
    """Return the module of a flow, and that of the plain program."""
    monkeypatch.syspath_prepend(EXAMPLES / name)
    return load(name, name, monkeypatch), load(name, "plain", monkeypatch)


def load(name: str, module: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location(module, EXAMPLES / name / f"{module}.py")
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, module, loaded)
    spec.loader.exec_module(loaded)
    return loaded


def records(name: str, random: Random) -> list[dict[str, Any]]:
    """Draw records, as they are in the files."""
    if name == "search":
        people = [f"p{number}" for number in range(12)]
        ties = [{"person": random.choice(people), "knows": random.choice(people)} for _ in range(25)]
        asked = [{"person": random.choice(people), "request": f"r{n}", "hops": random.randrange(5)} for n in range(6)]
        drawn = ties + asked
        random.shuffle(drawn)
        return drawn
    found = []
    for number in range(30):
        topic = random.choice(list(TOPICS))
        text = " ".join(random.choices([*TOPICS[topic].split(), "and", "with", "a"], k=random.randrange(6)))
        found.append({"name": f"d{number}", "text": text, "topic": random.choice((topic, topic, ""))})
    return found


def given(example: tuple[ModuleType, ModuleType], name: str, drawn: list[dict[str, Any]]) -> tuple[fc.Flow, list[Any]]:
    """Return the flow, and typed records for it."""
    module, _ = example
    kind = module.Document if name == "classifier" else module.Event
    return getattr(module, name), [kind(**record) for record in drawn]


def plainly(example: tuple[ModuleType, ModuleType], name: str, drawn: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return what the plain program says."""
    module, plain = example
    if name == "classifier":
        return [topic._asdict() for topic in plain.run([module.Document(**record) for record in drawn])]
    return list(plain.run(drawn))


@pytest.mark.parametrize("seed", range(4))
def test_the_flow_says_what_the_plain_program_does(
    example: tuple[ModuleType, ModuleType], name: str, seed: int
) -> None:
    drawn = records(name, Random(seed))
    flow, typed = given(example, name, drawn)
    wanted = plainly(example, name, drawn)
    assert len(wanted) > 5
    for workers in (1, 4):
        (out,) = flow.run({DATA[name]: typed}, workers=workers).values()
        assert [item._asdict() for item in out] == wanted


def counting(graph: Graph, calls: list[str]) -> Graph:
    """Have each function of a graph note its calls."""

    def noting(vertex: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*arguments: Any) -> Any:
            calls.append(vertex)
            return function(*arguments)

        return noted

    for vertex in graph.vertices:
        if isinstance(vertex, Map):
            vertex.function = noting(vertex.name, vertex.function)
        elif isinstance(vertex, Drift):
            vertex.advance = noting(vertex.name, vertex.advance)
    return graph


def test_functions_are_called_as_often_on_four_workers_as_on_one(
    example: tuple[ModuleType, ModuleType], name: str
) -> None:
    flow, typed = given(example, name, records(name, Random(9)))
    found = set()
    for workers, seed in ((1, 0), (1, 1), (4, 0), (4, 1), (4, 2)):
        calls: list[str] = []
        graph = counting(flow.graph(), calls)
        assert any(isinstance(vertex, Ordered) for vertex in graph.vertices)
        inputs = {DATA[name]: typed}
        acker = acker_named("centralized")
        Simulation(graph, inputs, acker=acker, workers=workers, seed=seed, advance=False).run()
        found.add(tuple(sorted(calls)))
    assert len(found) == 1


def test_kills_do_not_show(example: tuple[ModuleType, ModuleType], name: str) -> None:
    flow, typed = given(example, name, records(name, Random(5)))
    assert_exactly_once(flow, {DATA[name]: typed}, seeds=seeds(8), kinds=["kill"])


@pytest.mark.parametrize("workers", [1, 4])
def test_the_job_prints_what_the_plain_program_does(name: str, workers: int) -> None:
    root = EXAMPLES.parents[1]
    plain = subprocess.run([sys.executable, EXAMPLES / name / "plain.py"], capture_output=True, text=True, check=True)
    command = [sys.executable, "-m", "flamecore", "run", f"examples/labels/{name}/job.toml", "--quiet"]
    job = subprocess.run([*command, "-w", str(workers)], capture_output=True, text=True, check=True, cwd=root)
    assert job.stdout == plain.stdout
    assert [json.loads(line) for line in job.stdout.splitlines()]
