"""The configuration of a job: one frozen value made of a file, the environment and the command line.

    schema = 1
    [job]
    flow = "word_count.py:flow"
    workers = 4
    [transport]
    use = "inproc"
    [transport.inproc]
    serialise = true
    [source.lines]
    use = "lines"
    on_error = "skip"
    path = "book.txt"

Order of precedence: command line, then FLAMESTREAM__SECTION__KEY, then the file, then defaults. Nothing is imported
here: whether a driver exists and what its options must be is found by `flamecore.launch`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec

from flamecore import layers
from flamecore.errors import ConfigError
from flamecore.strict import Problems, convert, expand, unknown_key

S = TypeVar("S", bound=msgspec.Struct)
Table = dict[str, Any]
Policy = Literal["fail", "skip", "dead_letter"]
"""What becomes of a record that is malformed or that a user function fails on."""

SECTIONS: Final = ("job", "transport", "acker", "source", "sink", "dead_letter", "hooks", "deploy", "state", "registry")


class JobTable(msgspec.Struct, frozen=True, kw_only=True):
    """[job]: what runs, and how.

    Attributes:
        flow: Reference of the flow: `package.module:flow` or `file.py:flow`, relative to the configuration file.
        name: Name of the job; the flow's own name by default.
        workers: How many.
        owners: So many of them, at most, own key groups: run what goes by key, and keep its state. By default all do;
            half of them, rounded up, where that is only counting.
        clock: Where global times come from: a counter, or the wall clock.
        guarantee: `exactly_once` refuses sources and sinks that cannot keep it.
        on_error: What becomes of a record that a user function fails on.
        max_in_flight: Most items admitted and not yet delivered, for the whole job.
        barrier: Whether outputs wait for the minimum time; without it they leave at once, and nothing can be repaired.
        sink_timeout_s: How long a sink may take to store one batch, to make it durable, to open or to close.
        source_timeout_s: How long a source may take to leave off reading, to close, or to be told of a snapshot.
        grace_s: How long either may take, at most, once the job ends with an error.
    """

    flow: str = ""
    name: str = ""
    workers: Annotated[int, msgspec.Meta(ge=1)] = 1
    owners: Annotated[int, msgspec.Meta(ge=1)] | None = None
    clock: Literal["sequence", "wall"] = "sequence"
    guarantee: Literal["at_least_once", "exactly_once"] = "at_least_once"
    on_error: Policy = "fail"
    max_in_flight: Annotated[int, msgspec.Meta(ge=1)] = 8192
    barrier: bool = True
    sink_timeout_s: Annotated[float, msgspec.Meta(gt=0)] = 1800.0
    source_timeout_s: Annotated[float, msgspec.Meta(gt=0)] = 60.0
    grace_s: Annotated[float, msgspec.Meta(gt=0)] = 30.0


class DeployTable(msgspec.Struct, frozen=True, kw_only=True):
    """[deploy]: where the parts of a job live, when its transport reaches other processes.

    Attributes:
        on: What the nodes are started on: `processes` of this machine, or another host that is installed, such as
            `spark`. Its options stand in a table of its name.
        start: "local": the supervisor has the nodes started; "join": it waits for workers started elsewhere
            (`flamestream worker --join …`).
        acker: Where trackers live: with workers (the k-th with the k-th from the end: fewest messages), with the
            supervisor, or in processes of their own (`flamestream acker --join …`).
        start_timeout_s: How long workers may take to join and to open what they read.
        stop_timeout_s: How long they may take to end when told to.
        silence_timeout_s: A worker that is not heard of for this long is taken for dead. A user function that keeps a
            worker busy for longer, without a break, looks like that.
        restarts: After how many faults (a worker that died, a connection that was lost) within `restart_window_s` a job
            that keeps state gives up. One that keeps none gives up at the first.
        restart_window_s: See `restarts`.
    """

    on: str = "processes"
    start: Literal["local", "join"] = "local"
    acker: Literal["supervisor", "worker", "own"] = "worker"
    start_timeout_s: Annotated[float, msgspec.Meta(gt=0)] = 30.0
    stop_timeout_s: Annotated[float, msgspec.Meta(gt=0)] = 5.0
    silence_timeout_s: Annotated[float, msgspec.Meta(gt=0)] = 30.0
    restarts: Annotated[int, msgspec.Meta(ge=0)] = 10
    restart_window_s: Annotated[float, msgspec.Meta(gt=0)] = 60.0


class StateTable(msgspec.Struct, frozen=True, kw_only=True):
    """[state]: what the job remembers of its state, so that it goes on after a crash. Off unless `use` is given.

    Attributes:
        use: The store's driver; the table's other keys are its options. What is not said is taken from the table of
            the transport of that name, if there is one.
        interval_s: How often a snapshot is taken.
        max_uncommitted: Most records admitted since the last snapshot, for the whole job: bounds what is kept to make
            the next one.
        commit_timeout_s: How long one snapshot may take before the job ends with an error.
    """

    use: str | None = None
    interval_s: Annotated[float, msgspec.Meta(gt=0)] = 0.5
    max_uncommitted: Annotated[int, msgspec.Meta(ge=1)] = 1_000_000
    commit_timeout_s: Annotated[float, msgspec.Meta(gt=0)] = 100.0


class State(StateTable, frozen=True, kw_only=True):
    """[state], with the options of its driver."""

    options: Mapping[str, Any] = {}


class RegistryTable(msgspec.Struct, frozen=True, kw_only=True):
    """[registry]: where it is written who runs the job and where its parts are, when there are several processes.

    Attributes:
        use: The registry's driver; the table's other keys are its options. What is not said is taken from the table of
            the transport of that name, if there is one.
        lease_s: A supervisor that has said nothing for so long is gone, and another may take over.
    """

    use: str = "supervisor"
    lease_s: Annotated[float, msgspec.Meta(ge=0.1, le=3600)] = 5.0


class RegistryChoice(RegistryTable, frozen=True, kw_only=True):
    """[registry], with the options of its driver."""

    options: Mapping[str, Any] = {}


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """[transport] and [acker]: which one is used, and the options of each, also of those that are not used."""

    use: str
    tables: Mapping[str, Mapping[str, Any]] = {}


Phase = Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]


class Edge(msgspec.Struct, frozen=True, kw_only=True):
    """[source.X], [sink.X] and [dead_letter].

    Attributes:
        use: The driver's name; None: not said.
        on_error: Sources: what becomes of malformed records.
        phase: Which one in a series that take each other's place (`flamecore.phases`).
        options: The driver's options, references to the environment as written.
    """

    use: str | None = None
    on_error: Policy = "fail"
    phase: Phase = 1
    options: Mapping[str, Any] = {}


class _UseKey(msgspec.Struct, frozen=True):
    use: str | None = None


class _SinkKeys(_UseKey, frozen=True):
    phase: Phase = 1


class _SourceKeys(_SinkKeys, frozen=True):
    on_error: Policy = "fail"


_EDGE_KEYS: Final[Mapping[str, type[_UseKey]]] = {"source": _SourceKeys, "sink": _SinkKeys, "dead_letter": _UseKey}


class _HooksTable(msgspec.Struct, frozen=True):
    use: tuple[str, ...] = ()


class JobConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a configuration says, checked as far as that goes without importing a driver.

    Attributes:
        source: By the source's name in the flow.
        sink: By the sink's name in the flow.
        dead_letter: Where dead letters go; None: nowhere.
        hooks: Names of observers, in the order in which they are called.
        deploy: Where parts live, when there are several processes.
        hosts: Options of what nodes are started on, by name, also of those that are not used.
        state: Where state is kept; its `use` is None when none is.
        registry: Where it is written who runs the job.
        folder: What file references of `job.flow` are relative to.
        origins: Where values came from, by dotted key, for errors.
    """

    job: JobTable = JobTable()
    transport: Choice = Choice(use="inproc")
    acker: Choice = Choice(use="centralized")
    source: Mapping[str, Edge] = {}
    sink: Mapping[str, Edge] = {}
    dead_letter: Edge | None = None
    hooks: tuple[str, ...] = ()
    deploy: DeployTable = DeployTable()
    hosts: Mapping[str, Mapping[str, Any]] = {}
    state: State = State()
    registry: RegistryChoice = RegistryChoice()
    folder: Path = Path()
    origins: Mapping[str, str] = {}


def encode_config(config: JobConfig) -> bytes:
    """A configuration, for another process: as JSON. References to the environment stay as they are written."""
    return msgspec.json.encode(config, enc_hook=str)


def config_of_node(config: JobConfig) -> JobConfig:
    """A configuration, for a node: it starts no others, and need not know on what it was started itself."""
    deploy = msgspec.structs.replace(config.deploy, on=DeployTable().on)
    return msgspec.structs.replace(config, deploy=deploy)


def decode_config(data: bytes) -> JobConfig:
    """The configuration of another process."""
    return msgspec.json.decode(data, type=JobConfig, dec_hook=lambda kind, value: kind(value))


def read_config(
    file: Path | None = None,
    *,
    command: layers.Layer | None = None,
    environ: Mapping[str, str] | None = None,
    problems: Problems | None = None,
) -> JobConfig:
    """Read a job's configuration: file, environment and command line.

    Args:
        file: A TOML file; None: there is none.
        command: What the command line says (`flamecore.layers.from_command`).
        environ: The environment; that of the process by default.
        problems: Takes all that is wrong with single keys; without it the first problem is raised.

    Raises:
        ConfigError: The file cannot be read, or a value cannot be used.
        UnknownKeyError: Nobody reads a key.
    """
    environ = os.environ if environ is None else environ
    layer = layers.from_file(file) if file else layers.Layer()
    layer.overlay(layers.from_environment(environ))
    layer.overlay(command or layers.Layer())
    return make_config(layer, environ=environ, folder=file.parent if file else Path(), problems=problems)


def make_config(
    layer: layers.Layer,
    *,
    environ: Mapping[str, str] | None = None,
    folder: Path = Path(),
    problems: Problems | None = None,
) -> JobConfig:
    """Make a configuration of settings. Arguments and errors as for `read_config`; `environ` is for `${NAME}` alone."""
    found = Problems() if problems is None else problems
    config = _Reading(layer, os.environ if environ is None else environ, found).config(folder)
    if problems is None:
        found.raise_first()
    return config


class _Reading:
    """One pass over the merged tables; what is wrong is noted, and the defaults stand in for it."""

    def __init__(self, layer: layers.Layer, environ: Mapping[str, str], problems: Problems) -> None:
        self._table = layer.table
        self._origins = layer.origins
        self._environ = environ
        self._problems = problems

    def config(self, folder: Path) -> JobConfig:
        known: tuple[str, ...] = SECTIONS
        if not self._table.keys() <= {*SECTIONS}:
            from flamecore.registry import Registry

            known = (*SECTIONS, *Registry().names("host"))
        for key in self._table:
            if key not in known:
                self._problems.append(unknown_key(key, known, where=self._whence(key)))
        default = JobConfig()
        return JobConfig(
            job=self._job(),
            transport=self._choice("transport", default.transport),
            acker=self._choice("acker", default.acker),
            source=self._edges("source"),
            sink=self._edges("sink"),
            dead_letter=self._edge("dead_letter", self._section("dead_letter"))
            if "dead_letter" in self._table
            else None,
            hooks=self._struct("hooks", self._section("hooks"), _HooksTable).use,
            deploy=self._struct("deploy", self._section("deploy"), DeployTable),
            hosts={key: self._section(key) for key in self._table if key in known and key not in SECTIONS},
            state=State(**self._with_options("state", StateTable)),
            registry=RegistryChoice(**self._with_options("registry", RegistryTable)),
            folder=folder,
            origins=self._origins,
        )

    def _job(self) -> JobTable:
        """[job]. The table of what nodes are started on may have a number of workers of its own."""
        table = self._section("job")
        on = self._section("deploy").get("on")
        there = self._table.get(on, {}) if isinstance(on, str) and on not in SECTIONS else {}
        if isinstance(there, dict) and "workers" in there and "job.workers" not in self._origins:
            table = {**table, "workers": there["workers"]}
        return self._struct("job", table, JobTable)

    def _with_options(self, section: str, keys: type[msgspec.Struct]) -> dict[str, Any]:
        """The fields of a section that has keys of its own among the options of its driver."""
        table = self._section(section)
        own = {key: value for key, value in table.items() if key in keys.__struct_fields__}
        options = {key: value for key, value in table.items() if key not in own}
        return {**msgspec.structs.asdict(self._struct(section, own, keys)), "options": options}

    def _whence(self, path: str) -> str:
        under = (origin for key, origin in self._origins.items() if key == path or key.startswith(f"{path}."))
        return next((f" ({origin})" for origin in under), "")

    def _section(self, key: str) -> Table:
        return self._as_table(key, self._table.get(key, {}))

    def _as_table(self, path: str, value: Any) -> Table:
        if isinstance(value, dict):
            return value
        hint = f"Write [{path}], and its keys below it."
        self._problems.append(ConfigError(f"{path} must be a table{self._whence(path)}", hint=hint, path=path))
        return {}

    def _struct(self, path: str, raw: Table, type_: type[S]) -> S:
        # What is wrong is left out and the rest read again, so that one bad key does not hide what the others say.
        raw = dict(raw)
        while True:
            try:
                return convert(expand(raw, path, self._environ), type_, path, raw=raw, origins=self._origins)
            except ConfigError as error:
                self._problems.append(error)
                key = re.split(r"[.\[]", str(getattr(error, "path", "")).removeprefix(f"{path}."))[0]
                if raw.pop(key, None) is None:
                    return type_()

    def _choice(self, section: str, default: Choice) -> Choice:
        table = self._section(section)
        tables = {}
        for name, options in table.items():
            if name == "use":
                continue
            if isinstance(options, dict):
                tables[name] = options
            else:
                hint = f"Options of {section} NAME stand in a table of their own: [{section}.NAME]."
                path = f"{section}.{name}"
                self._problems.append(ConfigError(f"{path} must be a table{self._whence(path)}", hint=hint, path=path))
        keys = self._struct(section, {"use": table.get("use", default.use)}, _UseKey)
        return Choice(use=keys.use or default.use, tables=tables)

    def _edges(self, section: Literal["source", "sink"]) -> dict[str, Edge]:
        tables = self._section(section)
        return {
            name: self._edge(section, self._as_table(f"{section}.{name}", table), name)
            for name, table in tables.items()
        }

    def _edge(self, section: Literal["source", "sink", "dead_letter"], table: Table, name: str = "") -> Edge:
        keys = _EDGE_KEYS[section]
        own = {key: value for key, value in table.items() if key in keys.__struct_fields__}
        options = {key: value for key, value in table.items() if key not in own}
        read = self._struct(f"{section}.{name}" if name else section, own, keys)
        return Edge(**msgspec.structs.asdict(read), options=options)
