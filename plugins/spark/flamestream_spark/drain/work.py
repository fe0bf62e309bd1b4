"""Work of a task: it runs the suffix of a sink for some pieces of items.

The flow is imported once in each process, as nodes import theirs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from tempfile import TemporaryDirectory
from typing import Any, Final

import pyarrow as pa

from flamecore.abc.host import PackedFlow
from flamecore.model.batch import pack
from flamecore.model.failure import ENDING, Failure, ending_error
from flamecore.model.graph import Graph
from flamecore.model.meta import FrontId
from flamecore.model.settings import JobSettings
from flamecore.runtime.codec.codec import Codec
from flamecore.runtime.codec.wire import STORED
from flamecore.runtime.config.prefix import imported
from flamecore.runtime.parts.suffix import SuffixRun
from flamestream_spark.drain.cut import CutFlow
from flamestream_spark.drain.held import Piece, read_pieces
from flamestream_spark.drain.left_out import LeftOut
from flamestream_spark.storage.places import place_of

SCHEMA: Final = "task bigint, file string, sizes array<bigint>, fatal binary, failed binary, first binary"
"""The result of a task as a schema of Spark.

It is its number; the file of its outputs, and the size of each piece in it, which is orders, outputs and dead letters;
the first failure that ends the job, if there is one, behind which nothing counts; the global times of the records that
were left out, and the order and failure of the first of them.
"""

_RESULT: Final = pa.schema(
    [
        ("task", pa.int64()),
        ("file", pa.string()),
        ("sizes", pa.list_(pa.int64())),
        ("fatal", pa.binary()),
        ("failed", pa.binary()),
        ("first", pa.binary()),
    ]
)

_opened: dict[str, tuple[TemporaryDirectory[str], Graph]] = {}
"""The graph of the last flow of this process, which Spark uses for many tasks, by module; and the folder of its code,
whose lines errors show."""


@dataclass(frozen=True)
class Work:
    """The work of all tasks for one sink.

    Attributes:
        flow: The cut flow, packed.
        folder: The folder that references are relative to.
        sink: Name of the sink.
        fronts: The fronts of the job.
        settings: Its settings.
        place: Path or URL of the place of items and outputs.
        tasks: The pieces that each task takes.
    """

    flow: PackedFlow
    folder: str
    sink: str
    fronts: Sequence[FrontId]
    settings: JobSettings
    place: str
    tasks: Sequence[Sequence[Piece]]

    def __call__(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Do it for the tasks whose numbers are given. Yields rows as `SCHEMA` says."""
        for batch in batches:
            for number in batch.column(0).to_pylist():
                row = self._done(number)
                yield pa.RecordBatch.from_pylist([row], schema=_RESULT)

    def _done(self, number: int) -> Mapping[str, Any]:
        graph = graph_of(self.flow, self.folder)
        sink = next(sink for sink in graph.sinks if sink.name == self.sink)
        suffix, codec = SuffixRun(graph, sink, self.fronts, self.settings), Codec.of(graph)
        place, out, sizes, left_out = place_of(self.place, "scratch", durable=False), bytearray(), [], LeftOut()
        fatal: Failure | None = None
        for orders, payloads in read_pieces(place, self.tasks[number], codec):
            try:
                outcome = suffix.run(orders, payloads)
            except ENDING as error:
                raise ending_error(error, "the work of a task of Spark") from error
            failures = [(order, without_error(failure)) for order, failure in outcome.failures]
            fatal = next((failure for _, failure in failures if failure.fatal), None)
            if fatal is not None:
                failures = [entry for entry in failures if entry[1].at < fatal.at]
            left_out.add(failures)
            letters = failures if suffix.wants_letters else []
            data = codec.encode((pack(outcome.orders), list(outcome.payloads), letters), STORED)
            sizes.append(len(data))
            out += data
            if fatal is not None:
                break
        # By a name of its own: another attempt at this task may still run, and only what the driver is told counts.
        file = f"outputs-{number:06d}-{token_hex(8)}"
        place.replace(file, bytes(out))
        ended, first = [None if one is None else codec.encode(one) for one in (fatal, left_out.first)]
        row = (number, file, sizes, ended, bytes(left_out.times), first)
        return dict(zip(_RESULT.names, row, strict=True))


def graph_of(flow: PackedFlow, folder: str) -> Graph:
    """Return the whole graph of a cut flow.

    Raises:
        ConfigError: It cannot be imported here.
    """
    if flow.module not in _opened:
        forget()
        spare = TemporaryDirectory(prefix="flamestream-", dir=_task_folder())
        cut = imported({"code": flow.files, "reference": f"{flow.module}:flow", "folder": folder}, Path(spare.name))
        assert isinstance(cut, CutFlow)
        _opened[flow.module] = spare, cut.whole.graph()
    return _opened[flow.module][1]


def forget() -> None:
    """Forget the flow of this process, and remove the folder of its code."""
    for spare, _ in _opened.values():
        spare.cleanup()
    _opened.clear()


def _task_folder() -> str | None:
    """Return a folder that Spark removes when the program ends; None: this is no task."""
    from pyspark import SparkFiles, TaskContext

    return None if TaskContext.get() is None else SparkFiles.getRootDirectory()


def without_error(failure: Failure) -> Failure:
    """Return a failure without its exception, which does not cross."""
    return failure._replace(cause=failure.cause._replace(error=None))
