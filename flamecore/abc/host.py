"""What starts the processes of a job's nodes, and tells when they end: the contract of hosts.

By default they are processes of the machine that runs the job (`flamecore.toolkit.local_processes`). Another host may
have them elsewhere: as tasks of a cluster's manager, say. They run the same everywhere
(`flamecore.runtime.cluster.node_process`): each is told how to join, finds the job's control over the transport, and
ends when that sends it away or is gone.

A host may start a node again by itself, under the name it was asked for, when the former process is lost. It then
says of each that comes which *attempt* it is, since the former may not be quite gone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple

from flamecore.errors import FlameError

if TYPE_CHECKING:
    from flamecore.abc.config import JobConfig
    from flamecore.abc.source import Prefix
    from flamecore.abc.store import Store
    from flamecore.model.flow import FlowGraph


API: int = 1


class NodeSlot(NamedTuple):
    """A node that is to be there.

    Attributes:
        name: As none was called before in this job.
        role: "worker" or "acker".
        terminal: It may read the standard input of this process, if the host can give it.
    """

    name: str
    role: str
    terminal: bool = False


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
    """What a host is told.

    Attributes:
        job: Name of the job.
        config: Everything that is configured.
        drivers: Name of the driver of each part, by dotted key: "source.lines", "sink.counts", …
        store: Where the job keeps its state, if it does; not open.
        code: Makes a copy of the flow's source, by path, for nodes on machines that do not have it. Such a node is told
            the folder where it lies: `bootstrap["flow_folder"]`.
        prefixes: The operations that each source may have run where it reads, by name of the source.
        died: To be told of a node that has ended although nobody asked it to: (name, what happened, its last lines).
        failed: To be told if no node can be started any more: that ends the job.
        counts: How far the job is, as names and values: "items_in", "replays", "latency_p99_ms", … as of
            `flamestream run --json`; empty if it has not begun.
    """

    job: str
    config: JobConfig
    drivers: Mapping[str, str]
    store: Store | None = None
    code: Callable[[], Mapping[str, bytes]] = dict
    prefixes: Mapping[str, Prefix] = field(default_factory=dict)
    died: Callable[[str, str, Sequence[str]], None] = _nobody_hears
    failed: Callable[[FlameError], None] = _nobody_hears
    counts: Callable[[], Mapping[str, Any]] = dict


class NodeHost(ABC):
    """A host driver: one object for each run of a job. Its methods are called from the event loop's thread alone.

    Class attributes: `name`, `api` and `Options` as for every driver. The options stand in a table of the host's name:
    `[spark]` for `[deploy] on = "spark"`.
    """

    name: ClassVar[str]
    api: ClassVar[int] = API
    Options: ClassVar[Any] = None

    def __init__(self, options: Any, context: HostContext) -> None:
        self.options = options
        self.context = context

    @classmethod
    def complete(cls, options: Any, config: JobConfig) -> JobConfig:
        """Say what is best on this host of what the configuration leaves open: the transport, if its `use` is empty.

        It may say more in the host's own table, too, of which the options are made anew then.
        """
        return config

    @classmethod
    def pack(cls, flow: FlowGraph, beside: Mapping[str, bytes]) -> PackedFlow | None:
        """Pack a flow that other processes cannot import: one of a notebook or of the program's main module, say.

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
        """All that speaks against this job on this host, as far as that can be said without starting anything: what is
        not installed, what nodes cannot reach."""
        yield from ()

    def described(self, sites: Sequence[str]) -> Mapping[str, Any]:
        """Where nodes are, for people: names and values, in the order in which they are shown. Holds no secret.

        Args:
            sites: What `bootstrap["site"]` of each node said that is there.
        """
        return {}

    def ahead(self) -> Mapping[str, Sequence[str]]:
        """Return, by name of the source, the operations that run where it is read, before the workers."""
        return {}

    async def open(self) -> None:
        """Make ready. Called once, before everything below.

        Raises:
            FlameError: Nodes cannot be started here.
        """
        return

    @abstractmethod
    async def start(self, slots: Sequence[NodeSlot], bootstrap: Mapping[str, Any]) -> None:
        """Have nodes started. They need not have come when this returns.

        Args:
            slots: Which.
            bootstrap: What a node must know to join, but for `node` and `role`; it holds the secret of the job.

        Raises:
            OSError: They cannot be started now. A job that keeps state asks again, a few times.
            FlameError: They cannot be started here.
        """

    @abstractmethod
    def running(self) -> list[str]:
        """Names of the nodes that were started, or are being started again, and are not known to have ended."""

    def came(self, name: str, attempt: int) -> Collection[str] | None:
        """A node has joined.

        Args:
            name: Its name. Another of this name that is there is gone.
            attempt: What it was started with: `bootstrap["attempt"]`.

        Returns:
            Names of other nodes that are gone, too, although they may not know it; None: this one is, it has come too
            late.
        """
        return ()

    def release(self, name: str) -> None:
        """A node has no part any more, and was told to end: that it ends is no loss."""
        return

    def watches(self, name: str) -> bool:
        """Whether the end of that node will be told by `HostContext.died`, with its last words."""
        return False

    @abstractmethod
    def kill(self, name: str) -> None:
        """See to it that a node ends, which has been taken for dead. Another is asked for in its place."""

    def lost(self, name: str) -> bool:
        """The connection to a node is lost: see to it that it ends.

        Returns:
            Whether the host starts it again by itself; otherwise another is asked for.
        """
        self.kill(name)
        return False

    @abstractmethod
    async def stop(self, timeout_s: float) -> None:
        """Wait for the nodes to end, who have been told to; after the time, end them. Nobody is told of it. Releases
        what `open` took. May be called without `open`."""
