"""The parts of a job, resolved from a configuration and a flow, and its problems."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from flamecore.abc.acker import Acker, AckerPlan
from flamecore.abc.config import HERE, Choice, Edge, JobConfig
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
from flamecore.runtime.config.plugins import PluginRegistry
from flamecore.runtime.config.validate import Problems, redacted
from flamecore.runtime.operators.table import Operators


@dataclasses.dataclass(slots=True, kw_only=True)
class JobSpec:
    """The resolved job: the driver of each part, and everything that is wrong.

    Made by `flamecore.runtime.config.resolve.SpecBuilder`.

    Attributes:
        config: The configuration, completed by the host.
        given: Values that a program hands over; see `flamecore.runtime.config.resolve.resolve`.
        graph: The checked graph; None if it cannot work.
        drivers: Name of the driver of each part, by dotted key: "transport", "source.lines", …
        problems: Everything found to be wrong.
        operators: The operators of plugins, besides the engine's.
        at_home: Sources and sinks whose data is on the host, if that is why the job runs there.
        transport_driver, acker_driver, store_driver, registry_driver, host_driver: Driver and options; None: there is
            none, or it cannot be used.
        packed: The flow as the host sends it to other processes, if they cannot import it.
    """

    config: JobConfig
    flow: FlowGraph
    plugins: PluginRegistry
    given: Mapping[str, Any]
    problems: Problems
    graph: Graph | None
    drivers: Mapping[str, str]
    sources: Mapping[str, Source]
    sinks: dict[str, Sink]
    dead_letter: Sink | None
    operators: Operators
    observers: Sequence[Any]
    transport_driver: tuple[type[Transport], Any] | None
    acker_driver: tuple[type[Acker], Any] | None
    store_driver: tuple[type[Store], Any] | None
    registry_driver: tuple[type[JobRegistry], Any] | None
    host_driver: tuple[type[NodeHost], Any] | None
    at_home: Sequence[str] = ()
    packed: PackedFlow | None = None

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
        """Return a fingerprint of the flow's source, as it lies on the disk now.

        For a packed flow it is its module's name.
        """
        return self.packed.module if self.packed is not None else code_of(self.flow, self._functions)

    def copy(self) -> dict[str, bytes]:
        """Return the flow's source, for machines that do not have its files.

        See `flamecore.runtime.config.flow_loader.copy_of`.
        """
        return dict(self.packed.files) if self.packed is not None else copy_of(self.flow, self._functions)

    @property
    def place(self) -> tuple[str, str]:
        """Return the place of the flow for other processes.

        Returns:
            A reference, and the folder it is relative to.

        Raises:
            ConfigError: There is none.
        """
        if self.packed is not None:
            return f"{self.packed.module}:flow", str(Path.cwd())
        return importable(self.flow)

    def reachable(self) -> JobSpec:
        """Return this spec for nodes in other processes.

        The host packs a flow that they cannot import, if it can.

        Raises:
            FlameError: Something in the flow cannot be packed.
        """
        if self.flow.reference is not None or self.host_driver is None:
            return self
        return dataclasses.replace(self, packed=self.host_driver[0].pack(self.flow, self.copy()))

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
        if self.store_driver is None:
            return None
        driver, options = self.store_driver
        return driver(options, StoreContext(self.name, self.config.folder))

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

    @property
    def has_transport(self) -> bool:
        """Return whether the configured transport can be made."""
        return self.transport_driver is not None

    @property
    def has_acker(self) -> bool:
        """Return whether the configured acker can be made."""
        return self.acker_driver is not None

    def transport(self, context: TransportContext, *, beside: bool = False) -> Transport:
        """Make the configured transport.

        With `beside` it is that of a process which the supervisor starts beside itself, otherwise the supervisor's.
        """
        assert self.transport_driver is not None
        driver, options = self.transport_driver
        if beside:
            table = node_options(self.transport_table)
            options = options_of(driver, table, f"transport.{driver.name}", self.config.origins)
        return driver(options, context)

    @property
    def is_listed(self) -> bool:
        """Return whether processes elsewhere find the job in its registry."""
        return self.registry_driver is not None and self.job_registry(RegistryContext()).capabilities.shared

    def job_registry(self, context: RegistryContext) -> JobRegistry:
        """Make the configured registry of jobs."""
        assert self.registry_driver is not None
        driver, options = self.registry_driver
        return driver(options, context)

    def host(
        self,
        died: Callable[[str, str, Sequence[str]], None] | None = None,
        failed: Callable[[FlameError], None] | None = None,
        counts: Callable[[], Mapping[str, object]] = dict,
    ) -> NodeHost:
        """Make the host that nodes are started on.

        Arguments: see `HostContext`. Without them the host is only asked, and starts nothing.
        """
        assert self.host_driver is not None
        driver, options = self.host_driver
        prefixes = {name: source.context.prefix for name, source in self.sources.items() if source.context.prefix}
        context = HostContext(self.name, self.config, self.drivers, self.store(), self.copy, prefixes)
        if died is not None and failed is not None:
            context = dataclasses.replace(context, died=died, failed=failed, counts=counts)
        return driver(options, context)

    @property
    def ahead(self) -> Mapping[str, Sequence[str]]:
        """Return the operations that run where a source is read, before the workers.

        The names are by name of the source.
        """
        return self.host().ahead() if self.has_host else {}

    @property
    def has_host(self) -> bool:
        """Return whether the configured host can be made; a job in one process has none."""
        return self.host_driver is not None

    @property
    def embedded(self) -> bool:
        """Return whether all parts run in this process."""
        return bool(self.given) or self.config.deploy.on == HERE

    def acker(self, plan: AckerPlan) -> Acker:
        """Make the configured acker.

        One that wraps another finds it by name, with the options of its own table.
        """
        assert self.acker_driver is not None
        driver, options = self.acker_driver
        return driver(options, dataclasses.replace(plan, make=lambda name, table: self._inner_acker(name, table, plan)))

    def _inner_acker(self, name: str, table: Mapping[str, object], plan: AckerPlan) -> Acker:
        driver: type[Acker] = self.plugins.guarded("acker", name)
        options = {**self.config.acker.tables.get(name, {}), **table}
        return driver(options_of(driver, options, f"acker.{name}", self.config.origins), plan)

    def described(self) -> dict[str, Any]:
        """Return what would run where, for people and programs; it holds no secret."""
        config = self.config

        def ends(section: str, vertices: Iterable[Vertex], edges: Mapping[str, Edge]) -> dict[str, object]:
            return {
                vertex.name: {
                    "use": self.drivers.get(f"{section}.{vertex.name}"),
                    "options": redacted(edges.get(vertex.name, Edge()).options),
                    **({"phase": edges[vertex.name].phase} if edges.get(vertex.name, Edge()).phase > 1 else {}),
                }
                for vertex in vertices
            }

        def choice(section: str, chosen: Choice) -> dict[str, object]:
            return {"use": chosen.use, "options": redacted(options_table(chosen))}

        return {
            "job": self.name,
            "flow": config.job.flow or self.flow.module,
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
            "dead_letter": self.drivers.get(DEAD_LETTERS),
            "hooks": list(config.hooks),
        }
