"""Damage to the stored data of a simulated job, between two runs.

It is what a broken disk, or a user, may do. Any part of the newest snapshot may be damaged, and the job must go on from
the one before, or from the beginning. If the only copy of something, or all snapshots, are damaged, the job must refuse
them, and go on when they are put back. Damage is of these kinds:

    cut       bytes are missing at the end
    flip      a bit is flipped
    stale     the bytes are those of another run under that name, whole and sealed
    swap      the bytes are those of another blob of this state
    older     all data is as it was some time ago; the sinks are not. The job must refuse it, or give the right output
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import Final

from flamecore.errors import CorruptError, FlameError, StateBehindError
from flamecore.model.meta import MIN_TIME
from flamecore.runtime.state.format import (
    Binding,
    EpochRecord,
    Manifest,
    decode_epoch,
    decode_manifest,
    seal,
    unseal,
)
from flamecore.runtime.state.journal import decode_journal, end_of

_COPIES: Final = 4
_ANOTHER: Final = Binding("another state", "another run")


@dataclass
class Copy:
    """A copy of the stored data from some time ago.

    Attributes:
        blobs: All blobs.
        end: End of the times that had been written down by then.
        usable: Whether a job that goes on from it has to notice the missing data. It cannot where a clock was put back:
            a time that is written down later is below one that is not lost, and no record is left that it was ever
            given. Nor can it where the lost data is the end of a source that has grown since.
    """

    blobs: dict[str, bytes]
    end: int
    usable: bool = True


class Damages:
    """Damages to a disk.

    Args:
        disk: The blobs, by name.
        random: Decides what is damaged.

    Attributes:
        refused: A snapshot that is damaged, and must not be used; empty: there is none.
        taken: Original blobs that must be put back before the job can go on.
    """

    def __init__(self, disk: dict[str, bytes], random: Random) -> None:
        self.refused = ""
        self.taken: dict[str, bytes] = {}
        self._put_back: frozenset[str] = frozenset()  # since this run began
        self._once_put_back: frozenset[str] = frozenset()
        self._disk, self._random = disk, random
        self._copies: list[Copy] = []
        self._newest: dict[str, bytes] | None = None  # all blobs before an older copy was brought back
        self._forked = False  # a run has continued from an older copy
        self._refused_copy = False  # since this run began
        self._once_refused_copy = False
        self._end = MIN_TIME
        self._how = ""

    def run_begins(self) -> None:
        """Begin a run: the data it finds is as it is now."""
        self._put_back, self._refused_copy = frozenset(), False

    def stored(self, blob: str) -> None:
        """Note a blob that is now on the disk, and by chance copy all blobs for later."""
        if blob.startswith("epoch/") and self._newest is not None:  # continued: the blobs that came later never existed
            self._newest, self._forked = None, True
            self._copies.clear()
        if blob.startswith("journal/"):
            given = decode_journal(self._disk[blob], blob, Binding())
            least = min(entry.first for entry in given)
            for copy in self._copies:
                copy.usable = copy.usable and least >= copy.end and all(entry.records for entry in given)
            self._end = max(self._end, end_of(given))
        if self._random.random() < 0.1 and not self.refused and not self.taken and self._newest is None:
            copy = Copy(dict(self._disk), self._end)
            if len(self._copies) < _COPIES:
                self._copies.append(copy)
            else:
                self._copies[self._random.randrange(_COPIES)] = copy

    def strike(self) -> str:
        """Damage something; return its scope, the kind of damage, and the blobs, in words.

        Once a run has continued from an older copy nothing more is damaged: sources have forgotten the records that the
        lost snapshots had covered, and so there is none to spare.
        """
        if self._forked:
            return ""
        if self._random.random() < 0.2 and self._bring_back():
            return "age older"
        if self._random.random() < 0.5 and (blob := self._of_newest()):
            return f"damage {self._how} {blob}"
        if blobs := self._of_all():
            return f"ruin {self._how} {' '.join(blobs)}"
        return ""

    def _bring_back(self) -> bool:
        """Bring back an older copy of all blobs, if there is one the job must notice."""
        copies = [copy for copy in self._copies if copy.usable and copy.blobs != self._disk]
        if not copies or self.refused or self.taken or self._newest is not None:
            return False
        self._newest = dict(self._disk)
        self._disk.clear()
        self._disk.update(self._random.choice(copies).blobs)
        return True

    def _of_newest(self) -> str:
        """Damage a blob of the newest snapshot alone, if another start without it is sure."""
        newest, before = counted(self._disk)
        if newest is None or newest.finished:
            return ""  # a run that continues a finished job goes back no further
        needed = {part.blob for part in before.parts} if before is not None else set()
        own = [part.blob for part in newest.parts if part.blob not in needed]
        blob = self._random.choice([newest.blob, *own])
        # If it is the only manifest of its epoch, it cannot be told from the epoch's record which one is the stranger.
        self._harm(blob, strange=blob != newest.blob or before is not None)
        self.refused = newest.blob
        return blob

    def _of_all(self) -> list[str]:
        """Damage blobs that nothing can replace."""
        newest, before = counted(self._disk)
        snapshots = [manifest.blob for manifest in (newest, before) if manifest is not None]
        choices = [[name] for name in self._disk if name.startswith("journal/")]
        choices += [[name] for name in sorted(self._disk) if name.startswith("epoch/")][-1:]
        choices += [snapshots] * 3 if snapshots else []
        blobs = self._random.choice(choices) if choices else []
        for blob in blobs:
            self.taken.setdefault(blob, self._disk[blob])
            self._harm(blob, strange=not blob.startswith("epoch/"))
        return blobs

    def _harm(self, blob: str, *, strange: bool) -> None:
        """Damage a blob; if `strange`, perhaps by whole bytes that belong elsewhere."""
        data, at = self._disk[blob], self._random.randrange(len(self._disk[blob]))
        kind, _, _ = blob.partition("/")
        others = [name for name in sorted(self._disk) if name.startswith(f"{kind}/") and name != blob]
        # A single blob is only cut or flipped, so the others are changed in these ways more seldom.
        ways = ("cut", "flip") if not (strange and others) else ("cut", "flip", "stale", "stale", "swap", "swap")
        self._how = self._random.choice(ways)
        if self._how == "cut":
            self._disk[blob] = data[:at]
        elif self._how == "flip":
            self._disk[blob] = data[:at] + bytes([data[at] ^ 1 << self._random.randrange(8)]) + data[at + 1 :]
        elif self._how == "swap":
            self._disk[blob] = self._disk[self._random.choice(others)]
        else:
            other = self._random.choice(others)
            self._disk[blob] = seal(_content(self._disk[other], other), blob, _ANOTHER)

    def accounts_for(self, error: FlameError, *, ghost: bool = False) -> bool:
        """Return whether a run had to end with an error; if so, put back what it lacks.

        An abandoned run, a `ghost`, may end so while a later one is under way, which has read the same or not.
        """
        if isinstance(error, StateBehindError) or getattr(error, "forgotten", False):
            return self._refuse_copy() or (ghost and self._once_refused_copy)
        known = self.taken.keys() | (self._once_put_back if ghost else self._put_back)
        if not isinstance(error, CorruptError) or not known or (error.blob and error.blob not in known):
            return False
        self._disk.update(self.taken)
        self._put_back = frozenset(known)
        self._once_put_back |= self._put_back
        self.taken = {}
        return True

    def _refuse_copy(self) -> bool:
        """Put back the newest blobs if an older copy was brought back; it was noticed."""
        if self._newest is not None:
            self._disk.clear()
            self._disk.update(self._newest)
            self._newest, self._refused_copy, self._once_refused_copy = None, True, True
        return self._refused_copy

    def went_back(self, record: EpochRecord) -> bool:
        """Return whether a new epoch does without the snapshot that was damaged."""
        if not self.refused or self.refused in record.commits:  # else it finds out while loading, and begins again
            return False
        self.refused = ""
        return True


def _content(blob: bytes, name: str) -> bytes:
    """Return the data of a blob; empty bytes if it was damaged before."""
    try:
        return unseal(blob, name, Binding())
    except CorruptError:
        return b""


def counted(disk: Mapping[str, bytes]) -> tuple[Manifest | None, Manifest | None]:
    """Return the newest snapshot and the one before, as far as a start may use them.

    The newest is None unless there must be another start without it; the one before is None if there is none. These
    snapshots are whole: all earlier damage has been replaced since.
    """
    epochs = sorted(name for name in disk if name.startswith("epoch/"))
    if not epochs:
        return None, None
    try:
        last = decode_epoch(disk[epochs[-1]], epochs[-1], Binding())
        own = sorted((name for name in disk if name.startswith(f"commit/{last.epoch:08d}/")), reverse=True)
        names = [*own, *(name for name in last.commits if name in disk)][:2]
        wanted = [last.binding if name in own else last.expected(name) for name in names]
        manifests = [decode_manifest(disk[name], name, where) for name, where in zip(names, wanted, strict=True)]
        for part in (part for manifest in manifests for part in manifest.parts):
            unseal(disk.get(part.blob), part.blob, Binding(last.identity, digest=part.digest))
    except CorruptError:
        return None, None
    if len(manifests) > 1:
        return manifests[0], manifests[1]
    if not manifests:
        return None, None
    began = int(last.commits[0][-12:]) if last.commits else 0
    several = bool(own) and manifests[0].number > began + 1  # of two that were taken in this epoch both must be there
    beginning = last.beginning and (not own or not last.commits)
    return (manifests[0] if several or beginning else None), None
