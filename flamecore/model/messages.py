"""What the parts of a job say to each other. Plain tuples: the codec carries them, and nothing else, between processes.

worker  --Items-->     worker     items of a hand-over, and the acks the receiver owes for them
worker  --Busy-->      worker     how busy it is, for those that deal out items
worker  --Report-->    acker      what is handed over and received, and the promises of fronts
acker   --MinTimes-->  worker     how far the minimum times have come
worker  --Released-->  rear       what the barrier lets go
rear    --Delivered--> worker     what the sink has stored: credit for the fronts it hosts; also to the job's control
rear    --Reached-->   control    a record that ends the job
worker  --Failing-->   control    the same, as soon as it is known
front   --FrontEnded-> control    it will send no more
control --Settled-->   worker     no snapshot will be of an earlier time
control --Prepare-->   worker     take part in a snapshot; answered by Prepared, and then Committed
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from flamecore.model.batch import Orders
from flamecore.model.failure import Failure


class Ack(NamedTuple):
    """One entry of a report: XOR of the numbers of all hand-overs of this segment and time. `xor`: unsigned 64 bits."""

    segment: int
    time: int
    xor: int


class Report(NamedTuple):
    """One flush of one worker to one tracker. A tracker applies it as one step, in the order of the fields.

    Attributes:
        worker: Who reports, 0-based.
        tick: The worker's node time: it grows by one with each flush that carries acks. 0: this flush carries none.
        acks: In descending (segment, time).
        heartbeats: (front number, time): no item of a lower time will come from that front. At most one a front.
        unregistered: Fronts that have ended. Never in a report that carries acks.
    """

    worker: int
    tick: int = 0
    acks: tuple[Ack, ...] = ()
    heartbeats: tuple[tuple[int, int], ...] = ()
    unregistered: tuple[int, ...] = ()


class MinTimes(NamedTuple):
    """A tracker's news: its part of the minimum time of each segment. One message for all, however many there are.

    Attributes:
        times: Nothing below them is in flight as far as this tracker knows. From one shard of several they may go back.
        vector: Latest node time of each worker that this tracker has applied; empty where nobody needs it.
    """

    times: tuple[int, ...]
    vector: tuple[int, ...] = ()


CONTROL: Final = "job"
"""Address of the job's control."""

Piece = tuple[int, int, bool, Orders, Sequence[Any]]
"""(vertex index, trace, alive, orders, payloads): items of one trace in ascending order, on their way to a vertex of
another worker; all of them live, or all of them tombstones."""


class Items(NamedTuple):
    """One hand-over between workers: items in the order they were sent.

    `acks` holds one number for each segment among them, under the lowest time of its items: none of them is done before
    all are, so a number for each time would tell no more. The sender has reported it; the receiver reports it again
    once it has processed all items *and* reported and sent all that came of them.
    """

    pieces: list[Piece]
    acks: tuple[Ack, ...]


class Released(NamedTuple):
    """What one worker's barrier has let go for one rear: everything it will ever have below `time`.

    `orders` and `payloads` are those of its items, in meta order. `failures` are records that end the job at their
    place in the order.
    """

    worker: int
    time: int
    orders: Orders
    payloads: Sequence[Any]
    failures: Sequence[tuple[bytes, Failure]]

    @property
    def items(self) -> list[tuple[bytes, Any]]:
        """(order, payload) of its items."""
        return list(zip(self.orders, self.payloads, strict=True))


class Busy(NamedTuple):
    """How long a worker has been at work lately: so many seconds of those that have passed."""

    worker: int
    worked_s: float
    passed_s: float


class FrontEnded(NamedTuple):
    """A front sends no more; all its items have times below `end`.

    `stopped`: it has not come to its end, and the state is kept for a next run. The minimum time does not pass `end`.
    """

    front: int
    end: int
    stopped: bool = False


class Reached(NamedTuple):
    """A rear has delivered everything before a record that ends the job, and delivers nothing more."""

    rear: str
    failure: Failure


class Failing(NamedTuple):
    """A record that ends the job, once the rears have delivered everything before it. Perhaps not the first one."""

    failure: Failure


class Delivered(NamedTuple):
    """A rear's word that everything below `time` is stored.

    `steps` are the deliveries that it stands for, the last one up to `time`: (up to which time, how many seconds ago).
    Empty: there is one, just now.
    """

    rear: str
    time: int
    steps: tuple[tuple[int, float], ...] = ()


# -- snapshots -----------------------------------------------------------------------------------------------------


class Settled(NamedTuple):
    """Control to workers: every rear has stored all below `time`, and no snapshot will be of an earlier one."""

    time: int


class Prepare(NamedTuple):
    """Control to workers: add to snapshot `number` what you have below `time`, which every rear has stored."""

    number: int
    time: int


class Prepared(NamedTuple):
    """Worker to control: its parts of snapshot `number` are stored.

    Attributes:
        fronts: For each front it hosts: (number, position, next time, whether it has ended).
        parts: Each the fields of a `flamecore.runtime.state.format.Part`, in the order in which they are to be read;
            none: nothing has changed.
        journal: Number of the first of its journals that going on from the snapshot needs, or of the next one.
    """

    number: int
    worker: int
    fronts: tuple[tuple[int, Any, int, bool], ...]
    parts: tuple[tuple[str, int, tuple[str, ...], tuple[int, int], int, int, bytes, tuple[str, ...]], ...]
    journal: int = 1


class Committed(NamedTuple):
    """Control to workers: snapshot `number` is recorded; nobody will go back behind `kept_from`.

    Attributes:
        number: Of the snapshot.
        kept_from: The time of the oldest snapshot that is kept.
        positions: (front number, position) of every front at that time: what is before may be forgotten upstream.
    """

    number: int
    kept_from: int
    positions: tuple[tuple[int, Any], ...]


class Resume(NamedTuple):
    """What a worker goes on from.

    Attributes:
        identity, epoch: Of the state, and of this start.
        commit: Blob of the snapshot's manifest; empty: from nothing.
        journals: Blobs of the journals that count, oldest first.
        fronts: For each front, in the order of their numbers: (position, next time, whether it has ended).
        floor: New times of the wall clock start here.
        run: Token of this start: the epochs of two copies of a state may have one number.
        digests: (blob, digest) of `commit` and `journals`.
    """

    identity: str
    epoch: int
    commit: str
    journals: tuple[str, ...]
    fronts: tuple[tuple[Any, int, bool], ...]
    floor: int
    run: str = ""
    digests: tuple[tuple[str, bytes], ...] = ()


# -- between the control and the nodes of a job --------------------------------------------------------------------


class Join(NamedTuple):
    """A node has started and can be reached.

    Attributes:
        node: Its name.
        role: "worker", "acker" for a node that hosts trackers only, or "observer" for one that only wants a `Status`:
            it speaks as `client/NAME`, the others as `node/NAME`.
        location: Where it listens, in the transport's words.
        pid: Its process.
        version: Of flamestream, which must be one throughout a job.
        attempt: Of several processes that one host starts for one node, which this is; later ones have higher numbers.
        site: Where on its host it is, in that one's words.
    """

    node: str
    role: str
    location: str
    pid: int
    version: str
    attempt: int = 0
    site: str = ""


class Welcome(NamedTuple):
    """Control to a node that wants to join: it can be reached where it says."""


class Status(NamedTuple):
    """A look at a job, for an observer: plain values, see `flamecore.runtime.cluster.job.ClusterJob.described`."""

    facts: dict[str, Any]


class Rescale(NamedTuple):
    """Client to control: go on with so many workers."""

    workers: int


class Upgrade(NamedTuple):
    """Client to control: go on with another configuration and flow.

    Attributes:
        config: As JSON; it says where to import the flow from.
        accept: Whether state that the new flow has no use for may be dropped.
    """

    config: bytes
    accept: bool


class Refusal(NamedTuple):
    """Control to client: it cannot be done; the text of the error."""

    text: str


class Assignment(NamedTuple):
    """What a node is to run.

    Attributes:
        epoch: Name of the epoch, which no other of this job has.
        config: The job's configuration, as JSON.
        flow: Where to import the flow from, and the folder this is relative to.
        total: How many workers there are.
        start: The time the job goes on from.
        fronts: (source, partition number, partition name, position to go on from, whether it has ended) of every front,
            in the order of their numbers.
        workers, trackers: Indices of the parts it hosts.
        locations: (address, location) of everything it may have to reach.
        code: Fingerprint of the flow's source: all nodes run the same.
    """

    epoch: str
    config: bytes
    flow: tuple[str, str]
    total: int
    start: int
    fronts: tuple[tuple[str, int, str, Any, bool], ...]
    workers: tuple[int, ...]
    trackers: tuple[int, ...]
    locations: tuple[tuple[str, str], ...]
    code: str = ""


class Opened(NamedTuple):
    """The node has opened what it reads."""

    node: str
    epoch: str


class Load(NamedTuple):
    """Make ready to run, from a snapshot if one is named."""

    resume: Resume | None


class Ready(NamedTuple):
    """The node has its state, and listens."""

    node: str
    epoch: str


class Begin(NamedTuple):
    """Everybody listens: the fronts may begin."""


class Halt(NamedTuple):
    """An epoch has ended before its time: end all parts, and wait for another assignment."""


class Halted(NamedTuple):
    """The node runs nothing any more, and waits."""

    node: str


class Left(NamedTuple):
    """The node ends, because somebody has told it to, where it runs."""

    node: str


class Stop(NamedTuple):
    """Read no more (`drain`), or end."""

    drain: bool


class NodeReport(NamedTuple):
    """Counts of a node: fields of `flamecore.runtime.tasks.stats.NodeStats`."""

    node: str
    stats: dict[str, Any]


class NodeFailed(NamedTuple):
    """A node's parts cannot go on: the text of the error, and the name of its class.

    Attributes:
        node: Its name.
        kind: Name of the error's class.
        text: Of the error.
        blob: What of the state is damaged, if that is the error.
        lost: Location of the process that it cannot reach any more, if that is the error.
    """

    node: str
    kind: str
    text: str
    blob: str = ""
    lost: str = ""


Outgoing = list[tuple[str, Any]]
"""(address, message), in the order to be sent."""
