"""Streaming DataFrames through a flow: `stream(flow, pages=df, checkpoint=…)`.

    CHECKPOINT/_flow.json       which flow it belongs to
    CHECKPOINT/spool/SOURCE     what Spark has read, until a snapshot of the job covers it
    CHECKPOINT/query/SOURCE     how far Spark is; written by Spark
    CHECKPOINT/state/           snapshots of the job
    CHECKPOINT/output/SINK/     its outputs: what `Streaming.output` gives

CHECKPOINT is a folder, or a URL of an object store. The job runs on a thread of the program, or on
Spark's workers. Outputs come as soon as they are known, not with the batches of Spark.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from weakref import WeakValueDictionary

from flamecore.errors import ConfigError, JobError
from flamecore.flow import Flow
from flamecore.runtime.config.job_spec import JobSpec
from flamecore.runtime.config.layers import from_program
from flamecore.runtime.config.read import make_config
from flamecore.runtime.config.resolve import resolve
from flamecore.runtime.engine.job import AnyJob
from flamecore.runtime.launch import job_of
from flamecore.toolkit.places import is_url
from flamestream_spark.checkpoint import Checkpoint
from flamestream_spark.flows import check_frames, check_named
from flamestream_spark.placement import host_of
from flamestream_spark.queries import OutputMode, Query
from flamestream_spark.session.ending import told_of_end, while_there
from flamestream_spark.session.session import is_gone, owned_by_thread, plain_interrupts, spark_thread
from flamestream_spark.spool.spool import Spool
from flamestream_spark.storage.hadoop import check_reach
from flamestream_spark.storage.objects import check_url
from flamestream_spark.storage.place import Place, local_path
from flamestream_spark.storage.places import made, place_of
from flamestream_spark.tables.arrow import untyped_told, warn_untyped
from flamestream_spark.tables.columns import folds_case, kept_types, schema_of
from flamestream_spark.tables.outputs import read_output

_TAKE_OVER: Final = "spark.sql.streaming.stopActiveRunOnRestart"
"""Spark's option for a query that is started again while it runs: whether the new run takes over, or is refused."""
_HOLDS_BACK: Final = (
    "Sources are merged by the numbers of their records: one that has no more rows holds the others back. "
    'settings={"job.clock": "wall"} merges them by the times at which they come.'
)
_LOOK_S: Final = 0.01
_STOP_S: Final = 60.0
_STEP_S: Final = 0.2

_running: Final[WeakValueDictionary[str, Streaming]] = WeakValueDictionary()
"""The last run of this program on each checkpoint."""
_locks: Final[dict[str, threading.Lock]] = {}


def stream(
    flow: Flow,
    inputs: Mapping[str, Any] | None = None,
    /,
    *,
    checkpoint: str | Path,
    workers: int = 2,
    trigger: Mapping[str, Any] | None = None,
    output_mode: OutputMode | Mapping[str, OutputMode] = "append",
    replace: bool = False,
    on_spark: bool | None = None,
    settings: Mapping[str, Any] | None = None,
    **frames: Any,
) -> Streaming:
    """Run a flow over streaming DataFrames, until it is stopped.

    Args:
        flow: The flow.
        inputs: Streaming DataFrames by name of the source; or give them by keyword.
        checkpoint: A folder that executors reach, too, or a URL of an object store, whose file system the session needs
            to have. Started again with the same, everything goes on where it was, and nothing is lost
            or comes twice, however it ended. It belongs to one flow, by name. If that still runs in this program,
            it ends first, unless Spark's `spark.sql.streaming.stopActiveRunOnRestart` says that this is refused.
        workers: Number of workers. The outputs do not depend on it.
        trigger: When Spark makes a batch, as `DataStreamWriter.trigger` takes it: {"processingTime": "1 second"};
            with {"availableNow": True} everything ends when what is there has been read.
        output_mode: The rows that a batch has, for several sources by name: "append": those that are new, and stay as
            they are. "update", for aggregations: the new row of each key that has changed, in place of its former one.
        replace: Whether to begin anew: the state of an earlier flow on this checkpoint is removed, and its output
            replaced.
        on_spark: As for `flamestream_spark.run`: whether the workers are tasks of Spark. A run may go on in the other
            place.
        settings: More configuration, as dotted keys: {"sink.counts.use": "nats", "sink.counts.subject": "counts"}.
        frames: Streaming DataFrames by name of the source.

    Returns:
        The running flow.

    Raises:
        ConfigError: The checkpoint belongs to another flow.
        JobError: It is running in this program, and is not to be stopped.
        SourceError: A DataFrame is no stream, or Spark does not start it; or the rows of an aggregation do not tell
            their keys.
        FlameError: As `Flow.run`.

    Example:
        running = flamestream_spark.stream(flow, lines=spark.readStream.text("in"), checkpoint="words")
        running.processAllAvailable()
        running.output().show()
        running.stop()
    """
    given = {**(inputs or {}), **frames}
    graph = flow.graph()
    check_frames(flow, given, "stream")
    if not isinstance(output_mode, str):
        check_named("output_mode", output_mode, flow)
    modes = {name: _output_mode(output_mode, name) for name in given}
    spark = next(iter(given.values())).sparkSession
    place = _checkpoint(spark, checkpoint, next(iter(given)))
    on = host_of(spark, flow.name, on_spark=on_spark)
    chosen: dict[str, Any] = {"job.workers": workers, "job.guarantee": "exactly_once", "deploy.on": on}
    chosen |= {"state.use": "directory", "state.path": place.at("state")}  # which all that reach the checkpoint reach
    for name in given:
        chosen |= {f"source.{name}.use": "spark", f"source.{name}.spool": place.at(f"spool/{name}")}
    extra = dict(settings or {})
    outputs = {}
    for sink in graph.sinks:
        if f"sink.{sink.name}.use" not in extra:
            outputs[sink.name] = place.at(f"output/{sink.name}")
            options = {"use": "spark", "path": outputs[sink.name], "times": True}
            # Without the word of the program nothing that was delivered goes, even if the state has gone.
            options["mode"] = "replace" if replace else "resume"
            options["types"] = kept_types(
                sink.type, [schema_of(frame, source) for source, frame in given.items()], folded=folds_case(spark)
            )
            chosen |= {f"sink.{sink.name}.{key}": value for key, value in options.items()}
    spec = resolve(make_config(from_program(chosen | extra)), flow)
    job = job_of(spec)
    owned = Checkpoint(place, spec.name)
    owned.check(replace=replace)
    queries = {
        name: Query(
            frame,
            Spool(place.at(f"spool/{name}"), name),
            name,
            place.at(f"query/{name}"),
            dict(trigger or {}),
            output_mode=modes[name],
            job=spec.name,
        )
        for name, frame in given.items()
    }
    key = place.url if is_url(place.url) else os.path.realpath(place.url)
    warn_untyped({sink.name: sink.type for sink in graph.sinks if sink.name in outputs})
    with untyped_told(), told_of_end(spark), _locks.setdefault(key, threading.Lock()):
        _end_former(key, spec.name, spark)
        owned.take(replace=replace)
        running = _running[key] = Streaming(spec, job, queries, outputs, spark)
    return running


def _end_former(url: str, name: str, spark: Any) -> None:
    """End the run that this program has on a checkpoint.

    Raises:
        JobError: It is not to be ended, or does not end.
    """
    former = _running.get(url)
    if former is None or not former.isActive:
        return
    if str(spark.conf.get(_TAKE_OVER, "true")).lower() == "false":
        raise JobError(
            f"job {name!r} is running on checkpoint {url} in this program, and {_TAKE_OVER} is false",
            hint="Stop it first: running.stop(). Or let a new run take over, as Spark does by default.",
        )
    with contextlib.suppress(Exception):  # why it has failed, it says itself; another run may go on all the same
        former.stop()
    if former.isActive:
        raise JobError(
            f"the former run of job {name!r} on checkpoint {url} does not end",
            hint="Look at it: running.progress(). A function of the flow may be busy; call stream() again later.",
        )


def _checkpoint(spark: Any, checkpoint: str | Path, source: str) -> Place:
    """Return the place of everything, ready to be written."""
    if is_url(str(checkpoint)):
        check_url(str(checkpoint), "checkpoint")
        check_reach(spark, str(checkpoint), source)
        return made(checkpoint, "checkpoint")
    place = made(local_path(str(checkpoint)).absolute(), "checkpoint")
    place.folder("output")
    return place


def _output_mode(given: str | Mapping[str, str], source: str) -> OutputMode:
    mode = given if isinstance(given, str) else given.get(source, "append")
    if mode == "append":
        return "append"
    if mode == "update":
        return "update"
    raise ConfigError(
        f"output_mode of source {source!r} is {mode!r}, and can be 'append' or 'update'",
        hint='A batch of mode "complete" holds all rows again, changed or not; "update" gives those that change.'
        if mode == "complete"
        else 'Say output_mode="append", or "update" for the changes of an aggregation.',
        path="output_mode",
    )


class Streaming:
    """Flow that runs over streaming DataFrames.

    The methods are named as those of Spark's `StreamingQuery`.

    Args:
        spec, job: The job, which has not begun.
        queries: Queries that feed its sources, not started.
        outputs: The place of each sink that writes one: a folder or a URL.
        spark: The session.
    """

    def __init__(
        self, spec: JobSpec, job: AnyJob, queries: Mapping[str, Query], outputs: Mapping[str, str], spark: Any
    ) -> None:
        self.queries = queries
        """The queries that feed the sources; `.query` is Spark's own handle."""
        self._spec, self._job, self._outputs, self._spark = spec, job, outputs, spark
        self._error: BaseException | None = None
        self._begun = threading.Event()
        # In Python 3.11 and 3.12 a thread counts as ended once a signal has interrupted `join` (gh-90882).
        self._ended = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        with owned_by_thread(spark):
            self._thread = spark_thread(self._run, f"job {spec.name}")
        try:
            for query in queries.values():
                query.halted = self._halt
                query.start()
        except BaseException:
            self._stop_queries()
            raise
        self._thread.start()
        self._begun.wait()
        threading.Thread(target=self._watch_program, name=f"end of {spec.name}", daemon=True).start()

    def _run(self) -> None:
        try:
            asyncio.run(self._main())
        except BaseException as error:  # noqa: BLE001 - for who waits for it
            told = next((query.error for query in self.queries.values() if query.error), None)
            self._error = error if told is None or is_gone(self._spark) else told
        finally:
            self._begun.set()
            self._stop_queries()
            self._ended.set()

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._begun.set()
        await while_there(self._spark, self._job.run)

    def _watch_program(self) -> None:
        """Stop when the main thread has ended.

        Threads that read would otherwise keep the program from ending after an error or Ctrl-C.
        """
        main = threading.main_thread()
        while not self._ended.wait(_STEP_S):
            if not main.is_alive():
                with contextlib.suppress(Exception):  # there is nobody left to tell
                    self.stop()
                return

    def _stop_queries(self) -> None:
        for query in self.queries.values():
            with contextlib.suppress(Exception):  # the job's own error counts, and Spark may be gone already
                query.stop()

    @property
    def isActive(self) -> bool:
        """Return whether it runs."""
        return not self._ended.is_set()

    def exception(self) -> BaseException | None:
        """Return why it has failed; None: it runs, or ended well."""
        return self._error

    def output(self, sink: str = "") -> Any:
        """Return a DataFrame of a sink's output so far, with the columns `TIMES`.

        Raises:
            ConfigError: There is no such sink that writes files, or nothing in its place.
        """
        name = sink or (next(iter(self._outputs)) if len(self._outputs) == 1 else "")
        if name not in self._outputs:
            raise ConfigError(
                f"flow {self._spec.flow.name!r} has the outputs {', '.join(self._outputs)}",
                hint="Say which: output(NAME).",
                path=f"sink.{sink}",
            )
        url = self._outputs[name]
        if not any(file.startswith("part-") for file in place_of(url, "checkpoint").names()):
            raise ConfigError(f"sink {name!r} has taken nothing yet", hint="Wait for some.", path=f"sink.{name}")
        with told_of_end(self._spark):
            return read_output(self._spark, url)

    def progress(self) -> dict[str, Any]:
        """Return counts, latency in ms, and what Spark says of its queries.

        The counts are rows that wait in spools, records in, and outputs.
        """
        stats = self._job.stats()
        return {
            "waiting": None if (wanted := self._wanted()) is None else max(wanted - stats.records, 0),
            "items_in": stats.items_in,
            "items_out": dict(stats.items_out),
            "latency_p50_ms": stats.latency_p50_ms,
            "latency_p99_ms": stats.latency_p99_ms,
            "queries": {name: query.query.lastProgress for name, query in self.queries.items()},
        }

    def _wanted(self, *, read: bool = False) -> int | None:
        """Return the number of rows for this run, from where it went on; None: it is not known yet.

        Args:
            read: Whether all of them are to have been read, also by the reader that is there now.
        """
        total = 0
        for name, query in self.queries.items():
            spool = Spool(query.spool.place.url, name)  # as it is now: a spool keeps what it has found
            last, reading = spool.last(), spool.reading()
            end = 0 if last is None else last[1].end
            if reading is None or (read and reading.row < end):
                return None
            total += max(end - reading.first, 0)
        return total

    def processAllAvailable(self, timeout: float = _STOP_S) -> None:
        """Wait until everything has been delivered that is there to be read.

        Args:
            timeout: In seconds.

        Raises:
            JobError: It takes longer.
            FlameError: It has failed.
        """
        for query in self.queries.values():
            with told_of_end(self._spark):
                query.query.processAllAvailable()
        limit = time.monotonic() + timeout
        while self.isActive:
            stats, wanted = self._job.stats(), self._wanted(read=True)
            if wanted is not None and stats.records >= wanted and not stats.in_flight:
                return
            if time.monotonic() > limit:
                hint = _HOLDS_BACK if len(self.queries) > 1 and self._spec.config.job.clock == "sequence" else ""
                raise JobError(f"not everything is delivered after {timeout:g} s: {self.progress()}", hint=hint)
            time.sleep(_LOOK_S)
        self.awaitTermination()

    def awaitTermination(self, timeout: float | None = None) -> bool:
        """Wait until the job ends.

        Ctrl-C ends it: what has been read is delivered, as by `stop`.

        Args:
            timeout: In seconds; None: for ever.

        Returns:
            Whether it has.

        Raises:
            FlameError: It has failed.
        """
        try:
            with plain_interrupts():
                return self._wait(timeout)
        except KeyboardInterrupt:
            self.stop()
            return True

    def _wait(self, timeout: float | None) -> bool:
        limit = math.inf if timeout is None else time.monotonic() + timeout
        # In steps: Python misses a signal that comes as a wait lets the interpreter go, until that wait is over.
        while not self._ended.wait(max(min(_STEP_S, limit - time.monotonic()), 0)):
            if time.monotonic() >= limit:
                return False
        if self._error is not None:
            raise self._error
        return True

    def stop(self, timeout: float = _STOP_S) -> None:
        """End it: what has been read is delivered, and the next run goes on behind it.

        Args:
            timeout: In seconds.

        Raises:
            JobError: It takes longer.
            FlameError: It has failed.
        """
        self._stop_queries()
        self._drain()
        if not self._wait(timeout):
            raise JobError(f"job {self._spec.name!r} has not ended after {timeout:g} s")

    def _drain(self) -> None:
        if self._loop is not None and self.isActive:
            with contextlib.suppress(RuntimeError):  # it has just ended
                self._loop.call_soon_threadsafe(self._job.drain)

    def _halt(self) -> None:
        """End, as by `stop`, since somebody has stopped a query of it."""
        if self._begun.wait(_STOP_S):
            self._drain()

    def __enter__(self) -> Streaming:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
