"""How the parts of a job are found and built; what is wrong is noted, and the rest looked at all the same."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from flamecore.config import Choice, Edge, JobConfig
from flamecore.demands import broken_by
from flamecore.errors import ConfigError
from flamecore.flow import Flow
from flamecore.front import EdgeContext, Source
from flamecore.graph import Graph, Vertex
from flamecore.hosting import Host
from flamecore.layout import Layout
from flamecore.options import options_of, options_table, registry_of, shared, store_of
from flamecore.plan import DEAD_LETTERS
from flamecore.rear import Sink
from flamecore.registry import Registry
from flamecore.strict import Problems, unknown_key

D = TypeVar("D")
E = TypeVar("E", Source, Sink)


class Builder:
    """Makes a layout. Arguments: see `flamecore.launch.lay_out`."""

    def __init__(
        self, config: JobConfig, flow: Flow, registry: Registry, given: Mapping[str, Any], problems: Problems
    ) -> None:
        self._config = config
        self._flow = flow
        self._registry = registry
        self._given = given
        self._problems = problems
        self._host: tuple[type[Host], Any] | None = None
        self._drivers: dict[str, str] = {}
        self._sources: dict[str, Source] = {}
        self._sinks: dict[str, Sink] = {}

    def build(self) -> Layout:
        """Find and build every part; what is wrong is noted."""
        graph = transport = acker = store = job_registry = None
        with self._problems.noted():
            graph = self._flow.graph(barrier=self._config.job.barrier)
        with self._problems.noted():
            self._settle()
        config = self._config
        with self._problems.noted():
            driver = self._registry.get("transport", config.transport.use)
            transport = self._strategy("transport", driver, config.transport)
        with self._problems.noted():
            acker = self._strategy("acker", self._registry.get("acker", config.acker.use), config.acker)
        if config.state.use is not None:
            with self._problems.noted():
                store = store_of(config, self._registry)
                self._drivers["state"] = config.state.use
        with self._problems.noted():
            job_registry = registry_of(config, self._registry)
            self._drivers["registry"] = config.registry.use
        observers = []
        for name in config.hooks:
            with self._problems.noted():
                observers.append(self._registry.get("hooks", name))
        layout = Layout(
            config=config,
            flow=self._flow,
            registry=self._registry,
            given=self._given,
            problems=self._problems,
            graph=graph,
            drivers=self._drivers,
            sources=self._sources,
            sinks=self._sinks,
            dead_letter=self._build_edges(graph) if graph is not None else None,
            observers=observers,
            chosen_transport=transport,
            chosen_acker=acker,
            chosen_store=store,
            chosen_registry=job_registry,
            chosen_host=self._host,
        )
        self._problems.extend(broken_by(layout))
        return layout

    def _build_edges(self, graph: Graph) -> Sink | None:
        """Find and build sources and sinks. Returns that of dead letters, if there is one."""
        self._known("source", self._config.source, graph.sources)
        self._known("sink", self._config.sink, graph.sinks)
        for vertex in graph.sources:
            with self._problems.noted():
                self._sources[vertex.name] = self._source(vertex.name, vertex.type)
        fingerprint = self._fingerprint(graph)
        for sink in graph.sinks:
            with self._problems.noted():
                self._sinks[sink.name] = self._sink(sink.name, sink.type, fingerprint)
        with self._problems.noted():
            return self._dead_letters(fingerprint)
        return None

    def _settle(self) -> None:
        """Find what nodes are started on, and have it say what is left open."""
        on = self._config.deploy.on
        driver = self._registry.get("host", on)
        name = on.rpartition(":")[2]
        options = options_of(driver, self._config.hosts.get(name, {}), name, self._config.origins)
        self._host = driver, options
        self._drivers["host"] = on
        self._config = driver.settle(options, self._config)

    def _strategy(self, kind: str, driver: type[D], choice: Choice) -> tuple[type[D], Any]:
        self._drivers[kind] = choice.use
        path = f"{kind}.{choice.use.rpartition(':')[2]}"
        return driver, options_of(driver, options_table(choice), path, self._config.origins)

    def _known(self, section: str, edges: Mapping[str, Edge], vertices: Iterable[Vertex]) -> None:
        known = [vertex.name for vertex in vertices]
        for name in edges:
            if name not in known:
                path = f"{section}.{name}"
                origin = next(
                    (f" ({o})" for key, o in self._config.origins.items() if f"{key}.".startswith(f"{path}.")), ""
                )
                where = f": flow {self._flow.name!r} has no such {section}{origin}"
                self._problems.append(unknown_key(path, known, where=where))

    def _source(self, name: str, type_: Any) -> Source:
        edge, given = self._config.source.get(name, Edge()), self._given.get(name)
        if name in self._given:
            edge = Edge(use="memory")
        if edge.use is None:
            raise ConfigError(
                f"source {name!r} has no driver",
                hint=f"Name one: --source {name}=stdin, or [source.{name}] use = … in a file; a program may hand "
                f"over its records. Installed: {', '.join(self._registry.names('source'))}.",
                path=f"source.{name}.use",
            )
        driver, context = self._registry.get("source", edge.use), EdgeContext(name, type_, given)
        return self._edge(driver, edge.use, f"source.{name}", edge, context)

    def _sink(self, name: str, type_: Any, fingerprint: str) -> Sink:
        edge = self._config.sink.get(name, Edge())
        given = self._given.get(name) if edge.use is None else None
        use = edge.use or ("stdout" if given is None else "memory")
        context = EdgeContext(name, type_, given, fingerprint)
        return self._edge(self._registry.get("sink", use), use, f"sink.{name}", edge, context)

    def _edge(self, driver: type[E], use: str, path: str, edge: Edge, context: EdgeContext) -> E:
        self._drivers[path] = use
        options = {**shared(self._config, use, driver), **edge.options}
        return driver(options_of(driver, options, path, self._config.origins), context)

    def _dead_letters(self, fingerprint: str) -> Sink | None:
        config = self._config
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
        if DEAD_LETTERS in self._sinks:
            raise ConfigError(
                f"the flow has a sink named {DEAD_LETTERS!r}, and dead letters go to a sink of that name",
                hint="Give the flow's sink another name.",
                path=f"sink.{DEAD_LETTERS}",
            )
        context = EdgeContext(DEAD_LETTERS, dict, None, fingerprint)
        driver = self._registry.get("sink", config.dead_letter.use)
        return self._edge(driver, config.dead_letter.use, DEAD_LETTERS, config.dead_letter, context)

    def _fingerprint(self, graph: Graph) -> str:
        """What the outputs depend on: the graph, the file that draws it, and the inputs."""
        inputs = {}
        for name, source in self._sources.items():
            with self._problems.noted():
                inputs[name] = (self._drivers[f"source.{name}"], source.fingerprint())
        file = getattr(sys.modules.get(self._flow.module), "__file__", None)
        facts = {
            "vertices": [(vertex.kind, vertex.name) for vertex in graph.vertices],
            "edges": [(start.name, end.name) for start, end in graph.edges],
            "code": hashlib.sha256(Path(file).read_bytes()).hexdigest() if file and Path(file).is_file() else "",
            "clock": self._config.job.clock,
            "inputs": inputs,
        }
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
