"""The contents of a job's store: its epochs, and which of their blobs count.

Every epoch's blob lists the blobs from which it continues (paper 000). Later writes of an earlier epoch are not in that
list, so they do not count. Blobs that no record or snapshot needs are garbage.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

from flamecore.abc.store import Store
from flamecore.errors import CorruptError, StoreError
from flamecore.model.meta import MIN_TIME
from flamecore.runtime.state.accepted_loss import BESIDE
from flamecore.runtime.state.format import (
    RESTORE,
    Binding,
    EpochRecord,
    Manifest,
    commit_blob,
    decode_epoch,
    decode_manifest,
    digest_of,
    epoch_blob,
    epoch_of,
    sync_blob,
)
from flamecore.runtime.state.journal import decode_journal, decode_sync, end_of, missing_journals

_TRIES: Final = 100

_NONE: Final[Mapping[str, bytes]] = MappingProxyType({})


class StoreContents(NamedTuple):
    """The contents of a job's store.

    Attributes:
        epochs: Records of its epochs, oldest first, as far as they can be read.
        last: Record of the epoch whose blobs count; None: there is none.
        snapshots: Snapshots for rollback, newest first.
        beginning: Whether rollback to the beginning is possible: at most one snapshot has been taken.
        damaged: Errors of blobs that count and cannot be used.
        journals: Blobs of the journals that count, oldest first.
        digests: Digests of the records of `epochs` and `snapshots`, by blob.
    """

    epochs: tuple[EpochRecord, ...] = ()
    last: EpochRecord | None = None
    snapshots: tuple[Manifest, ...] = ()
    beginning: bool = True
    damaged: tuple[CorruptError, ...] = ()
    journals: tuple[str, ...] = ()
    digests: Mapping[str, bytes] = _NONE


async def scan(store: Store) -> StoreContents:
    """Return the contents of a store, unchanged.

    Raises:
        StoreError: It cannot be read, or its contents change faster than they can be read.
        CorruptError: The record of the last epoch is damaged or missing, or epochs are of several states, so what
            counts is not known.
    """
    # A running job deletes blobs that it needs no more while this reads: a listing that has gone stale is
    # no damage, so it is read again.
    for _ in range(_TRIES):
        # List all blobs before the epochs: an epoch's record is written before its other blobs.
        written = [name for name in await store.names() if not name.startswith(BESIDE)]
        error: CorruptError | None = None
        found = None
        try:
            found = await _scan(store, written)
        except CorruptError as caught:
            error = caught
        if (error is not None or (found is not None and found.damaged)) and await _is_stale(store, written):
            continue
        if error is not None:
            raise error
        if found is not None:
            return found
    what = f"store {store.name!r}: snapshots are forgotten faster than they can be read"
    raise StoreError(what, hint="Raise state.interval_s.", store=store.name, blob="")


async def _is_stale(store: Store, written: Collection[str]) -> bool:
    """Return whether one of the listed blobs has been deleted since."""
    return not set(await store.names()).issuperset(written)


async def _scan(store: Store, written: Sequence[str]) -> StoreContents | None:
    """Return the contents, given the names of all blobs; None if an active job deleted all listed snapshots."""
    names = await store.names("epoch/")
    _check_recorded(store, written, names)
    if not names:
        return StoreContents()
    damaged: list[CorruptError] = []
    digests: dict[str, bytes] = {}
    epochs = await _epochs(store, names, damaged, digests)
    # Newest first: the last epoch whose snapshots are there, or that has begun from nothing,
    # counts.
    for last in reversed(epochs):
        own = await store.names(f"commit/{last.epoch:08d}/")
        blobs = [(name, await store.read(name)) for name in (*reversed(own), *last.commits)]
        snapshots, foreign = [], False
        for name, blob in blobs:
            if blob is None and own:
                continue  # an earlier one, deleted since
            expected = last.binding if name in own else last.expected(name)
            try:
                manifest = decode_manifest(blob, name, expected)
            except CorruptError as error:
                damaged.append(error)
                foreign = foreign or (name in own and getattr(error, "foreign", False))
            else:
                assert blob is not None
                digests[name] = digest_of(blob)
                snapshots.append(manifest)
        # An active job may also have taken its first snapshots since `own` was listed, and deleted the earlier ones.
        if blobs and all(blob is None for _, blob in blobs) and (own or await store.names(f"commit/{last.epoch:08d}/")):
            return None
        if not blobs or any(blob is not None for _, blob in blobs):
            break
        if not await store.names(f"commit/{epoch_of(last.commits[0]):08d}/"):
            break  # its snapshots are lost, and no newer ones replace them
        # Its snapshots are gone: the epoch before was still active during its scan. So it never began.
    lost = _lost_commit(last.epoch, own, written)
    if lost:
        damaged.append(_missing(store, lost, "parts of a later snapshot are there"))
    first = not last.commits and own[-1:] == [commit_blob(last.epoch, 1)]
    journals = (*last.journals, *await store.names(f"journal/{last.epoch:08d}/"))
    # With a foreign manifest, neither the number of snapshots nor the owner of the record is known.
    beginning = last.beginning and (first or not own) and not lost and not foreign
    return StoreContents(tuple(epochs), last, tuple(snapshots), beginning, tuple(damaged), journals, digests)


def _check_recorded(store: Store, written: Iterable[str], epochs: Sequence[str]) -> None:
    """Make sure that the newest epoch with any blob has a record.

    Raises:
        CorruptError: The newest records are missing.
    """
    # Other blobs of an epoch come after its record. One without a record has lost it, and the
    # record of an older epoch names blobs that may have been deleted since.
    later = max(map(epoch_of, written), default=0)
    if later > (epoch_of(epochs[-1]) if epochs else 0):
        raise _missing(store, epoch_blob(later), "other blobs of that epoch are there")


async def _epochs(
    store: Store, names: Sequence[str], damaged: list[CorruptError], digests: dict[str, bytes]
) -> list[EpochRecord]:
    """Return the readable records of the epochs, oldest first.

    Raises:
        CorruptError: The last cannot be read, or an earlier one is of another state.
    """
    newest = await store.read(names[-1])
    epochs = [decode_epoch(newest, names[-1], Binding())]
    assert newest is not None
    digests[names[-1]] = digest_of(newest)
    for name in reversed(names[:-1]):
        blob = await store.read(name)
        if blob is None:
            continue  # deleted since
        try:
            record = decode_epoch(blob, name, Binding())
            if record.identity != epochs[0].identity:
                raise CorruptError(
                    f"{name} is of state {record.identity}, and {names[-1]} is of state {epochs[0].identity}: "
                    "blobs of two states are mixed",
                    hint=RESTORE,
                    store=store.name,
                    blob=name,
                    mixed=True,
                )
            decode_epoch(blob, name, epochs[0].expected(name))
        except CorruptError as error:
            if getattr(error, "mixed", False):
                raise
            damaged.append(error)
            continue
        epochs.insert(0, record)
        digests[name] = digest_of(blob)
    return epochs


# Parts tell of a manifest that is gone: without this a lost snapshot would look like one that was
# never taken, and the job would go back further than it may.
def _lost_commit(epoch: int, own: Sequence[str], written: Iterable[str]) -> str:
    """Return the name of an epoch's recorded but missing manifest; empty if none.

    A failed snapshot is the last of its epoch, so all snapshots with parts but the last were recorded; and none is
    deleted before later ones are recorded.
    """
    prefix = f"part/{epoch:08d}/"
    newest = own[-1] if own else ""
    numbers = {int(name.split("/")[2]) for name in written if name.startswith(prefix)}
    later = sorted(name for name in (commit_blob(epoch, number) for number in numbers) if name > newest)
    return later[-2] if len(later) > 1 else ""


def _missing(store: Store, blob: str, why: str) -> CorruptError:
    return CorruptError(
        f"blob {blob} of the state cannot be used: it is missing, and {why}", hint=RESTORE, store=store.name, blob=blob
    )


class Journals(NamedTuple):
    """The journals that continuing from any snapshot could need.

    Attributes:
        blobs: Their names, oldest first.
        digests: (blob, digest) of each.
        end: Upper bound of the times of all outputs that may have left, by the existing journals and the announced
            snapshots.
    """

    blobs: tuple[str, ...] = ()
    digests: tuple[tuple[str, bytes], ...] = ()
    end: int = MIN_TIME


def expected_journals(contents: StoreContents) -> list[tuple[str, Binding]]:
    """Return the name and binding of each journal that counts."""
    last = contents.last
    if last is None:
        return []
    digests = dict(last.digests)
    earlier = {blob: Binding(last.identity, digest=digests.get(blob, b"")) for blob in last.journals}
    return [(blob, earlier.get(blob, last.binding)) for blob in contents.journals]


def lost_journals(store: Store, contents: StoreContents, oldest: Manifest | None) -> list[CorruptError]:
    """Return an error for each missing journal of the last epoch.

    Args:
        store: The store.
        contents: Contents of the store.
        oldest: The oldest snapshot for rollback; None: the beginning.
    """
    last = contents.last
    if last is None:
        return []
    own = contents.journals[len(last.journals) :]
    first = oldest.journals if oldest is not None and oldest.epoch == last.epoch else ()
    missing = missing_journals(last.epoch, own, first)
    return [_missing(store, blob, "later ones of that worker are there") for blob in missing]


async def read_journals(store: Store, contents: StoreContents, oldest: Manifest | None) -> Journals:
    """Read the journals that count.

    Args:
        store: The open store.
        contents: Contents of the store.
        oldest: The oldest snapshot for rollback; None: the beginning.

    Raises:
        CorruptError: A journal is damaged or missing, so the given times are not known.
        StoreError: The store fails.
    """
    last = contents.last
    if last is None:
        return Journals()
    since = oldest.time if oldest is not None else MIN_TIME
    needed: list[tuple[str, bytes]] = []
    known, own = frozenset(last.journals), list[str]()
    end = MIN_TIME
    for blob, expected in expected_journals(contents):
        # All are read before the epoch begins: a damaged journal has to stop the start, not a
        # worker in the midst of it.
        data = await store.read(blob)
        earlier = blob in known
        if data is None and not earlier:
            continue  # its writer is still active, and has just deleted it as unneeded
        ends = end_of(decode_journal(data, blob, expected))
        assert data is not None
        end = max(end, ends)
        if ends > since:
            needed.append((blob, digest_of(data)))
        if not earlier:
            own.append(blob)
    for error in lost_journals(store, contents._replace(journals=(*last.journals, *own)), oldest):
        raise error
    for blob in await store.names(f"sync/{last.epoch:08d}/"):
        data = await store.read(blob)
        if data is not None:
            end = max(end, decode_sync(data, blob, last.binding))
    return Journals(tuple([blob for blob, _ in needed]), tuple(needed), end)


def only_of(old: Manifest, snapshots: Iterable[Manifest]) -> list[str]:
    """Return the blobs of an expired snapshot that no kept one needs."""
    needed = {part.blob for manifest in snapshots for part in manifest.parts}
    return [old.blob, sync_blob(old.epoch, old.number), *(part.blob for part in old.parts if part.blob not in needed)]


def garbage(names: Iterable[str], epoch: int, journals: Iterable[str], snapshots: Sequence[Manifest]) -> list[str]:
    """Return the blobs of earlier epochs that no rollback needs.

    Args:
        names: Names of all blobs.
        epoch: The current epoch. Blobs of it and of later ones are never garbage.
        journals: The journals that it needs.
        snapshots: The kept snapshots.
    """
    since = min([epoch - 1, *(manifest.epoch for manifest in snapshots)])
    # Records of epochs from the oldest snapshot's on are kept, since they say where fronts began.
    needed = {*journals, *(epoch_blob(number) for number in range(since, epoch))}
    for manifest in snapshots:
        needed |= {manifest.blob, *(part.blob for part in manifest.parts)}
    own = f"{epoch:08d}"
    return [name for name in names if not name.startswith(BESIDE) and name.split("/")[1] < own and name not in needed]
