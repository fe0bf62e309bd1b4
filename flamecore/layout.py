"""The parts of a job, as a configuration makes them of a flow, and all that is wrong with them."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flamecore.acker import Acker, AckerPlan
from flamecore.config import Choice, Edge, JobConfig
from flamecore.demands import broken_by
from flamecore.errors import ConfigError, FlameError
from flamecore.flow import Flow
from flamecore.front import EdgeContext, Source
from flamecore.graph import Graph, Vertex, user_functions
from flamecore.hosting import Host, HostContext
from flamecore.jobregistry import JobRegistry, RegistryContext
from flamecore.options import options_of, options_table, registry_of, shared, store_of
from flamecore.placement import node_options
from flamecore.plan import DEAD_LETTERS
from flamecore.rear import Sink
from flamecore.reference import code_of, copy_of
from flamecore.registry import Kind, Registry
from flamecore.store import Store, StoreContext
from flamecore.strict import Problems, redacted, unknown_key
from flamecore.transport import Transport, TransportContext

if TYPE_CHECKING:
    from flamecore.commits import StateSettings
    from flamecore.phases import Phases
    from flamecore.settings import JobSettings


@dataclasses.dataclass(slots=True)
class Layout:
    """What a configuration makes of a flow: which part is run by what, and all that is wrong.

    Attributes:
        graph: The checked graph; None if it cannot work.
        drivers: Name of the driver of each part, by dotted key: "transport", "source.lines", …
        problems: Everything found to be wrong.
    """

    config: JobConfig
    flow: Flow
    registry: Registry
    given: Mapping[str, Any]
    problems: Problems
    graph: Graph | None = None
    drivers: dict[str, str] = dataclasses.field(default_factory=dict)
    sources: dict[str, Source] = dataclasses.field(default_factory=dict)
    sinks: dict[str, Sink] = dataclasses.field(default_factory=dict)
    dead_letter: Sink | None = None
    observers: list[Any] = dataclasses.field(default_factory=list)
    _transport: tuple[type[Transport], Any] | None = None
    _acker: tuple[type[Acker], Any] | None = None
    _store: tuple[type[Store], Any] | None = None
    _job_registry: tuple[type[JobRegistry], Any] | None = None
    _host: tuple[type[Host], Any] | None = None

    @property
    def name(self) -> str:
        """Name of the job."""
        return self.config.job.name or self.flow.name

    @property
    def code(self) -> str:
        """A fingerprint of the flow's source, as it lies on the disk now."""
        assert self.graph is not None
        return code_of(self.flow, [function for vertex in self.graph.vertices for function in user_functions(vertex)])

    def copy(self) -> dict[str, bytes]:
        """The flow's source, for where its files are not: see `flamecore.reference.copy_of`."""
        assert self.graph is not None
        return copy_of(self.flow, [function for vertex in self.graph.vertices for function in user_functions(vertex)])

    @property
    def settings(self) -> JobSettings:
        """How the job runs."""
        from flamecore.settings import JobSettings

        job = self.config.job
        return JobSettings(
            workers=job.workers,
            owners=job.owners,
            clock=job.clock,
            barrier=job.barrier,
            max_in_flight=job.max_in_flight,
            on_error=job.on_error,
            source_policies={name: edge.on_error for name, edge in self.config.source.items()},
            phases=self._phases,
            dead_letter=self.dead_letter,
            name=self.name,
            sink_timeout_s=job.sink_timeout_s,
            source_timeout_s=job.source_timeout_s,
            state=self._state_settings,
        )

    @property
    def _phases(self) -> Phases:
        from flamecore.phases import Phases

        config = self.config
        return Phases(
            {name: edge.phase for name, edge in config.source.items()},
            {name: edge.phase for name, edge in config.sink.items()},
        )

    @property
    def _state_settings(self) -> StateSettings | None:
        from flamecore.commits import StateSettings

        state = self.config.state
        if state.use is None:
            return None
        return StateSettings(state.interval_s, state.max_uncommitted, state.commit_timeout_s)

    def store(self) -> Store | None:
        """Make the configured store of snapshots, if there is one; it is not open."""
        if self._store is None:
            return None
        driver, options = self._store
        return driver(options, StoreContext(self.name, self.config.folder))

    @property
    def sink_names(self) -> tuple[str, ...]:
        """Names of all sinks, that of dead letters among them if there is one."""
        return (*self.sinks, *((DEAD_LETTERS,) if self.dead_letter is not None else ()))

    def keep_sinks(self, other: Layout, names: Collection[str]) -> None:
        """Take the sinks of these names, which are open, over from another layout."""
        self.sinks |= {name: sink for name, sink in other.sinks.items() if name in names}
        if DEAD_LETTERS in names:
            self.dead_letter = other.dead_letter

    @property
    def transport_table(self) -> Mapping[str, Any]:
        """Options of the transport, as written."""
        return options_table(self.config.transport)

    @property
    def has_transport(self) -> bool:
        """Whether the configured transport is there to be made."""
        return self._transport is not None

    @property
    def has_acker(self) -> bool:
        """Whether the configured acker is there to be made."""
        return self._acker is not None

    def transport(self, context: TransportContext, *, beside: bool = False) -> Transport:
        """Make the configured transport: the supervisor's, or that of a process that it starts `beside` itself."""
        assert self._transport is not None
        driver, options = self._transport
        if beside:
            table = node_options(self.transport_table)
            options = options_of(driver, table, f"transport.{driver.name}", self.config.origins)
        return driver(options, context)

    @property
    def is_listed(self) -> bool:
        """Whether processes elsewhere find the job in its registry."""
        return self._job_registry is not None and self.job_registry(RegistryContext()).capabilities.shared

    def job_registry(self, context: RegistryContext) -> JobRegistry:
        """Make the configured registry of jobs."""
        assert self._job_registry is not None
        driver, options = self._job_registry
        return driver(options, context)

    def host(
        self,
        died: Callable[[str, str, Sequence[str]], None] | None = None,
        failed: Callable[[FlameError], None] | None = None,
    ) -> Host:
        """Make what nodes are started on. Arguments: see `HostContext`; without them it is only asked."""
        assert self._host is not None
        driver, options = self._host
        context = HostContext(self.name, self.config, self.drivers, self.store(), self.copy)
        if died is not None and failed is not None:
            context = dataclasses.replace(context, died=died, failed=failed)
        return driver(options, context)

    @property
    def has_host(self) -> bool:
        """Whether what nodes are to be started on is there to be made."""
        return self._host is not None

    def acker(self, plan: AckerPlan) -> Acker:
        """Make the configured acker; one that wraps another finds it by name, with the options of its own table."""
        assert self._acker is not None
        driver, options = self._acker
        return driver(options, dataclasses.replace(plan, make=lambda name, table: self._inner_acker(name, table, plan)))

    def _inner_acker(self, name: str, table: Mapping[str, Any], plan: AckerPlan) -> Acker:
        driver = self.registry.get("acker", name)
        options = {**self.config.acker.tables.get(name, {}), **table}
        inner: Acker = driver(options_of(driver, options, f"acker.{name}", self.config.origins), plan)
        return inner

    def described(self) -> dict[str, Any]:
        """What would run where, for people and programs. Holds no secret."""
        config = self.config

        def ends(section: str, vertices: Iterable[Vertex], edges: Mapping[str, Edge]) -> dict[str, Any]:
            return {
                vertex.name: {
                    "use": self.drivers.get(f"{section}.{vertex.name}"),
                    "options": redacted(edges.get(vertex.name, Edge()).options),
                    **({"phase": edges[vertex.name].phase} if edges.get(vertex.name, Edge()).phase > 1 else {}),
                }
                for vertex in vertices
            }

        def choice(section: str, chosen: Choice) -> dict[str, Any]:
            return {"use": chosen.use, "options": redacted(options_table(chosen))}

        return {
            "job": self.name,
            "flow": config.job.flow or self.flow.module,
            **{key: getattr(config.job, key) for key in ("workers", "clock", "guarantee", "on_error", "max_in_flight")},
            "on": {"use": config.deploy.on, "options": redacted(config.hosts.get(config.deploy.on, {}))},
            "transport": choice("transport", config.transport),
            "acker": choice("acker", config.acker),
            "registry": {"use": config.registry.use, "options": redacted(config.registry.options)},
            "state": {"use": config.state.use, "options": redacted(config.state.options)} if config.state.use else None,
            "sources": ends("source", self.graph.sources if self.graph else (), config.source),
            "sinks": ends("sink", self.graph.sinks if self.graph else (), config.sink),
            "dead_letter": self.drivers.get(DEAD_LETTERS),
            "hooks": list(config.hooks),
        }

    # -- building ----------------------------------------------------------------------------------------------------

    def build(self) -> Layout:
        """Find and build every part; what is wrong is noted."""
        with self.problems.noted():
            self.graph = self.flow.graph(barrier=self.config.job.barrier)
        with self.problems.noted():
            self._settle()
        self._transport = self._strategy("transport", self.config.transport)
        self._acker = self._strategy("acker", self.config.acker)
        if self.config.state.use is not None:
            with self.problems.noted():
                self._store = store_of(self.config, self.registry)
                self.drivers["state"] = self.config.state.use
        with self.problems.noted():
            self._job_registry = registry_of(self.config, self.registry)
            self.drivers["registry"] = self.config.registry.use
        for name in self.config.hooks:
            with self.problems.noted():
                self.observers.append(self.registry.get("hooks", name))
        if self.graph is not None:
            self._known("source", self.config.source, self.graph.sources)
            self._known("sink", self.config.sink, self.graph.sinks)
            for vertex in self.graph.sources:
                with self.problems.noted():
                    self.sources[vertex.name] = self._source(vertex.name, vertex.type)
            fingerprint = self._fingerprint()
            for sink in self.graph.sinks:
                with self.problems.noted():
                    self.sinks[sink.name] = self._sink(sink.name, sink.type, fingerprint)
            with self.problems.noted():
                self.dead_letter = self._dead_letters(fingerprint)
        self.problems.extend(broken_by(self))
        return self

    def _settle(self) -> None:
        """Find what nodes are started on, and have it say what is left open."""
        on = self.config.deploy.on
        driver: type[Host] = self.registry.get("host", on)
        name = on.rpartition(":")[2]
        options = options_of(driver, self.config.hosts.get(name, {}), name, self.config.origins)
        self._host = driver, options
        self.drivers["host"] = on
        self.config = driver.settle(options, self.config)

    def _strategy(self, kind: Kind, choice: Choice) -> tuple[type[Any], Any] | None:
        with self.problems.noted():
            driver = self.registry.get(kind, choice.use)
            self.drivers[kind] = choice.use
            path = f"{kind}.{choice.use.rpartition(':')[2]}"
            return driver, options_of(driver, options_table(choice), path, self.config.origins)
        return None

    def _known(self, section: str, edges: Mapping[str, Edge], vertices: Iterable[Vertex]) -> None:
        known = [vertex.name for vertex in vertices]
        for name in edges:
            if name not in known:
                path = f"{section}.{name}"
                origin = next(
                    (f" ({o})" for key, o in self.config.origins.items() if f"{key}.".startswith(f"{path}.")), ""
                )
                where = f": flow {self.flow.name!r} has no such {section}{origin}"
                self.problems.append(unknown_key(path, known, where=where))

    def _source(self, name: str, type_: Any) -> Source:
        if name in self.given:
            given: Source = self._edge("source", Edge(use="memory"), EdgeContext(name, type_, self.given[name]))
            return given
        edge = self.config.source.get(name, Edge())
        if edge.use is None:
            raise ConfigError(
                f"source {name!r} has no driver",
                hint=f"Name one: --source {name}=stdin, or [source.{name}] use = … in a file. "
                f"Installed: {', '.join(self.registry.names('source'))}.",
                path=f"source.{name}.use",
            )
        source: Source = self._edge("source", edge, EdgeContext(name, type_))
        return source

    def _sink(self, name: str, type_: Any, fingerprint: str) -> Sink:
        edge = self.config.sink.get(name, Edge())
        given = self.given.get(name) if edge.use is None else None
        if given is not None:
            edge = Edge(use="memory", options=edge.options)
        sink: Sink = self._edge("sink", edge, EdgeContext(name, type_, given, fingerprint))
        return sink

    def _edge(self, kind: Kind, edge: Edge, context: EdgeContext, path: str = "") -> Any:
        path = path or f"{kind}.{context.name}"
        use = edge.use or "stdout"
        driver = self.registry.get(kind, use)
        self.drivers[path] = use
        options = {**shared(self.config, use, driver), **edge.options}
        return driver(options_of(driver, options, path, self.config.origins), context)

    def _dead_letters(self, fingerprint: str) -> Sink | None:
        config = self.config
        wanting = [f"source.{name}.on_error" for name, edge in config.source.items() if edge.on_error == DEAD_LETTERS]
        if config.job.on_error == DEAD_LETTERS:
            wanting.insert(0, "job.on_error")
        if not wanting:
            return None
        if config.dead_letter is None or config.dead_letter.use is None:
            raise ConfigError(
                f'{wanting[0]} = "dead_letter", and nothing says where dead letters go',
                hint='For example: [dead_letter] use = "jsonl", path = "dead.jsonl"',
                path=DEAD_LETTERS,
            )
        if DEAD_LETTERS in self.sinks:
            raise ConfigError(
                f"the flow has a sink named {DEAD_LETTERS!r}, and dead letters go to a sink of that name",
                hint="Give the flow's sink another name.",
                path=f"sink.{DEAD_LETTERS}",
            )
        context = EdgeContext(DEAD_LETTERS, dict, None, fingerprint)
        sink: Sink = self._edge("sink", config.dead_letter, context, DEAD_LETTERS)
        return sink

    def _fingerprint(self) -> str:
        """What the outputs depend on: the graph, the file that draws it, and the inputs."""
        assert self.graph is not None
        inputs = {}
        for name, source in self.sources.items():
            with self.problems.noted():
                inputs[name] = (self.drivers[f"source.{name}"], source.fingerprint())
        file = getattr(sys.modules.get(self.flow.module), "__file__", None)
        facts = {
            "vertices": [(vertex.kind, vertex.name) for vertex in self.graph.vertices],
            "edges": [(start.name, end.name) for start, end in self.graph.edges],
            "code": hashlib.sha256(Path(file).read_bytes()).hexdigest() if file and Path(file).is_file() else "",
            "clock": self.config.job.clock,
            "inputs": inputs,
        }
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
