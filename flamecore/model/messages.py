"""Messages between the parts of a job: plain tuples.

The codec carries them, and nothing else, between processes.

worker  --Items-->     worker     items of a hand-over, and the acks the receiver owes for them
worker  --Busy-->      worker     its load, for workers that deal out items
worker  --Report-->    acker      hand-overs sent and received, and the promises of fronts
worker  --Patient-->   acker      whether nothing there waits for minimum times
acker   --MinTimes-->  worker     the minimum times of segments
worker  --Released-->  rear       released items, complete up to a time
rear    --Delivered--> worker     the time up to which the sink has stored all: credit for its fronts
rear    --Reached-->   control    a record that ends the job
worker  --Failing-->   control    the same, as soon as it is known
front   --FrontEnded-> control    it will send no more
front   --FoundNothing-> control  there is nothing for it behind the end of the job; it waits for Searched
worker  --Found-->     control    a front there has read the first record behind the end of the job
control --Searched-->  worker     whether there is any record behind the end of the job
control --Settled-->   worker     a lower bound of the times of later snapshots
control --Prepare-->   worker     take part in a snapshot; answered by Prepared, and then Committed
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

from flamecore.model.batch import Orders
from flamecore.model.failure import Failure
from flamecore.model.meta import MIN_TIME


class Ack(NamedTuple):
    """One entry of a report.

    `xor` is the XOR of the numbers of all hand-overs of this segment and time, unsigned 64 bits.
    """

    segment: int
    time: int
    xor: int


class Report(NamedTuple):
    """One flush of one worker to one tracker.

    A tracker applies it as one step, in the order of the fields.

    Attributes:
        worker: Number of the reporting worker, from 0.
        tick: The worker's node time: it grows by one with each flush that carries acks. 0: this flush carries none.
        acks: Acks in descending (segment, time).
        heartbeats: (front number, time): no item of a lower time will come from that front. At most one a front.
        unregistered: Numbers of fronts that have ended. Never in a report that carries acks.
        at_rest: Whether nothing at this worker waits for the minimum time of a segment that feeds another, as
            `flamecore.abc.acker.Reporter.rest` was told last.
    """

    worker: int
    tick: int = 0
    acks: tuple[Ack, ...] = ()
    heartbeats: tuple[tuple[int, int], ...] = ()
    unregistered: tuple[int, ...] = ()
    at_rest: bool = False


class Patient(NamedTuple):
    """Worker to tracker: whether nothing at the worker waits for minimum times from now on.

    Without a word something may wait.
    """

    patient: bool


class MinTimes(NamedTuple):
    """A tracker's news: its part of the minimum time of each segment.

    Attributes:
        times: For each segment the time below which nothing is in flight, as far as this tracker knows. From one shard
            of several it may fall.
        vector: Latest node time of each worker that this tracker has applied; empty if not needed.
    """

    times: tuple[int, ...]
    vector: tuple[int, ...] = ()


CONTROL: Final = "job"
"""Address of the job's control."""

# Columns, not items: what a run has in common (vertex, trace, liveness) is sent once.
Piece = tuple[int, int, bool, Orders, Sequence[object]]
"""(vertex index, trace, alive, orders, payloads): items of one trace in ascending order, on their way to a vertex of
another worker; all of them live, or all of them tombstones."""


class Items(NamedTuple):
    """One hand-over between workers: items in the order they were sent.

    `acks` holds one number for each segment among them, under the lowest time of its items: none of them is done before
    all are, so a number for each time would add nothing. The sender has reported it; the receiver reports it again
    once it has processed all items *and* reported and sent all their outputs.

    `until` is the time below which the sender has sent all items of vertices that get items from no other worker; None:
    it says nothing of that.
    """

    pieces: list[Piece]
    acks: tuple[Ack, ...]
    until: int | None = None


class Released(NamedTuple):
    """One worker's released items for one rear, complete below `time`.

    `orders` and `payloads` are those of the items, in meta order. `failures` are records that end the job at their
    place in the order.

    `heard` is the time below which it has heard of all such failures of records whose fronts it hosts; None: `time`. It
    may be less, since other workers may still work on what they have of these records. `away` are the times of failures
    that it has sent to hosts of fronts, with these workers, before its own time passes them. A rear passes none of them
    before its host has heard of it.
    """

    worker: int
    time: int
    orders: Orders
    payloads: Sequence[object]
    failures: Sequence[tuple[bytes, Failure]]
    heard: int | None = None
    away: tuple[tuple[int, int], ...] = ()

    @property
    def items(self) -> list[tuple[bytes, object]]:
        """Return (order, payload) of its items."""
        return list(zip(self.orders, self.payloads, strict=True))


class Busy(NamedTuple):
    """A worker's recent load: seconds worked of seconds passed."""

    worker: int
    worked_s: float
    passed_s: float


class FrontEnded(NamedTuple):
    """A front sends no more; all its items have times below `end`.

    `stopped`: it was stopped before its end, and the next run continues it. The minimum time does not pass `end`.
    """

    front: int
    end: int
    stopped: bool = False


class Found(NamedTuple):
    """Worker to control: a front there has read the first record behind the end of the job."""

    worker: int


class FoundNothing(NamedTuple):
    """Front to control: it has nothing to read behind the end of the job, and waits for what others find."""

    front: int


class Searched(NamedTuple):
    """Control to workers: whether any front has found a record behind the end of the job."""

    found: bool


class Reached(NamedTuple):
    """A rear has reached a record that ends the job, and delivers nothing more.

    It has delivered everything before the record.
    """

    rear: str
    failure: Failure


class Failing(NamedTuple):
    """A record that ends the job, perhaps not the first one.

    The job ends once the rears have delivered everything before the first.
    """

    failure: Failure


class Delivered(NamedTuple):
    """A rear has stored everything below `time`.

    `steps` are the reported deliveries, the last one up to `time`: (time up to which, seconds ago). Empty: one
    delivery, just now.
    """

    rear: str
    time: int
    steps: tuple[tuple[int, float], ...] = ()


# -- snapshots -----------------------------------------------------------------------------------------------------


class Settled(NamedTuple):
    """Control to workers: a lower bound of the times of later snapshots.

    Every rear has stored everything below `time`.
    """

    time: int


class Full(NamedTuple):
    """Worker to control: its fronts may read no further before a snapshot.

    Said once between two snapshots at most.
    """

    worker: int


class Prepare(NamedTuple):
    """Control to workers: prepare snapshot `number` of the state below `time`.

    Every rear has stored everything below `time`. A single worker may take a later time.
    """

    number: int
    time: int


class Prepared(NamedTuple):
    """Worker to control: its parts of snapshot `number` are stored.

    Attributes:
        fronts: For each front it hosts: (number, position, next time, whether it has ended).
        parts: Fields of each `flamecore.runtime.state.format.Part`, in the order of reading; empty: nothing has
            changed.
        journal: Number of its first journal that is needed to continue from the snapshot, or of the next one.
        marked: For each of these fronts that has any, (number, states of its markings as bytes).
        time: Time of the state.
    """

    number: int
    worker: int
    fronts: tuple[tuple[int, object, int, bool], ...]
    parts: tuple[tuple[str, int, tuple[str, ...], tuple[int, int], int, int, bytes, tuple[str, ...]], ...]
    journal: int = 1
    marked: tuple[tuple[int, bytes], ...] = ()
    time: int = MIN_TIME


class Committed(NamedTuple):
    """Control to workers: snapshot `number` is recorded.

    No rollback goes behind `kept_from`.

    Attributes:
        number: Number of the snapshot.
        kept_from: Time of the oldest snapshot that is kept.
        positions: (front number, position) of every front at that time: upstream may drop earlier records.
    """

    number: int
    kept_from: int
    positions: tuple[tuple[int, object], ...]


class Resume(NamedTuple):
    """The snapshot and journals that a worker continues from.

    Attributes:
        identity: Identity of the state.
        epoch: Number of the epoch.
        commit: Blob of the snapshot's manifest; empty: from nothing.
        journals: Blobs of the journals that count, oldest first.
        fronts: For each front, in the order of their numbers: (position, next time, whether it has ended, the time
            behind the end of the job at which it goes on).
        floor: Lower bound of new times of the wall clock.
        run: Token of the epoch: the epochs of two copies of a state may have one number.
        digests: (blob, digest) of `commit` and `journals`.
    """

    identity: str
    epoch: int
    commit: str
    journals: tuple[str, ...]
    fronts: tuple[tuple[object, int, bool, int], ...]
    floor: int
    run: str = ""
    digests: tuple[tuple[str, bytes], ...] = ()

    @property
    def behind_end(self) -> frozenset[int]:
        """Return the numbers of the fronts that go on behind the end of the job, with no known record there."""
        fronts = enumerate(self.fronts, 1)
        return frozenset(number for number, (_, next_time, ended, begun) in fronts if not ended and next_time < begun)


# -- between the control and the nodes of a job --------------------------------------------------------------------


CLIENT: Final = "client/"
"""Prefix of the addresses of clients, which look at a job."""
OPERATOR: Final = "operator/"
"""Prefix of the addresses of operators, which change a job."""
NODE: Final = "node/"
"""Prefix of the addresses of processes that work in a job, and of those beside them."""

WATCHER: Final = "watcher"
"""Role of a process beside a node, which is none: it tells what the system says of the node (`Watched`)."""


class Join(NamedTuple):
    """A node has started and can be reached.

    Attributes:
        node: Name of the node.
        role: "worker", "acker" for a node that hosts trackers only, `WATCHER`, "observer" for one that only wants a
            `Status`, or "operator" for one that asks for a change. An observer sends as `client/NAME`, an operator as
            `operator/NAME`, the others as `node/NAME`.
        location: Location where it listens, in the transport's terms.
        pid: Id of its process.
        version: Version of flamestream, the same throughout a job.
        attempt: Number of the process, if one host starts several for one node; later ones have higher numbers.
        site: Place on its host, in the host's terms.
    """

    node: str
    role: str
    location: str
    pid: int
    version: str
    attempt: int = 0
    site: str = ""


class Welcome(NamedTuple):
    """Control to a node that wants to join: its location can be reached."""


class Status(NamedTuple):
    """The status of a job, for an observer.

    `facts` are plain values, see `flamecore.runtime.cluster.job.ClusterJob.described`.
    """

    facts: dict[str, object]


class Rescale(NamedTuple):
    """Operator to control: continue with another number of workers."""

    workers: int


class Upgrade(NamedTuple):
    """Operator to control: continue with another configuration and flow.

    Attributes:
        config: The configuration as JSON, with the import location of the flow.
        accept: Whether state that the new flow cannot use may be dropped.
    """

    config: bytes
    accept: bool


class Refusal(NamedTuple):
    """Control to client or operator: the request is refused, with the text of the error."""

    text: str


class Assignment(NamedTuple):
    """The parts that a node runs, and all it needs for them.

    Attributes:
        epoch: Name of the epoch, unique in this job.
        config: The job's configuration, as JSON.
        flow: Import location of the flow, and the folder that it is relative to.
        total: Number of workers.
        start: Time that the job continues from.
        fronts: (source, partition number, partition name, position to continue from, whether it has ended, the end
            that its source has found) of every front, in the order of their numbers.
        workers, trackers: Numbers of the parts it hosts.
        locations: (address, location) of every part it may have to reach.
        code: Fingerprint of the flow's source: all nodes run the same.
        past, done, unread: As in the plan.
        hosts, owners: The placement of the plan; without owners, it is the default one.
    """

    epoch: str
    config: bytes
    flow: tuple[str, str]
    total: int
    start: int
    fronts: tuple[tuple[str, int, str, object, bool, object], ...]
    workers: tuple[int, ...]
    trackers: tuple[int, ...]
    locations: tuple[tuple[str, str], ...]
    code: str = ""
    past: tuple[int, ...] = ()
    done: tuple[int, ...] = ()
    unread: tuple[int, ...] = ()
    hosts: tuple[int, ...] = ()
    owners: tuple[int, ...] = ()


class Opened(NamedTuple):
    """The node has opened its partitions."""

    node: str
    epoch: str


class Load(NamedTuple):
    """Control to nodes: get ready to run, from a snapshot if one is given.

    `grants` let the workers write their partitions of sinks: (sink, grant).
    """

    resume: Resume | None
    grants: tuple[tuple[str, str], ...] = ()


class Ready(NamedTuple):
    """The node has its state, and listens."""

    node: str
    epoch: str


class Begin(NamedTuple):
    """Control to nodes: all parts listen, so the fronts may begin."""


class Halt(NamedTuple):
    """Control to nodes: end all parts early, and wait for another assignment."""


class Halted(NamedTuple):
    """The node has ended all parts, and waits."""

    node: str


class Left(NamedTuple):
    """The node ends, because it was told to on its own machine."""

    node: str


class Stop(NamedTuple):
    """Control message to nodes: stop reading, or end.

    `drain`: stop reading, because of a failed record if `failing`; otherwise end.
    """

    drain: bool
    failing: bool = False


class NodeReport(NamedTuple):
    """Counts of a node: fields of `flamecore.runtime.parts.counters.NodeStats`."""

    node: str
    stats: dict[str, object]


class Watched(NamedTuple):
    """Watcher to control: the state of a node's process, by the system that it runs on.

    Attributes:
        node: Name of the node.
        address: Address of this one process, since others may have had its name.
        state: State of the process.
        why: Its last words, if it is gone and has left any.
    """

    node: str
    address: str
    state: Literal["running", "stopped", "gone"]
    why: str = ""


class NodeFailed(NamedTuple):
    """A node's parts cannot continue because of an error.

    Attributes:
        node: Name of the node.
        kind: Name of the error's class.
        text: Text of the error.
        blob: The damaged blob of the state, if that is the error.
        lost: Location of the process that it can no longer reach, if that is the error.
    """

    node: str
    kind: str
    text: str
    blob: str = ""
    lost: str = ""


Outgoing = list[tuple[str, object]]
"""(address, message), in the order of sending."""
