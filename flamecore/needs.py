"""Which of a job's blobs somebody may still need: the snapshots that are kept and their parts, the journals and records
of epochs that lead to what may be gone back to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from flamecore.acceptance import ACCEPTED
from flamecore.found import Found
from flamecore.recovery import decode_journal, end_of
from flamecore.snapshot import Manifest, epoch_blob
from flamecore.store import Store


async def needed_journals(store: Store, found: Found, since: int) -> tuple[str, ...]:
    """Of the journals those that going on from any snapshot could need.

    Args:
        store: Where they are, open.
        found: What it holds.
        since: Time of the oldest snapshot.

    Raises:
        CorruptError: One is damaged: nobody knows which times were given.
        StoreError: The store fails.
    """
    needed = []
    for blob in found.journals:
        data = await store.read(blob)
        if data is None and found.last is not None and blob not in found.last.journals:
            continue  # who has written it is still at work, and has just found that nobody will need it
        if end_of(decode_journal(data, blob)) > since:
            needed.append(blob)
    return tuple(needed)


def only_of(old: Manifest, kept: Iterable[Manifest]) -> list[str]:
    """What of a snapshot none of those needs that are kept."""
    needed = {part.blob for manifest in kept for part in manifest.parts}
    return [old.blob, *(part.blob for part in old.parts if part.blob not in needed)]


def left_behind(names: Iterable[str], epoch: int, journals: Iterable[str], kept: Sequence[Manifest]) -> list[str]:
    """What faults have left: all of earlier epochs that nobody will go back to.

    Args:
        names: Of all blobs there are.
        epoch: The present one. What it has written, or a later one, is not looked at.
        journals: Those that it needs.
        kept: The snapshots that are kept.
    """
    since = min([epoch - 1, *(manifest.epoch for manifest in kept)])
    needed = {*journals, *(epoch_blob(number) for number in range(since, epoch))}
    for manifest in kept:
        needed |= {manifest.blob, *(part.blob for part in manifest.parts)}
    own = f"{epoch:08d}"
    return [name for name in names if not name.startswith(ACCEPTED) and name.split("/")[1] < own and name not in needed]
