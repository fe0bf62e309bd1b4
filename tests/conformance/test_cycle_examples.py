"""The examples of cycles give what the plain programs beside them give, item for item, and call no function twice.

The last outputs are also held against what each example promises, found in another way: a mistake may be in both.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Mapping
from functools import partial, wraps
from itertools import product
from math import inf
from pathlib import Path
from random import Random
from statistics import fmean
from types import ModuleType
from typing import Any

import pytest

import flamecore as fc
from flamecore.testing.draws import seeds
from flamecore.testing.flows.deterministic import acker_named
from flamecore.testing.flows.exactly_once import assert_exactly_once
from flamecore.testing.flows.reference import interpret
from flamecore.testing.simulation.simulation import Simulation

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "cycles"

Inputs = Mapping[str, list[Any]]


class Example:
    """An example with its functions counted: the module of its flow, and that of the plain program.

    Attributes:
        calls: All calls of state functions: the name of the operation, the item, and the outputs.
    """

    def __init__(self, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[tuple[str, Any, list[Any]]] = []
        given = fc.KeyedStream.stateful_map

        def stateful_map(stream: Any, initial: Any, function: Callable[..., Any], *, name: str) -> Any:
            @wraps(function)
            def counted(state: Any, item: Any) -> Any:
                after, outputs = function(state, item)
                self.calls.append((name, item, list(outputs)))
                return after, outputs

            return given(stream, initial, counted, name=name)

        with monkeypatch.context() as patch:
            patch.setattr(fc.KeyedStream, "stateful_map", stateful_map)
            self.module = load(name, FOLDER / name / f"{name}.py", monkeypatch)
        self.plain = load(f"{name}_plain", FOLDER / name / "plain.py", monkeypatch)
        self.flow: fc.Flow = self.module.flow
        (sink,) = self.flow.graph().sinks
        self.sink = sink.name

    def inputs(self, seed: int) -> Inputs:
        """Return records for each source."""
        return INPUTS[self.module.__name__](self.module, Random(seed))

    def last(self, inputs: Inputs) -> dict[Any, tuple[Any, ...]]:
        """Return the last output of each key, without the key."""
        return {first: tuple(rest) for first, *rest in self.flow.run(inputs)[self.sink]}

    def count(self, run: Callable[[], Any]) -> tuple[Any, int]:
        """Return what `run` returns, and how many calls it makes."""
        self.calls.clear()
        result = run()
        return result, len(self.calls)


def load(name: str, path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Import a file anew, for the time of a test."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)
    return module


def roads(module: ModuleType, random: Random) -> Inputs:
    """Roads between thirty towns; the depot gets its roads early, in the middle, and at the end."""
    towns = [f"town {number}" for number in range(30)]
    records = [module.Road(*random.choices(towns, k=2), random.randrange(1, 40)) for _ in range(120)]
    for place in (3, 60, 122):
        records.insert(place, module.Road(module.DEPOT, random.choice(towns), random.randrange(100 - place // 2)))
    records.insert(70, module.Road(random.choice(towns), module.DEPOT, 1))
    return {"roads": records}


def cables(module: ModuleType, random: Random) -> Inputs:
    """Cables among sixty computers; some lie twice, and some lead back."""
    return {"cables": [module.Cable(random.randrange(60), random.randrange(60)) for _ in range(45)]}


def pages(module: ModuleType, random: Random) -> Inputs:
    """Pages in several versions, with links to pages that come later or never, and some with none."""
    names = [f"page {number}" for number in range(12)]
    return {
        "pages": [
            module.Page(random.choice(names[:11]), tuple(random.choices(names, k=random.randrange(4))))
            for _ in range(25)
        ]
    }


def turns(module: ModuleType, random: Random) -> Inputs:
    """Return turns that are too short for the waiting pages, or longer, and seeds.

    There are more turns than seeds.
    """
    seeds = [f"{random.choice(module.HOSTS)}/{random.randrange(9)}" for _ in range(4)]
    return {
        "seeds": seeds,
        "turns": [module.Turn(random.choice(module.HOSTS), random.randrange(5)) for _ in range(30)],
    }


def readings(module: ModuleType, random: Random) -> Inputs:
    """Return readings about three values and between them.

    There are more than are kept, and some of equal value.
    """
    return {
        "readings": [
            module.Reading(f"sensor {random.randrange(3)}", round(random.choice((1, 5, 20)) + random.gauss(0, 2), 1))
            for _ in range(130)
        ]
    }


INPUTS = {
    "shortest_paths": roads,
    "connected_components": cables,
    "page_rank": pages,
    "crawler": turns,
    "clusters": readings,
}


@pytest.fixture(params=INPUTS)
def example(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Example:
    return Example(request.param, monkeypatch)


@pytest.mark.parametrize("seed", range(3))
def test_a_flow_gives_what_the_plain_program_gives(example: Example, seed: int) -> None:
    """On any number of workers, and with no more calls than a run that sees everything in order."""
    inputs = example.inputs(seed)
    wanted = list(example.plain.run(*inputs.values()))
    reference, needed = example.count(lambda: interpret(example.flow.graph(), inputs))
    assert [output.payload for output in reference[example.sink]] == wanted
    assert needed > len(wanted) > 0
    for workers in (1, 2, 4):
        run = partial(example.flow.run, inputs, workers=workers)
        outputs, calls = example.count(run)
        assert list(outputs[example.sink]) == wanted, workers
        assert calls == needed, workers


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_nothing_is_replayed_in_any_interleaving(example: Example, workers: int) -> None:
    inputs = example.inputs(seed=0)
    wanted = list(example.plain.run(*inputs.values()))
    for seed, acker in product(seeds(2), ["centralized", "local", "sharded"]):
        run = Simulation(example.flow.graph(), inputs, acker=acker_named(acker), workers=workers, seed=seed).run()
        assert run.outputs[example.sink] == wanted, seed
        assert run.replays == 0, seed


def test_a_flow_that_dies_and_goes_on_gives_the_same(example: Example) -> None:
    """With its state, whatever happens to its processes."""
    assert_exactly_once(example.flow, example.inputs(seed=1), seeds=seeds(4))


def test_the_shipped_job_gives_what_the_plain_program_prints(example: Example) -> None:
    """Line by line, on several workers."""
    name = example.module.__name__
    plain = subprocess.run([sys.executable, FOLDER / name / "plain.py"], stdout=subprocess.PIPE, check=True).stdout
    command = [sys.executable, "-m", "flamecore", "run", FOLDER / name / "job.toml", "--quiet", "--workers", "2"]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, cwd=FOLDER.parents[1])
    assert done.stdout == plain
    assert len(plain.splitlines()) > 15


@pytest.mark.parametrize("seed", range(3))
def test_distances_are_those_of_the_shortest_ways(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    example = Example("shortest_paths", monkeypatch)
    inputs = example.inputs(seed)
    km: dict[str, float] = defaultdict(lambda: inf, {example.module.DEPOT: 0})
    for _ in range(32):  # as many rounds as there are places
        for road in inputs["roads"]:
            km[road.end] = min(km[road.end], km[road.start] + road.km)
    del km[example.module.DEPOT]
    assert example.last(inputs) == {town: (least,) for town, least in km.items() if least < inf}


def test_a_search_reaches_each_place_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without its queue this one would take 29,949 calls, and one of 20 by 20 places 728,265."""
    example = Example("shortest_paths", monkeypatch)
    cells = {(x, y) for x in range(10) for y in range(10)}
    near = [(cell, (cell[0] + x, cell[1] + y)) for cell in sorted(cells) for x, y in ((0, 1), (1, 0), (0, -1), (-1, 0))]
    streets = [
        (f"{one}", f"{other}", Random(f"{one} {other}").randrange(1, 10)) for one, other in near if other in cells
    ]
    records = [example.module.Road(*street) for street in [*streets, (example.module.DEPOT, "(0, 0)", 0)]]
    outputs, calls = example.count(lambda: example.flow.run({"roads": records})["distances"])
    assert sorted(town for town, _ in outputs) == sorted(map(str, cells))
    assert [km for _, km in outputs] == sorted(km for _, km in outputs)
    assert calls <= 4 * len(records)


@pytest.mark.parametrize("seed", range(3))
def test_components_are_those_that_cables_join(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    example = Example("connected_components", monkeypatch)
    inputs = example.inputs(seed)
    component = {computer: computer for cable in inputs["cables"] for computer in cable}
    for one, other in inputs["cables"]:
        least, most = sorted((component[one], component[other]))
        component = {computer: least if known == most else known for computer, known in component.items()}
    assert 1 < len(set(component.values())) < len(component)
    assert example.last(inputs) == {computer: (known,) for computer, known in component.items()}


@pytest.mark.parametrize("seed", range(3))
def test_ranks_are_exact_but_for_the_tolerance(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    example = Example("page_rank", monkeypatch)
    inputs, damping = example.inputs(seed), example.module.DAMPING
    links = dict(inputs["pages"])
    exact = dict.fromkeys(links, 0.0)
    for _ in range(300):
        gained = dict.fromkeys(links, 1 - damping)
        for page, rank in exact.items():
            for link in links[page]:
                if link in links:
                    gained[link] += damping * rank / len(links[page])
        exact = gained
    ranks = example.last(inputs)
    assert ranks.keys() == links.keys()
    off = sum(abs(ranks[page][0] - rank) for page, rank in exact.items())
    assert off <= len(links) * example.module.TOLERANCE / (1 - damping)


@pytest.mark.parametrize("seed", range(3))
def test_a_crawl_finds_each_page_by_the_shortest_way(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the turns let it fetch them all."""
    example = Example("crawler", monkeypatch)
    seeds = example.inputs(seed)["seeds"]
    depths = dict.fromkeys(seeds, 0)
    waiting = deque(depths)
    while waiting:
        url = waiting.popleft()
        for link in example.plain.links_of(url) if depths[url] < example.module.DEPTH else ():
            if link not in depths:
                depths[link] = depths[url] + 1
                waiting.append(link)
    endless = [example.module.Turn(host, 1000) for host in example.module.HOSTS]
    assert example.last({"seeds": seeds, "turns": endless}) == {url: (depth,) for url, depth in depths.items()}


@pytest.mark.parametrize("seed", range(3))
def test_a_host_is_asked_for_no_more_pages_than_its_turns_allow(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """And for each page once."""
    example = Example("crawler", monkeypatch)
    visited = example.last(example.inputs(seed))
    left: Counter[str] = Counter()
    asked = []
    for name, step, outputs in example.calls:
        if isinstance(step, example.module.Turn):
            left[step.host] = step.pages
        if name == "frontier":
            asked += outputs
            left.subtract(url.partition("/")[0] for url in outputs)
            assert min(left.values(), default=0) >= 0
    assert len(asked) == len(set(asked)) > 5
    assert visited.keys() == set(asked)


@pytest.mark.parametrize("seed", range(3))
def test_centres_lie_where_another_round_would_leave_them(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    example = Example("clusters", monkeypatch)
    inputs = example.inputs(seed)
    values = defaultdict(list)
    for sensor, value in inputs["readings"]:
        values[sensor].append(value)
    last = example.last(inputs)
    assert last.keys() == values.keys()
    for sensor, (centres, _) in last.items():
        near = defaultdict(list)
        for value in values[sensor][-example.module.READINGS :]:
            near[min(centres, key=lambda centre: abs(centre - value))].append(value)
        assert len(near) > 1
        for centre, group in near.items():
            assert centre == pytest.approx(fmean(group), abs=example.module.TOLERANCE * 2)
