"""Streaming queries that fill a spool, exactly once: by the number of the batch."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, Literal

from flamecore.errors import FlameError, SourceError
from flamestream_spark.session.ending import ends_with, source_ended
from flamestream_spark.session.messages import is_cancelled
from flamestream_spark.session.session import is_gone, name_of, named_jobs, unless_gone
from flamestream_spark.spool.feeding import failed, write_batch
from flamestream_spark.spool.ordering import sort_keys
from flamestream_spark.spool.spool import Failed, Spool
from flamestream_spark.spool.upserts import keys_of
from flamestream_spark.tables.columns import fitted, numbered, types_of

OutputMode = Literal["append", "update"]
"""Mode of a query: it gives rows that stay as they are, or the new rows of keys of an aggregation that change."""

_WRONG_MODE: Final = "STREAMING_OUTPUT_MODE"
_ENDING: Final = frozenset(("availableNow", "once"))
"""Triggers with which a query ends by itself."""
_CLOSE_S: Final = 30.0
_INTERRUPT_S: Final = 1.0
_LOOK_S: Final = 1


class Into:
    """A function for `foreachBatch` that writes batches into a spool of a running job.

    A batch that Spark hands over again, after a fault, changes nothing. One of another query is an error: its numbers
    mean something else. (Over Spark Connect it is not told which query a batch is of.)

    Args:
        folder: The spool; a folder that executors reach, and the job; or a URL of an object store.
        order_by: Columns by which the rows of each task are ordered, where the query leaves their order open.
        name: Name of the batches on Spark's pages.

    Example:
        query = df.writeStream.foreachBatch(flamestream_spark.Into("spool")).start()
    """

    def __init__(self, folder: str | Path, order_by: Sequence[str] = (), name: str = "") -> None:
        self.folder = str(folder)
        self.order_by = tuple(order_by)
        self.name = name or name_of("", f"feed {Path(folder).name}")

    def __call__(self, frame: Any, number: int) -> None:
        spool = Spool(self.folder, "spool")
        spool.open()
        frame = fitted(frame, "spool")
        if spool.completed(number) is None:
            spool.expect(number, types_of(frame.schema))
        if self.order_by:
            keys, _ = sort_keys(frame, self.order_by, "spool")
            frame = numbered(frame).sortWithinPartitions(*keys).toDF(*frame.columns)
        with named_jobs(frame.sparkSession, f"{self.name}, batch {number}"):
            write_batch(spool, number, frame)
        spool.go_on()


class Query:
    """A streaming query that fills a spool.

    Args:
        frame: A streaming DataFrame.
        spool: Where.
        source: Name of the source, for errors.
        checkpoint: Where Spark keeps how far it is.
        trigger: When there is a batch, as `DataStreamWriter.trigger` takes it; empty: whenever there is something.
        failed: Told if it fails.
        output_mode: The rows that a batch has, as `DataStreamWriter.outputMode` takes it.
        job: Name of the job.

    Attributes:
        spool: The spool.
        halted: Function that ends the job, called if others have stopped the query; None: that is a failure.
    """

    def __init__(
        self,
        frame: Any,
        spool: Spool,
        source: str,
        checkpoint: Path | str,
        trigger: dict[str, Any] | None = None,
        failed: Callable[[FlameError], None] | None = None,
        output_mode: OutputMode = "append",
        job: str = "",
    ) -> None:
        self.halted: Callable[[], None] | None = None
        self._output_mode, self._job = output_mode, job
        self._failed = failed
        self._frame, self.spool, self._source = frame, spool, source
        self._checkpoint, self._trigger = checkpoint, trigger or {}
        self._thread = threading.Thread(target=self._watch, name=f"source {source}", daemon=True)
        self._stopped = threading.Event()
        self.error: SourceError | None = None
        """Why it has failed."""
        self.query: Any = None
        """Spark's own handle, once it is started."""

    def start(self) -> None:
        """Begin, or go on.

        Raises:
            SourceError: It is no streaming DataFrame, Spark does not start it, or in mode "update" rows do not tell
                which former ones they stand for.
        """
        if not self._frame.isStreaming:
            raise self.spool.error(
                "a DataFrame is given that is no stream", "Give one of spark.readStream; or use flamestream_spark.run."
            )
        frame = fitted(self._frame, self._source)
        keys = keys_of(self._frame, self._source) if self._output_mode == "update" else ()
        self.spool.open()
        self.spool.expect_mode(self._output_mode)
        last = self.spool.last()
        self.spool.expect(0 if last is None else last[0] + 1, types_of(frame.schema))
        self.spool.go_on()
        self.spool.begin()
        writer = frame.writeStream.outputMode(self._output_mode)
        writer = writer.foreachBatch(Into(self.spool.place.url, keys, name_of(self._job, f"feed {self._source}")))
        writer = writer.option("checkpointLocation", str(self._checkpoint))
        if self._trigger:
            writer = writer.trigger(**self._trigger)
        try:
            self.query = writer.start()
        except Exception as error:
            if self._output_mode == "append" and _WRONG_MODE in str(error):
                raise self.spool.error(
                    "rows of its aggregation change for as long as it runs, and none is ever final",
                    'Take each change of a row: stream(…, output_mode="update"); or only rows that are final, by '
                    "withWatermark(…) before a groupBy of windows.",
                ) from error
            raise failed(self._source, error) from error
        self._thread.start()

    def _watch(self) -> None:
        try:
            while not self.query.awaitTermination(_LOOK_S):  # it may never return once Spark has ended
                if is_gone(self._frame.sparkSession):
                    raise source_ended(self._source)
        except Exception as error:  # noqa: BLE001 - whoever reads the spool is told
            # Ctrl-C has Spark cancel its jobs, before the program can say that this is to stop.
            if self._stopped.wait(_INTERRUPT_S if is_cancelled(error) else 0):
                return
            gone = ends_with(self._frame.sparkSession, error)
            self._fail(source_ended(self._source) if gone else failed(self._source, error), error)
        else:
            if self._stopped.is_set():
                return
            # An end is of the trigger alone: a query that was stopped has more to read, in its next run.
            if not _ENDING.isdisjoint(self._trigger):
                self.spool.end()
            elif self.halted is not None:
                self.halted()
            else:
                hint = "Was it stopped on purpose, or was a query started on its checkpoint? Run the job again."
                self._fail(self.spool.error("its query of Spark was stopped by others", hint))

    def _fail(self, error: SourceError, cause: BaseException | None = None) -> None:
        error.__cause__ = cause
        self.error = error
        if self._failed is not None:
            self._failed(error)
        self.spool.fail(Failed(error.what.partition(": ")[2], error.hint, str(error.position)))

    def stop(self) -> None:
        """End the query; the spool stays."""
        self._stopped.set()
        if self.query is not None:
            with unless_gone(self._frame.sparkSession):
                self.query.stop()
            self._thread.join(_CLOSE_S)
