"""The resolution of a configuration and a flow to the parts of a job.

Problems are noted, and the rest is looked at all the same.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from msgspec.structs import replace

from flamecore.abc.config import AUTO, HERE, Choice, Edge, JobConfig, SinkEdge
from flamecore.abc.host import NodeHost
from flamecore.abc.sink import PartitionedSink, Sink
from flamecore.abc.source import EdgeContext, Source
from flamecore.errors import ConfigError, FlameError
from flamecore.model.failure import DeadLetter
from flamecore.model.flow import FlowGraph
from flamecore.model.graph import Graph, crossing_types
from flamecore.model.ordered import Marking, Ordered
from flamecore.model.plan import DEAD_LETTERS
from flamecore.model.vertices import Source as SourceVertex
from flamecore.model.vertices import Vertex, note_declaration
from flamecore.runtime.codec.codec import Codec
from flamecore.runtime.config import defaults
from flamecore.runtime.config.job_spec import Drivers, FlowCode, JobSpec
from flamecore.runtime.config.operators import plugin_operators
from flamecore.runtime.config.options import options_of, options_table, registry_of, shared, store_of, workers_on
from flamecore.runtime.config.paths import misplaced_state, whole_paths
from flamecore.runtime.config.place import Place, best_place
from flamecore.runtime.config.plugins import PluginRegistry
from flamecore.runtime.config.validate import Problems, unknown_key
from flamecore.runtime.operators.table import Operators

D = TypeVar("D")
E = TypeVar("E", Source, Sink)


@dataclass(slots=True)
class _Edges:
    """Sources and sinks of a job, their drivers by dotted key, and their problems."""

    sources: dict[str, Source] = field(default_factory=dict)
    sinks: dict[str, Sink] = field(default_factory=dict)
    dead_letter: Sink | None = None
    drivers: dict[str, str] = field(default_factory=dict)
    problems: Problems = field(default_factory=Problems)

    @property
    def all_sinks(self) -> dict[str, Sink]:
        return self.sinks | ({} if self.dead_letter is None else {DEAD_LETTERS: self.dead_letter})


class SpecBuilder:
    """A builder of one job spec; arguments as for `resolve`."""

    def __init__(
        self,
        config: JobConfig,
        flow: FlowGraph,
        plugins: PluginRegistry,
        given: Mapping[str, object],
        problems: Problems,
    ) -> None:
        self._config = config
        self._flow = flow
        self._plugins = plugins
        self._given = given
        self._problems = problems
        self._host: tuple[type[NodeHost], object] | None = None
        self._drivers: dict[str, str] = {}
        self._edges = _Edges()
        self._place = Place(config.deploy.on)

    def build(self) -> JobSpec:
        """Find and build every part; problems are noted."""
        graph = transport = acker = store = job_registry = None
        if (misplaced := misplaced_state(self._config, self._plugins)) is not None:
            self._problems.append(misplaced)
        self._config = whole_paths(self._config, self._plugins)
        with self._problems.noted():
            graph = self._flow.graph(barrier=self._config.job.barrier)
        # The place first: a host completes the configuration, the transport among others.
        self._settle(graph)
        config = self._config
        # Each part in a block of its own, so that one mistake does not hide the next.
        with self._problems.noted():
            driver = self._plugins.guarded("transport", config.transport.use)
            transport = self._strategy("transport", driver, config.transport)
        with self._problems.noted():
            acker = self._strategy("acker", self._plugins.guarded("acker", config.acker.use), config.acker)
        if config.state.use is not None:
            with self._problems.noted():
                store = store_of(config, self._plugins)
                self._drivers["state"] = config.state.use
        with self._problems.noted():
            job_registry = registry_of(config, self._plugins)
            self._drivers["registry"] = config.registry.use
        operators: Operators = {}
        if graph is not None:
            with self._problems.noted():
                operators = plugin_operators(graph, self._plugins)
        observers = []
        for name in config.hooks:
            with self._problems.noted():
                observers.append(self._plugins.guarded("hooks", name))
        # Edges may have been built twice: only the problems of the last time count.
        for problem in self._edges.problems:
            with self._problems.noted():
                raise problem
        spec = JobSpec(
            config=config,
            flow_code=FlowCode(self._flow),
            given=self._given,
            problems=self._problems,
            graph=graph,
            drivers=Drivers(
                names=self._drivers | self._edges.drivers,
                plugins=self._plugins,
                transport=transport,
                acker=acker,
                store=store,
                registry=job_registry,
                host=self._host,
            ),
            sources=self._edges.sources,
            sinks=self._edges.sinks,
            dead_letter=self._edges.dead_letter,
            operators=operators,
            observers=observers,
            at_home=self._place.because,
        )
        self._problems.extend(unmet_requirements(spec))
        return spec

    @property
    def _name(self) -> str:
        return self._config.job.name or self._flow.name

    def _settle(self, graph: Graph | None) -> None:
        """Choose where the job runs, complete the configuration, and build the edges."""
        said = self._config
        if said.deploy.on == AUTO:
            if graph is not None:  # sources and sinks know where they are at home
                self._build_edges(graph)
            with self._problems.noted():
                sinks = self._edges.all_sinks
                self._place = best_place(said, self._edges.sources, sinks, self._plugins, given=bool(self._given))
                self._move_to(self._place.on)
        if self._config.deploy.on not in (HERE, AUTO):
            with self._problems.noted():
                self._check_nothing_is_given()
                self._complete_config()
        if not self._config.transport.use:
            hosted = self._config.deploy.on not in (HERE, AUTO)
            transport = defaults.TRANSPORT_TO_HOST if hosted else defaults.TRANSPORT
            self._config = replace(self._config, transport=replace(self._config.transport, use=transport))
        self._config = whole_paths(self._config, self._plugins)  # also of the drivers that have been chosen here
        # Built again only if the host has changed what they are made of.
        same = all(getattr(self._config, key) == getattr(said, key) for key in ("source", "sink", "dead_letter"))
        if graph is not None and not (same and said.deploy.on == AUTO):
            self._build_edges(graph)

    def _check_nothing_is_given(self) -> None:
        if self._given:
            on = self._config.deploy.on
            names = [name for name in self._given if name != DEAD_LETTERS or name in self._edges.sources]
            raise ConfigError(
                f'deploy.on = "{on}", and a program hands over {", ".join(names)}: they are in its process alone',
                hint=f"Leave deploy.on out; or run the job by its file: flamestream run JOB.toml --on {on}",
                path="deploy.on",
            )

    def _move_to(self, on: str) -> None:
        """Set the place in the configuration, and apply the table of that host."""
        config = self._config
        job = config.job
        if workers := workers_on(config.hosts.get(on), config.origins):
            job = replace(job, workers=workers)
        self._config = replace(config, job=job, deploy=replace(config.deploy, on=on))

    def _complete_config(self) -> None:
        """Find the host, and have it complete the configuration."""
        on = self._config.deploy.on
        driver = self._plugins.guarded("host", on)
        self._drivers["host"] = on
        options = self._host_options(driver)
        self._host = driver, options
        self._config = driver.complete(options, self._config)
        # Read again: the host may have changed its own table, too.
        self._host = driver, self._host_options(driver)

    def _host_options(self, driver: type[NodeHost]) -> object:
        name = self._config.deploy.on.rpartition(":")[2]
        return options_of(driver, self._config.hosts.get(name, {}), name, self._config.origins)

    def _build_edges(self, graph: Graph) -> None:
        """Find and build sources and sinks."""
        self._edges = edges = _Edges()
        self._known("source", self._config.source, graph.sources)
        self._known("sink", self._config.sink, graph.sinks)
        for vertex in graph.sources:
            with edges.problems.noted():
                edges.sources[vertex.name] = self._source(vertex)
        fingerprint = self._fingerprint(graph)
        for sink in graph.sinks:
            with edges.problems.noted():
                edges.sinks[sink.name] = self._sink(sink.name, sink.type, fingerprint)
        with edges.problems.noted():
            edges.dead_letter = self._dead_letters(fingerprint)

    def _strategy(self, kind: str, driver: type[D], choice: Choice) -> tuple[type[D], object]:
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
                self._edges.problems.append(unknown_key(path, known, where=where))

    def _source(self, vertex: SourceVertex) -> Source:
        name = vertex.name
        edge, given = self._config.source.get(name, Edge()), self._given.get(name)
        if name in self._given:
            edge = Edge(use=defaults.HANDED_OVER)
        if edge.use is None:
            ways = f"Name one: --source {name}={defaults.EXAMPLE_SOURCE}, or [source.{name}] use = … in a file."
            if self._given:  # by a program
                ways = (
                    f"Hand over its records, flow.run({{{name!r}: …}}), or name one in settings: 'source.{name}.use'."
                )
            raise ConfigError(
                f"source {name!r} has no driver",
                hint=f"{ways} Installed: {', '.join(self._plugins.names('source'))}.",
                path=f"source.{name}.use",
            )
        keeps_state = self._config.state.use is not None
        path, folder = f"source.{name}", self._config.folder
        context = EdgeContext(name, vertex.type, given, job=self._name, keeps_state=keeps_state, folder=folder)
        driver: type[Source] = self._plugins.guarded("source", edge.use, path)
        return self._edge(driver, edge.use, path, edge, context)

    def _sink(self, name: str, type_: object, fingerprint: str) -> Sink:
        edge = self._config.sink.get(name, SinkEdge())
        given = self._given.get(name) if edge.use in (None, defaults.HANDED_OVER) else None
        use = edge.use or (defaults.SINK if given is None else defaults.HANDED_OVER)
        context = EdgeContext(name, type_, given, fingerprint, job=self._name, folder=self._config.folder)
        path = f"sink.{name}"
        driver: type[Sink] = self._plugins.guarded("sink", use, path)
        sink = self._edge(driver, use, path, edge, context)
        if edge.order == "ordered":
            return sink
        if (partitioned := sink.partitioned()) is None:
            such_as = " or ".join(defaults.PARTITIONED_SINKS)
            raise ConfigError(
                f'{path}.order = "partitioned", and {use} writes one sequence, which workers cannot share',
                hint=f"Leave it out; or use a sink that writes in partitions, such as {such_as}.",
                path=f"{path}.order",
            )
        return partitioned

    def _edge(self, driver: type[E], use: str, path: str, edge: Edge, context: EdgeContext) -> E:
        self._edges.drivers[path] = use
        options = {**shared(self._config, use, driver), **edge.options}
        return driver(options_of(driver, options, path, self._config.origins), context)

    def _dead_letters(self, fingerprint: str) -> Sink | None:
        config = self._config
        wanting = [f"source.{name}.on_error" for name, edge in config.source.items() if edge.on_error == DEAD_LETTERS]
        if config.job.on_error == DEAD_LETTERS:
            wanting.insert(0, "job.on_error")
        if not wanting:
            return None
        edge, given = config.dead_letter or Edge(), None
        if edge.use in (None, defaults.HANDED_OVER) and DEAD_LETTERS not in self._edges.sources:
            given = self._given.get(DEAD_LETTERS)
        use = edge.use or (None if given is None else defaults.HANDED_OVER)
        if use is None:
            raise ConfigError(
                f'{wanting[0]} = "dead_letter", and no sink for dead letters is configured',
                hint=f'For example: [dead_letter] use = "{defaults.FILE_OF_RECORDS}", path = "dead.jsonl"',
                path=DEAD_LETTERS,
            )
        if DEAD_LETTERS in self._edges.sinks:
            raise ConfigError(
                f"the flow has a sink named {DEAD_LETTERS!r}, and dead letters go to a sink of that name",
                hint="Give the flow's sink another name.",
                path=f"sink.{DEAD_LETTERS}",
            )
        folder = self._config.folder
        context = EdgeContext(DEAD_LETTERS, DeadLetter, given, fingerprint, job=self._name, folder=folder)
        driver: type[Sink] = self._plugins.guarded("sink", use, DEAD_LETTERS)
        if "mode" in getattr(driver.Options, "__struct_fields__", ()):  # a second run must not lose those of the first
            edge = replace(edge, options={"mode": "append", **edge.options})
        return self._edge(driver, use, DEAD_LETTERS, edge, context)

    def _fingerprint(self, graph: Graph) -> str:
        """Return a digest of all that outputs depend on.

        These are the graph, the file that draws it, and the inputs.
        """
        inputs = {}
        for name, source in self._edges.sources.items():
            with self._edges.problems.noted():
                inputs[name] = (self._edges.drivers[f"source.{name}"], source.fingerprint())
        # By its bytes, not by its path or age: the same flow in another folder resumes its output.
        file = getattr(sys.modules.get(self._flow.module), "__file__", None)
        facts = {
            "vertices": [(vertex.kind, vertex.name) for vertex in graph.vertices],
            "edges": [(start.name, end.name) for start, end in graph.edges],
            "code": hashlib.sha256(Path(file).read_bytes()).hexdigest() if file and Path(file).is_file() else "",
            "clock": self._config.job.clock,
            "inputs": inputs,
        }
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def unmet_requirements(spec: JobSpec) -> Iterator[FlameError]:
    """Yield the requirements that the parts of a job cannot meet."""
    yield from _uncrossable(spec)
    yield from _own_outputs(spec)
    yield from _shared_inputs(spec)
    if spec.config.state.use is None:
        yield from _one_phase(spec)
    else:
        yield from _ordered_state(spec)
        yield from _kept_open(spec)
    if spec.config.job.guarantee == "exactly_once":
        yield from _exactly_once(spec)
    if spec.config.job.clock == "sequence":
        yield from _wall_clock(spec)
    yield from _retractions(spec)
    if not spec.config.job.barrier:
        yield from _unordered_partitions(spec)


def _wall_clock(spec: JobSpec) -> Iterator[ConfigError]:
    """Yield an error for each operation on wall-clock times if times count records.

    Such an operation waits for times of the wall clock.
    """
    for vertex in spec.checked_graph.vertices:
        if vertex.wall:
            yield ConfigError(
                f'{vertex!r} waits for times of the wall clock, and with clock = "sequence" there are none',
                hint='Set job.clock = "wall", or have it wait for a number of items, or for the watermark.',
                path="job.clock",
            )


def _uncrossable(spec: JobSpec) -> Iterator[FlameError]:
    """Yield an error for each declared class whose values would go from process to process, and cannot."""
    if spec.embedded or spec.graph is None:
        return
    codec, told = Codec.of(spec.graph), set[str]()
    for vertex, hint in crossing_types(spec.graph):
        if (error := codec.unable(hint)) is not None and error.type_name not in told:
            told.add(error.type_name)
            yield note_declaration(error.going_to(vertex.name, f"{vertex!r}"), vertex)


def _shared_inputs(spec: JobSpec) -> Iterator[ConfigError]:
    """Yield the problem of several sources of standard input, which would each get a part of it."""
    reading = [name for name, source in spec.sources.items() if source.reads_stdin]
    if len(reading) > 1:
        yield ConfigError(
            f"sources {' and '.join(map(repr, reading))} would share the standard input, and tear its lines apart",
            hint="Let one source read it, and derive both streams from that.",
            path=f"source.{reading[1]}",
        )


def _own_outputs(spec: JobSpec) -> Iterator[ConfigError]:
    """Yield an error for every place that is written and read, or written twice."""
    sinks = {f"sink.{name}": sink for name, sink in spec.sinks.items()}
    if spec.dead_letter is not None:
        sinks[DEAD_LETTERS] = spec.dead_letter
    writers: dict[str, str] = {}
    for path, sink in sinks.items():
        for place in sink.writes():
            for name, source in spec.sources.items():
                if source.reads(place):
                    yield ConfigError(
                        f"source.{name} reads what {path} writes: {place}",
                        hint="Have the output go elsewhere: into a folder that is not read, or to a name that "
                        "the glob does not match.",
                        path=f"{path}.path",
                    )
            if (other := writers.setdefault(place, path)) != path:
                yield ConfigError(
                    f"{other} and {path} both write {place}",
                    hint="Give each a place of its own; or merge the streams before one sink.",
                    path=f"{path}.path",
                )


def _retractions(spec: JobSpec) -> Iterator[ConfigError]:
    """Yield an error for each sink that receives retractions and cannot take them.

    A retraction is a payload that takes another back; the sink's driver must allow it.
    """
    for vertex in spec.checked_graph.sinks:
        path = f"sink.{vertex.name}"
        sink = spec.sinks.get(vertex.name)  # None: its driver is a problem of its own
        if vertex.retracts and sink is not None and not sink.retractions:
            yield ConfigError(
                f"to sink {vertex.name!r} come retractions, outputs that take earlier ones back, and "
                f"{spec.drivers.names[path]} writes them like any other",
                hint="Have the operation before give no retractions; or, where those who read the output look for "
                f"them, say so: .sink({vertex.name!r}, retractions=True).",
                path=path,
            )


def _unordered_partitions(spec: JobSpec) -> Iterator[ConfigError]:
    """Yield an error for every sink in partitions of a job without the barrier.

    Partitions are merged, and cut, by the orders of outputs.
    """
    for name, sink in spec.sinks.items():
        if isinstance(sink, PartitionedSink):
            yield ConfigError(
                f'sink.{name}.order = "partitioned", and the barrier is off: partitions in no order cannot be merged',
                hint=f"Set job.barrier = true, or leave sink.{name}.order out.",
                path=f"sink.{name}.order",
            )


def _one_phase(spec: JobSpec) -> Iterator[ConfigError]:
    """Yield an error for every later phase of a job without state.

    Without state an earlier phase could not have left anything.
    """
    edges = [(f"source.{name}", edge) for name, edge in spec.config.source.items()]
    edges += [(f"sink.{name}", edge) for name, edge in spec.config.sink.items()]
    for path, edge in edges:
        if edge.phase > 1:
            yield ConfigError(
                f"{path}.phase is {edge.phase}, and the job keeps no state that an earlier phase could be in",
                hint="Configure [state] in the jobs of all phases, the same.",
                path=f"{path}.phase",
            )


def _ordered_state(spec: JobSpec) -> Iterator[ConfigError]:
    """Yield an error if state is kept without the barrier.

    A snapshot is of a time, and only the barrier holds outputs back until their time.
    """
    if not spec.config.job.barrier:
        yield ConfigError(
            "state is kept, and the barrier is off: immediate outputs could not be told from repeated ones",
            hint="Set job.barrier = true, or leave [state] out.",
            path="job.barrier",
        )


def _kept_open(spec: JobSpec) -> Iterator[ConfigError]:
    """Yield an error for each operation that waits for an end which state puts off.

    The end of a front is no mark in a job that a later run, with more records, goes on from.
    """
    graph = spec.checked_graph

    def markings(ordered: Vertex) -> Iterator[Vertex]:
        for before in graph.marks_before(ordered):
            yield from markings(before) if before.ordered else (before,)

    for vertex in graph.vertices:
        if isinstance(vertex, Ordered) and vertex.awaits_end:
            origins = [marking for marking in markings(vertex) if isinstance(marking, Marking)]
            if origins and not any(marking.closes for marking in origins):
                yield ConfigError(
                    f"{vertex!r} gives nothing before its input has ended, and a job that keeps state waits for more",
                    hint=f"Have {origins[0]!r} end its input with the run, for event_time by at_end='close'; leave "
                    "[state] out; or have it give outputs before, by windows that end or a trigger.",
                    path="state.use",
                )


def _exactly_once(spec: JobSpec) -> Iterator[ConfigError]:
    """Yield an error for every part that cannot keep the guarantee, with a remedy."""
    lacking: list[tuple[str, str, str]] = []
    if spec.config.job.clock == "wall" and spec.config.state.use is None:
        why = "times of the wall clock are others in a second run, and without state nothing keeps them"
        instead = f'job.clock = "sequence", or keep state: [state] use = "{defaults.STATE_IN_FOLDER}"'
        lacking.append(("job.clock", why, f"Use {instead}"))
    for name, source in spec.sources.items():
        if not source.capabilities.replayable:
            path = f"source.{name}"
            what = f"source {name!r} ({spec.drivers.names[path]}) cannot be read again from where it stopped"
            files = ", ".join(defaults.REPLAYABLE_SOURCES)
            instead = f"a source that can: write what comes to a file and read that ({files}), or to a stream"
            lacking.append((path, what, source.capabilities.remedy or f"Use {instead}"))
    sinks = {f"sink.{name}": sink for name, sink in spec.sinks.items()}
    if spec.dead_letter is not None:
        sinks[DEAD_LETTERS] = spec.dead_letter
    for path, sink in sinks.items():
        if sink.guarantee != "exactly_once":
            what = f"sink {sink.context.name!r} ({spec.drivers.names[path]}) promises only {sink.guarantee}"
            such_as = " or ".join(defaults.EXACTLY_ONCE_SINKS)
            lacking.append((path, what, f"Use a sink that stores the time of its output, such as {such_as}"))
    for path, what, remedy in lacking:
        hint = f'{remedy.rstrip(".")}; or set job.guarantee = "at_least_once".'
        yield ConfigError(f'job.guarantee = "exactly_once", but {what}', hint=hint, path=path)


def resolve(
    config: JobConfig,
    flow: FlowGraph,
    *,
    given: Mapping[str, object] | None = None,
    plugins: PluginRegistry | None = None,
    problems: Problems | None = None,
) -> JobSpec:
    """Find and build every part of a job, and note every problem.

    Starts nothing, opens nothing.

    Args:
        config: The configuration.
        flow: The flow to run.
        given: Values that a program hands over, by name of the source, and lists that take outputs, by name of the
            sink, and of dead letters. They use the driver for values handed over; a sink only if no other is configured
            for it.
        plugins: The installed plugins.
        problems: Takes the problems, besides those that it holds already.
    """
    found = Problems() if problems is None else problems
    return SpecBuilder(config, flow, plugins or PluginRegistry(), given or {}, found).build()
