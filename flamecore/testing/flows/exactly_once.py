"""`assert_exactly_once`, a check for the author of a flow.

The outputs must be right, whatever crashes on the way, and however often.

from flamecore.testing import assert_exactly_once


def test_flow():
    assert_exactly_once(flow, {"lines": ["to be or", "not to be"]}, seeds=range(100))
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, Final, Literal

from flamecore.abc.acker import Acker, AckerPlan
from flamecore.flow import Flow
from flamecore.model.graph import Graph
from flamecore.model.meta import MAX_TIME
from flamecore.runtime.config.defaults import ACKERS
from flamecore.testing.flows.deterministic import acker_named, compare_outputs, records_of, require_some
from flamecore.testing.flows.reference import Failed, interpret
from flamecore.testing.simulation.crashes import Crashes, Played
from flamecore.testing.simulation.trouble import Trouble

_MORE: Final = 200
"""Most stories beyond those that are asked for."""


def assert_exactly_once(
    flow: Flow | Graph,
    inputs: Mapping[str, Iterable[Any]],
    *,
    seeds: Iterable[int] = range(100),
    workers: Sequence[int] = (1, 2, 3, 4),
    ackers: Sequence[str] = ACKERS,
    trouble: Trouble | None = None,
    on_error: Literal["fail", "skip"] = "fail",
    order: Literal["ordered", "partitioned"] = "ordered",
    kinds: Collection[str] = (),
) -> Counter[str]:
    """Run a flow with state through simulated crashes, and compare its outputs.

    The sinks must hold in the end what the reference interpreter gives: nothing lost, nothing twice, everything in
    order. A job is run in one simulated process or on several, and dies, in whole or in part, at moments that a seed
    decides; stores and sinks fail, or succeed and lose the answer; stored data is damaged; processes that were taken
    for dead go on; connections are cut; the wall clock is put back by an hour. It is started again, perhaps with
    another number of workers, until it is done. A failing function ends the job at the same record as the reference:
    the check then passes.

    Args:
        flow: The flow to check.
        inputs: For each source, its records; a source that is left out has none.
        seeds: Each is another story.
        workers: Numbers of workers to try.
        ackers: Names of acker drivers to try.
        trouble: The faults that may happen; default: all. Sources also grow, but not if the flow closes windows at the
            end of a source, or the watermarks of several meet: see `flamecore.testing.simulation.trouble.Trouble`.
        on_error: Treatment of records that a function of the flow fails on: they end the job, or are left out.
        order: Whether each sink is one sequence, or has a partition for each worker; partitions are merged before they
            are compared.
        kinds: Kinds of faults without which nothing is shown: as long as one has not been played, stories of the seeds
            that follow are played, too.

    Returns:
        How often each kind of fault was played: see `flamecore.testing.simulation.crashes.Played`.

    Raises:
        AssertionError: An output differs, is missing or too many, or the job ended as it should not. The text gives the
            first difference, the seed, and the events before. Or hundreds of stories have not had one of `kinds`.
        ConfigError: The flow has no source of a name in `inputs`, or there is nothing to run.
        GraphError: `trouble` has sources grow, and what the outputs then are is not determined.
    """
    graph = flow if isinstance(flow, Graph) else flow.graph()
    whole, seeds = records_of(graph, inputs), tuple(seeds)
    require_some(seeds=seeds, workers=workers, ackers=ackers)
    strategies: dict[str, Callable[[AckerPlan], Acker]] = {name: acker_named(name) for name in ackers}
    reference = Reference(graph, whole, skip_failing=on_error == "skip")
    counts: Counter[str] = Counter()
    for number, seed in enumerate(chain(seeds, range(max(seeds) + 1, max(seeds) + 1 + _MORE))):
        if number >= len(seeds) and all(counts[kind] for kind in kinds):
            break
        story = Crashes(
            graph,
            whole,
            seed=seed,
            ackers=strategies,
            trouble=trouble,
            workers=workers,
            on_error=on_error,
            partitioned=order == "partitioned",
        )
        try:
            played = story.play()
            counts.update(played.counts)
            reference.check(played)
        except Exception as error:
            told = "\n  ".join(story.log)
            raise AssertionError(f"with seed={seed}: {error}\nWhat had happened, by second:\n  {told}") from error
    missing = sorted(kind for kind in kinds if not counts[kind])
    assert not missing, f"none of {len(seeds) + _MORE} stories has had {', '.join(missing)}; there was {dict(counts)}"
    return counts


class Reference:
    """The expected outputs of a flow for some inputs.

    Args:
        graph: The graph.
        inputs: For each source, its records.
        skip_failing: Whether records that a function fails on are left out.
    """

    def __init__(self, graph: Graph, inputs: Mapping[str, Sequence[Any]], *, skip_failing: bool = False) -> None:
        self.graph, self.inputs, self.skip_failing = graph, inputs, skip_failing
        self._known: dict[tuple[Any, ...], tuple[dict[str, list[Any]], Failed | None]] = {}

    def of(
        self,
        times: Mapping[str, Sequence[int]],
        ends: Mapping[str, int] | None = None,
        *,
        wall: bool = False,
    ) -> tuple[dict[str, list[Any]], Failed | None]:
        """Return the outputs, and the failure if there is one.

        Args:
            times: For each source, the global times of its records, as far as they were read.
            ends: The times of the marks of their ends, as far as these are known.
            wall: Whether they are those of the wall clock.
        """
        ends = ends or {}
        order = sorted({time for each in times.values() for time in each})
        # Only the order of times matters, except to ordered operations: these see them.
        timed = any(vertex.ordered for vertex in self.graph.vertices)
        rank = {time: time if timed else number for number, time in enumerate(order)}
        ranks = {name: tuple(rank[time] for time in each) for name, each in times.items()}
        key = wall, tuple(ranks[source.name] for source in self.graph.sources), tuple(sorted(ends.items()))
        if key not in self._known:
            inputs = {name: list(self.inputs.get(name, ()))[: len(ranks[name])] for name in ranks}
            failed = None
            try:
                outputs = interpret(
                    self.graph,
                    inputs,
                    times=ranks,
                    skip_failing=self.skip_failing,
                    ends=ends,
                    keeps=True,
                    wall=wall,
                )
            except Failed as error:
                failed, outputs = error, error.outputs
            wanted = {name: [output.payload for output in each] for name, each in outputs.items()}
            self._known[key] = wanted, failed
        return self._known[key]

    def check(self, played: Played) -> None:
        """Compare the end of a story with the expected one.

        Raises:
            AssertionError: It differs.
        """
        for name, times in played.times.items():
            if times != sorted(set(times)):
                raise AssertionError(f"the times of source {name!r} do not grow: {times}")
        wanted, failed = self.of(played.times, played.ends, wall=played.clock == "wall")
        if (failed is None) != (played.failed is None):
            raise AssertionError(f"the job failed with {played.failed}, the reference with {failed}")
        if failed is not None:
            wanted = {name: self._wanted(name, each, played) for name, each in wanted.items()}
        elif played.clock == "wall" and self.graph.has_timers:
            wanted = self._until_end(wanted, played)
        compare_outputs(played.outputs, wanted, f"{played.runs} runs")

    def _until_end(self, wanted: Mapping[str, list[Any]], played: Played) -> dict[str, list[Any]]:
        """Return the expected outputs of a job with timers by the wall clock.

        How late its fronts have ended is not known: some timers behind the last record may have been due.
        """
        inputs = {name: self.inputs.get(name, ())[: len(times)] for name, times in played.times.items()}
        outputs = interpret(
            self.graph,
            inputs,
            times=played.times,
            skip_failing=self.skip_failing,
            end=MAX_TIME,
            ends=played.ends,
            keeps=True,
            wall=True,
        )
        most = {name: [output.payload for output in each] for name, each in outputs.items()}
        return {name: each[: max(len(played.outputs[name]), len(wanted[name]))] for name, each in most.items()}

    def _wanted(self, sink: str, wanted: list[Any], played: Played) -> list[Any]:
        """Return the expected outputs of a sink of a job that fails.

        They are more than `wanted` if the sink is ahead of the failing record. It may be if the failing operation does
        not lead to it.
        """
        held = len(played.outputs[sink])
        if held <= len(wanted):
            return wanted
        outputs, failed = self.of(played.times_at[sink], played.ends, wall=played.clock == "wall")
        most = outputs[sink] if failed is None else [output.payload for output in failed.most[sink]]
        return most[:held] if most[: len(wanted)] == wanted else wanted
