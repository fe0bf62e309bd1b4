"""Any flow, on any number of workers, under any interleaving, gives what the reference interpreter gives.

Flows and inputs are drawn; what a run gives besides its outputs (memory, replays, failures) is held to the laws. The
seed of a simulated run is part of every drawn example, and is printed with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple
from unittest.mock import patch

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from flamecore.abc.acker import Acker, AckerPlan
from flamecore.model.drift import DriftState
from flamecore.model.expansion import expand
from flamecore.model.graph import Graph, payload_types
from flamecore.model.meta import encode_time
from flamecore.model.settings import OnError
from flamecore.runtime.codec.codec import Codec
from flamecore.runtime.operators import reorder
from flamecore.runtime.operators.drift import DriftOperator
from flamecore.runtime.operators.grouping import GroupingOperator
from flamecore.testing.draws import seeds
from flamecore.testing.flows.deterministic import acker_named, assert_deterministic, compare
from flamecore.testing.flows.drawn import Item, Op, Spec, draw_flow, split
from flamecore.testing.flows.reference import Failed, interpret
from flamecore.testing.simulation.simulation import SimulatedRun, Simulation

ACKERS: Mapping[str, Callable[[AckerPlan], Acker]] = {
    name: acker_named(name) for name in ("centralized", "local", "sharded")
}


# -- the flows of the suite -------------------------------------------------------------------


class Case(NamedTuple):
    """As `flows.Case`."""

    name: str
    graph: Callable[[], Graph]
    inputs: Callable[[int, int], Mapping[str, Sequence[Any]]]


def test_every_flow_gives_the_reference_under_many_interleavings(case: Case) -> None:
    graph = case.graph()
    for seed in seeds(4):
        played = range(seed * 3, seed * 3 + 3)
        assert_deterministic(graph, case.inputs(seed, 20), workers=(1, 2, 3, 5), seeds=played)


def test_every_flow_gives_the_reference_over_the_wire(case: Case) -> None:
    """Items cross between workers as bytes."""
    graph = case.graph()
    inputs = case.inputs(7, 12)
    wanted, failed = reference(graph, inputs)
    codec = Codec((DriftState, *payload_types(graph)))
    run = Simulation(
        graph, inputs, acker=ACKERS["local"], workers=3, seed=7, copy=lambda sent: codec.decode(codec.encode(sent))
    )
    compare(run.run(), wanted, failed, "copies")


def reference(graph: Graph, inputs: Mapping[str, Any], **options: Any) -> tuple[dict[str, list[Any]], Failed | None]:
    try:
        outputs, failed = interpret(graph, inputs, max_steps=40_000, **options), None
    except Failed as error:
        outputs, failed = error.outputs, error
    return {name: [output.payload for output in each] for name, each in outputs.items()}, failed


# -- drawn flows ------------------------------------------------------------------------------


CROSSING = (Item,)
SMALL = st.integers(1, 4)
ONE_TO_ONE = st.one_of(
    st.tuples(st.just("map"), SMALL),
    st.tuples(st.just("filter"), SMALL),
    st.tuples(st.just("spread"), SMALL),
    st.tuples(st.just("keyed"), SMALL),
)
STATEFUL = st.one_of(
    st.tuples(st.just("group"), SMALL, SMALL),
    st.tuples(st.just("fold"), SMALL),
    st.tuples(st.just("reduce"), SMALL),
    st.tuples(st.just("count"), SMALL),
    st.tuples(st.just("stateful"), SMALL),
)
SIMPLE = ONE_TO_ONE | st.tuples(st.just("flat"), SMALL) | STATEFUL
ORDERED = st.tuples(st.just("ordered"), SMALL, SMALL)
COLLECTED = st.tuples(st.just("collected"), SMALL, SMALL)
FUSSY = st.one_of(st.tuples(st.just("fussy"), SMALL), st.tuples(st.just("fussy_fold"), SMALL))


def chains(step: st.SearchStrategy[Op], most: int) -> st.SearchStrategy[tuple[Op, ...]]:
    return st.lists(step, max_size=most).map(tuple)


def forks(inner: st.SearchStrategy[Op]) -> st.SearchStrategy[Op]:
    return st.one_of(
        st.tuples(st.just("branch"), SMALL, chains(inner, 2), chains(inner, 2)),
        st.tuples(st.just("diamond"), chains(inner, 2), chains(inner, 2)),
    )


def specs(
    step: st.SearchStrategy[Op],
    *,
    loops: bool = True,
    sources: st.SearchStrategy[tuple[int, ...]] = st.sampled_from([(1,), (1,), (2,), (3,), (1, 1), (2, 1), (1, 1, 1)]),  # noqa: B008
) -> st.SearchStrategy[Spec]:
    outer = step | forks(step)
    if loops:
        plain = chains(
            ONE_TO_ONE | st.tuples(st.just("branch"), SMALL, chains(ONE_TO_ONE, 1), chains(ONE_TO_ONE, 1)), 2
        )
        around = st.builds(lambda *parts: sum(parts, ()), plain, chains(STATEFUL, 3), plain)
        copied = st.tuples(st.tuples(st.just("diamond"), plain, plain))
        turns = st.tuples(st.just("loop"), st.integers(1, 2), around | copied)
        outer = outer | turns
    # Without a spread at the start most flows stay on one worker and repair nothing.
    spread = st.sampled_from(((("spread", 1),), ()))
    chain = st.builds(lambda start, rest: (*start, *rest), spread, st.lists(outer, min_size=1, max_size=4))
    return st.builds(lambda *parts: Spec(*parts), sources, chain, st.none() | st.integers(0, 3))


def build(spec: Spec, **how: bool) -> Graph:
    """Return the graph of a drawn flow; `how` as of `draw_flow`."""
    return draw_flow(spec, **how).graph()


class Lawful(Simulation):
    """A simulation that looks after the memory of its workers whenever operators have been told of time."""

    def flush(self, address: str) -> None:
        worker = self.workers[address]
        before = dict(worker.schedule.told)
        super().flush(address)
        graph, of = self.plan.graph, self.plan.segments.of
        for sink in graph.sinks:
            told = [worker.schedule.told[of[vertex.index]] for vertex in graph.upstream_of(sink) if vertex.stateful]
            heard = min(worker.egress.released[sink.name], worker.listener.min_time(of[sink.index]))
            assert all(time >= heard for time in told), "no state is behind a sink it leads to"
        for vertex in graph.vertices:
            operation = worker.compiled.stateful.get(vertex.name)
            if operation is None or worker.schedule.told[of[vertex.index]] == before[of[vertex.index]]:
                continue
            limit = encode_time(worker.schedule.told[of[vertex.index]])
            if isinstance(operation, GroupingOperator):
                allowed = 0 if operation.rules.undo_partial else operation.rules.window - 1
                for bucket in operation.buckets.values():
                    assert sum(entry[-3] < limit for entry in bucket.entries) <= allowed
            else:
                assert isinstance(operation, DriftOperator)
                assert not any(entry[0] < limit for history in operation.histories.values() for entry in history)
                assert not any(note.orders[-1] < limit for note in operation._notes)

    def run(self, max_steps: int = 1_000_000) -> SimulatedRun:
        result = super().run(max_steps)
        if result.failure is None:
            for worker in self.workers.values():
                assert not any(map(len, worker.outboxes)), "nothing is left to be sent"
                assert all(len(barrier) == 0 for barrier in worker.compiled.barriers.values())  # type: ignore[arg-type]
        return result


Inputs = dict[str, list[list[Item]]]


class Draw(NamedTuple):
    """The draws of an example, besides the flow."""

    inputs: Inputs
    workers: int
    acker: str
    seed: int
    burst: int


@st.composite
def draws(draw: st.DrawFn, spec: Spec, most: int | None = None) -> Draw:
    if most is None:
        # What goes round multiplies: a few records are enough there.
        most = 6 if any(op[0] in ("loop", "overlap") for op in spec.chain) else 15
    records = st.lists(st.builds(Item, st.integers(0, 12)), min_size=2, max_size=most)
    inputs = {
        "abc"[number]: [draw(records) for _ in range(partitions)] for number, partitions in enumerate(spec.sources)
    }
    return Draw(
        inputs,
        draw(st.sampled_from((2, 3, 4, 5, 1))),
        draw(st.sampled_from(sorted(ACKERS))),
        draw(st.integers(0, 2**32)),
        draw(st.sampled_from((1, 3, 20))),
    )


def expected(spec: Spec, inputs: Inputs, **options: Any) -> tuple[dict[str, list[Any]], Failed | None]:
    """Return the outputs of the reference.

    Examples that grow too large are left aside.
    """
    graph, records = build(spec, split=True), split(inputs)
    try:
        return reference(graph, records, **options)
    except RuntimeError:
        assume(False)
        raise


def simulated(spec: Spec, given: Draw, on_error: OnError = "fail", **options: Any) -> SimulatedRun:
    return Lawful(
        build(spec),
        {},
        partitioned=given.inputs,
        acker=ACKERS[given.acker],
        workers=given.workers,
        seed=given.seed,
        burst=given.burst,
        on_error=on_error,
        **options,
    ).run()


EXAMPLES = settings(
    max_examples=len(seeds(150)),
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
)


@EXAMPLES
@given(specs(SIMPLE | ORDERED | COLLECTED), st.data())
def test_any_flow_gives_what_the_reference_does(spec: Spec, data: st.DataObject) -> None:
    given = data.draw(draws(spec))
    wanted, failed = expected(spec, given.inputs)
    assert failed is None
    compare(simulated(spec, given), wanted, None, f"{given}")


@EXAMPLES
@given(specs(SIMPLE | ORDERED | COLLECTED), st.integers(1, 12), st.data())
def test_any_flow_gives_the_same_when_the_advance_is_soon_spent(spec: Spec, advance: int, data: st.DataObject) -> None:
    """Items that went in early are taken back and wait: with 32 calls in advance that seldom happens to few records."""
    given = data.draw(draws(spec))
    wanted, _ = expected(spec, given.inputs)
    with patch.object(reorder, "_ADVANCE", advance):
        compare(simulated(spec, given, advance=True), wanted, None, f"{given}")


@EXAMPLES
@given(specs(SIMPLE | ORDERED | FUSSY), st.data())
def test_any_failing_flow_fails_at_the_record_the_reference_fails_at(spec: Spec, data: st.DataObject) -> None:
    given = data.draw(draws(spec))
    wanted, failed = expected(spec, given.inputs)
    run = simulated(spec, given)
    compare(run, wanted, failed, f"{given}")
    if failed is None:
        return
    assert run.failure is not None
    assert run.failure.vertex == failed.vertex.removesuffix("/outputs")
    assert run.failure.reason == f"ValueError: {failed.error}"


@EXAMPLES
@given(specs(SIMPLE | FUSSY), st.data())
def test_any_failing_flow_may_leave_out_records_that_fail(spec: Spec, data: st.DataObject) -> None:
    given = data.draw(draws(spec))
    wanted, _ = expected(spec, given.inputs, skip_failing=True)
    compare(simulated(spec, given, on_error="skip"), wanted, None, f"{given}")


@settings(EXAMPLES, max_examples=len(seeds(60)))
@given(specs(SIMPLE | FUSSY), st.data())
def test_bytes_between_workers_change_nothing(spec: Spec, data: st.DataObject) -> None:
    given = data.draw(draws(spec))
    wanted, failed = expected(spec, given.inputs)
    codec = Codec(CROSSING)
    run = simulated(spec, given, copy=lambda message: codec.decode(codec.encode(message)))
    compare(run, wanted, failed, f"{given}")


@settings(EXAMPLES, max_examples=len(seeds(60)))
@given(specs(SIMPLE), st.data())
def test_fused_and_drawn_states_give_the_same(spec: Spec, data: st.DataObject) -> None:
    given = data.draw(draws(spec))
    graph = build(spec)
    wanted, _ = expected(spec, given.inputs)
    run = Lawful(
        expand(graph),
        {},
        partitioned=given.inputs,
        acker=ACKERS[given.acker],
        workers=given.workers,
        seed=given.seed,
    ).run()
    compare(run, wanted, None, f"{given}")


def cycles(step: st.SearchStrategy[Op], rounds: int) -> st.SearchStrategy[Op]:
    """Cycles of one or two rounds with some of these operations in them, alone or overlapping."""
    some = st.lists(step, min_size=1, max_size=3).map(tuple)
    turns = st.integers(1, rounds)
    return st.tuples(st.just("loop"), turns, some) | st.tuples(st.just("overlap"), turns, some, some)


ROUNDS = cycles(SIMPLE, 2)
NESTED = cycles(SIMPLE | ROUNDS, 2)


@settings(EXAMPLES, max_examples=len(seeds(150)))
@given(specs(SIMPLE | ROUNDS | NESTED), st.booleans(), st.data())
def test_one_worker_replays_nothing(spec: Spec, is_expanded: bool, data: st.DataObject) -> None:
    """Whatever the graph, with several states in a round and cycles in cycles, and however many fronts it reads."""
    given = data.draw(draws(spec, 6))._replace(workers=1)
    wanted, _ = expected(spec, given.inputs)
    graph = build(spec)
    run = Lawful(
        expand(graph) if is_expanded else graph,
        {},
        partitioned=given.inputs,
        acker=ACKERS[given.acker],
        workers=1,
        seed=given.seed,
        burst=given.burst,
    ).run()
    assert run.replays == 0
    compare(run, wanted, None, f"{given}")


@settings(EXAMPLES, max_examples=len(seeds(150)))
@given(specs(ONE_TO_ONE | ROUNDS | NESTED, loops=False), st.data())
def test_states_in_cycles_replay_nothing_on_any_number_of_workers(spec: Spec, data: st.DataObject) -> None:
    given = data.draw(draws(spec, 6))
    wanted, _ = expected(spec, given.inputs)
    run = simulated(spec, given)
    assert run.replays == 0
    compare(run, wanted, None, f"{given}")


@settings(EXAMPLES, max_examples=len(seeds(150)))
@given(specs(SIMPLE), st.data())
def test_case_60_the_same_seed_is_the_same_run(spec: Spec, data: st.DataObject) -> None:
    given = data.draw(draws(spec))
    assert simulated(spec, given) == simulated(spec, given)


def test_interleavings_differ() -> None:
    """Otherwise all of this would show nothing."""
    spec = Spec((2,), (("spread", 1), ("fold", 3), ("group", 2, 3)))
    inputs = {"a": [[Item(n % 7) for n in range(20)], [Item(n % 5) for n in range(20)]]}
    runs = [simulated(spec, Draw(inputs, 3, "centralized", seed, 3)) for seed in range(10)]
    assert len({run.steps for run in runs}) > 3
    assert len({run.replays for run in runs}) > 3
    assert max(run.replays for run in runs) > 20
    assert len({str(run.outputs) for run in runs}) == 1
