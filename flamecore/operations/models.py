"""The two ordering models: what turns a graph into the steps of a worker, and what holds the failures there."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from flamecore.barrier import Barrier
from flamecore.graph import Vertex
from flamecore.operations import Fail
from flamecore.operations.compiler import Compiled, Compiler, Holding
from flamecore.operations.routing import Outboxes
from flamecore.plan import Plan


def compile_worker(
    plan: Plan,
    worker: int,
    random: Random,
    outboxes: Outboxes,
    fail_at: Callable[[Vertex], Fail],
) -> Compiled:
    """Compile the graph for one worker.

    Args:
        plan: The job's plan.
        worker: Which worker.
        random: Draws the 64-bit ids of physical instances.
        outboxes: What is to be sent to each worker; steps put it there.
        fail_at: Gives the step a vertex calls when user code fails.
    """
    kind: type[Compiler] = Compiler
    if plan.graph.ordering == "local_times":
        from flamecore.operations.local_times import LocalTimesCompiler

        kind = LocalTimesCompiler
    compiler = kind(plan, worker, random, outboxes, fail_at)
    for source in plan.graph.sources:
        compiler.compiled.entries[source.name] = compiler.successor(source)
        compiler.compiled.runs[source.name] = compiler.successor_run(source)
    return compiler.compiled


def failures_barrier(plan: Plan) -> Holding:
    """What holds the records that failed, and knows a failure taken back as the plan's ordering model does."""
    if plan.graph.ordering == "local_times":
        from flamecore.operations.local_times import LatestOnly

        return LatestOnly()
    return Barrier("failures")
