"""What a snapshot is made of, and how its bytes look (paper 000, "Fault tolerance").

A snapshot at time T is what it takes to go on from T: for every front where it stood, for every stateful operation its
state below T. It is one blob, the *manifest*, that names others, the *parts*: each holds what changed in one worker's
state between two snapshots, and some of what has not. So a snapshot costs what has changed, and the parts that it takes
to read one stay few (`flamecore.keeper`).

    epoch/E                 a run of the job, or a new start after a fault: what it goes on from
    commit/E/N              a manifest: the N-th snapshot, taken in epoch E
    part/E/N/W/P            a part: the P-th of worker W
    journal/E/W/N           times of the wall clock that a worker has given, written down before they were used

Blobs are written once (`flamecore.store`), and each is sealed with a checksum of all its bytes.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Sequence
from typing import Any, Final, NamedTuple, TypeVar

import xxhash

from flamecore.codec import Codec
from flamecore.errors import CodecError, CorruptError
from flamecore.hashing import KEY_GROUPS

R = TypeVar("R")

MAGIC: Final = b"FLMB"
FORMAT: Final = 2
_SUM_BYTES: Final = 16

RESTORE: Final = "Bring the state back from a copy; or delete it, and the outputs, to start from nothing."
"""What to do about state that is damaged, where no snapshot before can take its place."""


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
        groups: The first and the last key group of the worker that has written it.
        number: Of the snapshot that it was written for.
        since: With it, all there is of these key groups is in parts of that snapshot and later ones; 0: in all parts.
    """

    blob: str
    size: int
    operations: tuple[str, ...]
    groups: tuple[int, int]
    number: int
    since: int

    @property
    def span(self) -> range:
        """The key groups of the worker that has written it."""
        return range(self.groups[0], self.groups[1] + 1)


class Manifest(NamedTuple):
    """A snapshot.

    Attributes:
        identity: Of the state: all runs that go on from each other have one.
        epoch, number: Which snapshot it is.
        time: Everything below it is in the snapshot, and has been delivered.
        created: When it was taken, in seconds since the epoch.
        flow: What of the graph the state depends on, see `flamecore.facts`.
        workers: How many took it.
        fronts: Every front, in the order of their numbers.
        parts: In the order in which they were written.
        sinks: Those that hold all outputs below its time.
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

    @property
    def blob(self) -> str:
        """Name of the manifest's blob."""
        return commit_blob(self.epoch, self.number)

    @property
    def finished(self) -> bool:
        """Whether every front had come to its end."""
        return all(front.ended for front in self.fronts)

    def live_parts(self) -> tuple[Part, ...]:
        """The parts that hold something which need not be in later ones."""
        covered = [0] * KEY_GROUPS
        for groups in {part.groups: part.since for part in self.parts}:  # a few: those of every number of workers
            since = max([part.since for part in self.parts if part.groups == groups])
            for group in range(groups[0], groups[1] + 1):
                covered[group] = max(covered[group], since)
        needed = {groups: min(covered[groups[0] : groups[1] + 1]) for groups in {part.groups for part in self.parts}}
        return tuple([part for part in self.parts if part.operations and part.number >= needed[part.groups]])

    def without(self, operations: Collection[str]) -> Manifest:
        """The same without the state of some operations: if it is in parts with that of others, it does not count."""
        flow = {name: facts for name, facts in self.flow.items() if name not in operations}
        parts = [
            part._replace(operations=tuple([name for name in part.operations if name not in operations]))
            for part in self.parts
        ]
        less = self._replace(flow=flow, parts=tuple(parts))
        return less._replace(parts=less.live_parts())

    def parts_of(self, groups: Collection[int]) -> int:
        """How many parts there are with state of some key groups."""
        return sum([not set(groups).isdisjoint(part.span) for part in self.parts])


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
    """

    identity: str
    epoch: int
    created: float
    commits: tuple[str, ...]
    beginning: bool
    journals: tuple[str, ...]
    fronts: tuple[FrontState, ...]


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


def seal(data: bytes) -> bytes:
    """Bytes of a blob: magic, format, checksum of the data, data."""
    return b"".join((MAGIC, bytes([FORMAT]), xxhash.xxh3_128_digest(data), data))


def unseal(blob: bytes | None, name: str) -> bytes:
    """The data of a blob.

    Raises:
        CorruptError: It is missing, damaged, or of a newer format.
    """
    if blob is None:
        raise _corrupt(name, "it is missing")
    start = len(MAGIC) + 1 + _SUM_BYTES
    if len(blob) < start or not blob.startswith(MAGIC):
        raise _corrupt(name, f"its {len(blob)} bytes do not begin as they should")
    if blob[len(MAGIC)] != FORMAT:
        raise _corrupt(name, f"it is of format {blob[len(MAGIC)]}, and format {FORMAT} is read here")
    data = blob[start:]
    if xxhash.xxh3_128_digest(data) != blob[len(MAGIC) + 1 : start]:
        raise _corrupt(name, "its checksum is wrong")
    return data


def encode_record(record: Manifest | EpochRecord) -> bytes:
    """The blob of a manifest or of an epoch."""
    return seal(_codec.encode(record))


def decode_manifest(blob: bytes | None, name: str) -> Manifest:
    """The manifest of a blob.

    Raises:
        CorruptError: It is none.
    """
    return _decode(blob, name, Manifest)


def decode_epoch(blob: bytes | None, name: str) -> EpochRecord:
    """The record of an epoch of a blob.

    Raises:
        CorruptError: It is none.
    """
    return _decode(blob, name, EpochRecord)


def _decode(blob: bytes | None, name: str, kind: type[R]) -> R:
    try:
        record = _codec.decode(unseal(blob, name))
    except CodecError as error:
        raise _corrupt(name, error.what) from error
    if not isinstance(record, kind):
        raise _corrupt(name, f"it holds a {type(record).__name__} and no {kind.__name__}")
    return record


def encode_section(codec: Codec, section: Section) -> bytes:
    """Bytes of a section, without its operation."""
    return codec.encode(section[1:])


def encode_part(codec: Codec, rows: Sequence[Row]) -> bytes:
    """The blob of a part."""
    return seal(codec.encode(list(rows)))


def decode_part(codec: Codec, blob: bytes | None, name: str, operations: Container[str]) -> list[Section]:
    """The sections of a part.

    Args:
        codec: Knows the types of what is wanted.
        blob, name: The part.
        operations: Those whose state is wanted; that of others is not looked at.

    Raises:
        CorruptError: It is none.
        CodecError: It is one, of values that the flow does not declare any more, or that have changed their form.
    """
    data = unseal(blob, name)
    try:
        return [Section(vertex, *codec.decode(row)) for vertex, row in codec.decode(data) if vertex in operations]
    except CodecError as error:  # the bytes are what was written, so another snapshot would do no better
        what = f"blob {name} of the state cannot be read: {error.what}"
        hint = f"{error.hint} What of the state could be kept: flamestream plan."
        raise CodecError(what, hint=hint, type_name=error.type_name, path=error.path) from error
    except (TypeError, ValueError) as error:
        raise _corrupt(name, str(error)) from error


def _corrupt(name: str, why: str) -> CorruptError:
    return CorruptError(f"blob {name} of the state cannot be used: {why}", hint=RESTORE, store="", blob=name)


_codec: Final = Codec((Manifest, EpochRecord, FrontState, SinkState, Part))
