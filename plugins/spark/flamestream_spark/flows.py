"""Flows over DataFrames: `run(flow, pages=df)`, and `df.transform(through(flow))`.

The flow runs in this process, or on Spark's workers, as `on_spark` and the master say. Executors read, order and pack
the input; outputs are written as Parquet as they come, and are DataFrames over these files, in a folder or an object
store.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from secrets import token_hex
from tempfile import mkdtemp
from typing import Any, ClassVar, Final

import msgspec
import pyarrow.parquet as pq

from flamecore.abc.config import HERE
from flamecore.abc.sink import Guarantee, Sink
from flamecore.abc.source import EdgeContext, SourceCapabilities
from flamecore.errors import ConfigError, FlameError, SinkError
from flamecore.flow import Flow
from flamecore.model.failure import DeadLetter
from flamecore.model.plan import DEAD_LETTERS
from flamecore.runtime.config.layers import from_program
from flamecore.runtime.config.plugins import override
from flamecore.runtime.config.read import make_config
from flamecore.runtime.config.resolve import resolve
from flamecore.runtime.config.validate import unknown_key
from flamecore.runtime.launch import checks_under_pytest, job_of, to_the_end
from flamecore.toolkit.places import is_url
from flamecore.toolkit.records.plain import Unencodable
from flamestream_spark.nodes.places import is_local
from flamestream_spark.placement import host_of
from flamestream_spark.scratch import make_temporary, remove_temporary, remove_with
from flamestream_spark.session.ending import told_of_end, while_there
from flamestream_spark.session.session import HOST, name_of, named_jobs, owned_by_thread, plain_interrupts
from flamestream_spark.source import SparkSource, SparkSourceOptions
from flamestream_spark.spool.feeding import Feeding
from flamestream_spark.spool.ordering import ORDER_BY, has_stable_order
from flamestream_spark.spool.spool import Spool
from flamestream_spark.storage.place import local_path
from flamestream_spark.storage.places import made, place_of
from flamestream_spark.tables.arrow import TIMES, Form, remedy, untyped_told, warn_untyped
from flamestream_spark.tables.columns import folds_case, kept_types, schema_of
from flamestream_spark.tables.outputs import read_output

_EDGE: Final = "spark-frame"
_PIECE: Final = 65_536


def run(
    flow: Flow,
    inputs: Mapping[str, Any] | None = None,
    /,
    *,
    workers: int = 2,
    order_by: str | Sequence[str] | Mapping[str, str | Sequence[str]] = (),
    scratch: str | Path | None = None,
    on_spark: bool | None = None,
    settings: Mapping[str, Any] | None = None,
    **frames: Any,
) -> Any:
    """Run a flow over DataFrames, to their end.

    Args:
        flow: The flow.
        inputs: DataFrames by name of the source; or give them by keyword.
        workers: How many workers share the work. The outputs do not depend on it.
        order_by: Columns that order the rows, "at desc" in descending order; for several sources, by name. Without
            them rows of files are in the order of their files; for everything else there is a warning, as a second run
            may see another order.
        scratch: A folder for the outputs, which executors reach too, or a URL of an object store; it must be kept for
            as long as the outputs are used. By default a temporary one, removed when nothing reads it any more: only
            where Spark runs on this machine.
        on_spark: Whether the workers are tasks of Spark, and not in the driver, which is this process. By default they
            are on every master but `local` ones, whatever the amount of data. The first line of the log says which.
        settings: More configuration, as dotted keys: {"source.pages.on_error": "skip"}. With `"dead_letter"` there,
            dead letters are one more output, of that name.
        frames: DataFrames by name of the source.

    Returns:
        A DataFrame of the outputs, or if there are several, each by its name. Columns are by the declared type, and
        `_time`, `_front`, `_place` behind them: ordered by these, rows are in the order of delivery.

    Raises:
        SourceError: Columns do not fit what the flow declares, or cannot be read.
        FlameError: As `Flow.run`.

    Example:
        counts = flamestream_spark.run(flow, lines=spark.read.text("books"))
    """
    given = {**(inputs or {}), **frames}
    check_frames(flow, given, "run")
    if isinstance(order_by, Mapping):
        check_named("order_by", order_by, flow)
    spark = next(iter(given.values())).sparkSession
    warn_untyped(_written_by(flow, settings or {}))
    with ExitStack() as undo, untyped_told(), told_of_end(spark), owned_by_thread(spark), plain_interrupts():
        place = _scratch(spark, scratch)
        if scratch is None:
            undo.callback(remove_temporary, Path(place))
        outputs = _run(flow, given, place, workers, order_by, on_spark, dict(settings or {}))
        if scratch is None:
            outputs = remove_with(outputs, Path(place))
        undo.pop_all()
    return next(iter(outputs.values())) if len(outputs) == 1 else outputs


def _written_by(flow: Flow, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the payload types of the sinks that are not configured otherwise, by name."""
    return {sink.name: sink.type for sink in flow.graph().sinks if f"sink.{sink.name}.use" not in settings}


def _run(
    flow: Flow,
    given: Mapping[str, Any],
    place: str,
    workers: int,
    order_by: str | Sequence[str] | Mapping[str, str | Sequence[str]],
    on_spark: bool | None,
    extra: dict[str, Any],
) -> dict[str, Any]:
    """Run a flow with outputs in a place, and return DataFrames over these."""
    spark = next(iter(given.values())).sparkSession
    types: dict[str, Any] = {sink.name: sink.type for sink in flow.graph().sinks}
    chosen: dict[str, Any] = {f"source.{name}.use": _EDGE for name in given}
    chosen |= {f"sink.{name}.use": _EDGE for name in types}
    if DEAD_LETTERS in extra.values() and f"{DEAD_LETTERS}.use" not in extra:
        chosen[f"{DEAD_LETTERS}.use"] = _EDGE
        types[DEAD_LETTERS] = DeadLetter
    orders = {name: _columns(order_by, name) for name in given}
    written = {name: type_ for name, type_ in types.items() if f"sink.{name}.use" not in extra}
    schemas = [schema_of(frame, name) for name, frame in given.items()]
    for name, type_ in written.items():
        if name != DEAD_LETTERS:
            extra.setdefault(f"sink.{name}.types", kept_types(type_, schemas, folded=folds_case(spark)))
    outputs = {name: f"{place}/{name}" for name in written}
    if host_of(spark, flow.name, on_spark=on_spark) == HERE:
        if is_url(place):
            chosen |= _written_to(outputs)
        with _edges({name: (given[name], orders[name]) for name in given}, place):
            chosen |= {"job.workers": workers, "deploy.on": HERE, **checks_under_pytest()}
            job = job_of(resolve(make_config(from_program(chosen | extra)), flow))
            to_the_end(while_there(spark, job.run))
    else:
        sources = {name: _as_source(flow, name, given[name], orders[name], place) for name in given}
        run_on_spark(spark, flow, sources, outputs, workers, extra)
    frames = {}
    for name, type_ in written.items():
        with named_jobs(spark, name_of(flow.name, f"look at {name}")):
            frames[name] = _written(spark, outputs[name], type_, extra.get(f"sink.{name}.types"))
    return frames


def through(flow: Flow, *, source: str = "", sink: str = "", **options: Any) -> Callable[[Any], Any]:
    """Return a function for `df.transform` that sends the rows through a flow.

    Args:
        flow: The flow.
        source: Name of the source they enter by; may be left out if there is one.
        sink: Name of the sink whose outputs are handed on; may be left out if there is one.
        options: Options of `run`.

    Raises:
        ConfigError: The flow has several, and none is named.

    Example:
        counts = spark.read.text("books").transform(through(flow))
    """
    graph = flow.graph()
    entry = _only("source", source, [vertex.name for vertex in graph.sources], flow)
    exit_ = _only("sink", sink, [vertex.name for vertex in graph.sinks], flow)

    def transform(frame: Any) -> Any:
        found = run(flow, {entry: frame}, **options)
        return found[exit_] if isinstance(found, dict) else found

    return transform


def check_frames(flow: Flow, given: Mapping[str, object], function: str) -> None:
    """Check that DataFrames are given, for sources of the flow alone.

    Args:
        flow: The flow.
        given: The inputs, by name of the source.
        function: Name of the function that they are given to, for errors.

    Raises:
        UnknownKeyError: The flow has no such source.
        ConfigError: None is given, or something else.
    """
    names = [source.name for source in flow.graph().sources]
    for name, frame in given.items():
        if name not in names:
            raise unknown_key(f"source.{name}", names, where=f": flow {flow.name!r} has no such source (DataFrames)")
        if not hasattr(frame, "sparkSession"):
            raise ConfigError(
                f"source.{name}: an object of type {type(frame).__name__} is given, and is to be a DataFrame of Spark",
                hint="Make one: spark.createDataFrame(…).",
                path=f"source.{name}",
            )
    if not given:
        hint = f"Give one: {function}(flow, {names[0]}=df)."
        raise ConfigError("no DataFrame is given", hint=hint, path=f"source.{names[0]}")


def check_named(argument: str, given: Mapping[str, object], flow: Flow) -> None:
    """Check that an argument by name of the source names sources of the flow alone.

    Args:
        argument: Name of the argument, for errors.
        given: The argument.
        flow: The flow.

    Raises:
        UnknownKeyError: The flow has no such source.
    """
    names = [source.name for source in flow.graph().sources]
    for name in given:
        if name not in names:
            raise unknown_key(f"{argument}.{name}", names, where=f": flow {flow.name!r} has no such source")


def _only(kind: str, wanted: str, names: Sequence[str], flow: Flow) -> str:
    if wanted in names:
        return wanted
    if wanted:
        raise unknown_key(f"{kind}.{wanted}", names, where=f": flow {flow.name!r} has no such {kind}")
    if len(names) != 1:
        raise ConfigError(
            f"flow {flow.name!r} has the {kind}s {', '.join(names)}",
            hint=f'Say which: through(flow, {kind}="{names[0]}").',
            path=kind,
        )
    return names[0]


def _columns(order_by: Any, name: str) -> tuple[str, ...]:
    wanted = order_by.get(name, ()) if isinstance(order_by, Mapping) else order_by
    return (wanted,) if isinstance(wanted, str) else tuple(wanted)


def _master(spark: Any) -> str:
    return str(spark.conf.get("spark.master", ""))


def _as_source(flow: Flow, name: str, frame: Any, order_by: tuple[str, ...], place: str) -> FrameSource:
    (vertex,) = (source for source in flow.graph().sources if source.name == name)
    frames = {name: (frame, order_by)}
    driver: type[FrameSource] = type("FrameSource", (FrameSource,), {"frames": frames, "place": place})
    return driver(None, EdgeContext(name, vertex.type, job=flow.name))


def _written_to(outputs: Mapping[str, str]) -> dict[str, Any]:
    """Return configuration by which sinks write these places."""
    chosen: dict[str, Any] = {}
    for name, url in outputs.items():
        where = name if name == DEAD_LETTERS else f"sink.{name}"
        chosen |= {f"{where}.use": "spark", f"{where}.path": url, f"{where}.times": True}
    return chosen


def _written(spark: Any, url: str, type_: Any, types: Mapping[str, str] | None) -> Any:
    """Return a DataFrame of what a sink has written, which may be nothing."""
    if any(name.startswith("part-") for name in place_of(url, "scratch").names()):
        return read_output(spark, url)
    return spark.createDataFrame(Form.of(type_, times=True, types=types).schema.empty_table())


def _scratch(spark: Any, scratch: str | Path | None) -> str:
    if scratch is not None:
        if is_url(str(scratch)):
            return made(scratch, "scratch").at(f"run-{token_hex(8)}")
        return mkdtemp(prefix="run-", dir=made(local_path(str(scratch)).absolute(), "scratch").url)
    master = _master(spark)
    if not is_local(master):
        raise ConfigError(
            f"Spark runs at {master or 'another place'}, whose executors do not see the temporary files here",
            hint='Name a folder that both reach: run(flow, …, scratch="/mnt/shared/tmp").',
            path="scratch",
        )
    return str(make_temporary())


@contextlib.contextmanager
def _edges(frames: Mapping[str, tuple[Any, tuple[str, ...]]], place: str) -> Iterator[None]:
    """Provide the driver `spark-frame` for these DataFrames, and files in a folder."""
    source = type("FrameSource", (FrameSource,), {"frames": frames, "place": place})
    sink = type("FrameSink", (FrameSink,), {"place": place})
    with ExitStack() as stack:
        stack.enter_context(override("source", _EDGE, source))
        stack.enter_context(override("sink", _EDGE, sink))
        yield


def run_on_spark(
    spark: Any,
    flow: Flow,
    sources: Mapping[str, FrameSource],
    outputs: Mapping[str, str],
    workers: int,
    settings: Mapping[str, Any],
) -> None:
    """Run a flow over DataFrames with workers that are tasks of Spark.

    Args:
        spark: The session.
        flow: The flow.
        sources: The DataFrames, by name of the source.
        outputs: A folder or URL for each sink.
        workers: How many.
        settings: More configuration.

    Raises as `run`.
    """
    chosen: dict[str, Any] = {"job.workers": workers, "deploy.on": HOST}
    for name, source in sources.items():
        chosen |= {f"source.{name}.use": "spark", f"source.{name}.spool": source.folder, f"source.{name}.ends": True}
        chosen[f"source.{name}.order_by"] = list(source.options.order_by)
    chosen |= _written_to(outputs)
    config = make_config(from_program(chosen | dict(settings)))
    for name, source in sources.items():
        if config.job.guarantee == "exactly_once" and not source.capabilities.replayable:
            raise ConfigError(
                f'job.guarantee = "exactly_once", but the rows of source {name!r} have no stable order',
                hint=f'{ORDER_BY.rstrip(".")}; or set job.guarantee = "at_least_once".',
                path=f"source.{name}.order_by",
            )
    job = job_of(resolve(config, flow))
    feeding: list[Feeding] = []
    try:
        feeding.extend(source.start() for source in sources.values())
        to_the_end(while_there(spark, job.run))
    except FlameError:
        if failed := next((one.error for one in feeding if one.error is not None), None):
            raise failed from failed.__cause__  # which the worker that has read it can only repeat
        raise
    finally:
        for one in feeding:
            one.stop()
        for source in sources.values():
            with contextlib.suppress(OSError):  # the outputs are there
                place_of(source.folder, "scratch").clear()


class FrameSource(SparkSource):
    """The rows of a DataFrame of the program."""

    name: ClassVar[str] = _EDGE
    Options: ClassVar[Any] = None
    frames: ClassVar[Mapping[str, tuple[Any, tuple[str, ...]]]]
    place: ClassVar[str]

    def __init__(self, options: Any, context: EdgeContext) -> None:
        self._frame, order_by = self.frames[context.name]
        super().__init__(SparkSourceOptions(sql="given", order_by=order_by), context)

    @cached_property
    def _stable(self) -> bool:
        return bool(self.options.order_by) or has_stable_order(self._frame)

    @property
    def capabilities(self) -> SourceCapabilities:
        return SourceCapabilities(replayable=self._stable, bounded=True, remedy="" if self._stable else ORDER_BY)

    def fingerprint(self) -> str:
        return ""

    def frame(self, spark: Any) -> Any:
        return self._frame

    @property
    def folder(self) -> str:
        """Return the folder or URL that the rows pass through."""
        return f"{self.place}/.spool-{self.context.name}"

    def _spool(self, spark: Any, stack: ExitStack) -> tuple[Spool, bool]:
        return Spool(self.folder, self.context.name, durable=False), True

    def start(self) -> Feeding:
        """Begin to fill the spool."""
        spool = Spool(self.folder, self.context.name, durable=False)
        return self._feeding(self._frame.sparkSession, spool)


class FrameSinkOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Options of the sink.

    Attributes:
        types: As of the sink `spark`.
    """

    types: dict[str, str] = {}


class FrameSink(Sink):
    """Parquet files of many batches each, whole when the job has ended."""

    name: ClassVar[str] = _EDGE
    Options: ClassVar[Any] = FrameSinkOptions
    wants_orders = True
    place: ClassVar[str]

    def __init__(self, options: Any, context: EdgeContext) -> None:
        super().__init__(options, context)
        self._form = Form.of(context.type, times=True, types=options.types, where=f"sink.{context.name}.types")
        self._payloads: list[Any] = []
        self._orders: list[bytes] = []
        self._writer: Any = None

    @property
    def guarantee(self) -> Guarantee:
        return "at_least_once"

    async def open(self) -> int:
        folder = Path(self.place, self.context.name)
        folder.mkdir()
        self._writer = pq.ParquetWriter(folder / "part-0.parquet", self._form.schema)
        return await super().open()

    async def write(self, time: int, payloads: Sequence[Any]) -> None:
        raise AssertionError("it wants orders")

    async def write_ordered(self, time: int, orders: Sequence[bytes], payloads: Sequence[Any]) -> None:
        self._payloads += payloads
        self._orders += orders
        if len(self._payloads) >= _PIECE:
            await asyncio.to_thread(self._flush)

    def _flush(self) -> None:
        payloads, orders = self._payloads, self._orders
        self._payloads, self._orders = [], []
        try:
            self._writer.write_table(self._form.make(payloads, orders))
        except (Unencodable, OSError) as error:
            raise SinkError(
                f"sink {self.context.name!r}: {error}",
                hint=remedy(error),
                sink=self.context.name,
            ) from error

    async def aclose(self) -> None:
        writer = self._writer
        if writer is None:
            return
        try:
            if self._payloads:
                await asyncio.to_thread(self._flush)
        finally:
            self._writer = None
            writer.close()


__all__ = ["TIMES", "run", "through"]
