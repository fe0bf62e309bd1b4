"""Runs on executors: packs what Spark hands over into pieces of Arrow, which the driver unpacks without a copy a row.

Nothing but pyarrow is imported, and the module travels with the function: executors need not have this package.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

import pyarrow as pa

COLUMN: Final = "arrow"
SCHEMA: Final = f"{COLUMN} binary"
"""What comes out, in Spark's words."""


def pack(batches: Iterable[Any], file: str | None = None, drop: Iterable[str] = ()) -> Iterator[Any]:
    """Each batch as one value.

    Args:
        batches: `pyarrow.RecordBatch`es.
        file: Name of the column that says which file a row is from: it is much the same in every row.
        drop: Names of columns that are of no more use.
    """
    for batch in batches:
        table = pa.Table.from_batches([batch])
        if file is not None:
            place = table.schema.get_field_index(file)
            table = table.set_column(place, file, table.column(file).dictionary_encode())
        sink = pa.BufferOutputStream()
        table = table.drop_columns(list(drop))
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        yield pa.RecordBatch.from_arrays([pa.array([sink.getvalue().to_pybytes()], pa.binary())], [COLUMN])


def unpack(piece: bytes) -> list[Any]:
    """The batches of one value."""
    with pa.ipc.open_stream(piece) as reader:
        return list(reader)
