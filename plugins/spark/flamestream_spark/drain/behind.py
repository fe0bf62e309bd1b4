"""The end of a job on Spark: what was held for the tasks is run there, and goes to the sinks."""

from __future__ import annotations

import asyncio
import dataclasses
import heapq
import threading
from bisect import bisect_left
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress
from functools import partial
from operator import itemgetter
from pathlib import Path
from secrets import token_hex
from typing import Any, Final, NamedTuple

from flamecore.abc.host import Behind, PackedFlow
from flamecore.abc.source import Reader
from flamecore.errors import FlameError, JobError
from flamecore.model.failure import Failure
from flamecore.model.meta import MIN_FRONT, TIME_BYTES, FrontId, GlobalTime, decode_time, encode_time
from flamecore.model.plan import DEAD_LETTERS
from flamecore.runtime.codec.codec import Codec
from flamecore.runtime.config.job_spec import FlowCode, JobSpec
from flamecore.runtime.parts.front import merge_rejected
from flamecore.runtime.parts.suffix import SuffixRun
from flamecore.runtime.tasks.deadlines import Deadlines
from flamestream_spark.drain.cut import CutFlow, crosses, packed_cut
from flamestream_spark.drain.held import HeldSink, Items, Piece, read_pieces
from flamestream_spark.drain.left_out import ListeningSink, count_others, telling
from flamestream_spark.drain.work import SCHEMA, Work
from flamestream_spark.nodes.feed import remove_spools, sources_of
from flamestream_spark.nodes.places import is_local
from flamestream_spark.nodes.slots import counted
from flamestream_spark.scratch import make_temporary, remove_temporary
from flamestream_spark.session.master import master_of
from flamestream_spark.session.messages import gist, own_words
from flamestream_spark.session.session import cancel_tag, name_of, session, tag_thread
from flamestream_spark.sink import SparkSink
from flamestream_spark.storage.place import Place
from flamestream_spark.storage.places import place_of

_TASKS: Final = 4
"""Tasks of a sink for each slot at most: the last one keeps the others waiting, and each takes time to start."""

_BATCH: Final = 16_384
"""Outputs that go to a sink together, or more of one time."""

_READ: Final = 4096
_AGAIN_S: Final = 0.5


class Outputs(NamedTuple):
    """The outputs that tasks have made for a sink.

    Attributes:
        pieces: Where they are, in order.
        end: The failure that ends the job, before which outputs count; None: all of them do.
    """

    pieces: Sequence[Piece]
    end: Failure | None


def suffixes_of(spec: JobSpec) -> dict[str, tuple[str, ...]]:
    """Return the operations that tasks of Spark run behind the workers, by name of the sink that they are before.

    The job has to end by itself, and whatever it has not delivered then has to come again in another run.

    Args:
        spec: The resolved job.
    """
    settings, graph = spec.settings, spec.graph
    if graph is None or spec.problems or spec.given or settings.state is not None or not settings.barrier:
        return {}
    if settings.clock != "sequence" or spec.config.deploy.start != "local" or len(spec.sources) < len(graph.sources):
        return {}
    promises = [source.capabilities for source in spec.sources.values()]
    if not all(promise.bounded and promise.replayable for promise in promises) or _place_of(spec) is None:
        return {}
    if settings.on_error == "skip" and DEAD_LETTERS in spec.sinks:  # workers tell a sink of that name what they skip
        return {}
    found = {}
    for vertex in graph.sinks:
        sink, suffix = spec.sinks.get(vertex.name), graph.suffix_of(vertex)
        if not suffix or not isinstance(sink, SparkSink) or vertex.retracts:
            continue
        asked: bool | None = sink.options.suffix
        if crosses(graph, suffix[0]) if asked is None else asked:
            found[vertex.name] = tuple(operation.name for operation in suffix)
    return found


def cut_off(spec: JobSpec, master: str, config: Mapping[str, str]) -> tuple[JobSpec, Behind] | None:
    """Cut the suffixes off a job. Returns as `flamecore.abc.host.NodeHost.behind`.

    Args:
        spec: The resolved job.
        master, config: Master and options of its session of Spark.
    """
    if not (operations := suffixes_of(spec)):
        return None
    flow = CutFlow(spec.flow, tuple(operations))
    try:
        fronts = _fronts(spec)
        code = FlowCode(flow)
        cut = dataclasses.replace(spec, flow_code=code, graph=flow.graph())
        work = packed_cut(flow, cut.copy())
        behind = Suffixes(spec, operations, work, fronts, partial(session, master, config))
    except FlameError:  # the job says so itself, or it runs as a whole
        return None
    held = {name: sink for name, sink in behind.sinks.items() if name != DEAD_LETTERS}
    if spec.settings.on_error == "skip":
        cut = dataclasses.replace(cut, config=telling(spec.config, letters=spec.dead_letter is not None))
    letters = spec.dead_letter if behind.failures is None else behind.failures
    return dataclasses.replace(cut, sinks={**spec.sinks, **held}, dead_letter=letters), behind


def _fronts(spec: JobSpec) -> tuple[FrontId, ...]:
    partitions = {name: len(source.partitions()) for name, source in sorted(spec.sources.items())}
    return tuple(FrontId(name, number) for name, count in partitions.items() for number in range(count))


def _place_of(spec: JobSpec) -> str | None:
    """Return where executors and this process reach items; empty: a temporary folder; None: nowhere."""
    host = spec.drivers.host
    if host is None:
        return None
    if is_local(master_of(host[1].master)):
        return ""
    spools = [edge.options["spool"] for edge in sources_of(spec.config).values() if edge.options.get("spool")]
    return f"{spools[0]}/_drain-{token_hex(8)}" if spools else None


class Suffixes(Behind):
    """The suffixes of the sinks of a job.

    Args:
        spec: The whole job.
        operations: The operations of each suffix, by name of the sink.
        flow: The cut flow, packed.
        fronts: The fronts of the job.
        begin: Enters its session of Spark.

    Attributes:
        sinks: The sinks that hold what comes before the suffixes; and the one of dead letters, where a suffix may add
            some.
        failures: The sink that hears of the records that workers leave out; None: they leave out none.
    """

    def __init__(
        self,
        spec: JobSpec,
        operations: Mapping[str, Sequence[str]],
        flow: PackedFlow,
        fronts: Sequence[FrontId],
        begin: Callable[[], Any],
    ) -> None:
        self.operations = operations
        self.items_out: Mapping[str, int] = {}
        self.failed = 0
        self.first_failed: Mapping[int, str] = {}
        self.dead_letters: int | None = None
        self._spec, self._flow, self._fronts, self._begin = spec, flow, tuple(fronts), begin
        self._resources = ExitStack()
        self._session: Any = None
        self._url = _place_of(spec) or ""
        self._codec = Codec.of(spec.checked_graph)
        self._deadlines = Deadlines.of(spec.settings)
        self.sinks: dict[str, HeldSink] = {}
        for vertex in spec.checked_graph.sinks:
            if vertex.name in operations:
                suffix = SuffixRun(spec.checked_graph, vertex, fronts, spec.settings)
                self._hold(spec.sinks[vertex.name], suffix, len(operations[vertex.name]))
        self.failures: ListeningSink | None = None
        if spec.settings.on_error == "skip":
            self.failures = ListeningSink(spec.dead_letter, skips=True)
        elif spec.settings.on_error == DEAD_LETTERS and spec.dead_letter is not None:
            self._hold(spec.dead_letter)
            self.failures = ListeningSink(self.sinks[DEAD_LETTERS], skips=False)

    def _hold(self, real: Any, suffix: SuffixRun | None = None, operations: int = 0) -> None:
        name = real.context.name
        items = Items(partial(self._place, name), self._codec)
        self.sinks[name] = HeldSink(real, items, self._enter, suffix, operations)

    def _enter(self) -> None:
        """Keep the session until the end, even if it was made for the workers."""
        if self._session is None:
            self._session = self._resources.enter_context(self._begin())

    def _place(self, name: str) -> Place:
        if not self._url:
            folder = make_temporary()
            self._resources.callback(remove_temporary, folder)
            self._url = str(folder)
        url = f"{self._url}/{name}"
        place_of(url, "scratch", durable=False).folder("")
        return place_of(url, "scratch", durable=False)

    async def finish(self, error: FlameError | None) -> None:
        # After any other error the output is not complete: the next run makes it again.
        if error is not None and not isinstance(getattr(error, "global_time", None), GlobalTime):
            return
        suffixes = {name: sink for name, sink in self.sinks.items() if name in self.operations}
        made = {name: await self._run(name, sink) for name, sink in suffixes.items()}
        ends = [outputs.end for outputs in made.values() if outputs.end is not None]
        end = min(ends, key=lambda failure: failure.at, default=None)
        if end is not None and error is not None and error.global_time < end.at:
            end = None
        for name, outputs in made.items():
            await self._deliver(name, outputs)
        if DEAD_LETTERS in self.sinks:
            async with self._positions() as positions:
                await self._deliver_letters(made, positions, end)
        self._count()
        await self._find_first()
        if end is not None:
            async with self._positions() as positions:
                end = await positions.placed(end)
        await self._close_sinks()
        if end is not None:
            raise end.raised()

    async def _find_first(self) -> None:
        """Find the position of the first record that was left out, unless the workers have failed on it first."""
        firsts = [sink.left_out.first for sink in self.sinks.values() if sink.left_out.first is not None]
        order, first = min(firsts, key=itemgetter(0), default=(b"", None))
        before = None if self.failures is None else self.failures.failed.first
        if first is None or (before is not None and before[0] < order):
            return
        async with self._positions() as positions:
            first = await positions.placed(first)
        self.first_failed = {first.at.time: f"{first.vertex!r}: {first.reason}, at {first.position}"}

    @asynccontextmanager
    async def _positions(self) -> AsyncIterator[Positions]:
        positions = Positions(self._spec, self._fronts, self._deadlines)
        try:
            yield positions
        finally:
            await positions.aclose()

    def _count(self) -> None:
        counts = {name: sink.count for name, sink in self.sinks.items()}
        self.dead_letters = counts.pop(DEAD_LETTERS, None)
        self.items_out = {name: count for name, count in counts.items() if count}
        if self.failures is not None:
            self.failed = count_others(self.failures.failed, [sink.left_out for sink in self.sinks.values()])
            if DEAD_LETTERS not in self.sinks:
                self.dead_letters = self.failures.count

    async def _run(self, name: str, sink: HeldSink) -> Outputs:
        """Have tasks run the suffix of a sink for what is held."""
        pieces = sink.items.pieces
        if not pieces:
            return Outputs((), None)
        slots = await asyncio.to_thread(counted, self._session, 1)
        size = -(-len(pieces) // (_TASKS * slots))
        work = Work(
            self._flow,
            str(Path.cwd()),
            name,
            self._fronts,
            self._spec.settings,
            self._place(name).url,
            [pieces[at : at + size] for at in range(0, len(pieces), size)],
        )
        title = name_of(self._spec.name, f"drain {name}")
        rows = await SparkTasks(self._session, work, title, name).collect()
        made: list[Piece] = []
        for row in sorted(rows, key=lambda row: row.task):
            start = 0
            for length in row.sizes:
                made.append(Piece(row.file, start, length))
                start += length
            if row.failed:
                sink.left_out.note(self._codec.decode(bytes(row.first)), bytes(row.failed))
            if row.fatal is not None:
                return Outputs(made, self._codec.decode(bytes(row.fatal)))
        return Outputs(made, None)

    def _read(self, name: str, outputs: Outputs) -> Iterator[tuple[Any, ...]]:
        return read_pieces(self._place(name), outputs.pieces, self._codec) if outputs.pieces else iter(())

    async def _deliver(self, name: str, outputs: Outputs) -> None:
        """Hand the outputs of tasks on to a sink, those of one time together."""
        sink, orders, payloads = self.sinks[name], [], []
        limit = None if outputs.end is None else encode_time(outputs.end.at.time)
        for some, values, _ in self._read(name, outputs):
            count = len(some) if limit is None else bisect_left(some, limit)
            orders += some[:count]
            payloads += values[:count]
            if len(orders) >= _BATCH and (cut := bisect_left(orders, orders[-1][:TIME_BYTES])):
                await self._hand_on(sink, orders[:cut], payloads[:cut])
                del orders[:cut], payloads[:cut]
        await self._hand_on(sink, orders, payloads)

    async def _hand_on(self, sink: HeldSink, orders: Sequence[bytes], payloads: Sequence[Any]) -> None:
        if orders:
            deadline = self._deadlines.sink(sink.context.name)
            work = sink.deliver(decode_time(orders[-1]) + 1, orders, payloads)
            await deadline.call(work, "write a batch")

    async def _deliver_letters(self, made: Mapping[str, Outputs], positions: Positions, end: Failure | None) -> None:
        """Hand dead letters on, those of the workers and those of the suffixes, in meta order."""
        letters = self.sinks[DEAD_LETTERS]
        ways = [_each(self._read(name, outputs), 2) for name, outputs in made.items()]
        ways.append(entry for some, values in letters.items.read() for entry in zip(some, values, strict=True))
        limit = None if end is None else encode_time(end.at.time)
        orders: list[bytes] = []
        found: list[Any] = []
        for order, letter in heapq.merge(*ways, key=itemgetter(0)):
            if limit is not None and order >= limit:
                break
            if len(orders) >= _BATCH and orders[-1][:TIME_BYTES] != order[:TIME_BYTES]:
                await self._hand_on(letters, orders, found)
                orders, found = [], []
            orders.append(order)
            found.append((await positions.placed(letter)).letter() if isinstance(letter, Failure) else letter)
        await self._hand_on(letters, orders, found)

    async def _close_sinks(self) -> None:
        for name, sink in self.sinks.items():
            await self._deadlines.close(self._deadlines.sink(name), sink.close_real)

    async def aclose(self) -> None:
        try:
            await self._close_sinks()
        finally:
            await asyncio.to_thread(self._clear)

    def _clear(self) -> None:
        try:
            if self._url:
                place_of(self._url, "scratch").clear()
                self._url = ""
        finally:
            remove_spools(self._spec.config)  # rows that were read again for the position of one
            self._session = None
            self._resources.close()


def _each(pieces: Iterator[tuple[Any, ...]], column: int) -> Iterator[Any]:
    """Yield each entry of a column of pieces."""
    for piece in pieces:
        yield from piece[column]


class SparkTasks:
    """A job of Spark, on a thread of its own.

    Args:
        session: The session.
        work: The work of its tasks.
        title: Its name on Spark's pages.
        sink: Name of the sink, for errors.
    """

    def __init__(self, session: Any, work: Work, title: str, sink: str) -> None:
        self._session, self._work, self._title, self._sink = session, work, title, sink
        self._tag = f"flamestream-{token_hex(8)}"

    async def collect(self) -> list[Any]:
        """Run it, and return the rows of all tasks. If this is cancelled, it ends soon.

        Raises:
            JobError: A task cannot do its work.
        """
        loop = asyncio.get_running_loop()
        done: asyncio.Future[list[Any]] = loop.create_future()

        def tell(rows: list[Any], error: Exception | None) -> None:
            if done.cancelled():
                return
            if error is None:
                done.set_result(rows)
            else:
                done.set_exception(error)

        def run() -> None:
            rows, error = [], None
            try:
                tag_thread(self._session, self._tag, self._title)
                count = len(self._work.tasks)
                rows = self._session.range(0, count, 1, count).mapInArrow(self._work, SCHEMA).collect()
            except Exception as raised:  # noqa: BLE001 - told in the loop
                error = raised
            with suppress(RuntimeError):  # the loop may have ended
                loop.call_soon_threadsafe(tell, rows, error)

        thread = threading.Thread(target=run, name=f"drain {self._sink}", daemon=True)
        thread.start()
        try:
            return await asyncio.shield(done)
        except asyncio.CancelledError:
            cancel_tag(self._session, self._tag)
            raise
        except Exception as error:
            raise self._failed(error) from error

    def _failed(self, error: Exception) -> FlameError:
        if (ours := own_words(str(error))) is not None:
            return JobError(f"sink {self._sink!r}: {ours[0]}", hint=ours[1])
        what = f"sink {self._sink!r}: Spark cannot run its last operations: {gist(str(error)) or repr(error)}"
        hint = f"Spark's own words are its cause. To run them on the workers: sink.{self._sink}.suffix = false."
        return JobError(what, hint=hint)


class Positions:
    """The positions of records, found by reading the sources again up to there.

    Args:
        spec: The whole job.
        fronts: Its fronts.
        deadlines: Its deadlines.
    """

    def __init__(self, spec: JobSpec, fronts: Sequence[FrontId], deadlines: Deadlines) -> None:
        self._spec, self._fronts, self._deadlines = spec, fronts, deadlines
        self._readers: dict[int, Reader] = {}
        self._next: dict[int, int] = {}
        self._read: dict[int, tuple[int, Sequence[Any]]] = {}

    async def placed(self, failure: Failure) -> Failure:
        """Return a failure with the position of its record, and the record as its source has it.

        The records of one front are asked for in their order.
        """
        time, number = failure.at
        if number == MIN_FRONT:  # of a timer
            return failure._replace(position=f"time {time}")
        front = self._fronts[number - 1]
        source = self._spec.sources[front.source]
        if number not in self._readers:
            opening = source.open(source.partitions()[front.partition])
            self._readers[number] = await self._deadlines.source(front).call(opening, "open again")
            self._read[number] = (0, ())
        reader = self._readers[number]
        first, positions = self._read[number]
        while time >= first + len(positions):
            batch = await reader.read(_READ)
            if batch is None:
                return failure._replace(origin=front.source)  # the input has changed meanwhile
            first += len(positions)
            skips = self._spec.settings.source_policies.get(front.source) == "skip"
            positions = batch.positions if skips or not batch.rejected else merge_rejected(batch)[1]
            self._read[number] = first, positions
        position = positions[time - first]
        return failure._replace(
            position=reader.describe(position), origin=front.source, original=reader.original(position)
        )

    async def aclose(self) -> None:
        """Close what was opened."""
        for number, reader in self._readers.items():
            await self._deadlines.source(self._fronts[number - 1]).call(reader.aclose(), "close")
        self._readers.clear()
