"""The settings of a job: the tables [job] and [state] of its configuration.

They include values that follow from the other tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec

from flamecore.model.clock import ClockName

OnError = Literal["fail", "skip", "dead_letter"]
"""The fate of a record that is malformed or that a user function fails on."""


class JobTable(msgspec.Struct, frozen=True, kw_only=True):
    """[job]: what runs, and how.

    Attributes:
        flow: Reference of the flow: `package.module:flow` or `file.py:flow`, relative to the configuration file.
        name: Name of the job; the flow's own name by default.
        workers: Number of workers.
        owners: Most workers that own key groups: they run the operations by key, and keep their state. By default all;
            half of them, rounded up, where these operations only count.
        clock: Source of global times: a counter, or the wall clock.
        guarantee: `exactly_once` refuses sources and sinks that cannot keep it.
        on_error: Fate of a record that a user function fails on.
        max_failed: Most records that may be skipped or become dead letters in a run that ends well: a number, or, with
            a decimal point, a share of those read. By default not all, and of 100 or more not more than half.
        max_in_flight: Most items admitted and not yet delivered, for the whole job.
        max_rounds: Most rounds of an item in a cycle, and most items of one record that wait there at once.
        barrier: Whether outputs wait for the minimum time; without it they leave at once, and nothing can be repaired.
        advance: Whether items may go into keyed states on several workers before it is known that nothing comes before
            them. Latency is lower, and a few calls of the states' functions are made again, or in vain.
        sink_timeout_s: Longest time for a sink to store one batch, to make it durable, to open or to close.
        source_timeout_s: Longest time for a source to stop reading, to close, or to acknowledge a snapshot.
        open_timeout_s: Longest time for a source to open a partition, or to find where a run ends. On several processes
            `deploy.start_timeout_s` counts, too.
        call_limit_s: Longest time for a call of a user's function; None: any. A call in C that does not return ends its
            process, unless that is the program that has called `Flow.run`.
        grace_s: Longest time for a call of a sink or source once the job ends with an error.
        take_over: Whether to take the job over from a run in progress, which then ends; without it the later start is
            refused.
        check_types: Whether results of functions are held to their annotations on every record, and what is in a
            container too. Without it they are on the first records.
        check_mutation: Whether functions are held to leave what they are given as it is. Costly: for tests.
    """

    flow: str = ""
    name: str = ""
    workers: Annotated[int, msgspec.Meta(ge=1)] = 1
    owners: Annotated[int, msgspec.Meta(ge=1)] | None = None
    clock: ClockName = "sequence"
    guarantee: Literal["at_least_once", "exactly_once"] = "at_least_once"
    on_error: OnError = "fail"
    max_failed: Annotated[int, msgspec.Meta(ge=0)] | Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
    max_in_flight: Annotated[int, msgspec.Meta(ge=1)] = 8192
    max_rounds: Annotated[int, msgspec.Meta(ge=1)] = 1_000_000
    barrier: bool = True
    advance: bool = True
    sink_timeout_s: Annotated[float, msgspec.Meta(gt=0)] = 1800.0
    source_timeout_s: Annotated[float, msgspec.Meta(gt=0)] = 60.0
    open_timeout_s: Annotated[float, msgspec.Meta(gt=0)] = 1800.0
    call_limit_s: Annotated[float, msgspec.Meta(gt=0)] | None = None
    grace_s: Annotated[float, msgspec.Meta(gt=0)] = 30.0
    take_over: bool = False
    check_types: bool = False
    check_mutation: bool = False

    @property
    def checks(self) -> bool:
        """Return whether all records meet functions that check, not the first ones only."""
        return self.check_types or self.check_mutation


class DriverChoice(msgspec.Struct, frozen=True, kw_only=True):
    """The driver of one part, and its options.

    Subclasses add the other keys of the part's table.

    Attributes:
        use: The driver's name; None: not said.
        options: The other keys of the table, references to the environment as written.
    """

    use: str | None = None
    options: Mapping[str, Any] = {}


class StateTable(DriverChoice, frozen=True, kw_only=True):
    """[state]: the store of snapshots, from which a job goes on after a crash.

    Off unless `use` is given. Missing options are taken from the table of the transport of that name, if there is one.

    Attributes:
        interval_s: Time between two snapshots.
        max_uncommitted: Most records admitted since the last snapshot, for the whole job: bounds what is kept to make
            the next one.
        commit_timeout_s: Longest time for one snapshot before the job ends with an error.
        lease_s: Time without a renewal after which a run has lost its state, and another may take it.
    """

    interval_s: Annotated[float, msgspec.Meta(gt=0)] = 0.5
    max_uncommitted: Annotated[int, msgspec.Meta(ge=1)] = 1_000_000
    commit_timeout_s: Annotated[float, msgspec.Meta(gt=0)] = 100.0
    lease_s: Annotated[float, msgspec.Meta(ge=0.1, le=3600)] = 5.0


class JobSettings(JobTable, frozen=True, kw_only=True):
    """The settings of a job: [job], and what other tables and tests say of it.

    Attributes:
        name: Name of the job, for errors, logs and frames.
        source_policies: For each source the treatment of malformed records; "fail" if not given.
        source_phases, sink_phases: Phase of each source and sink; 1 if not given.
        dead_letters: Whether there is a sink for dead letters.
        state: Settings of the state; None: none is kept.
        leased: Whether a run takes the lease of its state. Simulations run without: epochs alone must then keep two
            runs from doing harm.
        heartbeat_interval_s: Seconds between heartbeats of an idle front of the wall clock.
        seed: Seed of random ids, for tests; None: unpredictable.
    """

    name: str = "job"
    source_policies: Mapping[str, OnError] = {}
    source_phases: Mapping[str, int] = {}
    sink_phases: Mapping[str, int] = {}
    dead_letters: bool = False
    state: StateTable | None = None
    leased: bool = True
    heartbeat_interval_s: float = 0.05
    seed: int | None = None
