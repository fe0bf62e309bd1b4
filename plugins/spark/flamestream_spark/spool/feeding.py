"""Spark job that fills a spool, on a thread of the program with the session."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from functools import partial
from importlib import import_module
from secrets import token_hex
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from flamecore.errors import FlameError, SourceError
from flamestream_spark.session.ending import ends_with, source_ended
from flamestream_spark.session.messages import gist, is_cancelled, own_words, python_of
from flamestream_spark.session.session import cancel_tag, name_of, spark_thread, tag_thread
from flamestream_spark.spool import parts
from flamestream_spark.spool.ordering import ORDER_BY, Ordered
from flamestream_spark.spool.spool import Failed, Order, Spool
from flamestream_spark.tables.columns import folds_case, numbered, sealed

_CLOSE_S: Final = 30.0
_AGAIN_S: Final = 0.5
_CONNECTORS: Final = {"3.5": "2.12:3.5.7", "4.0": "2.13:4.0.2", "4.1": "2.13:4.1.3"}
"""Connectors of Kafka, by release of Spark: versions of Scala and of the connector."""
_LATEST_CONNECTOR: Final = "2.13:4.2.0"
"""The one for all later releases."""
_NO_KAFKA: Final = (
    "Spark does not bring the connector of Kafka. The one for this release: config = "
    '{{ "spark.jars.packages" = "org.apache.spark:spark-sql-kafka-0-10_{connector}" }}.'
)
_HINTS: Final = {
    "PATH_NOT_FOUND": "Is that the path? It is looked for where the executors run.",
    "DATA_SOURCE_NOT_FOUND": "Is that the format? One that Spark does not bring needs its jars: config = "
    '{ "spark.jars.packages" = "…" }.',
    "KAFKA_DATA_SOURCE_NOT_ENABLED": _NO_KAFKA,
    "Failed to find data source: kafka": _NO_KAFKA,  # before Spark 4.3
    # Of a stream of Iceberg.
    "Cannot process overwrite snapshot": "Rows of the table were changed, as by a MERGE, and a stream takes rows that "
    "are added. Start afresh, with a new checkpoint, or without the state, spool and output of the job. The option "
    '"streaming-skip-overwrite-snapshots" = "true" leaves out all rows of such a change.',
    "Cannot process delete snapshot": "Rows of the table were deleted, and a stream takes rows that are added. Start "
    "afresh, with a new checkpoint, or without the state, spool and output of the job. The option "
    '"streaming-skip-delete-snapshots" = "true" keeps what came of the rows.',
    "TABLE_OR_VIEW_NOT_FOUND": "Is that the table? A session that is made here has none but those of its catalogue.",
}
"""Remedies, by words in the message of Spark."""
_FAILED_FILE: Final = re.compile(r"(?:file|path)s?\s*:?\s+((?:file|hdfs|s3a?|gs|abfss?)?:?/[^\s,\]]+)")


def write_batch(
    spool: Spool,
    number: int,
    frame: Any,
    *,
    files: bool = False,
    drop: tuple[str, ...] = (),
) -> bool:
    """Run executors that write a batch, and complete it.

    Args:
        spool: The spool.
        number: Number of the batch.
        frame: The rows.
        files: Whether blocks of files are parts of their own; the columns `parts.PLACE` say of them.
        drop: Columns that are not to be written.

    Returns:
        Whether it is of these rows; False: it was complete before.

    Raises:
        SourceError: Batches there are of another query.
    """
    from pyspark.cloudpickle import register_pickle_by_value

    register_pickle_by_value(parts)  # so that executors need not have it
    if (held := spool.completed(number)) is not None:
        if held.query:
            spool.check_query(_query_of(frame.sparkSession), held)
        return False
    written = partial(
        parts.write_parts,
        folder=spool.batch(number),
        names=tuple(frame.columns),
        by_file=files,
        drop=drop,
        force=spool.durable,
        folded=folds_case(frame.sparkSession),
    )
    rows = numbered(frame).mapInArrow(written, parts.SCHEMA).collect()  # which takes names apart that have dots
    key: Callable[[Any], Any] = (
        (lambda row: (row.file.encode(), row.start, row.partition)) if files else lambda row: row.partition
    )
    if files:
        _check_blocks(rows, spool)
    query = next((row.query for row in rows), "")
    return spool.complete(number, [(row.name, row.rows) for row in sorted(rows, key=key)], query)


def _query_of(spark: Any) -> str:
    """Return the query of the current batch as Spark passes it to tasks; empty: none."""
    (row,) = spark.range(0, 1, 1, 1).mapInArrow(parts.tell_query, "query string").collect()
    return str(row.query)


def _check_blocks(rows: list[Any], spool: Spool) -> None:
    """Check that each block of a file lies in one part.

    Rows that a step has mixed are in no stable order.

    Raises:
        SourceError: They are mixed.
    """
    seen: set[tuple[str, int]] = set()
    for row in rows:
        if (row.file, row.start) in seen:
            raise spool.error(
                "the rows do not lie as they do in their files: a step of the query mixes them",
                ORDER_BY,
                shown(row.file),
            )
        seen.add((row.file, row.start))


class Feeding:
    """Fills a spool with the rows of a DataFrame, once.

    Args:
        spool: Open, and empty.
        ordered: The DataFrame.
        source: Name of the source, for errors.
        of: Fingerprint of the rows' origin.
        failed: Called if it fails.
        job: Name of the job.
    """

    def __init__(
        self,
        spool: Spool,
        ordered: Ordered,
        source: str,
        of: str = "",
        failed: Callable[[FlameError], None] | None = None,
        job: str = "",
    ) -> None:
        self._failed = failed
        self._spool, self._ordered, self._source, self._of = spool, ordered, source, of
        self._tag, self._name = f"flamestream-{token_hex(8)}", name_of(job, f"feed {source}")
        self._thread = spark_thread(self._run, f"source {source}")
        self._stopped = False
        self.error: SourceError | None = None
        """Why it has failed."""

    def start(self) -> None:
        """Begin."""
        self._spool.announce(Order(self._ordered.files, self._of))
        self._thread.start()

    def _run(self) -> None:
        ordered = self._ordered
        try:
            tag_thread(ordered.frame.sparkSession, self._tag, self._name)
            drop = [name for name in ordered.extra if ordered.files or name != parts.FILE]
            files = bool(ordered.files)
            frame = sealed(ordered.frame, ordered.extra)
            write_batch(self._spool, 0, frame, files=files, drop=tuple(drop))
            self._spool.end()
        except Exception as error:  # noqa: BLE001 - whoever reads the spool is told
            if self._stopped:
                return
            if ends_with(self._ordered.frame.sparkSession, error):
                self.error = source_ended(self._source)
            else:
                self.error = error if isinstance(error, SourceError) else failed(self._source, error)
            self.error.__cause__ = self.error.__cause__ or error
            told = self.error
            if self._failed is not None:
                self._failed(told)
            self._spool.fail(Failed(told.what.partition(": ")[2], told.hint, str(told.position)))

    def stop(self) -> None:
        """End it, done or not.

        Raises:
            SourceError: Spark does not end what it does.
        """
        self._stopped = True
        end = time.monotonic() + _CLOSE_S
        while self._thread.is_alive() and time.monotonic() < end:
            cancel_tag(self._ordered.frame.sparkSession, self._tag)  # again, as Spark may not have had the job yet
            self._thread.join(_AGAIN_S)
        if self._thread.is_alive():
            raise SourceError(
                f"source {self._source!r}: Spark does not end what it does; it was told to {_CLOSE_S} s ago",
                hint="Look at its UI, or end the program.",
                source=self._source,
                position="",
            )


def shown(file: str) -> str:
    """Return a file name as people write it.

    >>> shown("file:///tmp/a%20b.csv"), shown("hdfs://host/x")
    ('/tmp/a b.csv', 'hdfs://host/x')
    """
    split = urlsplit(file)
    return unquote(split.path) if split.scheme == "file" else file


def failed(source: str, error: Exception) -> SourceError:
    """Return an error of Spark or an executor in short, with the file if it names one."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    said = gist(str(error)) or repr(error)
    file = _FAILED_FILE.search(str(error))
    cause = next((line for line in reversed(lines) if line.startswith("Caused by:")), "")
    if (wrong := python_of(str(error))) is not None:
        hint = "Set PYSPARK_PYTHON, or spark.pyspark.python in the config, to a Python that has pyarrow."
        return SourceError(f"source {source!r}: {wrong}", hint=hint, source=source, position="")
    if is_cancelled(error):
        what, hint = "reading was cancelled, as somebody has told Spark", "Run it again if that was not to be."
        return SourceError(f"source {source!r}: {what}", hint=hint, source=source, position="")
    if (ours := own_words(str(error))) is not None:
        return SourceError(f"source {source!r}: {ours[0]}", hint=ours[1], source=source, position="")
    if "No module named" in str(error):
        module = re.search(r"No module named '?([\w.]+)", str(error))
        what = f"an executor has no module {module[1] if module else '?'}"
        hint = "Install it there, or name a Python that has it: PYSPARK_PYTHON, or spark.pyspark.python."
        return SourceError(f"source {source!r}: {what}", hint=hint, source=source, position="")
    what = f"Spark cannot read it: {said[:500]}" + (f" ({cause[11:].strip()[:300]})" if cause else "")
    where = file[1].rstrip(".") if file else ""
    hint = next((hint for code, hint in _HINTS.items() if code in said), "Spark's own words are its cause.")
    if hint is _NO_KAFKA:
        release = ".".join(import_module("pyspark").__version__.split(".")[:2])
        hint = hint.format(connector=_CONNECTORS.get(release, _LATEST_CONNECTOR))
    if where and "PATH_NOT_FOUND" not in said:
        hint = f"Look at {shown(where)}: is it whole, and of that format?"
    return SourceError(f"source {source!r}: {what}", hint=hint, source=source, position=where)
