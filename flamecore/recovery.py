"""What a worker loads to go on from a snapshot: its key groups, and the times its fronts have given before."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from flamecore.codec import Codec
from flamecore.errors import CodecError, CorruptError
from flamecore.keeper import GroupsOf, Restored
from flamecore.messages import Resume
from flamecore.snapshot import RESTORE, Manifest, decode_manifest, decode_part, seal, unseal
from flamecore.store import Store
from flamecore.worker import Given


@dataclass(frozen=True, slots=True)
class Kept:
    """How the parts of a node keep state.

    Attributes:
        store: Where, open.
        codec: Encodes state.
        resume: What they go on from.
        max_uncommitted: Most records admitted since the last snapshot, for the whole job.
    """

    store: Store
    codec: Codec
    resume: Resume
    max_uncommitted: int


async def load_manifest(store: Store, resume: Resume) -> Manifest | None:
    """The snapshot to go on from; None: from nothing.

    Raises:
        CorruptError: It cannot be used.
    """
    return decode_manifest(await store.read(resume.commit), resume.commit) if resume.commit else None


async def load_state(
    store: Store, codec: Codec, manifest: Manifest, groups: Collection[int], operations: Mapping[str, GroupsOf]
) -> dict[str, dict[Any, Any]]:
    """State of some key groups: for each operation, by name.

    Args:
        store, codec: Where it is, and what decodes it.
        manifest: Of the snapshot.
        groups: The key groups.
        operations: Of each operation that is wanted what finds the key groups of its names.

    Raises:
        CorruptError: A part is missing or damaged.
        CodecError: A class that it has values of is declared no more, or has changed its form.
    """
    restored = Restored(groups, operations)
    for part in manifest.parts:
        if restored.wants(part):
            blob = await store.read(part.blob)
            restored.apply(part, decode_part(codec, blob, part.blob, restored.wanted(part)))
    return restored.held


class Journal(NamedTuple):
    """What fronts have done before, by number.

    Attributes:
        given: Times that were given: (first, how many), in order.
        ends: The time at which a front has ended; what has come since is not for this run.
    """

    given: dict[int, list[tuple[int, int]]]
    ends: dict[int, int]


async def load_journal(store: Store, blobs: Sequence[str], start: int) -> Journal:
    """What was written down of times from `start` on.

    Raises:
        CorruptError: A blob is damaged.
    """
    given: dict[int, list[tuple[int, int]]] = {}
    ends: dict[int, int] = {}
    for blob in blobs:
        for front, first, records in decode_journal(await store.read(blob), blob):
            if not records:
                ends[front] = first
            skipped = min(max(start - first, 0), records)
            if records > skipped:
                given.setdefault(front, []).append((first + skipped, records - skipped))
    return Journal({front: sorted(entries) for front, entries in given.items()}, ends)


def end_of(given: Sequence[Given]) -> int:
    """Where a journal ends: a snapshot of that time or a later one does not need it."""
    return max(first + max(records, 1) for _, first, records in given)


def encode_journal(given: Sequence[Given]) -> bytes:
    """The blob of times that were given."""
    return seal(_codec.encode([tuple(entry) for entry in given]))


def decode_journal(blob: bytes | None, name: str) -> list[Given]:
    """The times of a blob.

    Raises:
        CorruptError: It is none.
    """
    try:
        return [Given(*entry) for entry in _codec.decode(unseal(blob, name))]
    except (CodecError, TypeError) as error:
        raise CorruptError(f"journal {name} cannot be read: {error}", hint=RESTORE, store="", blob=name) from error


_codec = Codec()
