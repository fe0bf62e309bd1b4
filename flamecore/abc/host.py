"""The contract of hosts, which start node processes and report their ends.

By default they are processes of the machine that runs the job (`flamecore.toolkit.local_processes`). Another host may
have them elsewhere: as tasks of a cluster's manager, say. They run the same everywhere
(`flamecore.runtime.cluster.node_process`): each is told how to join, finds the job's control over the transport, and
ends when the control sends it away or is gone.

A host may start a node again by itself, under the same name, when the former process is lost. It then gives each
process the number of its *attempt*, since the former one may not have ended yet.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, NamedTuple

from flamecore.errors import FlameError

if TYPE_CHECKING:
    from flamecore.abc.config import JobConfig
    from flamecore.abc.store import Store
    from flamecore.model.flow import FlowGraph


API: int = 1


class NodeSlot(NamedTuple):
    """A node to start.

    Attributes:
        name: Its name, which no earlier node of this job had.
        role: "worker" or "acker".
        terminal: Whether it may read the standard input of this process, if the host can give it.
    """

    name: str
    role: str
    terminal: bool = False


NodeState = Literal["running", "stopped"]

PACKED: Final = "flamestream_flow_"
"""First part of the name of a module that makes a packed flow. The rest is a digest of all that it is made of."""


class PackedFlow(NamedTuple):
    """A flow that no other process can import as it is, as files that make it.

    Attributes:
        module: The module to import, called `PACKED` and a digest; its variable `flow` is the flow.
        files: Contents by path, relative to the folder that it is imported from.
    """

    module: str
    files: Mapping[str, bytes]


def _nobody_hears(*_: Any) -> None:
    return


@dataclass(frozen=True, slots=True)
class HostContext:
    """The facts of a job that a host is given.

    Attributes:
        job: Name of the job.
        config: Everything that is configured.
        drivers: Name of the driver of each part, by dotted key: "source.lines", "sink.counts", …
        store: Store of the job's state, if there is one; not open.
        code: Makes a copy of the flow's source, by path, for nodes on machines that do not have it. Such a node is told
            the folder where it lies: `bootstrap["flow_folder"]`.
        died: Called when a node has ended unasked: (name, what happened, its last lines).
        failed: Called when no node can be started any more: that ends the job.
        counts: Progress of the job, as names and values: "items_in", "replays", "latency_p99_ms", … as of
            `flamestream run --json`; empty if it has not begun.
    """

    job: str
    config: JobConfig
    drivers: Mapping[str, str]
    store: Store | None = None
    code: Callable[[], Mapping[str, bytes]] = dict
    died: Callable[[str, str, Sequence[str]], None] = _nobody_hears
    failed: Callable[[FlameError], None] = _nobody_hears
    counts: Callable[[], Mapping[str, Any]] = dict


# It starts processes and reports their end, and no more: what they run comes from the control, so
# nodes are the same on every host.
class NodeHost(ABC):
    """A host driver: one object for each run of a job.

    Its methods are called from the event loop's thread alone.
    """

    name: ClassVar[str]
    api: ClassVar[int] = API
    Options: ClassVar[Any] = None

    def __init__(self, options: Any, context: HostContext) -> None:
        self.options = options
        self.context = context

    @classmethod
    def complete(cls, options: Any, config: JobConfig) -> JobConfig:
        """Return the configuration with open values set to the best on this host.

        Open is the transport, if its `use` is empty. The host's own table may be changed, too; its options are then
        made of it anew.
        """
        return config

    @classmethod
    def pack(cls, flow: FlowGraph, beside: Mapping[str, bytes]) -> PackedFlow | None:
        """Pack a flow that other processes cannot import.

        It may be one of a notebook or of the program's main module, say.

        The nodes get the files by `HostContext.code`. They are code, so they go only the way on which the host sends
        its own; no transport and no store of a job ever sees them.

        Args:
            flow: Checked.
            beside: Source of the modules beside the flow that it uses, by path.

        Returns:
            None: this host cannot, and the flow is refused.

        Raises:
            FlameError: Something in it cannot be packed; the text names it.
        """
        return None

    def problems(self) -> Iterator[FlameError]:
        """Yield every reason why this job cannot run on this host.

        Nothing is started to find them: a package that is not installed, a folder that nodes cannot reach.
        """
        yield from ()

    def described(self, sites: Sequence[str]) -> Mapping[str, Any]:
        """Return where nodes are, for people: names and values, in display order.

        It holds no secret.

        Args:
            sites: Value of `bootstrap["site"]` of each node that is there.
        """
        return {}

    async def open(self) -> None:
        """Make ready. Called once, before everything below.

        Raises:
            FlameError: Nodes cannot be started here.
        """
        return

    @abstractmethod
    async def start(self, slots: Sequence[NodeSlot], bootstrap: Mapping[str, Any]) -> None:
        """Start nodes; they need not have joined when this returns.

        Args:
            slots: The nodes.
            bootstrap: Values that a node needs to join, but for `node` and `role`; they hold the secret of the job.

        Raises:
            OSError: They cannot be started now. A job that keeps state asks again, a few times.
            FlameError: They cannot be started here.
        """

    @abstractmethod
    def running(self) -> list[str]:
        """Return the names of the nodes that are started and not known to have ended.

        Nodes that are being started again count.
        """

    def came(self, name: str, attempt: int) -> Collection[str] | None:
        """Note that a node has joined.

        Args:
            name: Its name. An earlier process of this name is gone.
            attempt: The `bootstrap["attempt"]` that it was started with.

        Returns:
            Names of other nodes that are gone, too, although they may not know it; None: this node has come too late
            and is refused.
        """
        return ()

    def release(self, name: str) -> None:
        """Note that a node was told to end, so that its end is no loss."""
        return

    def watches(self, name: str) -> bool:
        """Return whether `HostContext.died` will report the end of that node.

        The report includes its last words.
        """
        return False

    def state(self, name: str) -> NodeState | None:
        """Return what the system says of the process of a node; None: nothing is known.

        A process that runs or is stopped is not gone, however long nothing is heard of it.
        """
        return None

    @abstractmethod
    def kill(self, name: str) -> None:
        """End a node that was declared dead; another is asked for in its place."""

    def lost(self, name: str) -> bool:
        """End a node whose connection is lost.

        Returns:
            Whether the host starts it again by itself; otherwise another is asked for.
        """
        self.kill(name)
        return False

    @abstractmethod
    async def stop(self, timeout_s: float) -> None:
        """Wait for the nodes to end, and end those that have not within the time.

        They have been told to end, and `HostContext.died` reports none of them. Releases what `open` took. May be
        called without `open`.
        """
