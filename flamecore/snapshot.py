"""What a snapshot is made of, and how its bytes look (paper 000, "Fault tolerance").

A snapshot at time T is what it takes to go on from T: for every front where it stood, for every stateful operation its
state below T. It is one blob, the *manifest*, that names others, the *parts*: each holds what changed in one worker's
state between two snapshots, and some of the key groups in full, in turn. So a snapshot costs what has changed, and
the parts that it takes to read one stay few.

    epoch/E                 a run of the job, or a new start after a fault: what it goes on from
    commit/E/N              a manifest: the N-th snapshot, taken in epoch E
    part/E/N/W              a part: of worker W
    journal/E/W/N           times of the wall clock that a worker has given, written down before they were used

Blobs are written once (`flamecore.store`), and each is sealed with a checksum of all its bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple

import xxhash

from flamecore.codec import Codec
from flamecore.errors import CodecError, CorruptError

MAGIC: Final = b"FLMB"
FORMAT: Final = 1
_SUM_BYTES: Final = 16

Groups = Mapping[int, Mapping[Any, Any]]
"""State of one operation: by key group, then by name."""


class FrontState(NamedTuple):
    """Where a front stood.

    Attributes:
        source: Name of the source.
        partition: Which of its partitions, and the name of that.
        number: Its number among the job's fronts: part of the order, so it stays.
        position: Of the last record below the snapshot's time; None: it had read none.
        next_time: The time of its next record.
        ended: It had come to its end.
    """

    source: str
    partition: int
    partition_name: str
    number: int
    position: Any
    next_time: int
    ended: bool


class Part(NamedTuple):
    """A part, as manifests tell of it.

    Attributes:
        blob: Name of the blob.
        size: Its bytes.
        full: (vertex, key group) of the key groups it holds in full.
        changed: (vertex, key group) of those it holds changes of.
    """

    blob: str
    size: int
    full: tuple[tuple[str, int], ...]
    changed: tuple[tuple[str, int], ...]


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
    sinks: tuple[str, ...] = ()

    @property
    def blob(self) -> str:
        """Name of the manifest's blob."""
        return commit_blob(self.epoch, self.number)

    @property
    def finished(self) -> bool:
        """Whether every front had come to its end."""
        return all(front.ended for front in self.fronts)

    def live_parts(self) -> tuple[Part, ...]:
        """The parts that hold something which no later part holds in full."""
        covered: set[tuple[str, int]] = set()
        live: list[Part] = []
        for part in reversed(self.parts):
            if not covered.issuperset(part.full) or not covered.issuperset(part.changed):
                live.append(part)
            covered.update(part.full)
        return tuple(reversed(live))

    def without(self, operations: Collection[str]) -> Manifest:
        """The same without the state of some operations: if it is in parts with that of others, it does not count."""

        def others(groups: tuple[tuple[str, int], ...]) -> tuple[tuple[str, int], ...]:
            return tuple([group for group in groups if group[0] not in operations])

        flow = {name: facts for name, facts in self.flow.items() if name not in operations}
        parts = [part._replace(full=others(part.full), changed=others(part.changed)) for part in self.parts]
        less = self._replace(flow=flow, parts=tuple(parts))
        return less._replace(parts=less.live_parts())

    def waiting(self) -> tuple[tuple[str, int], ...]:
        """(vertex, key group) of what has changed since it was last written in full, the longest ago first."""
        waiting: dict[tuple[str, int], None] = {}
        for part in self.parts:
            for group in part.changed:
                waiting.setdefault(group)
            for group in part.full:
                waiting.pop(group, None)
        return tuple(waiting)


Row = tuple[str, int, int, bytes]
"""A section in a part: its operation, the first and the last of its key groups, its bytes."""


class Section(NamedTuple):
    """State of one operation inside a part: names with their values, and the key group of each.

    Attributes:
        vertex: Name of the operation.
        full: Takes the place of all there was of one key group; otherwise changes of any.
        groups, names, values: One entry each for every name; for a full section `groups` has one entry in all.
        gone: (key group, name) of what is no longer there.
    """

    vertex: str
    full: bool
    groups: list[int]
    names: list[Any]
    values: list[Any]
    gone: list[tuple[int, Any]]

    def row(self, encoded: bytes) -> Row:
        """How it stands in a part, given its bytes."""
        groups = {*self.groups, *(group for group, _ in self.gone)}
        return self.vertex, min(groups), max(groups), encoded


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


def part_blob(epoch: int, number: int, worker: int) -> str:
    """Name of the blob of a part."""
    return f"part/{epoch:08d}/{number:012d}/{worker:04d}"


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
    manifest: Manifest = _decode(blob, name, Manifest)
    return manifest


def decode_epoch(blob: bytes | None, name: str) -> EpochRecord:
    """The record of an epoch of a blob.

    Raises:
        CorruptError: It is none.
    """
    record: EpochRecord = _decode(blob, name, EpochRecord)
    return record


def _decode(blob: bytes | None, name: str, kind: type[Any]) -> Any:
    try:
        record = _codec.decode(unseal(blob, name))
    except CodecError as error:
        raise _corrupt(name, error.what) from error
    if type(record) is not kind:
        raise _corrupt(name, f"it holds a {type(record).__name__} and no {kind.__name__}")
    return record


def encode_sections(codec: Codec, rows: Sequence[Row]) -> bytes:
    """The blob of a part, of sections that were encoded by `codec` one by one."""
    return seal(codec.encode(list(rows)))


def decode_sections(
    codec: Codec,
    blob: bytes | None,
    name: str,
    wanted: Callable[[str, int, int], bool] = lambda vertex, first, last: True,
) -> list[Section]:
    """The sections of a part.

    Args:
        codec: Knows the types of what is wanted.
        blob, name: The part.
        wanted: Whether a section is wanted of that operation, which has key groups from the first to the last given
            (paper 004, "hash ranges"); what is not, is not looked at.

    Raises:
        CorruptError: It is none.
        CodecError: It is one, of values that the flow does not declare any more, or that have changed their form.
    """
    data = unseal(blob, name)
    try:
        rows = codec.decode(data)
        return [Section(*codec.decode(row)) for vertex, first, last, row in rows if wanted(vertex, first, last)]
    except CodecError as error:  # the bytes are what was written, so another snapshot would do no better
        what = f"blob {name} of the state cannot be read: {error.what}"
        hint = f"{error.hint} What of the state could be kept: flamestream plan."
        raise CodecError(what, hint=hint, type_name=error.type_name, path=error.path) from error
    except (TypeError, ValueError) as error:
        raise _corrupt(name, str(error)) from error


def _corrupt(name: str, why: str) -> CorruptError:
    return CorruptError(f"blob {name} of the state cannot be used: {why}", store="", blob=name)


_codec: Final = Codec((Manifest, EpochRecord, FrontState, Part))
