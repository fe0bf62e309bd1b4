"""Tables of Delta Lake, by delta-rs: neither Java nor a session is needed.

The module of delta-rs is imported on first use.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import unquote

from flamecore.errors import MissingDependencyError, SourceError
from flamecore.suggest import install_command

LOG: Final = "_delta_log"

_READ: Final = {"appendOnly", "invariants", "timestampNtz", "v2Checkpoint", "vacuumProtocolCheck"}
"""Features of tables whose files hold their rows as they are."""

_KEPT: Final = {"appendOnly", "invariants", "timestampNtz", "changeDataFeed", "deletionVectors", "v2Checkpoint"}
"""Features of tables that ask nothing of whoever only adds files, as long as no column has an invariant."""

_COLOURS: Final = re.compile(r"\x1b\[[0-9;]*m")
_TOLD: Final = re.compile(r"<Message>(.*?)</Message>", re.DOTALL)
_NO_HTTP: Final = "URL scheme is not allowed"

_URL: Final = re.compile(r"[a-z][a-z0-9+]*:/")


def delta_rs(kind: str) -> Any:
    """Return the module `deltalake`.

    Args:
        kind: Kind of the driver that needs it, "source" or "sink".

    Raises:
        MissingDependencyError: It is not installed.
    """
    try:
        import deltalake
    except ModuleNotFoundError as error:
        raise MissingDependencyError(
            f'format = "delta" needs module {error.name!r}, which is not installed',
            hint=f"Run: {install_command('flamestream', 'spark', 'delta')}",
            kind=kind,
            name="spark",
            distribution="flamestream",
            module=error.name,
            extra="delta",
        ) from error
    return deltalake


def gist_of(error: Exception) -> str:
    r"""Return the first text of delta-rs and the last cause, without the stack of its own code.

    >>> gist_of(OSError("Generic S3 error\n ↳ Error performing GET http://host\n  ↳ 404 Not Found"))
    'Generic S3 error: 404 Not Found'
    """
    first, *causes = _COLOURS.sub("", str(error)).split("↳")
    lines = [text.strip().partition("\n")[0] for text in (first, *causes[-1:])]
    if causes and (told := _TOLD.search(causes[-1])):  # the words of a server of S3 or Azure
        lines[1] = told[1]
    elif causes and lines[1] == _NO_HTTP:
        lines[1] = (
            'http:// is used only if storage_options = { allow_http = "true" } or AWS_ALLOW_HTTP=true in the '
            "environment allows it"
        )
    return ": ".join(lines).strip(": ") or type(error).__name__


def unfit(table: Any, partitions: Sequence[str] = ()) -> str:
    """Return why a table does not allow a plain append of a file of its columns; empty: it does.

    Args:
        table: A `deltalake.DeltaTable`.
        partitions: The columns by which the files are cut.
    """
    theirs, protocol, parted = table.schema(), table.protocol(), table.metadata().partition_columns
    if list(parted) != list(partitions):
        return f"is partitioned by {', '.join(parted) or 'nothing'}"
    if protocol.min_writer_version > 2 and not set(protocol.writer_features or ("?",)) <= _KEPT:
        return "has features that a writer must keep, and this sink does not"
    if "delta.invariants" in theirs.to_json():
        return "has invariants, which this sink does not check"
    return ""


def unknown_to(error: Exception) -> bool:
    """Return whether the error is that of a session without the jars of Delta Lake."""
    return "DATA_SOURCE_NOT_FOUND" in str(error)


def frame_of(spark: Any, path: str, read: Mapping[str, str], source: str) -> Any:
    """Return a DataFrame of a table, for a session without the jars of Delta Lake.

    Spark reads the files of a version.

    Args:
        spark: The session.
        path: Path of the table.
        read: Options as Delta Lake has them: `versionAsOf`, `timestampAsOf`; the last version without them.
        source: Name of the source, for errors.

    Raises:
        MissingDependencyError: delta-rs is not installed.
        SourceError: It is no table, or one that only Delta Lake itself reads.
    """
    from pyspark.sql.types import StructType

    table = open_table(path, read, source)
    schema = StructType.fromJson(json.loads(table.schema().to_json()))
    files = files_of(table, path)
    if not files:
        return spark.createDataFrame([], schema)
    return spark.read.schema(schema).option("basePath", path).parquet(*files)


def open_table(path: str, read: Mapping[str, str], source: str) -> Any:
    """Return a `deltalake.DeltaTable`, whose files hold its rows as they are.

    Arguments and errors as of `frame_of`.
    """
    rs = delta_rs("source")
    if unknown := set(read) - {"versionAsOf", "timestampAsOf"}:
        raise _wrong(source, f"Delta table {path}: there is no option {min(unknown)!r}", "Leave it out.", path)
    try:
        table = rs.DeltaTable(path, version=int(read["versionAsOf"]) if "versionAsOf" in read else None)
        if "timestampAsOf" in read:
            table.load_as_version(read["timestampAsOf"])
    except (rs.exceptions.DeltaError, OSError, ValueError) as error:
        what = f"Delta table {path} cannot be read: {gist_of(error)}"
        raise _wrong(source, what, "Is it a table, is it whole, and does it have that version?", path) from error
    protocol = table.protocol()
    features = set(protocol.reader_features or (() if protocol.min_reader_version == 1 else ("columnMapping",)))
    if others := sorted(features - _READ):
        what = f"Delta table {path} has {', '.join(others)}, which only Delta Lake itself reads"
        hint = 'Give the session its jars: config = { "spark.jars.packages" = "io.delta:…" }; see its documentation.'
        raise _wrong(source, what, hint, path)
    return table


def files_of(table: Any, path: str) -> list[str]:
    """Return the files of a table, as Spark takes them."""
    import pyarrow as pa

    found = pa.table(table.get_add_actions()).column("path").to_pylist()
    return sorted(name if _URL.match(name) else f"{path.rstrip('/')}/{unquote(name)}" for name in found)


def _wrong(source: str, what: str, hint: str, path: str) -> SourceError:
    return SourceError(f"source {source!r}: {what}", hint=hint, source=source, position=path)
