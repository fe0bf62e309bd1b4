"""The contents of a snapshot, and the format of its blobs.

A snapshot at time T holds all that is needed to continue from T (paper 000, "Fault tolerance"): the position of every
front, and the state below T of every stateful operation. It is one blob, the *manifest*, that names others, the
*parts*: each holds the changes of one worker's state between two snapshots, and some unchanged state. So a snapshot
costs as much as has changed, and few parts are needed to read one (`flamecore.runtime.state.writer`).

    epoch/E                 a run of the job, or a restart after a fault: what it continues from
    commit/E/N              a manifest: the N-th snapshot, taken in epoch E
    part/E/N/W/P            a part: the P-th of worker W
    journal/E/W/N           times of the wall clock that a worker has given, stored before use
    sync/E/N                the time of snapshot N, stored before a sink learns that it is the time of one

Blobs are written once (`flamecore.abc.store`), and each is sealed. The seal is a checksum of the data together with
the blob's name, the identity of the state and the token of the epoch that wrote it (`Binding`), so undamaged bytes in
the wrong place are detected: those of an earlier run under the same name, of another job, of a backup mixed with a
later one. References to blobs of an earlier epoch also hold the digest, which is the checksum in the seal: two copies
of one state that were continued separately have epochs of the same numbers, and only the digest tells their blobs
apart.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Sequence
from typing import Any, Final, NamedTuple, TypeVar

import xxhash

from flamecore.errors import CodecError, CorruptError
from flamecore.model.hashing import KEY_GROUPS
from flamecore.runtime.codec.codec import Codec
from flamecore.runtime.codec.encode import PlainList
from flamecore.runtime.codec.wire import STORED

R = TypeVar("R", "Manifest", "EpochRecord")

MAGIC: Final = b"FLMB"
FORMAT: Final = 4
_SUM_BYTES: Final = 16
_START: Final = len(MAGIC) + 1 + _SUM_BYTES

_NEWER: Final = (
    "A newer flamestream has written it: run that version, or a newer one. Nothing of the state was changed."
)

RESTORE: Final = "Bring the state back from a copy; or delete it, and the outputs, to start from nothing."
"""Hint for damaged state that no earlier snapshot can replace."""


class Binding(NamedTuple):
    """The expected contents of a blob's seal besides its name, as far as known.

    Attributes:
        identity: Identity of the state. Empty: not known.
        run: Token of the epoch that wrote it, unique even among epochs of the same number. Empty: not known, or
            written by no epoch.
        digest: Digest of the blob, from a reference to it. Empty: not known.
    """

    identity: str = ""
    run: str = ""
    digest: bytes = b""


class FrontState(NamedTuple):
    """The position of a front.

    Attributes:
        source: Name of the source.
        partition: Number of the partition in the source.
        partition_name: Name of the partition.
        number: Its number among the job's fronts: part of the order, so it stays.
        position: Position of the last record below the snapshot's time; None: no record was read.
        next_time: Time of its next record.
        ended: Whether it had ended.
        phase: Phase of the source: phases follow one another, each with its own driver.
        marked: States of the markings of its records, by name, encoded by the flow's codec; empty: there are none.
        gone: Whether its partition, which was read whole, was no longer there when the job last started.
        unread: Whether nothing was read of it since the job began, or went on behind its end.
        begun: Time at which it goes on behind the job's end. Behind `next_time`: no record has been read there.
        end: Place where its source has decided to end in the run that has not finished; None: none was decided.
    """

    source: str
    partition: int
    partition_name: str
    number: int
    position: Any
    next_time: int
    ended: bool
    phase: int = 1
    marked: bytes = b""
    gone: bool = False
    unread: bool = False
    begun: int = 0
    end: Any = None

    @property
    def place(self) -> tuple[str, int, str]:
        """Return source, phase and name of the partition, unique to this front."""
        return self.source, self.phase, self.partition_name


class SinkState(NamedTuple):
    """A sink that held all outputs: its name and phase."""

    name: str
    phase: int = 1


class Part(NamedTuple):
    """A part, as manifests list it.

    Attributes:
        blob: Name of the blob.
        size: Size in bytes.
        operations: Operations whose state in it counts.
        groups: The first and the last key group of `covers` that its writer owns.
        number: Number of the snapshot that it was written for.
        since: With this part, the whole state of these key groups is in parts of that snapshot and later ones; 0: in
            all parts.
        digest: Digest of the blob.
        covers: Operations that `groups` and `since` apply to, whether the part has state of them or not; empty: all
            operations, with the same key groups each.
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
        """Return the key groups of the worker that has written it."""
        return range(self.groups[0], self.groups[1] + 1)

    def is_about(self, operations: Collection[str]) -> bool:
        """Return whether `groups` and `since` apply to any of the operations."""
        return not self.covers or not set(self.covers).isdisjoint(operations)

    def supersedes(self, other: Part) -> bool:
        """Return whether some state in another part does not count, by this `since`."""
        return (
            other.number < self.since and self.is_about(other.operations) and not set(self.span).isdisjoint(other.span)
        )


class Manifest(NamedTuple):
    """A snapshot.

    Attributes:
        identity: Identity of the state, the same in all runs that continue each other.
        epoch: Number of its epoch.
        number: Number of the snapshot.
        time: Everything below it is in the snapshot, and has been delivered.
        created: Time of creation, in seconds since the epoch of Unix.
        flow: Facts of the graph that the state depends on, see `flamecore.runtime.state.schema`.
        workers: Number of workers that took it.
        fronts: All fronts, in the order of their numbers.
        parts: Parts in the order in which they were written.
        sinks: Sinks that hold all outputs below its time.
        run: Token of the epoch that took it.
        journals: For each worker the number of the first journal of its epoch that is needed to continue from here;
            empty: all of them.
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
        """Return the name of the manifest's blob."""
        return commit_blob(self.epoch, self.number)

    @property
    def finished(self) -> bool:
        """Return whether every front had ended."""
        return all(front.ended for front in self.fronts)

    def swept(self, operations: Iterable[str]) -> dict[str, list[int]]:
        """Return since which snapshot each key group of operations is fully written.

        The result maps each operation to a list by key group. State of the group in earlier parts does not count: a
        name in it may be gone since, and the part that said so dropped.
        """
        last: dict[tuple[tuple[int, int], tuple[str, ...]], int] = {}
        for part in self.parts:  # few distinct spans: one set for each number of workers
            said = part.groups, part.covers
            # Lists by key group, not by worker: the next run may have another number of workers.
            last[said] = max(part.since, last.get(said, 0))
        swept = {operation: [0] * KEY_GROUPS for operation in operations}
        for ((first, final), covers), since in last.items():
            for operation in swept.keys() & covers if covers else swept:
                of = swept[operation]
                of[first : final + 1] = [max(since, before) for before in of[first : final + 1]]
        return swept

    def live_parts(self) -> tuple[Part, ...]:
        """Return the parts still needed: for their state, or because their `since` counts."""
        swept = self.swept({name for part in self.parts for name in (*part.covers, *part.operations)})
        needed = {
            (groups, covers): min([min(swept[name][groups[0] : groups[1] + 1]) for name in covers or swept], default=0)
            for groups, covers in {(part.groups, part.covers) for part in self.parts}
        }
        later = [part for part in self.parts if part.number >= needed[part.groups, part.covers]]
        live = [part for part in later if part.operations]
        return tuple([part for part in later if part.operations or any(part.supersedes(other) for other in live)])

    def without(self, operations: Collection[str]) -> Manifest:
        """Return the manifest without the state of some operations.

        Their state in parts shared with other operations does not count.
        """
        flow = {name: facts for name, facts in self.flow.items() if name not in operations}
        parts = [
            part._replace(operations=tuple([name for name in part.operations if name not in operations]))
            for part in self.parts
        ]
        less = self._replace(flow=flow, parts=tuple(parts))
        return less._replace(parts=less.live_parts())

    def parts_of(self, groups: Collection[int], operations: Collection[str]) -> int:
        """Return the number of parts with state of these key groups and operations."""
        return sum([part.is_about(operations) and not set(groups).isdisjoint(part.span) for part in self.parts])


Row = tuple[str, bytes]
"""A section in a part: its operation and its bytes."""


class Section(NamedTuple):
    """State of one operation inside a part.

    Attributes:
        vertex: Name of the operation.
        names, values: One entry each for every name.
        gone: Names that are no longer there.
    """

    vertex: str
    names: list[object]
    values: list[object]
    gone: list[object]


class EpochRecord(NamedTuple):
    """The start of an epoch. The run that creates its blob owns the state.

    Attributes:
        identity: Identity of the state.
        epoch: Number of the epoch, from 1.
        created: Time of creation, in seconds since the epoch of Unix.
        commits: Blobs of the snapshots that it may continue from, newest first.
        beginning: Whether it may also start from nothing: nothing that the first records need has been deleted.
        journals: Blobs of the journals that count, of all epochs before it, oldest first.
        fronts: Position of every front. The start of a new front is decided once, here.
        run: A token unique even among epochs of the same number.
        digests: (blob, digest) of the record of the epoch before, of `commits` and of `journals`.
        clock: The clock of its fronts.
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
        """Return the name of the record's blob."""
        return epoch_blob(self.epoch)

    @property
    def binding(self) -> Binding:
        """Return the binding of the epoch's own blobs."""
        return Binding(self.identity, self.run)

    def expected(self, blob: str) -> Binding:
        """Return the binding of a blob that the record refers to."""
        return Binding(self.identity, digest=dict(self.digests).get(blob, b""))


# Numbers in names have a fixed width, so that sorted names are in order: a store lists names, and
# does not look into blobs.
def epoch_blob(epoch: int) -> str:
    """Return the name of the blob of an epoch."""
    return f"epoch/{epoch:08d}"


def commit_blob(epoch: int, number: int) -> str:
    """Return the name of the blob of a manifest."""
    return f"commit/{epoch:08d}/{number:012d}"


def part_blob(epoch: int, number: int, worker: int, piece: int = 0) -> str:
    """Return the name of the blob of a part."""
    return f"part/{epoch:08d}/{number:012d}/{worker:04d}/{piece:04d}"


def journal_blob(epoch: int, worker: int, number: int) -> str:
    """Return the name of the blob of a journal entry."""
    return f"journal/{epoch:08d}/{worker:04d}/{number:012d}"


def sync_blob(epoch: int, number: int) -> str:
    """Return the name of the blob that announces the time of a snapshot."""
    return f"sync/{epoch:08d}/{number:012d}"


def epoch_of(blob: str) -> int:
    """Return the number of the epoch in a blob's name."""
    return int(blob.split("/")[1])


# Not a checksum of the data alone: a whole blob in the wrong place passes it, such as a part of an earlier run under
# the same name, or of a backup that was mixed with later blobs. Not a signature: a seal finds accidents; a process
# that may write to the store may write any state.
def seal(data: bytes, name: str, binding: Binding) -> bytes:
    """Return the bytes of a blob: magic, format, checksum of the rest, place, data."""
    # The place is within the checksum, not beside it: a blob under another name fails before its
    # data is looked at.
    place = b"".join(map(_sized, (name, binding.identity, binding.run)))
    return b"".join((MAGIC, bytes([FORMAT]), _checksum(place, data), place, data))


def unseal(blob: bytes | None, name: str, expected: Binding) -> bytes:
    """Return the data of a blob.

    Args:
        blob: The bytes; None: the blob is missing.
        name: Name of the blob.
        expected: Expected binding.

    Raises:
        CorruptError: It is missing, damaged, of an unknown format, or another one than expected.
    """
    if blob is None:
        raise _corrupt(name, "it is missing")
    if len(blob) < _START or not blob.startswith(MAGIC):
        raise _corrupt(name, f"its {len(blob)} bytes do not begin as they should")
    stored_format = blob[len(MAGIC)]
    if stored_format != FORMAT:
        hint = _NEWER if stored_format > FORMAT else RESTORE
        raise _corrupt(name, f"it is of format {stored_format}, and format {FORMAT} is read here", hint)
    if _checksum(memoryview(blob)[_START:]) != digest_of(blob):
        raise _corrupt(name, "its checksum is wrong")
    start = _check_place(blob, name, expected)
    # Last, since it finds what all else has let pass: the same name, state and epoch, and other
    # bytes.
    if expected.digest and expected.digest != digest_of(blob):
        raise _foreign(name, "it is whole, and another one than was written here")
    return blob[start:]


def _check_place(blob: bytes, name: str, expected: Binding) -> int:
    """Compare the place in a seal with the expected one; return the start of the data."""
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
    """Return ASCII of at most 255 characters, prefixed by its length."""
    data = text.encode("ascii")
    return bytes([len(data)]) + data


def digest_of(blob: bytes) -> bytes:
    """Return the digest of a sealed blob: the checksum in its seal, 16 bytes."""
    return blob[len(MAGIC) + 1 : _START]


def _checksum(*data: bytes | memoryview) -> bytes:
    # The format is part of the checksum, so that no changed byte of it can make a blob pass as one of another format.
    checksum = xxhash.xxh3_128(MAGIC + bytes([FORMAT]))
    for each in data:
        checksum.update(each)
    return checksum.digest()


def encode_record(record: Manifest | EpochRecord) -> bytes:
    """Return the blob of a manifest or of an epoch."""
    return seal(_codec.encode(record, STORED), record.blob, Binding(record.identity, record.run))


def decode_manifest(blob: bytes | None, name: str, expected: Binding) -> Manifest:
    """Return the manifest in a blob.

    Raises:
        CorruptError: It is none, or not the expected one.
    """
    return _decode(blob, name, expected, Manifest)


def decode_epoch(blob: bytes | None, name: str, expected: Binding) -> EpochRecord:
    """Return the record of an epoch in a blob.

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
    return record


def encode_section(codec: Codec, section: Section, *, plain_names: bool = False, plain_values: bool = False) -> bytes:
    """Return the bytes of a section, without its operation.

    Args:
        codec: Codec of the state.
        section: The section.
        plain_names, plain_values: Whether its names and its values are known to be of types in
            `flamecore.runtime.codec.encode.PLAIN`. The bytes are the same.
    """
    names = PlainList(section.names) if plain_names else section.names
    values = PlainList(section.values) if plain_values else section.values
    return codec.encode((names, values, section.gone), STORED)


def encode_part(codec: Codec, rows: Sequence[Row], name: str, binding: Binding) -> bytes:
    """Return the blob of a part."""
    return seal(codec.encode(list(rows), STORED), name, binding)


def decode_part(
    codec: Codec, blob: bytes | None, name: str, expected: Binding, operations: Container[str]
) -> list[Section]:
    """Return the sections of a part.

    Args:
        codec: Codec with the types of the operations.
        blob: The bytes; None: the blob is missing.
        name: Name of the blob.
        expected: Expected binding.
        operations: Operations whose sections to decode.

    Raises:
        CorruptError: The blob is no part, or not the expected one.
        CodecError: Its values are of classes that the flow no longer declares, or that have changed their form.
    """
    data = unseal(blob, name, expected)
    try:
        return [
            Section(vertex, *codec.decode(row, STORED))
            for vertex, row in codec.decode(data, STORED)
            if vertex in operations
        ]
    except CodecError as error:  # the bytes are as written, so another snapshot would fail too
        what = f"blob {name} of the state cannot be read: {error.what}"
        hint = f"{error.hint} flamestream plan shows which parts of the state could be kept."
        raise CodecError(what, hint=hint, type_name=error.type_name, path=error.path) from error
    except (TypeError, ValueError) as error:
        raise _corrupt(name, str(error)) from error


def _corrupt(name: str, why: str, hint: str = RESTORE) -> CorruptError:
    return CorruptError(f"blob {name} of the state cannot be used: {why}", hint=hint, store="", blob=name)


def _foreign(name: str, why: str) -> CorruptError:
    """Return the error of an undamaged blob in the wrong place: `foreign` is True."""
    what = f"blob {name} of the state cannot be used: {why}"
    return CorruptError(what, hint=RESTORE, store="", blob=name, foreign=True)


_codec: Final = Codec(own=(Manifest, EpochRecord, FrontState, SinkState, Part))
