"""What a snapshot is made of, and how its bytes look (paper 000, "Fault tolerance").

A snapshot at time T is what it takes to go on from T: for every front where it stood, for every stateful operation its
state below T. It is one blob, the *manifest*, that names others, the *parts*: each holds what changed in one worker's
state between two snapshots, and some of what has not. So a snapshot costs what has changed, and the parts that it takes
to read one stay few (`flamecore.runtime.state.writer`).

    epoch/E                 a run of the job, or a new start after a fault: what it goes on from
    commit/E/N              a manifest: the N-th snapshot, taken in epoch E
    part/E/N/W/P            a part: the P-th of worker W
    journal/E/W/N           times of the wall clock that a worker has given, written down before they were used
    sync/E/N                the time of snapshot N, written down before a sink is told that it is the time of one

Blobs are written once (`flamecore.abc.store`), and each is sealed. The seal is a checksum of the data together with
the blob's name, the identity of the state and the token of the epoch that wrote it (`Binding`), so bytes that are whole
but belong elsewhere are found: those of an earlier run under the same name, of another job, of a backup that is mixed
with a later one. What refers to a blob of an earlier epoch also holds its digest, which is the checksum in its seal:
two copies of one state that were gone on with separately have epochs of the same numbers, and nothing else tells their
blobs apart for who comes later.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Sequence
from typing import Any, Final, NamedTuple, TypeVar

import xxhash

from flamecore.errors import CodecError, CorruptError
from flamecore.model.hashing import KEY_GROUPS
from flamecore.runtime.codec.codec import Codec
from flamecore.runtime.codec.wire import STORED

R = TypeVar("R", "Manifest", "EpochRecord")

MAGIC: Final = b"FLMB"
FORMAT: Final = 3
_READ: Final = (2, 3)
"""Formats that are read. Format 2 names the records below by the module that they were in, and its checksums cover the
data only: its blobs are not bound to their places."""
_UNBOUND: Final = 2
_SUM_BYTES: Final = 16
_START: Final = len(MAGIC) + 1 + _SUM_BYTES

RESTORE: Final = "Bring the state back from a copy; or delete it, and the outputs, to start from nothing."
"""What to do about state that is damaged, where no snapshot before can take its place."""


class Binding(NamedTuple):
    """The place of a blob, beside its name: what its seal must say, as far as that is known.

    Attributes:
        identity: Of the state. Empty: not known.
        run: Token of the epoch that wrote it; no two epochs have one, also if they have one number. Empty: not known,
            or written by no epoch.
        digest: Digest of the blob, from what refers to it. Empty: not known.
    """

    identity: str = ""
    run: str = ""
    digest: bytes = b""


class FrontState(NamedTuple):
    """Where a front stood.

    Attributes:
        source: Name of the source.
        partition: Which of its partitions, and the name of that.
        number: Its number among the job's fronts: part of the order, so it stays.
        position: Of the last record below the snapshot's time; None: it had read none.
        next_time: The time of its next record.
        ended: It had come to its end.
        phase: Of the source, when it was read: phases follow one another, each read by a driver of its own.
    """

    source: str
    partition: int
    partition_name: str
    number: int
    position: Any
    next_time: int
    ended: bool
    phase: int = 1

    @property
    def place(self) -> tuple[str, int, str]:
        """What tells it from all other fronts: source, phase, name of the partition."""
        return self.source, self.phase, self.partition_name


class SinkState(NamedTuple):
    """A sink that held all outputs: its name, and its phase, which tells it from one that came before."""

    name: str
    phase: int = 1


class Part(NamedTuple):
    """A part, as manifests tell of it.

    Attributes:
        blob: Name of the blob.
        size: Its bytes.
        operations: Whose state is in it, as far as it counts.
        groups: The first and the last key group that the worker that has written it owns of `covers`.
        number: Of the snapshot that it was written for.
        since: With it, all there is of these key groups is in parts of that snapshot and later ones; 0: in all parts.
        digest: Of the blob; empty in what was written in format 2.
        covers: The operations that `groups` and `since` are said of, whether any state of them is in it or not; empty:
            all operations, which one worker owned the same key groups of.
    """

    blob: str
    size: int
    operations: tuple[str, ...]
    groups: tuple[int, int]
    number: int
    since: int
    digest: bytes = b""
    covers: tuple[str, ...] = ()

    @property
    def span(self) -> range:
        """The key groups of the worker that has written it."""
        return range(self.groups[0], self.groups[1] + 1)

    def is_about(self, operations: Collection[str]) -> bool:
        """Return whether what it says of key groups is said of any of some operations."""
        return not self.covers or not set(self.covers).isdisjoint(operations)

    def supersedes(self, other: Part) -> bool:
        """Whether some of what another part holds does not count, because this one says since when all is in others."""
        return (
            other.number < self.since and self.is_about(other.operations) and not set(self.span).isdisjoint(other.span)
        )


class Manifest(NamedTuple):
    """A snapshot.

    Attributes:
        identity: Of the state: all runs that go on from each other have one.
        epoch, number: Which snapshot it is.
        time: Everything below it is in the snapshot, and has been delivered.
        created: When it was taken, in seconds since the epoch.
        flow: What of the graph the state depends on, see `flamecore.runtime.state.schema`.
        workers: How many took it.
        fronts: Every front, in the order of their numbers.
        parts: In the order in which they were written.
        sinks: Those that hold all outputs below its time.
        run: Token of the epoch that took it; empty in format 2.
        journals: For each worker the number of the first journal of its epoch that going on from here needs; empty:
            all of them.
    """

    identity: str
    epoch: int
    number: int
    time: int
    created: float
    flow: dict[str, Any]
    workers: int
    fronts: tuple[FrontState, ...]
    parts: tuple[Part, ...]
    sinks: tuple[SinkState, ...] = ()
    run: str = ""
    journals: tuple[int, ...] = ()

    @property
    def blob(self) -> str:
        """Name of the manifest's blob."""
        return commit_blob(self.epoch, self.number)

    @property
    def finished(self) -> bool:
        """Whether every front had come to its end."""
        return all(front.ended for front in self.fronts)

    def swept(self, operations: Iterable[str]) -> dict[str, list[int]]:
        """Return, for each of some operations and each key group, since which snapshot all of it has been written.

        What a part before that one holds of the group does not count: it may be of a name that has gone since, and the
        part that said so dropped.
        """
        last: dict[tuple[tuple[int, int], tuple[str, ...]], int] = {}
        for part in self.parts:  # a few different ones: those of every number of workers
            said = part.groups, part.covers
            last[said] = max(part.since, last.get(said, 0))
        swept = {operation: [0] * KEY_GROUPS for operation in operations}
        for ((first, final), covers), since in last.items():
            for operation in swept.keys() & covers if covers else swept:
                of = swept[operation]
                of[first : final + 1] = [max(since, before) for before in of[first : final + 1]]
        return swept

    def live_parts(self) -> tuple[Part, ...]:
        """Return the parts that hold something which need not be in later ones, or say since when all is in others."""
        swept = self.swept({name for part in self.parts for name in (*part.covers, *part.operations)})
        needed = {
            (groups, covers): min([min(swept[name][groups[0] : groups[1] + 1]) for name in covers or swept], default=0)
            for groups, covers in {(part.groups, part.covers) for part in self.parts}
        }
        later = [part for part in self.parts if part.number >= needed[part.groups, part.covers]]
        live = [part for part in later if part.operations]
        return tuple([part for part in later if part.operations or any(part.supersedes(other) for other in live)])

    def without(self, operations: Collection[str]) -> Manifest:
        """The same without the state of some operations: if it is in parts with that of others, it does not count."""
        flow = {name: facts for name, facts in self.flow.items() if name not in operations}
        parts = [
            part._replace(operations=tuple([name for name in part.operations if name not in operations]))
            for part in self.parts
        ]
        less = self._replace(flow=flow, parts=tuple(parts))
        return less._replace(parts=less.live_parts())

    def parts_of(self, groups: Collection[int], operations: Collection[str]) -> int:
        """Return the number of parts with state of some key groups of some operations."""
        return sum([part.is_about(operations) and not set(groups).isdisjoint(part.span) for part in self.parts])


Row = tuple[str, bytes]
"""A section in a part: its operation, its bytes."""


class Section(NamedTuple):
    """State of one operation inside a part.

    Attributes:
        vertex: Name of the operation.
        names, values: One entry each for every name.
        gone: Names that are no longer there.
    """

    vertex: str
    names: list[Any]
    values: list[Any]
    gone: list[Any]


class EpochRecord(NamedTuple):
    """What an epoch goes on from. Whoever creates its blob owns the state.

    Attributes:
        identity: Of the state.
        epoch: Its number, from 1.
        created: Seconds since the epoch of Unix.
        commits: Blobs of the snapshots it may go on from, newest first.
        beginning: It may go on from nothing, too: nothing has been forgotten yet that the first records would need.
        journals: Blobs of the journals that count, of all epochs before it, oldest first.
        fronts: Where every front goes on. What a front that is new starts from is decided once.
        run: A token that no other epoch has, also if it has the same number; empty in format 2.
        digests: (blob, digest) of the record of the epoch before, of `commits` and of `journals`.
        clock: The clock of its fronts; empty: not known.
        floor: Sinks hold nothing above this time from before the epoch.
    """

    identity: str
    epoch: int
    created: float
    commits: tuple[str, ...]
    beginning: bool
    journals: tuple[str, ...]
    fronts: tuple[FrontState, ...]
    run: str = ""
    digests: tuple[tuple[str, bytes], ...] = ()
    clock: str = ""
    floor: int = 0

    @property
    def blob(self) -> str:
        """Name of the record's blob."""
        return epoch_blob(self.epoch)

    @property
    def binding(self) -> Binding:
        """The binding of what the epoch writes."""
        return Binding(self.identity, self.run)

    def expected(self, blob: str) -> Binding:
        """Return the binding of a blob that it refers to."""
        return Binding(self.identity, digest=dict(self.digests).get(blob, b""))


def epoch_blob(epoch: int) -> str:
    """Name of the blob of an epoch."""
    return f"epoch/{epoch:08d}"


def commit_blob(epoch: int, number: int) -> str:
    """Name of the blob of a manifest."""
    return f"commit/{epoch:08d}/{number:012d}"


def part_blob(epoch: int, number: int, worker: int, piece: int = 0) -> str:
    """Name of the blob of a part."""
    return f"part/{epoch:08d}/{number:012d}/{worker:04d}/{piece:04d}"


def journal_blob(epoch: int, worker: int, number: int) -> str:
    """Name of the blob of a journal entry."""
    return f"journal/{epoch:08d}/{worker:04d}/{number:012d}"


def sync_blob(epoch: int, number: int) -> str:
    """Name of the blob that announces the time of a snapshot."""
    return f"sync/{epoch:08d}/{number:012d}"


def epoch_of(blob: str) -> int:
    """Return the number of the epoch that a blob's name says it is of."""
    return int(blob.split("/")[1])


def seal(data: bytes, name: str, binding: Binding) -> bytes:
    """Return the bytes of a blob: magic, format, checksum of all the rest, place, data."""
    place = b"".join(map(_sized, (name, binding.identity, binding.run)))
    return b"".join((MAGIC, bytes([FORMAT]), _checksum(FORMAT, place, data), place, data))


def unseal(blob: bytes | None, name: str, expected: Binding) -> bytes:
    """Return the data of a blob.

    Args:
        blob: The bytes; None: there are none.
        name: Its name.
        expected: What its seal must say. A blob of format 2 says nothing; it is taken where that is not known to be
            wrong, and its digest is compared where there is one.

    Raises:
        CorruptError: It is missing, damaged, of a newer format, or another one than it should be.
    """
    if blob is None:
        raise _corrupt(name, "it is missing")
    if len(blob) < _START or not blob.startswith(MAGIC):
        raise _corrupt(name, f"its {len(blob)} bytes do not begin as they should")
    stored_format = blob[len(MAGIC)]
    if stored_format not in _READ:
        known = " and ".join(map(str, _READ))
        raise _corrupt(name, f"it is of format {stored_format}, and formats {known} are read here")
    if _checksum(stored_format, memoryview(blob)[_START:]) != digest_of(blob):
        raise _corrupt(name, "its checksum is wrong")
    start = _START
    if stored_format != _UNBOUND:
        start = _check_place(blob, name, expected)
    elif expected.run:
        raise _foreign(name, f"it is of format {stored_format}, and its epoch has written format {FORMAT}")
    if expected.digest and expected.digest != digest_of(blob):
        raise _foreign(name, "it is whole, and another one than was written here")
    return blob[start:]


def _check_place(blob: bytes, name: str, expected: Binding) -> int:
    """Compare the place that a seal says with the expected one. Returns where the data begins."""
    start, place = _START, []
    for _ in ("name", "identity", "run"):
        end = start + 1 + int.from_bytes(blob[start : start + 1])
        place.append(blob[start + 1 : end].decode("ascii", "replace"))
        start = end
    if place[0] != name:
        raise _foreign(name, f"its bytes are those of blob {place[0]}")
    if expected.identity and place[1] != expected.identity:
        raise _foreign(name, f"it belongs to state {place[1]}, and this is state {expected.identity}")
    if expected.run and place[2] != expected.run:
        raise _foreign(name, "it was written by another epoch of that number: copies of the state are mixed")
    return start


def _sized(text: str) -> bytes:
    """Return ASCII of at most 255 characters with its length before it."""
    data = text.encode("ascii")
    return bytes([len(data)]) + data


def digest_of(blob: bytes) -> bytes:
    """Return the digest of a sealed blob, 16 bytes: the checksum in its seal."""
    return blob[len(MAGIC) + 1 : _START]


def is_bound(blob: bytes) -> bool:
    """Return whether a sealed blob says where it belongs."""
    return blob[len(MAGIC)] != _UNBOUND


def _checksum(stored_format: int, *data: bytes | memoryview) -> bytes:
    checksum = xxhash.xxh3_128() if stored_format == _UNBOUND else xxhash.xxh3_128(MAGIC + bytes([stored_format]))
    for each in data:
        checksum.update(each)
    return checksum.digest()


def encode_record(record: Manifest | EpochRecord) -> bytes:
    """The blob of a manifest or of an epoch."""
    return seal(_codec.encode(record, STORED), record.blob, Binding(record.identity, record.run))


def decode_manifest(blob: bytes | None, name: str, expected: Binding) -> Manifest:
    """The manifest of a blob.

    Raises:
        CorruptError: It is none, or not the expected one.
    """
    return _decode(blob, name, expected, Manifest)


def decode_epoch(blob: bytes | None, name: str, expected: Binding) -> EpochRecord:
    """The record of an epoch of a blob.

    Raises:
        CorruptError: It is none, or not the expected one.
    """
    return _decode(blob, name, expected, EpochRecord)


def _decode(blob: bytes | None, name: str, expected: Binding, kind: type[R]) -> R:
    try:
        record = _codec.decode(unseal(blob, name, expected), STORED)
    except CodecError as error:
        raise _corrupt(name, error.what) from error
    if not isinstance(record, kind):
        raise _corrupt(name, f"it holds a {type(record).__name__} and no {kind.__name__}")
    # Records say where they belong in format 2 as well, where their seals do not.
    if record.blob != name:
        raise _foreign(name, f"its bytes are those of blob {record.blob}")
    if expected.identity and record.identity != expected.identity:
        raise _foreign(name, f"it belongs to state {record.identity}, and this is state {expected.identity}")
    return record


def encode_section(codec: Codec, section: Section) -> bytes:
    """Bytes of a section, without its operation."""
    return codec.encode(section[1:], STORED)


def encode_part(codec: Codec, rows: Sequence[Row], name: str, binding: Binding) -> bytes:
    """The blob of a part."""
    return seal(codec.encode(list(rows), STORED), name, binding)


def decode_part(
    codec: Codec, blob: bytes | None, name: str, expected: Binding, operations: Container[str]
) -> list[Section]:
    """The sections of a part.

    Args:
        codec: Knows the types of what is wanted.
        blob, name: The part.
        expected: What its seal must say.
        operations: Those whose state is wanted; that of others is not looked at.

    Raises:
        CorruptError: It is none, or not the expected one.
        CodecError: It is one, of values that the flow does not declare any more, or that have changed their form.
    """
    data = unseal(blob, name, expected)
    try:
        return [
            Section(vertex, *codec.decode(row, STORED))
            for vertex, row in codec.decode(data, STORED)
            if vertex in operations
        ]
    except CodecError as error:  # the bytes are what was written, so another snapshot would do no better
        what = f"blob {name} of the state cannot be read: {error.what}"
        hint = f"{error.hint} What of the state could be kept: flamestream plan."
        raise CodecError(what, hint=hint, type_name=error.type_name, path=error.path) from error
    except (TypeError, ValueError) as error:
        raise _corrupt(name, str(error)) from error


def _corrupt(name: str, why: str) -> CorruptError:
    return CorruptError(f"blob {name} of the state cannot be used: {why}", hint=RESTORE, store="", blob=name)


def _foreign(name: str, why: str) -> CorruptError:
    """The error of a blob that is whole and belongs elsewhere. Its field `foreign` is True."""
    what = f"blob {name} of the state cannot be used: {why}"
    return CorruptError(what, hint=RESTORE, store="", blob=name, foreign=True)


_codec: Final = Codec(
    own={
        Manifest: ("Manifest", "flamecore.snapshot:Manifest"),
        EpochRecord: ("EpochRecord", "flamecore.snapshot:EpochRecord"),
        FrontState: ("FrontState", "flamecore.snapshot:FrontState"),
        SinkState: ("SinkState", "flamecore.snapshot:SinkState"),
        Part: ("Part", "flamecore.snapshot:Part"),
    }
)
