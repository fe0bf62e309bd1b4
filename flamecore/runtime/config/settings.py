"""The settings by which a job runs, made of its configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from flamecore.abc.sink import Sink
from flamecore.model.clock import ClockName
from flamecore.model.plan import OnError
from flamecore.runtime.state.fronts import Phases


@dataclass(frozen=True, slots=True)
class StateSettings:
    """The settings of a job's state; see `flamecore.abc.config.StateTable`.

    Without `lease_s` no other run is looked for: epochs alone then keep two runs from doing harm, as simulations test.
    """

    interval_s: float = 0.5
    max_uncommitted: int = 1_000_000
    commit_timeout_s: float = 100.0
    lease_s: float | None = 5.0


@dataclass(frozen=True, slots=True)
class JobSettings:
    """The settings by which a job runs.

    Attributes:
        name: Name of the job, for errors, logs and frames.
        workers: Number of workers.
        owners: Number of workers that own key groups; None: see `flamecore.model.plan.owning_workers`.
        clock: "sequence" (replay gives the same times) or "wall" (fronts interleave by arrival).
        barrier: Whether outputs wait for the minimum time; without it there can be no grouping.
        advance: Whether items may go into keyed states early; see `flamecore.abc.config.JobTable`.
        max_in_flight: Records admitted and not yet delivered, over all fronts.
        max_rounds: Most rounds of an item in a cycle, and most items of one record that wait there.
        on_error: Fate of records that a user function fails on.
        max_failed: Most records that may be left out; see `flamecore.abc.config.JobTable`.
        source_policies: Fate of malformed records, by name of the source; "fail" by default.
        phases: Phases of sources and sinks.
        dead_letter: The sink of dead letters.
        heartbeat_interval_s: Time between two heartbeats of an idle front of the wall clock.
        seed: Seed of random ids, for tests; None: unpredictable.
        sink_timeout_s, source_timeout_s, grace_s: Longest times for sinks and sources; see
            `flamecore.abc.config.JobTable`.
        check_types, check_mutation: Checks of functions of the flow, on every record.
        state: Settings of the state; None: none is kept.
        take_over: Whether to take the job over from a run in progress.
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
