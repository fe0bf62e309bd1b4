"""Prefix of a source in the tasks that fill its spool.

Executors run it in parallel, before any worker.

Its results stand beside the rows, in the metadata of their batches. So the rows are all there, as they are
without it: a position means the same, another version of the flow reads them as well, and where nothing stands beside
them the worker runs the prefix itself. The same holds for rows on which a function fails.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from flamecore.abc.source import Prefix
from flamecore.errors import CodecError, FlameError
from flamecore.runtime.config.prefix import Errand
from flamestream_spark.spool.parts import FILE
from flamestream_spark.tables.payloads import Payloads

_KEY: Final = b"flamestream.ahead"
"""Key of the metadata of a batch under which it stands, behind the version that it is of."""

_MOST_ROWS: Final = 1024
_MOST_BYTES: Final = 1 << 22
"""Rows, or bytes of rows, that go through the prefix together: their results are held, and read, together."""

_IN_VAIN: Final = 3
"""Maximum excess of pieces without a result over others; beyond it, this task tries no more."""

Pieces = Callable[[Any], Iterator[tuple[Any, Any]]]

_opened: dict[bytes, Errand | None] = {}
"""The last one of this process, which Spark uses for many tasks, by version."""


def errand_of(prefix: Prefix, source: str, spare: tuple[str, ...]) -> dict[str, Any] | None:
    """Say what executors need to run a prefix; None: they cannot.

    Args:
        prefix: The prefix.
        source: Name of its source.
        spare: Columns that order the rows, and may be no part of a record.
    """
    told = prefix.errand()
    return None if told is None else {**told, "spare": spare, "source": source}


def open_errand(told: Mapping[str, Any]) -> Pieces | None:
    """Import the work to run, or return None.

    None: it is missing here, or is another version; the worker then does all of it.

    Args:
        told: By `errand_of`.
    """
    version = told["version"]
    if version not in _opened:
        _opened.clear()
        try:
            _opened[version] = Errand(told)
        except (FlameError, OSError):  # or there is no room for a copy of the flow
            _opened[version] = None
    errand = _opened[version]
    return None if errand is None else Runner(errand, version, told["source"], told["spare"])


class Runner:
    """Runs a prefix for the rows of one task.

    Args:
        errand: The prefix.
        version: Its version.
        source: Name of its source.
        spare: See `Payloads`.
    """

    def __init__(self, errand: Errand, version: bytes, source: str, spare: tuple[str, ...]) -> None:
        self._errand, self._version = errand, version
        self._source, self._spare = source, spare
        self._payloads: Payloads | None = None
        self._in_vain = 0

    def __call__(self, rows: Any) -> Iterator[tuple[Any, Any]]:
        """Cut rows into pieces, each with the metadata that says what has come of it.

        Args:
            rows: A `pyarrow.RecordBatch`, with rows.
        """
        at_once = max(1, min(_MOST_ROWS, _MOST_BYTES * rows.num_rows // max(rows.nbytes, 1)))
        for start in range(0, rows.num_rows, at_once):
            piece = rows.slice(start, at_once)
            block = self._block(piece) if self._errand.worth and self._in_vain < _IN_VAIN else None
            self._in_vain += 1 if block is None else -min(self._in_vain, 1)
            yield piece, None if block is None else {_KEY: self._version + block}

    def _block(self, piece: Any) -> bytes | None:
        data = piece.drop_columns([FILE]) if FILE in piece.schema.names else piece
        if self._payloads is None:
            try:
                self._payloads = Payloads(data.schema, self._errand.type, self._source, self._spare)
            except FlameError:  # which the worker tells of
                self._in_vain = _IN_VAIN
                return None
        values, places, _ = self._payloads.make(data)
        return self._errand.block(values, places, piece.num_rows)


def read_ahead(prefix: Prefix | None, metadata: Mapping[bytes, bytes] | None) -> list[Any] | None:
    """Return the results of the prefix for each row of a batch, or None.

    None: the metadata has nothing that this version of the flow takes.

    Args:
        prefix: The prefix of the flow that reads.
        metadata: Metadata of the batch.
    """
    if prefix is None or not metadata or (said := metadata.get(_KEY)) is None:
        return None
    if not said.startswith(prefix.version):
        return None
    try:
        return prefix.read(said[len(prefix.version) :])
    except CodecError:
        return None
