"""A kind of operation that a plugin brings: the one of `docs/plugins/operator.md`, installed as pip would."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from random import Random
from typing import Any

import pytest
from click.testing import CliRunner

import flamecore as fc
from flamecore.abc.operator import Site, Way, each
from flamecore.cli import main
from flamecore.cli.render import dot, mermaid
from flamecore.errors import ConsistencyError, GraphError, JobError, PluginLoadError, UnknownPluginError
from flamecore.model.graph import Graph
from flamecore.model.vertices import ByKey, Vertex
from flamecore.testing import assert_deterministic, assert_exactly_once, override
from flamecore.testing.draws import seeds
from flamecore.testing.flows.reference import interpret

PAGE = Path(__file__).parents[2] / "docs" / "plugins" / "operator.md"

JOB = """
import flamecore as fc
from flamestream_best import Best

flow = fc.Flow("best")
numbers = flow.source("numbers", int).rebalance().map(lambda n: n)
numbers.key_by(lambda n: n % 3).apply(Best, count=2).sink("top")
"""


def program() -> str:
    found = re.search(
        r"^```python\n(# flamestream_best\.py\n.*?)^```$", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE
    )
    assert found is not None, "the page has the program"
    return found[1]


@pytest.fixture
def best(distributions: Any) -> Any:
    """Return the plugin's module, of a distribution that is installed."""
    points = {"flamestream.operator": {"best": "flamestream_best"}}
    distributions.add("flamestream-best", modules={"flamestream_best": program()}, entry_points=points)
    return import_module("flamestream_best")


def numbers(count: int = 60, seed: int = 1) -> dict[str, list[int]]:
    random = Random(seed)
    return {"numbers": [random.randrange(100) for _ in range(count)]}


def spread(best: Any, count: int = 2) -> fc.Flow:
    """Draw a flow whose items reach the operation by several ways.

    Many of them come late.
    """
    flow = fc.Flow("best")
    stream = flow.source("numbers", int).rebalance().map(lambda n: n)
    stream.key_by(lambda n: n % 3).apply(best.Best, count=count, name="best").sink("top")
    return flow


def behind_repairs(best: Any) -> fc.Flow:
    """Draw a flow in which the operation is behind one that takes outputs back.

    Another comes after it.
    """
    flow = fc.Flow("best")
    counted = flow.source("numbers", int).rebalance().map(lambda n: n).key_by(lambda n: n % 5).count(name="first")
    top = counted.key_by(lambda pair: pair[1] % 2).apply(best.Best, count=3, name="best")
    top.key_by(lambda pair: pair[0]).count(name="last").sink("top")
    return flow


def expected(flow: fc.Flow, inputs: dict[str, list[int]]) -> list[Any]:
    return [output.payload for output in interpret(flow.graph(), inputs)["top"]]


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("build", [spread, behind_repairs])
def test_a_run_gives_what_the_drawing_means(best: Any, build: Any, workers: int) -> None:
    flow = build(best)
    wanted = expected(flow, numbers())
    assert len(wanted) > 10
    assert flow.run(numbers(), workers=workers)["top"] == wanted


@pytest.mark.parametrize("build", [spread, behind_repairs])
def test_the_order_of_arrival_does_not_matter(best: Any, build: Any) -> None:
    assert_deterministic(build(best), numbers(), workers=(1, 2, 3, 4), seeds=seeds(15))


def test_an_operator_that_repairs_nothing_is_found_out(best: Any) -> None:
    """The simulation brings late items: an operator that takes items as they come gives other outputs."""

    class Hasty(best.BestOperator):
        def step(self, order: bytes, trace: int, alive: bool, payload: Any) -> None:
            key = self.key_of(payload)
            self.states[key] = after = best.best(self.states.get(key, ()), payload, self.count)
            self.site.emit(order + b"\x01", trace ^ self.site.ident, alive, (key, after))

    with override("operator", "best", Hasty), pytest.raises(AssertionError, match=r"differs|broke"):
        assert_deterministic(spread(best), numbers(), workers=(3,), seeds=range(15))


@pytest.mark.parametrize("build", [spread, behind_repairs])
def test_snapshots_hold_its_state(best: Any, build: Any) -> None:
    assert_exactly_once(build(best), numbers(), seeds=seeds(12))


def test_an_operator_that_restores_nothing_is_found_out(best: Any) -> None:
    class Forgetful(best.BestOperator):
        def restore(self, states: Any) -> None:
            pass

    with override("operator", "best", Forgetful), pytest.raises(AssertionError):
        assert_exactly_once(spread(best), numbers(), seeds=range(12))


def test_a_failing_comparison_is_reported_where_it_stands(best: Any) -> None:
    flow = fc.Flow("best")
    flow.source("values").key_by(lambda _: 0).apply(best.Best, count=2, name="best").sink("top")
    inputs: dict[str, list[Any]] = {"values": [3, "three", 4]}
    assert_deterministic(flow, inputs, workers=(1, 2), seeds=seeds(5))
    outputs = flow.run(inputs, settings={"job.on_error": "skip"})
    assert outputs["top"] == [(0, (3,)), (0, (4, 3))]


def test_state_of_other_settings_is_refused(best: Any, tmp_path: Path) -> None:
    state = tmp_path / "state"
    spread(best, count=2).run(numbers(), state=state)
    with pytest.raises(JobError, match="best with count 2, and the operation is a best with count 3"):
        spread(best, count=3).run(numbers(), state=state)


@pytest.mark.grpc
def test_workers_in_other_processes_find_it(best: Any, tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(JOB, "utf-8")
    (tmp_path / "numbers.jsonl").write_text("".join(f"{n}\n" for n in numbers()["numbers"]), "utf-8")
    (tmp_path / "job.toml").write_text(
        'schema = 1\n[job]\nflow = "job:flow"\nworkers = 2\n[transport]\nuse = "grpc"\n'
        '[source.numbers]\nuse = "jsonl"\npath = "numbers.jsonl"\n[sink.top]\nuse = "jsonl"\npath = "top.jsonl"\n',
        "utf-8",
    )
    paths = [str(Path(best.__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(
        [sys.executable, "-m", "flamecore", "run", "job.toml"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    lines = (tmp_path / "top.jsonl").read_text("utf-8").splitlines()
    wanted = expected(spread(best), numbers())
    assert [line.replace(" ", "") for line in lines] == [f"[{key},[{','.join(map(str, top))}]]" for key, top in wanted]


# -- how it is found ---------------------------------------------------------------------------------------------------


def test_plugins_lists_it(best: Any) -> None:
    listed = CliRunner().invoke(main, ["plugins", "--check"])
    (line,) = [line for line in listed.output.splitlines() if "flamestream_best" in line]
    assert line.split() == ["operator", "best", "flamestream-best", "1.0", "flamestream_best", "ok"]


def test_one_that_is_not_installed_is_named_before_the_start(best: Any) -> None:
    class Better(best.Best):
        kind = "bettr"

    flow = fc.Flow("best")
    flow.source("numbers", int).key_by(lambda n: n % 3).apply(Better, count=2).sink("top")
    with pytest.raises(UnknownPluginError, match="no operator named 'bettr' is installed"):
        flow.run(numbers())


def test_one_for_another_vertex_of_the_same_kind_is_refused(best: Any) -> None:
    class Best(best.Best):
        pass

    flow = fc.Flow("best")
    flow.source("numbers", int).key_by(lambda n: n % 3).apply(Best, count=2).sink("top")
    with pytest.raises(PluginLoadError, match=r"operator 'best' computes flamestream_best\.Best, and"):
        flow.run(numbers())


# -- what its vertex says ----------------------------------------------------------------------------------------------


def test_its_vertex_checks_itself(best: Any) -> None:
    with pytest.raises(GraphError, match="the count of <best 'best'> is 0"):
        spread(best, count=0).graph()


def test_a_stateful_kind_needs_a_key(best: Any) -> None:
    flow = fc.Flow("best")
    flow.source("numbers", int).apply(best.Best, count=2).sink("top")
    with pytest.raises(GraphError, match="has no key"):
        flow.graph()


def test_an_unknown_setting_is_refused(best: Any) -> None:
    keyed = fc.Flow("best").source("numbers", int).key_by(lambda n: n)
    with pytest.raises(GraphError, match=r"best after 'numbers': .*unexpected keyword argument 'cuont'"):
        keyed.apply(best.Best, cuont=2)


def test_pictures_show_a_stateful_kind_as_such(best: Any) -> None:
    graph: Graph = spread(best).graph()
    assert '{{"best"}}' in mermaid(graph)
    assert 'label="best", shape=hexagon' in dot(graph)


def test_a_kind_that_does_not_say_what_it_means_cannot_be_interpreted(best: Any) -> None:
    class Silent(best.Best):
        draw = Vertex.draw

    flow = fc.Flow("best")
    flow.source("numbers", int).key_by(lambda n: n % 3).apply(Silent, count=2).sink("top")
    with pytest.raises(GraphError, match="does not know what <best 'best'> means"):
        interpret(flow.graph(), numbers())


def test_a_tombstone_without_a_victim_is_a_broken_law(best: Any) -> None:

    def nowhere(*_: Any) -> None:
        raise AssertionError("nothing is emitted")

    vertex = best.Best("best", route=ByKey(lambda n: n), count=1)
    operator = best.BestOperator(vertex, Site(1, nowhere, (Way(nowhere, each(nowhere)),)))
    with pytest.raises(ConsistencyError):
        operator.step(b"\x80" + bytes(11), 0, False, 3)
