"""The configuration of a job as checked values, a class for each table.

`flamecore.runtime.config` makes them of files, the environment and the command line; a host is given them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec

from flamecore.model.settings import DriverChoice, JobTable, OnError, StateTable

AUTO: Final = "auto"
HERE: Final = "here"
"""Values of `deploy.on` that are no host: where the job's data is at home, and in one process."""


class DeployTable(msgspec.Struct, frozen=True, kw_only=True):
    """[deploy]: the places of a job's parts.

    Attributes:
        on: Name of the host that the nodes are started on; its options stand in a table of its name. `here`: there are
            none, all is in one process. `auto`: where a source or sink has its data at home; else `here`, or on
            processes of this machine where the transport reaches them.
        start: `local`: the supervisor has the nodes started; `join`: it waits for workers started elsewhere
            (`flamestream worker --join …`).
        acker: Place of the trackers: with workers (the k-th with the k-th from the end: fewest messages), with the
            supervisor, or in processes of their own (`flamestream acker --join …`).
        start_timeout_s: Longest time for workers to join and to open their sources, which may start a Java or ask for
            an executor of Spark. It is for those of which nothing is heard: a process that ends is noticed at once.
        stop_timeout_s: Longest time for them to end when told to.
        silence_timeout_s: Time without a message after which a worker is declared dead: neither from itself nor from
            who asks the system that it runs on, so a function that keeps it busy for longer does no harm.
        restarts: Most faults (a worker that died, a connection that was lost) within `restart_window_s` that a job with
            state survives. A job without state ends at the first.
        restart_window_s: See `restarts`.
    """

    on: str = AUTO
    start: Literal["local", "join"] = "local"
    acker: Literal["supervisor", "worker", "own"] = "worker"
    start_timeout_s: Annotated[float, msgspec.Meta(gt=0)] = 120.0
    stop_timeout_s: Annotated[float, msgspec.Meta(gt=0)] = 5.0
    silence_timeout_s: Annotated[float, msgspec.Meta(gt=0)] = 30.0
    restarts: Annotated[int, msgspec.Meta(ge=0)] = 10
    restart_window_s: Annotated[float, msgspec.Meta(gt=0)] = 60.0


class PlacementTable(msgspec.Struct, frozen=True, kw_only=True):
    """[placement]: the workers of fronts and key groups.

    It counts in a job on several processes that keeps state.

    Attributes:
        fixed: Whether these stay where the job has put them at its start, whatever the load of each worker. By default
            they do: a job pauses for a move.
    """

    fixed: bool = True


class RegistryTable(DriverChoice, frozen=True, kw_only=True):
    """[registry]: the record of who runs the job, and where its parts are.

    It is used when there are several processes. Missing options are taken from the table of the transport of that name,
    if there is one.

    Attributes:
        lease_s: Time without a renewal after which a supervisor has lost the job, and another may take over.
    """

    use: str
    lease_s: Annotated[float, msgspec.Meta(ge=0.1, le=3600)] = 5.0


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """[transport] and [acker]: the driver in use, and the options of all drivers.

    Attributes:
        use: The driver's name. Empty, of a transport: not said, so that it follows from where the job runs.
        tables: Options by name of the driver.
    """

    use: str
    tables: Mapping[str, Mapping[str, Any]] = {}


class Edge(DriverChoice, frozen=True, kw_only=True):
    """[source.X], [sink.X] and [dead_letter].

    Attributes:
        on_error: Sources: the fate of malformed records.
        phase: Which one in a series that take each other's place (`flamecore.runtime.state.fronts`).
    """

    on_error: OnError = "fail"
    phase: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] = 1


class SinkEdge(Edge, frozen=True, kw_only=True):
    """[sink.X].

    Attributes:
        order: `ordered`: one sequence; `partitioned`: one for each worker, which it writes itself.
    """

    order: Literal["ordered", "partitioned"] = "ordered"


class JobConfig(msgspec.Struct, frozen=True, kw_only=True):
    """A whole configuration, checked as far as that goes without importing a driver.

    Names of drivers have no defaults here: `flamecore.runtime.config.read` knows which ones a job gets that names none.

    Attributes:
        source: By the source's name in the flow.
        sink: By the sink's name in the flow.
        dead_letter: Sink of dead letters; None: there is none.
        hooks: Names of observers, in the order in which they are called.
        deploy: Places of the parts, when there are several processes.
        placement: Workers of fronts and key groups.
        hosts: Options of the hosts of nodes, by name, also of those that are not used.
        state: Store of the state; its `use` is None when none is kept.
        registry: Record of who runs the job.
        folder: Folder of the job: that of its file, or the working directory. Relative paths in the file begin there.
        here: The working directory: relative paths of the command line, the environment and programs begin there.
        file: The file, as `origins` name it; empty: there is none.
        origins: Origins of values, by dotted key, for errors, and for the bases of paths.
    """

    job: JobTable = JobTable()
    transport: Choice
    acker: Choice
    source: Mapping[str, Edge] = {}
    sink: Mapping[str, SinkEdge] = {}
    dead_letter: Edge | None = None
    hooks: tuple[str, ...] = ()
    deploy: DeployTable
    placement: PlacementTable = PlacementTable()
    hosts: Mapping[str, Mapping[str, Any]] = {}
    state: StateTable = StateTable()
    registry: RegistryTable
    folder: Path = Path()
    here: Path = Path()
    file: str = ""
    origins: Mapping[str, str] = {}
