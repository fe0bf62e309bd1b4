"""The parts of a job, resolved from a configuration and a flow, and its problems."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from flamecore.abc.acker import Acker, AckerPlan
from flamecore.abc.config import HERE, Choice, Edge, JobConfig, SinkEdge
from flamecore.abc.host import HostContext, NodeHost, PackedFlow
from flamecore.abc.registry import JobRegistry, RegistryContext
from flamecore.abc.sink import Sink
from flamecore.abc.source import Source
from flamecore.abc.store import Store, StoreContext
from flamecore.abc.transport import Transport, TransportContext
from flamecore.errors import FlameError
from flamecore.model.flow import FlowGraph
from flamecore.model.graph import Graph
from flamecore.model.plan import DEAD_LETTERS
from flamecore.model.settings import JobSettings
from flamecore.model.vertices import Vertex, user_functions
from flamecore.runtime.config.flow_loader import code_of, copy_of, importable
from flamecore.runtime.config.options import node_options, options_of, options_table
from flamecore.runtime.config.paths import flow_of
from flamecore.runtime.config.plugins import PluginRegistry
from flamecore.runtime.config.validate import Problems, redacted
from flamecore.runtime.operators.table import Operators


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Drivers:
    """The drivers of a job's parts, and their factories.

    Attributes:
        names: Name of the driver of each part, by dotted key: "transport", "source.lines", …
        plugins: The installed drivers.
        transport, acker, store, registry, host: Driver and options; None: there is none, or it cannot be used.
    """

    names: Mapping[str, str]
    plugins: PluginRegistry
    transport: tuple[type[Transport], object] | None
    acker: tuple[type[Acker], object] | None
    store: tuple[type[Store], object] | None
    registry: tuple[type[JobRegistry], object] | None
    host: tuple[type[NodeHost], Any] | None

    def make_transport(self, context: TransportContext, config: JobConfig, *, beside: bool) -> Transport:
        """Make the transport.

        `beside`: with the options of a process beside the supervisor.
        """
        assert self.transport is not None
        driver, options = self.transport
        if beside:
            # Without the port, which is the supervisor's.
            table = node_options(options_table(config.transport))
            options = options_of(driver, table, f"transport.{driver.name}", config.origins)
        return driver(options, context)

    def make_acker(self, plan: AckerPlan, config: JobConfig) -> Acker:
        """Make the acker.

        An acker that wraps another gets it by name, with the options of that one's own table.
        """

        def inner(name: str, table: Mapping[str, object]) -> Acker:
            kind: type[Acker] = self.plugins.guarded("acker", name)
            # Options of the outer strategy take precedence over the inner one's own table.
            mixed = {**config.acker.tables.get(name, {}), **table}
            return kind(options_of(kind, mixed, f"acker.{name}", config.origins), plan)

        assert self.acker is not None
        driver, options = self.acker
        return driver(options, dataclasses.replace(plan, make=inner))

    def make_store(self, context: StoreContext) -> Store | None:
        """Make the store of snapshots, if there is one; it is not open."""
        if self.store is None:
            return None
        driver, options = self.store
        return driver(options, context)

    def make_registry(self, context: RegistryContext) -> JobRegistry:
        """Make the registry of jobs."""
        assert self.registry is not None
        driver, options = self.registry
        return driver(options, context)

    def make_host(self, context: HostContext) -> NodeHost:
        """Make the host that nodes are started on."""
        assert self.host is not None
        driver, options = self.host
        return driver(options, context)


@dataclasses.dataclass(frozen=True, slots=True)
class FlowCode:
    """A flow, and the ways in which other processes get its code.

    Attributes:
        flow: The flow.
        packed: The flow as the host sends it to other processes, if they cannot import it.
    """

    flow: FlowGraph
    packed: PackedFlow | None = None

    @property
    def place(self) -> tuple[str, str]:
        """Return a reference for other processes, and the folder it is relative to.

        Raises:
            ConfigError: There is none.
        """
        if self.packed is not None:
            return f"{self.packed.module}:flow", str(Path.cwd())
        return importable(self.flow)

    def fingerprint(self, functions: Iterable[Callable[..., object]]) -> str:
        """Return a fingerprint of the source as it is on the disk now.

        For a packed flow it is the name of its module.

        Args:
            functions: The functions of the flow.
        """
        return self.packed.module if self.packed is not None else code_of(self.flow, functions)

    def copy(self, functions: Iterable[Callable[..., object]]) -> dict[str, bytes]:
        """Return the source, for machines that do not have its files.

        See `flamecore.runtime.config.flow_loader.copy_of`.
        """
        return dict(self.packed.files) if self.packed is not None else copy_of(self.flow, functions)


@dataclasses.dataclass(slots=True, kw_only=True)
class JobSpec:
    """The resolved job: the driver of each part, and everything that is wrong.

    Made by `flamecore.runtime.config.resolve.SpecBuilder`.

    Attributes:
        config: The configuration, completed by the host.
        flow_code: The flow, with its code for other processes.
        given: Values that a program hands over; see `flamecore.runtime.config.resolve.resolve`.
        problems: Everything found to be wrong.
        graph: The checked graph; None if it cannot work.
        drivers: The drivers of its parts.
        operators: The operators of plugins, besides the engine's.
        at_home: Sources and sinks whose data is on the host, if that is why the job runs there.
    """

    config: JobConfig
    flow_code: FlowCode
    given: Mapping[str, object]
    problems: Problems
    graph: Graph | None
    drivers: Drivers
    sources: Mapping[str, Source]
    sinks: dict[str, Sink]
    dead_letter: Sink | None
    operators: Operators
    observers: Sequence[object]
    at_home: Sequence[str] = ()

    @property
    def flow(self) -> FlowGraph:
        """Return the flow."""
        return self.flow_code.flow

    @property
    def name(self) -> str:
        """Return the name of the job."""
        return self.config.job.name or self.flow.name

    @property
    def checked_graph(self) -> Graph:
        """Return the graph of a job that has a valid one.

        Raises:
            FlameError: It cannot work: the first of the problems.
        """
        if self.graph is None:
            raise self.problems[0]
        return self.graph

    @property
    def code(self) -> str:
        """Return a fingerprint of the flow's source; see `FlowCode.fingerprint`."""
        return self.flow_code.fingerprint(self._functions)

    @property
    def place(self) -> tuple[str, str]:
        """Return the place of the flow for other processes; see `FlowCode.place`."""
        return self.flow_code.place

    def copy(self) -> dict[str, bytes]:
        """Return the flow's source, for machines without its files; see `FlowCode.copy`."""
        return self.flow_code.copy(self._functions)

    def reachable(self) -> JobSpec:
        """Return this spec for nodes in other processes.

        The host packs a flow that they cannot import, if it can.

        Raises:
            FlameError: Something in the flow cannot be packed.
        """
        if self.flow.reference is not None or self.drivers.host is None:
            return self
        host, code = self.drivers.host[0], self.flow_code
        packed = host.pack(code.flow, self.copy())
        return dataclasses.replace(self, flow_code=FlowCode(code.flow, packed))

    @property
    def _functions(self) -> list[Callable[..., object]]:
        return [function for vertex in self.checked_graph.vertices for function in user_functions(vertex)]

    @property
    def settings(self) -> JobSettings:
        """Return the settings by which the job runs."""
        config = self.config
        return JobSettings(
            **{
                **msgspec.structs.asdict(config.job),
                "name": self.name,
                "source_policies": {name: edge.on_error for name, edge in config.source.items()},
                "source_phases": {name: edge.phase for name, edge in config.source.items()},
                "sink_phases": {name: edge.phase for name, edge in config.sink.items()},
                "dead_letters": self.dead_letter is not None,
                "state": config.state if config.state.use is not None else None,
            }
        )

    def rescaled(self, workers: int) -> JobSpec:
        """Return the spec of the same job with another number of workers."""
        job = msgspec.structs.replace(self.config.job, workers=workers)
        return dataclasses.replace(self, config=msgspec.structs.replace(self.config, job=job))

    @property
    def all_sinks(self) -> dict[str, Sink]:
        """Return all sinks by name, that of dead letters among them if there is one."""
        return {**self.sinks, **({DEAD_LETTERS: self.dead_letter} if self.dead_letter is not None else {})}

    def store(self) -> Store | None:
        """Make the configured store of snapshots, if there is one; it is not open."""
        # A new object with each call: an open store belongs to one event loop, and a command, the
        # job and a thread have each their own.
        return self.drivers.make_store(StoreContext(self.name, self.config.folder))

    @property
    def sink_names(self) -> tuple[str, ...]:
        """Return the names of all sinks, including that of dead letters if there is one."""
        return tuple(self.all_sinks)

    def keep_sinks(self, other: JobSpec, names: Collection[str]) -> None:
        """Take over the open sinks of these names from another spec."""
        self.sinks |= {name: sink for name, sink in other.sinks.items() if name in names}
        if DEAD_LETTERS in names:
            self.dead_letter = other.dead_letter

    @property
    def transport_table(self) -> Mapping[str, object]:
        """Return the options of the transport, as written."""
        return options_table(self.config.transport)

    def transport(self, context: TransportContext, *, beside: bool = False) -> Transport:
        """Make the configured transport.

        With `beside` it is that of a process which the supervisor starts beside itself, otherwise the supervisor's.
        """
        return self.drivers.make_transport(context, self.config, beside=beside)

    @property
    def is_listed(self) -> bool:
        """Return whether processes elsewhere find the job in its registry."""
        return self.drivers.registry is not None and self.job_registry(RegistryContext()).capabilities.shared

    def job_registry(self, context: RegistryContext) -> JobRegistry:
        """Make the configured registry of jobs."""
        return self.drivers.make_registry(context)

    def host(
        self,
        died: Callable[[str, str, Sequence[str]], None] | None = None,
        failed: Callable[[FlameError], None] | None = None,
        counts: Callable[[], Mapping[str, object]] = dict,
    ) -> NodeHost:
        """Make the host that nodes are started on.

        Arguments: see `HostContext`. Without them the host is only asked, and starts nothing.
        """
        context = HostContext(self.name, self.config, self.drivers.names, self.store(), self.copy)
        if died is not None and failed is not None:
            context = dataclasses.replace(context, died=died, failed=failed, counts=counts)
        return self.drivers.make_host(context)

    @property
    def has_host(self) -> bool:
        """Return whether the configured host can be made; a job in one process has none."""
        return self.drivers.host is not None

    @property
    def embedded(self) -> bool:
        """Return whether all parts run in this process."""
        return bool(self.given) or self.config.deploy.on == HERE

    def acker(self, plan: AckerPlan) -> Acker:
        """Make the configured acker."""
        return self.drivers.make_acker(plan, self.config)

    def described(self) -> dict[str, Any]:
        """Return the places of all parts, for people and programs; it holds no secret."""
        config = self.config

        def ends(section: str, vertices: Iterable[Vertex], edges: Mapping[str, Edge]) -> dict[str, object]:
            found = {vertex.name: edges.get(vertex.name, Edge()) for vertex in vertices}
            return {
                name: {
                    "use": self.drivers.names.get(f"{section}.{name}"),
                    "options": redacted(edge.options),
                    **({"order": edge.order} if isinstance(edge, SinkEdge) and edge.order != "ordered" else {}),
                    **({"phase": edge.phase} if edge.phase > 1 else {}),
                }
                for name, edge in found.items()
            }

        def choice(section: str, chosen: Choice) -> dict[str, object]:
            return {"use": chosen.use, "options": redacted(options_table(chosen))}

        return {
            "job": self.name,
            "flow": flow_of(config) or self.flow.module,
            **{key: getattr(config.job, key) for key in ("workers", "clock", "guarantee", "on_error", "max_in_flight")},
            "on": {
                "use": config.deploy.on,
                "options": redacted(config.hosts.get(config.deploy.on, {})),
                **({"because": list(self.at_home)} if self.at_home else {}),
            },
            "transport": choice("transport", config.transport),
            "acker": choice("acker", config.acker),
            "registry": {"use": config.registry.use, "options": redacted(config.registry.options)},
            "state": {"use": config.state.use, "options": redacted(config.state.options)} if config.state.use else None,
            "sources": ends("source", self.graph.sources if self.graph else (), config.source),
            "sinks": ends("sink", self.graph.sinks if self.graph else (), config.sink),
            "dead_letter": self.drivers.names.get(DEAD_LETTERS),
            "hooks": list(config.hooks),
        }
