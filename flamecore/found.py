"""What a store holds of a job: which epochs there were, and what of all that they have written counts (paper 000).

Every epoch's blob says what it goes on from. Whatever an earlier one still writes is not in that list, so it does not
count.
"""

from __future__ import annotations

from typing import NamedTuple

from flamecore.errors import CorruptError
from flamecore.snapshot import EpochRecord, Manifest, commit_blob, decode_epoch, decode_manifest
from flamecore.store import Store


class Found(NamedTuple):
    """What a store holds of a job.

    Attributes:
        epochs: Records of its epochs, oldest first, as far as they can be read.
        last: That of the epoch which wrote what counts; None: there is none.
        snapshots: What can be gone back to, newest first.
        beginning: The beginning can be gone back to as well: at most one snapshot has been taken.
        damaged: What should be there and cannot be used.
        journals: Blobs of the journals that count, oldest first.
    """

    epochs: tuple[EpochRecord, ...] = ()
    last: EpochRecord | None = None
    snapshots: tuple[Manifest, ...] = ()
    beginning: bool = True
    damaged: tuple[CorruptError, ...] = ()
    journals: tuple[str, ...] = ()


async def look(store: Store) -> Found:
    """What a store holds. Changes nothing.

    Raises:
        StoreError: It cannot be read.
        CorruptError: The record of the last epoch is damaged, so nobody knows what counts.
    """
    names = await store.names("epoch/")
    if not names:
        return Found()
    epochs = [decode_epoch(await store.read(names[-1]), names[-1])]
    damaged: list[CorruptError] = []
    for name in reversed(names[:-1]):
        blob = await store.read(name)
        if blob is None:
            continue  # forgotten since
        try:
            epochs.insert(0, decode_epoch(blob, name))
        except CorruptError as error:
            damaged.append(error)
    for last in reversed(epochs):
        own = await store.names(f"commit/{last.epoch:08d}/")
        blobs = [(name, await store.read(name)) for name in (*reversed(own), *last.commits)]
        snapshots = []
        for name, blob in blobs:
            if blob is None and own:
                continue  # an earlier one, which has been forgotten since
            try:
                snapshots.append(decode_manifest(blob, name))
            except CorruptError as error:
                damaged.append(error)
        if not blobs or any(blob is not None for _, blob in blobs):
            break
        # What it was to go on from is gone: the epoch before was still at work when it looked. So it never began.
    first = not last.commits and own[-1:] == [commit_blob(last.epoch, 1)]
    journals = (*last.journals, *await store.names(f"journal/{last.epoch:08d}/"))
    beginning = last.beginning and (first or not own)
    return Found(tuple(epochs), last, tuple(snapshots), beginning, tuple(damaged), journals)
