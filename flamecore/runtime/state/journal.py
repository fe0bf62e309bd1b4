"""The journal: times given to records, stored before use, and ends of fronts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from flamecore.abc.store import Store
from flamecore.errors import CodecError, CorruptError
from flamecore.model.messages import Resume
from flamecore.runtime.codec.codec import Codec
from flamecore.runtime.codec.wire import STORED
from flamecore.runtime.state.format import RESTORE, Binding, journal_blob, seal, unseal

IDLE_MARK = -1
"""Number of records that stands for a mark: the front was idle."""

LAST_MARK = -2
"""Number of records that stands for the last marks of a front, which has ended."""


class Journal(NamedTuple):
    """The recorded times and ends of fronts, by number of the front.

    Attributes:
        times: Given times: (first, number of records), in order; in place of the number `IDLE_MARK` or `LAST_MARK`.
        ends: The time at which a front whose clock counts has ended; newer records are not for this run.
    """

    times: dict[int, list[tuple[int, int]]]
    ends: dict[int, int]


async def load_journal(store: Store, resume: Resume, start: int) -> Journal:
    """Return the recorded times from `start` on.

    Args:
        store: The open store of the journals.
        resume: Names of the journals that count, with their digests.
        start: Time of the snapshot to continue from.

    Raises:
        CorruptError: A blob is damaged, or differs from the one that the control has read.
    """
    times: dict[int, list[tuple[int, int]]] = {}
    ends: dict[int, int] = {}
    digests = dict(resume.digests)
    for blob in resume.journals:
        expected = Binding(resume.identity, digest=digests.get(blob, b""))
        for front, first, records in decode_journal(await store.read(blob), blob, expected):
            if not records:
                ends[front] = first
            if records < 0:
                if first >= start:
                    times.setdefault(front, []).append((first, records))
                continue
            # A journal may begin before the snapshot: it was written while its records were in flight.
            skipped = min(max(start - first, 0), records)
            if records > skipped:
                times.setdefault(front, []).append((first + skipped, records - skipped))
    return Journal({front: sorted(entries) for front, entries in times.items()}, ends)


def end_of(times: Sequence[GivenTimes]) -> int:
    """Return the end of a journal: snapshots at or after it do not need it."""
    return max(first + max(records, 1) for _, first, records in times)


def missing_journals(epoch: int, blobs: Iterable[str], first: Sequence[int]) -> list[str]:
    """Return the names of an epoch's journals that must exist and do not.

    A worker numbers its journals one after the other and deletes the oldest first, so none can be missing between the
    first that is needed and the last that exists. Lost journals behind the last one leave no trace here; a sink then
    holds outputs beyond the journals (`flamecore.runtime.state.history`).

    Args:
        epoch: The epoch.
        blobs: Names of its existing journals.
        first: For each worker the number of the first journal that is needed; it is 1 for workers behind the end.
    """
    there: dict[int, set[int]] = {}
    for blob in blobs:
        _, _, index, number = blob.split("/")
        there.setdefault(int(index), set()).add(int(number))
    missing = []
    for worker, numbers in sorted(there.items()):
        least = first[worker] if worker < len(first) else 1
        missing += [journal_blob(epoch, worker, n) for n in range(least, max(numbers)) if n not in numbers]
    return missing


def encode_journal(times: Sequence[GivenTimes], name: str, binding: Binding) -> bytes:
    """Return the blob of given times."""
    return seal(_codec.encode([tuple(entry) for entry in times], STORED), name, binding)


def decode_journal(blob: bytes | None, name: str, expected: Binding) -> list[GivenTimes]:
    """Return the given times in a blob.

    Raises:
        CorruptError: The blob is no journal, or not the expected one.
    """
    try:
        return [GivenTimes(*entry) for entry in _codec.decode(unseal(blob, name, expected), STORED)]
    except (CodecError, TypeError) as error:
        raise CorruptError(f"journal {name} cannot be read: {error}", hint=RESTORE, store="", blob=name) from error


def encode_sync(time: int, name: str, binding: Binding) -> bytes:
    """Return the blob that announces the time of a snapshot."""
    return seal(_codec.encode(time, STORED), name, binding)


def decode_sync(blob: bytes | None, name: str, expected: Binding) -> int:
    """Return the time that a blob announces.

    Raises:
        CorruptError: The blob announces no time, or is not the expected one.
    """
    try:
        time = _codec.decode(unseal(blob, name, expected), STORED)
    except CodecError as error:
        raise CorruptError(f"blob {name} cannot be read: {error}", hint=RESTORE, store="", blob=name) from error
    if type(time) is not int:
        raise CorruptError(f"blob {name} holds {time!r:.80} and no time", hint=RESTORE, store="", blob=name)
    return time


_codec = Codec()


class GivenTimes(NamedTuple):
    """Times of the wall clock that a front has given, to be stored before use.

    Attributes:
        front: Number of the front.
        first: The first of them.
        records: Number of records. 0: the front, whose clock counts, has ended before that time. `IDLE_MARK` or
            `LAST_MARK`: the time is that of a mark, and of no record.
    """

    front: int
    first: int
    records: int

    @property
    def end(self) -> int:
        """Return the time after them."""
        return self.first + (1 if self.records < 0 else self.records)
