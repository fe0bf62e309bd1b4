"""Checks of a flow, for its author's own CI.

The output must be the same for any number of workers and any timing.

from flamecore.testing import assert_deterministic


def test_flow():
    assert_deterministic(flow, {"lines": ["to be or", "not to be"]})
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from flamecore.abc.acker import Acker, AckerPlan
from flamecore.flow import Flow
from flamecore.model.graph import Graph
from flamecore.runtime.config.defaults import ACKERS
from flamecore.testing.flows.reference import Failed, interpret
from flamecore.testing.simulation.simulation import SimulatedRun, Simulation


def assert_deterministic(
    flow: Flow | Graph,
    inputs: Mapping[str, Iterable[Any]],
    *,
    workers: Sequence[int] = (1, 2, 4),
    seeds: Iterable[int] = range(20),
    ackers: Sequence[str] = ACKERS,
) -> dict[str, list[Any]]:
    """Run a flow under many interleavings, and compare each with the reference.

    The reference interpreter gives the expected output. The first run with each number of workers also finds functions
    that change what they are given.

    Args:
        flow: The flow to check.
        inputs: For each source, its records.
        workers: Numbers of workers to try.
        seeds: Each is another interleaving, for each number of workers.
        ackers: Names of acker drivers, used in turn.

    Returns:
        For each sink, its outputs.

    Raises:
        AssertionError: An output differs, is missing or too many. The text names the output and the seed.
    """
    graph = flow if isinstance(flow, Graph) else flow.graph()
    whole = {name: list(records) for name, records in inputs.items()}
    failed = None
    try:
        expected = interpret(graph, whole)
    except Failed as error:
        failed, expected = error, error.outputs
    wanted = {name: [output.payload for output in outputs] for name, outputs in expected.items()}
    strategies = [acker_named(name) for name in ackers]
    for turn, seed in enumerate(seeds):
        for count in workers:
            name, strategy = ackers[seed % len(ackers)], strategies[seed % len(ackers)]
            where = f"seed={seed}, workers={count}, acker={name!r}"
            try:
                run = Simulation(graph, whole, acker=strategy, workers=count, seed=seed, check_mutation=not turn).run()
            except Exception as error:
                raise AssertionError(f"the run with {where} broke: {error}") from error
            compare(run, wanted, failed, where)
    return wanted


def compare(run: SimulatedRun, wanted: Mapping[str, Sequence[Any]], failed: Failed | None, where: str) -> None:
    """Compare one run with the expected outputs and failure.

    Raises:
        AssertionError: They differ; the text gives the first difference.
    """
    if (run.failure is None) != (failed is None):
        raise AssertionError(f"with {where} the run failed with {run.failure}, the reference with {failed}")
    compare_outputs(run.outputs, wanted, where, failed)


def compare_outputs(
    got: Mapping[str, Sequence[Any]], wanted: Mapping[str, Sequence[Any]], where: str, failed: Failed | None = None
) -> None:
    """Compare the outputs of each sink with the expected ones.

    Args:
        got, wanted: For each sink, its outputs.
        where: The run, in words.
        failed: The expected failure of the run: a sink to which the failing operation does not lead may have got more.

    Raises:
        AssertionError: They differ; the text gives the first difference.
    """
    for name, outputs in wanted.items():
        found = list(got[name])
        if found == list(outputs):
            continue
        if failed is not None and len(found) > len(outputs):
            outputs = [output.payload for output in failed.most[name][: len(found)]]
            if found == outputs:
                continue
        place = next(
            (i for i, (a, b) in enumerate(zip(found, outputs, strict=False)) if a != b), min(len(found), len(outputs))
        )
        raise AssertionError(
            f"sink {name!r} differs from the reference with {where}: {len(found)} outputs instead of {len(outputs)}; "
            f"the first difference is output {place}: got {found[place : place + 1]}, "
            f"wanted {list(outputs[place : place + 1])}"
        )


def acker_named(name: str) -> Callable[[AckerPlan], Acker]:
    """Return a function from `AckerPlan` to an acker, with default options.

    Inner ackers are found by name, too.
    """
    from flamecore.runtime.config.options import options_of
    from flamecore.runtime.config.plugins import PluginRegistry

    plugins = PluginRegistry()

    def make(inner: str, table: Mapping[str, Any], plan: AckerPlan) -> Acker:
        driver = plugins.get("acker", inner)
        linked = AckerPlan(plan.workers, plan.segments, plan.fronts, plan.start, lambda n, t: make(n, t, plan))
        return driver(options_of(driver, table, f"acker.{inner}"), linked)

    return lambda plan: make(name, {}, plan)
