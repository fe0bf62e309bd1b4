"""Sources and sinks that are wrong on purpose: each must fail, in the check meant for it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine, Sequence
from pathlib import Path
from secrets import token_hex
from typing import Any, ClassVar, NamedTuple

import pytest

from flamecore.abc.sink import Encode, Guarantee, Mode, Sink, goes_on, taken_over, would_replace
from flamecore.abc.source import Batch, EdgeContext, Reader, Rejected, Source, SourceCapabilities
from flamecore.errors import SinkError, SourceError
from flamecore.model.meta import MIN_TIME
from flamecore.testing.checks.sink_state import check_sink
from flamecore.testing.checks.sources import EdgeBroken, check_changed, check_grown, check_live, check_source

VALUES = tuple(f"value {number}" for number in range(10))


class RightReader(Reader):
    """Reads a list; positions are ordinals."""

    def __init__(self, values: Sequence[str], start: int) -> None:
        self.values = values
        self.next = start

    async def read(self, limit: int) -> Batch | None:
        await asyncio.sleep(0)
        start, self.next = self.next, min(self.next + limit, len(self.values))
        return Batch(self.values[start : self.next], range(start, self.next)) if start < self.next else None


class RightSource(Source):
    """A source that keeps every law; the wrong ones break one each."""

    name = "right"
    replayable = True
    reader: type[RightReader] = RightReader

    @property
    def capabilities(self) -> SourceCapabilities:
        return SourceCapabilities(replayable=self.replayable, bounded=True)

    def partitions(self) -> Sequence[str]:
        return ("first", "second")

    async def open(self, partition: str, position: Any = None) -> Reader:
        half = VALUES[:5] if partition == "first" else VALUES[5:]
        return self.reader(half, 0 if position is None else position + 1)


class LosesTheLast(RightReader):
    async def read(self, limit: int) -> Batch | None:
        batch = await super().read(limit)
        cut = batch and self.next == len(self.values) and len(batch.values) > 1
        return Batch(batch.values[:-1], batch.positions[:-1]) if batch and cut else batch


class ReadsTwice(RightReader):
    async def read(self, limit: int) -> Batch | None:
        batch = await super().read(limit)
        return batch and Batch([*batch.values, *batch.values][:limit], [*batch.positions, *batch.positions][:limit])


class IgnoresTheLimit(RightReader):
    async def read(self, limit: int) -> Batch | None:
        return await super().read(limit + 1)


class ReturnsNothing(RightReader):
    async def read(self, limit: int) -> Batch | None:
        batch = await super().read(limit)
        return batch or Batch((), ())


class TooFewPositions(RightReader):
    async def read(self, limit: int) -> Batch | None:
        batch = await super().read(limit)
        return batch and Batch(batch.values, batch.positions[1:])


class GivesABatchOnePosition(RightReader):
    async def read(self, limit: int) -> Batch | None:
        batch = await super().read(limit)
        return batch and Batch(batch.values, [batch.positions[-1]] * len(batch.positions))


class PositionsThatCannotBeStored(RightReader):
    async def read(self, limit: int) -> Batch | None:
        batch = await super().read(limit)
        return batch and Batch(batch.values, [{"at": position} for position in batch.positions])


class RejectsForNoReason(RightReader):
    async def read(self, limit: int) -> Batch | None:
        at = self.next
        batch = await super().read(1)
        return Batch((), (), [Rejected(at, "no reason", None)]) if batch and at == 3 else batch


class GoesOnAfterTheEnd(RightReader):
    ended = False

    async def read(self, limit: int) -> Batch | None:
        batch = await super().read(limit)
        if batch is None and self.ended:
            return Batch(["ghost"], [99])
        self.ended = batch is None
        return batch


class GivesAwayWhatItKeeps(RightReader):
    def __init__(self, values: Sequence[str], start: int) -> None:
        super().__init__(values, start)
        self.kept: list[str] = []

    async def read(self, limit: int) -> Batch | None:
        batch = await super().read(limit)
        self.kept[:] = batch.values if batch else ()
        return batch and Batch(self.kept, batch.positions, fresh=True)


class GivesAwayATuple(RightReader):
    async def read(self, limit: int) -> Batch | None:
        batch = await super().read(limit)
        return batch and batch._replace(fresh=True)


class DescribesNothing(RightReader):
    def describe(self, position: Any) -> str:
        return ""


class LosesWhenCancelled(RightReader):
    async def read(self, limit: int) -> Batch | None:
        start, self.next = self.next, min(self.next + limit, len(self.values))
        await asyncio.sleep(0)  # what was taken is gone if this is cancelled
        return Batch(self.values[start : self.next], range(start, self.next)) if start < self.next else None


class NamedPosition(NamedTuple):
    at: int


class PositionsOfAClass(RightReader):
    async def read(self, limit: int) -> Batch | None:
        batch = await super().read(limit)
        return batch and Batch(batch.values, [NamedPosition(position) for position in batch.positions])


class LosesWhatWasAcknowledged(RightReader):
    """And what comes after it."""

    async def acknowledge(self, position: Any) -> None:
        self.next += 1


class AcknowledgesLater(RightReader):
    async def acknowledge(self, position: Any) -> None:
        self.next = position


class ReopensAtTheRecord(RightSource):
    async def open(self, partition: str, position: Any = None) -> Reader:
        return await super().open(partition, None if position is None else position - 1)


class ReopensFromTheStart(RightSource):
    async def open(self, partition: str, position: Any = None) -> Reader:
        return await super().open(partition)


class ClaimsReplayable(RightSource):
    def __init__(self, options: Any, context: EdgeContext) -> None:
        super().__init__(options, context)
        self.left = {"first": list(VALUES[:5]), "second": list(VALUES[5:])}

    async def open(self, partition: str, position: Any = None) -> Reader:
        left, self.left[partition] = self.left[partition], []
        return RightReader(left, 0 if position is None else position + 1)


class OpensAtAPositionAnyhow(RightSource):
    replayable = False


class ChangingFingerprint(RightSource):
    count = 0

    def fingerprint(self) -> str:
        type(self).count += 1
        return str(self.count)


class NamesNoPartition(RightSource):
    def partition_of(self, name: str) -> str:
        return f"{name}, as it was"


def reading_with(wrong: type[RightReader]) -> type[Source]:
    return type(wrong.__name__, (RightSource,), {"reader": wrong})


def law_of_source(kind: type[Source]) -> str | None:
    try:
        asyncio.run(check_source(lambda: kind(None, EdgeContext("wrong")), VALUES))
    except EdgeBroken as broken:
        return broken.law
    return None


def test_the_right_source_passes() -> None:
    assert law_of_source(RightSource) is None


@pytest.mark.parametrize(
    ("wrong", "law"),
    [
        (reading_with(LosesTheLast), "complete"),
        (reading_with(ReadsTwice), "complete"),
        (reading_with(IgnoresTheLimit), "limit"),
        (reading_with(ReturnsNothing), "limit"),
        (reading_with(TooFewPositions), "positions"),
        (reading_with(PositionsThatCannotBeStored), "positions"),
        (reading_with(PositionsOfAClass), "positions"),
        (reading_with(LosesWhatWasAcknowledged), "acknowledged"),
        (reading_with(AcknowledgesLater), "acknowledged"),
        (reading_with(RejectsForNoReason), "complete"),
        (reading_with(GivesAwayWhatItKeeps), "fresh"),
        (reading_with(GivesAwayATuple), "fresh"),
        (reading_with(GoesOnAfterTheEnd), "ends"),
        (reading_with(DescribesNothing), "described"),
        (reading_with(LosesWhenCancelled), "cancelled"),
        (reading_with(GivesABatchOnePosition), "reopens"),
        (ReopensAtTheRecord, "reopens"),
        (ReopensFromTheStart, "reopens"),
        (ClaimsReplayable, "replayable"),
        (OpensAtAPositionAnyhow, "refuses"),
        (ChangingFingerprint, "fingerprint"),
        (NamesNoPartition, "partition-of"),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_a_wrong_source_fails_where_it_should(wrong: type[Source], law: str) -> None:
    assert law_of_source(wrong) == law


class Growing(Source):
    """Reads a list that may grow; `careful` about whether it is the same."""

    name = "growing"
    values: ClassVar[list[str]] = []
    careful = True

    @property
    def capabilities(self) -> SourceCapabilities:
        return SourceCapabilities(replayable=True, bounded=True)

    async def open(self, partition: str, position: Any = None) -> Reader:
        if position is None:
            return RightReader(self.values, 0)
        if self.careful and self.values[: len(VALUES)] != list(VALUES):
            raise SourceError("another list")
        return RightReader(self.values, position + 1)


class Careless(Growing):
    careful = False


class Shortsighted(Growing):
    async def open(self, partition: str, position: Any = None) -> Reader:
        reader = await super().open(partition, position)
        assert isinstance(reader, RightReader)
        reader.values = reader.values[: len(VALUES)]
        return reader


class Ending(Growing):
    """Ends a run where the list ended when that began."""

    async def find_end(self, partition: str) -> Any:
        return len(self.values)

    async def open_until(self, partition: str, position: Any, end: Any) -> Reader:
        reader = await self.open(partition, position)
        assert isinstance(reader, RightReader)
        reader.values = reader.values[:end]
        return reader


class EndsAnew(Ending):
    async def open_until(self, partition: str, position: Any, end: Any) -> Reader:
        return await self.open(partition, position)


class EndsOnceForEver(Ending):
    async def find_end(self, partition: str) -> Any:
        return len(VALUES)


class EndsAnewAtTheStart(Ending):
    async def open_until(self, partition: str, position: Any, end: Any) -> Reader:
        return await super().open_until(partition, position, len(self.values) if position is None else end)


class EndsThatCannotBeStored(Ending):
    async def find_end(self, partition: str) -> Any:
        return {"at": len(self.values)}


@pytest.mark.parametrize(
    ("kind", "laws"),
    [
        (Growing, (None, None)),
        (Careless, (None, "changed")),
        (Shortsighted, ("grown", None)),
        (Ending, (None, None)),
        (EndsAnew, ("ends", None)),
        (EndsOnceForEver, ("grown", None)),
        (EndsAnewAtTheStart, ("ends", None)),
        (EndsThatCannotBeStored, ("ends", None)),
    ],
)
def test_sources_notice_a_changed_input(kind: type[Growing], laws: tuple[str | None, str | None]) -> None:
    def make() -> Source:
        return kind(None, EdgeContext("growing"))

    def broken(check: Coroutine[Any, Any, None]) -> str | None:
        Growing.values = list(VALUES)
        try:
            asyncio.run(check)
        except EdgeBroken as error:
            return error.law
        return None

    def reverse() -> None:
        Growing.values.reverse()

    grown = broken(check_grown(make, lambda: Growing.values.extend(["x", "y"]), ["x", "y"]))
    assert (grown, broken(check_changed(make, reverse))) == laws


class LiveReader(RightReader):
    """Hands out what has been fed."""

    enough = 1

    def __init__(self, fed: asyncio.Queue[str]) -> None:
        super().__init__((), 0)
        self.fed = fed

    async def read(self, limit: int) -> Batch | None:
        while self.fed.qsize() < self.enough:
            await asyncio.sleep(0)
        return Batch([self.fed.get_nowait()], [0])


class HoldsBack(LiveReader):
    enough = 2


class DropsWhatItWaitedFor(LiveReader):
    cancelled = False

    async def read(self, limit: int) -> Batch | None:
        try:
            batch = await super().read(limit)
        except asyncio.CancelledError:
            self.cancelled = True
            raise
        return Batch([""], [0]) if self.cancelled else batch


class NeverWaits(LiveReader):
    enough = 0

    async def read(self, limit: int) -> Batch | None:
        return Batch(["early"], [0])


@pytest.mark.parametrize(
    ("reader", "law"),
    [(LiveReader, None), (HoldsBack, "prompt"), (NeverWaits, "prompt"), (DropsWhatItWaitedFor, "cancelled")],
)
def test_a_wrong_live_source_fails_where_it_should(
    reader: type[LiveReader], law: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flamecore.testing.checks.sources.WAIT_S", 0.2)

    async def run() -> None:
        fed: asyncio.Queue[str] = asyncio.Queue()

        class Live(RightSource):
            def partitions(self) -> Sequence[str]:
                return ("",)

            async def open(self, partition: str, position: Any = None) -> Reader:
                return reader(fed)

        await check_live(lambda: Live(None, EdgeContext("live")), fed.put, ["a", "b", "c"])

    if law is None:
        asyncio.run(run())
    else:
        with pytest.raises(EdgeBroken) as caught:
            asyncio.run(run())
        assert caught.value.law == law


class RightSink(Sink):
    """A sink that keeps every law: one JSON file with everything in it, replaced in one step at every write."""

    name = "right"

    def __init__(self, file: Path, resume: bool, fingerprint: str) -> None:
        super().__init__(None, EdgeContext("sink", fingerprint=fingerprint))
        self.file = file
        self.resume = resume
        self.owner = token_hex(4)
        self.stored: dict[str, Any] = {}

    @property
    def guarantee(self) -> Guarantee:
        return "exactly_once"

    async def replaces(self) -> bool:
        there = json.loads(self.file.read_text()) if self.file.exists() else {}
        return would_replace(self.context, self.mode(), there.get("fingerprint"), empty=not there.get("values"))

    async def open(self) -> int:
        there = json.loads(self.file.read_text()) if self.file.exists() else {}
        if goes_on(self.context, self.mode(), there.get("fingerprint"), "the file", empty=not there.get("values")):
            self.stored = there
        else:
            self.stored = {"time": MIN_TIME, "fingerprint": self.context.fingerprint, "values": []}
        self.stored["owner"] = self.owner
        self.save()
        return int(self.stored["time"])

    def mode(self) -> Mode:
        return "resume" if self.resume else "replace"

    def save(self) -> None:
        new = self.file.with_suffix(".new")
        new.write_text(json.dumps(self.stored))
        new.replace(self.file)

    def demand(self) -> None:
        if json.loads(self.file.read_text())["owner"] != self.owner:
            raise taken_over(self.context, "the file")

    async def write(self, time: int, payloads: Sequence[Any]) -> None:
        self.demand()
        for payload in payloads:
            if not isinstance(payload, str):
                raise SinkError("no text")
        self.stored["values"] += payloads
        self.stored["time"] = time
        self.save()

    async def sync(self, time: int) -> None:
        self.demand()
        self.stored["time"] = max(self.stored["time"], time)
        self.save()


class TakesPerhaps(RightSink):
    takes_more = "perhaps"  # type: ignore[assignment]


class PromisesTheMoon(RightSink):
    @property
    def guarantee(self) -> Guarantee:
        return "at_least_twice"  # type: ignore[return-value]


class HoldsSomethingFromTheStart(RightSink):
    async def open(self) -> int:
        return max(await super().open(), 5)


class EmptiesItsBatches(RightSink):
    """It takes the payloads out of the list, which another sink may hold, too."""

    async def write(self, time: int, payloads: Sequence[Any]) -> None:
        await super().write(time, payloads)
        if isinstance(payloads, list):
            payloads.clear()


class LosesTheLastPayload(RightSink):
    async def write(self, time: int, payloads: Sequence[Any]) -> None:
        await super().write(time, payloads[:-1] if len(payloads) > 2 else payloads)


class WritesBackwards(RightSink):
    async def write(self, time: int, payloads: Sequence[Any]) -> None:
        await super().write(time, payloads[::-1])


class WritesWhenClosed(RightSink):
    def demand(self) -> None:
        """Demand nothing."""

    def save(self) -> None:
        """Not yet."""

    async def aclose(self) -> None:
        super().save()


class DropsWhatIsNotClosed(RightSink):
    """Every payload can be seen, but the time is kept only if the job ends well."""

    def save(self, closed: bool = False) -> None:
        time = self.stored["time"] if closed or (not self.resume and not self.stored["values"]) else MIN_TIME
        self.file.write_text(json.dumps({**self.stored, "time": time}))

    async def aclose(self) -> None:
        self.save(closed=True)


class ClosesOnce(RightSink):
    closed = False

    async def aclose(self) -> None:
        if self.closed:
            raise SinkError("closed already")
        self.closed = True


class WritesHalfABatch(RightSink):
    async def write(self, time: int, payloads: Sequence[Any]) -> None:
        for payload in payloads:
            await super().write(time, [payload])


class SwallowsFailures(RightSink):
    async def write(self, time: int, payloads: Sequence[Any]) -> None:
        await super().write(time, [payload for payload in payloads if isinstance(payload, str)])


class EncodesRightly(RightSink):
    """Its workers say how long each text is."""

    def encoder(self) -> Encode:
        return lambda payloads: [f"{len(one)}:{one}" if isinstance(one, str) else one for one in payloads]

    async def write_encoded(self, time: int, encoded: Sequence[Any]) -> None:
        await self.write(time, [one.partition(":")[2] for one in encoded])


class EncodesTextAlone(EncodesRightly):
    def encoder(self) -> Encode:
        return lambda payloads: [f"{len(one)}:{one}" for one in payloads]


class LeavesOutWhatItCannotEncode(EncodesRightly):
    def encoder(self) -> Encode:
        return lambda payloads: [f"{len(one)}:{one}" for one in payloads if isinstance(one, str)]


class TakesEncodedForPayloads(EncodesRightly):
    async def write_encoded(self, time: int, encoded: Sequence[Any]) -> None:
        await self.write(time, encoded)


class EncodesByTheirNeighbours(EncodesRightly):
    def encoder(self) -> Encode:
        plain = super().encoder()
        return lambda payloads: ["0:", *plain(payloads[1:])] if len(payloads) > 1 else plain(payloads)


class ForgetsTheTime(RightSink):
    async def open(self) -> int:
        await super().open()
        return MIN_TIME


class NotesTheTimeFirst(RightSink):
    """Says it holds a batch that it does not hold."""

    async def open(self) -> int:
        held = await super().open()
        return held + 10 if self.resume and held > MIN_TIME else held


class ResumesAnything(RightSink):
    def takes_all(self) -> bool:
        return self.resume

    async def open(self) -> int:
        if self.takes_all():
            stored = json.loads(self.file.read_text())
            self.file.write_text(json.dumps({**stored, "fingerprint": self.context.fingerprint}))
        return await super().open()


class TakesTheOutputOfAnotherJob(ResumesAnything):
    def takes_all(self) -> bool:
        return bool(self.context.continued)


class ReplacesTheOutputOfAnotherJob(RightSink):
    async def open(self) -> int:
        if self.context.continued and json.loads(self.file.read_text())["fingerprint"] != self.context.fingerprint:
            self.file.unlink()
        return await super().open()


class HeedsTheModeThoughStateIsKept(RightSink):
    async def open(self) -> int:
        if self.context.continued and not self.resume:
            self.file.unlink()
        return await super().open()


class ForgetsWhatSnapshotsRelyOn(RightSink):
    async def sync(self, time: int) -> None:
        self.demand()


class TakesNothingWhileItSyncs(RightSink):
    syncing = False

    async def sync(self, time: int) -> None:
        self.syncing = True
        await asyncio.sleep(0)
        self.syncing = False
        await super().sync(time)

    async def write(self, time: int, payloads: Sequence[Any]) -> None:
        assert not self.syncing
        await super().write(time, payloads)


class LetsGhostsIn(RightSink):
    def demand(self) -> None:
        """Admit every writer."""


class FencesOnlyByTime(RightSink):
    """Notices that another has written, but not that another has opened."""

    def demand(self) -> None:
        if self.stored["time"] != json.loads(self.file.read_text())["time"]:
            raise SinkError("another has written")


class ReplacesByTheQuestion(RightSink):
    async def replaces(self) -> bool:
        if not self.resume and self.file.exists():
            self.file.unlink()
        return False


class ReplacesInSilence(RightSink):
    """It opens as the right one does, and has nothing to say of it."""

    async def replaces(self) -> bool:
        return False


class SaysThatItReplacesWhatItResumes(RightSink):
    async def replaces(self) -> bool:
        return self.file.exists()


class SyncsForGhosts(RightSink):
    async def sync(self, time: int) -> None:
        if json.loads(self.file.read_text())["owner"] == self.owner:
            await super().sync(time)


def law_of_sink(kind: type[RightSink], folder: Path) -> str | None:
    file = folder / "out.json"

    def make(*, resume: bool, fingerprint: str) -> Sink:
        return kind(file, resume, fingerprint)

    def read_back() -> list[str]:
        return list(json.loads(file.read_text())["values"]) if file.exists() else []

    try:
        asyncio.run(check_sink(make, read_back))
    except EdgeBroken as broken:
        return broken.law
    return None


def test_the_right_sink_passes(tmp_path: Path) -> None:
    assert law_of_sink(RightSink, tmp_path) is None
    assert law_of_sink(EncodesRightly, tmp_path) is None


@pytest.mark.parametrize(
    ("wrong", "law"),
    [
        (PromisesTheMoon, "declares"),
        (TakesPerhaps, "declares"),
        (HoldsSomethingFromTheStart, "fresh"),
        (EmptiesItsBatches, "keeps"),
        (LosesTheLastPayload, "visible"),
        (WritesBackwards, "visible"),
        (WritesWhenClosed, "visible"),
        (ClosesOnce, "closes"),
        (WritesHalfABatch, "atomic"),
        (SwallowsFailures, "atomic"),
        (ReplacesByTheQuestion, "replaces"),
        (ReplacesInSilence, "replaces"),
        (SaysThatItReplacesWhatItResumes, "replaces"),
        (EncodesTextAlone, "encodes"),
        (LeavesOutWhatItCannotEncode, "encodes"),
        (TakesEncodedForPayloads, "encodes"),
        (EncodesByTheirNeighbours, "encodes"),
        (ForgetsTheTime, "resumes"),
        (DropsWhatIsNotClosed, "resumes"),
        (NotesTheTimeFirst, "resumes"),
        (ResumesAnything, "foreign"),
        (TakesTheOutputOfAnotherJob, "foreign"),
        (ReplacesTheOutputOfAnotherJob, "foreign"),
        (HeedsTheModeThoughStateIsKept, "continues"),
        (ForgetsWhatSnapshotsRelyOn, "syncs"),
        (TakesNothingWhileItSyncs, "syncs"),
        (LetsGhostsIn, "fenced"),
        (FencesOnlyByTime, "fenced"),
        (SyncsForGhosts, "fenced"),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_a_wrong_sink_fails_where_it_should(wrong: type[RightSink], law: str, tmp_path: Path) -> None:
    assert law_of_sink(wrong, tmp_path) == law


def test_a_source_that_refuses_to_be_replayed_passes() -> None:
    class Once(RightSource):
        replayable = False

        async def open(self, partition: str, position: Any = None) -> Reader:
            if position is not None:
                raise SourceError("gone")
            return await super().open(partition)

    assert law_of_source(Once) is None
