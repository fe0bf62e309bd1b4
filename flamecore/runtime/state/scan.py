"""What a store holds of a job: which epochs there were, and what of all that they have written counts (paper 000).

Every epoch's blob says what it goes on from. Whatever an earlier one still writes is not in that list, so it does not
count, and blobs that nothing counts on are garbage.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
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
    is_bound,
    sync_blob,
)
from flamecore.runtime.state.journal import decode_journal, decode_sync, end_of, missing_journals

_TRIES: Final = 100

_NONE: Final[Mapping[str, bytes]] = MappingProxyType({})


class StoreContents(NamedTuple):
    """What a store holds of a job.

    Attributes:
        epochs: Records of its epochs, oldest first, as far as they can be read.
        last: That of the epoch which wrote what counts; None: there is none.
        snapshots: What can be gone back to, newest first.
        beginning: The beginning can be gone back to as well: at most one snapshot has been taken.
        damaged: What should be there and cannot be used.
        journals: Blobs of the journals that count, oldest first.
        digests: Digests of the records of `epochs` and `snapshots`, by blob.
        unbound: Blobs that count and do not say where they belong, because they were written in format 2.
    """

    epochs: tuple[EpochRecord, ...] = ()
    last: EpochRecord | None = None
    snapshots: tuple[Manifest, ...] = ()
    beginning: bool = True
    damaged: tuple[CorruptError, ...] = ()
    journals: tuple[str, ...] = ()
    digests: Mapping[str, bytes] = _NONE
    unbound: tuple[str, ...] = ()


async def scan(store: Store) -> StoreContents:
    """What a store holds. Changes nothing.

    Raises:
        StoreError: It cannot be read, or what is in it changes faster than it can be read.
        CorruptError: The record of the last epoch is damaged or missing, or epochs are of several states: nobody knows
            what counts.
    """
    for _ in range(_TRIES):
        if (found := await _scan(store)) is not None:
            return found
    what = f"store {store.name!r}: snapshots are forgotten faster than they can be read"
    raise StoreError(what, hint="Raise state.interval_s.", store=store.name, blob="")


async def _scan(store: Store) -> StoreContents | None:
    """As `scan`; None if all snapshots that were listed have been forgotten since: a job is at work."""
    # Listed before the epochs are: each of them is recorded before anything else is written in it.
    written = [name for name in await store.names() if not name.startswith(BESIDE)]
    names = await store.names("epoch/")
    _check_recorded(store, written, names)
    if not names:
        return StoreContents()
    damaged: list[CorruptError] = []
    digests: dict[str, bytes] = {}
    unbound: list[str] = []
    epochs = await _epochs(store, names, damaged, digests)
    for last in reversed(epochs):
        own = await store.names(f"commit/{last.epoch:08d}/")
        blobs = [(name, await store.read(name)) for name in (*reversed(own), *last.commits)]
        snapshots, foreign = [], False
        for name, blob in blobs:
            if blob is None and own:
                continue  # an earlier one, which has been forgotten since
            expected = last.binding if name in own else last.expected(name)
            try:
                manifest = decode_manifest(blob, name, expected)
            except CorruptError as error:
                damaged.append(error)
                foreign = foreign or (name in own and getattr(error, "foreign", False))
            else:
                assert blob is not None
                digests[name] = digest_of(blob)
                if not is_bound(blob) and not expected.digest:
                    unbound.append(name)
                unbound += [part.blob for part in manifest.parts if not part.digest]
                snapshots.append(manifest)
        if own and all(blob is None for _, blob in blobs):
            return None
        if not blobs or any(blob is not None for _, blob in blobs):
            break
        if not await store.names(f"commit/{epoch_of(last.commits[0]):08d}/"):
            break  # what it was to go on from is lost, and nothing has come in its place
        # What it was to go on from is gone: the epoch before was still at work when it looked. So it never began.
    lost = _lost_commit(last.epoch, own, written)
    if lost:
        damaged.append(_missing(store, lost, "parts of a later snapshot are there"))
    first = not last.commits and own[-1:] == [commit_blob(last.epoch, 1)]
    journals = (*last.journals, *await store.names(f"journal/{last.epoch:08d}/"))
    # A manifest of another epoch in the place of one: nobody knows how many there were, or whose the record is.
    beginning = last.beginning and (first or not own) and not lost and not foreign
    if not last.run:
        unbound.insert(0, last.blob)
    return StoreContents(
        tuple(epochs),
        last,
        tuple(snapshots),
        beginning,
        tuple(damaged),
        journals,
        digests,
        tuple(dict.fromkeys(unbound)),
    )


def _check_recorded(store: Store, written: Iterable[str], epochs: Sequence[str]) -> None:
    """Make sure that every epoch which has written something and is not forgotten has its record.

    Raises:
        CorruptError: The newest records are missing.
    """
    later = max(map(epoch_of, written), default=0)
    if later > (epoch_of(epochs[-1]) if epochs else 0):
        raise _missing(store, epoch_blob(later), "other blobs of that epoch are there")


async def _epochs(
    store: Store, names: Sequence[str], damaged: list[CorruptError], digests: dict[str, bytes]
) -> list[EpochRecord]:
    """Return the records of the epochs, oldest first, as far as they can be read.

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
            continue  # forgotten since
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


def _lost_commit(epoch: int, own: Sequence[str], written: Iterable[str]) -> str:
    """Return the name of a manifest of an epoch that was recorded and is not there; empty: none is known to be.

    After a snapshot that fails no other is taken in its epoch, so of those that parts tell of all but the last were
    recorded; and none is forgotten before later ones are recorded.
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
    """The journals that going on from any snapshot could need.

    Attributes:
        blobs: Their names, oldest first.
        digests: (blob, digest) of each.
        end: Every time below which an output may have left is below this, as far as the journals that are there and
            the snapshots that were announced tell.
    """

    blobs: tuple[str, ...] = ()
    digests: tuple[tuple[str, bytes], ...] = ()
    end: int = MIN_TIME


def expected_journals(contents: StoreContents) -> list[tuple[str, Binding]]:
    """Return the name of each journal that counts, and what its seal must say."""
    last = contents.last
    if last is None:
        return []
    digests = dict(last.digests)
    earlier = {blob: Binding(last.identity, digest=digests.get(blob, b"")) for blob in last.journals}
    return [(blob, earlier.get(blob, last.binding)) for blob in contents.journals]


def lost_journals(store: Store, contents: StoreContents, oldest: Manifest | None) -> list[CorruptError]:
    """Return an error for each journal of the last epoch that must be there and is not.

    Args:
        store: Where they should be.
        contents: What it holds.
        oldest: The oldest snapshot that may be gone back to; None: the beginning.
    """
    last = contents.last
    if last is None or not last.run:  # in format 2 they were not deleted in their order
        return []
    own = contents.journals[len(last.journals) :]
    first = oldest.journals if oldest is not None and oldest.epoch == last.epoch else ()
    missing = missing_journals(last.epoch, own, first)
    return [_missing(store, blob, "later ones of that worker are there") for blob in missing]


async def read_journals(store: Store, contents: StoreContents, oldest: Manifest | None) -> Journals:
    """Read the journals that count.

    Args:
        store: Where they are, open.
        contents: What it holds.
        oldest: The oldest snapshot that may be gone back to; None: the beginning.

    Raises:
        CorruptError: One is damaged or missing: nobody knows which times were given.
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
        data = await store.read(blob)
        earlier = blob in known
        if data is None and not earlier:
            continue  # who has written it is still at work, and has just found that nobody will need it
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
    """What of a snapshot none of those needs that are kept."""
    needed = {part.blob for manifest in snapshots for part in manifest.parts}
    return [old.blob, sync_blob(old.epoch, old.number), *(part.blob for part in old.parts if part.blob not in needed)]


def garbage(names: Iterable[str], epoch: int, journals: Iterable[str], snapshots: Sequence[Manifest]) -> list[str]:
    """What faults have left: all of earlier epochs that nobody will go back to.

    Args:
        names: Of all blobs there are.
        epoch: The present one. What it has written, or a later one, is not looked at.
        journals: Those that it needs.
        snapshots: The snapshots that are kept.
    """
    since = min([epoch - 1, *(manifest.epoch for manifest in snapshots)])
    needed = {*journals, *(epoch_blob(number) for number in range(since, epoch))}
    for manifest in snapshots:
        needed |= {manifest.blob, *(part.blob for part in manifest.parts)}
    own = f"{epoch:08d}"
    return [name for name in names if not name.startswith(BESIDE) and name.split("/")[1] < own and name not in needed]
