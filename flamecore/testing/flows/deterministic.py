"""Checks of a flow, for its author's own CI.

The output must be the same for any number of workers and any timing.

from flamecore.testing import assert_deterministic


def test_flow():
    assert_deterministic(flow, {"lines": ["to be or", "not to be"]})
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, Final

import msgspec
from msgspec.structs import asdict

from flamecore.abc.acker import Acker, AckerPlan
from flamecore.errors import ConfigError
from flamecore.flow import Flow
from flamecore.model.graph import Graph
from flamecore.model.settings import JobSettings
from flamecore.runtime.config.defaults import ACKERS
from flamecore.runtime.config.layers import from_program
from flamecore.runtime.config.read import make_config
from flamecore.runtime.config.validate import unknown_key
from flamecore.testing.flows.reference import Failed, interpret
from flamecore.testing.simulation.simulation import SimulatedRun, Simulation

_ARGUMENTS: Final = {"job.workers": "workers", "acker.use": "ackers"}
"""Settings that the check has arguments for."""


def assert_deterministic(
    flow: Flow | Graph,
    inputs: Mapping[str, Iterable[Any]],
    *,
    workers: Sequence[int] = (1, 2, 4),
    seeds: Iterable[int] = range(20),
    ackers: Sequence[str] = ACKERS,
    settings: Mapping[str, Any] | None = None,
) -> dict[str, list[Any]]:
    """Run a flow under many interleavings, and compare each with the reference.

    The reference interpreter gives the expected output. The first run with each number of workers also finds functions
    that change what they are given. A failing function ends each run and the reference at the same record: the check
    then passes, and returns the outputs of the records before.

    Args:
        flow: The flow to check.
        inputs: For each source, its records; a source that is left out has none.
        workers: Numbers of workers to try.
        seeds: Each is another interleaving, for each number of workers.
        ackers: Names of acker drivers, used in turn.
        settings: Settings of the table `[job]`, as dotted keys as in `flow.run`: `{"job.clock": "wall"}`.

    Returns:
        For each sink, its outputs. By the wall clock they are those of the first run: times of arrival differ by run.

    Raises:
        AssertionError: An output differs, is missing or too many. The text names the output and the seed.
        ConfigError: A setting has no meaning in these runs; the flow has no source of a name in `inputs`; or there is
            nothing to run.
    """
    job = job_settings(settings or {})
    graph = flow if isinstance(flow, Graph) else flow.graph()
    whole, seeds = records_of(graph, inputs), tuple(seeds)
    require_some(seeds=seeds, workers=workers, ackers=ackers)
    strategies = [acker_named(name) for name in ackers]
    skips, wall = job.on_error != "fail", job.clock == "wall"
    wanted, failed = ({}, None) if wall else _expected(graph, whole, skip_failing=skips)
    first: dict[str, list[Any]] | None = None if wall else wanted
    for turn, seed in enumerate(seeds):
        for count in workers:
            name, strategy = ackers[seed % len(ackers)], strategies[seed % len(ackers)]
            where = f"seed={seed}, workers={count}, acker={name!r}"
            simulation = Simulation(
                graph,
                whole,
                acker=strategy,
                workers=count,
                seed=seed,
                settings=job,
                check_mutation=job.check_mutation or not turn,
            )
            try:
                run = simulation.run()
            except Exception as error:
                raise AssertionError(f"the run with {where} broke: {error}") from error
            if wall:
                wanted, failed = _expected(graph, whole, skip_failing=skips, run=run)
                first = wanted if first is None else first
            compare(run, wanted, failed, where)
    return first or {}


def records_of(graph: Graph, inputs: Mapping[str, Iterable[Any]]) -> dict[str, list[Any]]:
    """Return the records of each source.

    Raises:
        UnknownKeyError: The graph has no source of a name.
    """
    known = [source.name for source in graph.sources]
    for name in inputs:
        if name not in known:
            raise unknown_key(f"source.{name}", known, where=": the flow has no such source (inputs)")
    return {name: list(records) for name, records in inputs.items()}


def require_some(**choices: Sequence[object]) -> None:
    """Require that each argument of a check has a value: without any, the check would run nothing and pass.

    Raises:
        ConfigError: One has none.
    """
    for name, values in choices.items():
        if not values:
            raise ConfigError(f"{name} is empty, so nothing would be checked", hint=f"Leave {name} out.", path=name)


def job_settings(settings: Mapping[str, Any]) -> JobSettings:
    """Return the settings of a simulated job.

    Args:
        settings: Settings of the table `[job]`, by dotted key.

    Raises:
        ConfigError: A setting is wrong, or has no meaning in a simulation.
    """
    for key in settings:
        if key in _ARGUMENTS:
            raise ConfigError(f"{key} is an argument of its own", hint=f"Give {_ARGUMENTS[key]}=(…).", path=key)
        if not key.startswith("job."):
            raise ConfigError(
                f"{key} has no meaning here: the runs are simulated, with the inputs as they are given",
                hint="Leave it out. Settings of the table [job] have a meaning, such as job.clock.",
                path=key,
            )
    table = make_config(from_program(settings)).job
    if not table.barrier:
        raise ConfigError(
            "job.barrier = false lets outputs go before they are final, so that they depend on the timing",
            hint="Leave it out.",
            path="job.barrier",
        )
    return JobSettings(**asdict(table))


def _expected(
    graph: Graph, inputs: Mapping[str, Sequence[Any]], *, skip_failing: bool, run: SimulatedRun | None = None
) -> tuple[dict[str, list[Any]], Failed | None]:
    """Return the outputs of the reference interpreter, and the failure that has ended it.

    Args:
        graph: The graph.
        inputs: For each source, its records.
        skip_failing: Whether records that a function fails on are left out.
        run: The run by the wall clock whose times count; None: times are numbers of records.
    """
    read, times, ends = inputs, None, None
    if run is not None:
        times = {front.source: each for front, each in run.times.items()}
        ends = {front.source: end for front, end in run.ends.items()}
        # A run that a failure has ended may not have read all.
        read = {name: list(inputs.get(name, ()))[: len(each)] for name, each in times.items()}
    failed = None
    try:
        outputs = interpret(
            graph,
            read,
            times=times,
            skip_failing=skip_failing,
            end=max(ends.values(), default=None) if ends else None,
            ends=ends,
            wall=run is not None,
        )
    except Failed as error:
        failed, outputs = error, error.outputs
    return {name: [output.payload for output in each] for name, each in outputs.items()}, failed


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
        if _are_alike(found, list(outputs)):
            continue
        if failed is not None and len(found) > len(outputs):
            outputs = [output.payload for output in failed.most[name][: len(found)]]
            if _are_alike(found, outputs):
                continue
        place = next(
            (i for i, (a, b) in enumerate(zip(found, outputs, strict=False)) if not _are_alike(a, b)),
            min(len(found), len(outputs)),
        )
        raise AssertionError(
            f"sink {name!r} differs from the reference with {where}: {len(found)} outputs instead of {len(outputs)}; "
            f"the first difference is output {place}: got {found[place : place + 1]}, "
            f"wanted {list(outputs[place : place + 1])}"
        )


def _are_alike(one: Any, other: Any) -> bool:
    """Return whether two values are equal, or have NaN at the same places; arrays of numpy by type, shape and contents.

    >>> _are_alike([1, {"a": (float("nan"),)}], [1, {"a": (float("nan"),)}])
    True
    >>> _are_alike([1.0, float("nan")], [float("nan"), 1.0])
    False
    """
    if _is_array(one) or _is_array(other):
        if type(one) is not type(other) or (one.shape, one.dtype) != (other.shape, other.dtype):
            return False
        return _are_alike(one.tolist(), other.tolist()) if one.dtype.hasobject else one.tobytes() == other.tobytes()
    if isinstance(one, list | tuple) and type(one) is type(other):
        return len(one) == len(other) and all(map(_are_alike, one, other))
    if isinstance(one, dict) and type(one) is type(other):
        return one.keys() == other.keys() and all(_are_alike(one[key], other[key]) for key in one)
    if is_dataclass(one) and type(one) is type(other):
        return all(_are_alike(getattr(one, field.name), getattr(other, field.name)) for field in fields(one))
    if isinstance(one, msgspec.Struct) and type(one) is type(other):
        return all(_are_alike(getattr(one, name), getattr(other, name)) for name in one.__struct_fields__)
    # The second is for NaN of any kind.
    return bool(one == other) or bool(type(one) is type(other) and one != one and other != other)


def _is_array(value: Any) -> bool:
    return hasattr(value, "dtype") and hasattr(value, "shape") and hasattr(value, "tobytes")


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
