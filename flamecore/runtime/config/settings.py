"""How a job runs, as it was configured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from flamecore.abc.sink import Sink
from flamecore.model.clock import ClockName
from flamecore.model.plan import OnError
from flamecore.runtime.state.fronts import Phases


@dataclass(frozen=True, slots=True)
class StateSettings:
    """How a job keeps its state; see `flamecore.abc.config.StateTable`.

    Without `lease_s` no other run is looked for: epochs alone keep two runs from doing harm, which simulations try.
    """

    interval_s: float = 0.5
    max_uncommitted: int = 1_000_000
    commit_timeout_s: float = 100.0
    lease_s: float | None = 5.0


@dataclass(frozen=True, slots=True)
class JobSettings:
    """How a job runs.

    Attributes:
        name: For errors, logs and frames.
        workers: How many share the work.
        owners: How many of them own key groups; None: see `flamecore.model.plan.owning_workers`.
        clock: "sequence" (replay gives the same times) or "wall" (fronts interleave by arrival).
        barrier: Whether outputs wait for the minimum time; without it there can be no grouping.
        advance: Whether items may go into keyed states early; see `flamecore.abc.config.JobTable`.
        max_in_flight: Records admitted and not yet delivered, over all fronts.
        max_rounds: How often an item may go round a cycle, and how many of one record may wait there.
        on_error: What becomes of records a user function fails on.
        max_failed: Most records that may be left out; see `flamecore.abc.config.JobTable`.
        source_policies: For each source, what becomes of malformed records; "fail" where nothing is said.
        phases: Of sources and sinks.
        dead_letter: Where dead letters go.
        heartbeat_interval_s: How often an idle front of the wall clock says that time goes on.
        seed: Seed of random ids, for tests; None: unpredictable.
        sink_timeout_s, source_timeout_s, grace_s: How long sinks and sources may take; see
            `flamecore.abc.config.JobTable`.
        check_types, check_mutation: What functions of the flow are held to, on every record.
        state: How state is kept; None: it is not.
        take_over: Whether to take the job over from a run that is at work.
    """

    name: str = "job"
    workers: int = 1
    owners: int | None = None
    clock: ClockName = "sequence"
    barrier: bool = True
    advance: bool = True
    max_in_flight: int = 8192
    max_rounds: int = 1_000_000
    on_error: OnError = "fail"
    max_failed: float | None = None
    source_policies: Mapping[str, OnError] = field(default_factory=dict)
    phases: Phases = field(default_factory=Phases)
    dead_letter: Sink | None = None
    heartbeat_interval_s: float = 0.05
    seed: int | None = None
    sink_timeout_s: float = 1800.0
    source_timeout_s: float = 60.0
    grace_s: float = 30.0
    check_types: bool = False
    check_mutation: bool = False
    state: StateSettings | None = None
    take_over: bool = False
