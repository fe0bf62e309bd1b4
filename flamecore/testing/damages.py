"""Damage to what a job of the made-up world has stored: what a broken disk, or a hand, may do between two runs.

Of the newest snapshot anything may be damaged, and the job must go on from the one before, or from the beginning. Of
what there is only one of, or of all snapshots there are, it must say that it cannot be used, and go on when it is put
back.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

from flamecore.errors import CorruptError
from flamecore.snapshot import EpochRecord, Manifest, decode_epoch, decode_manifest, unseal


class Damages:
    """Damages a disk.

    Args:
        disk: The blobs, by name.
        random: Decides what is damaged.

    Attributes:
        refused: A snapshot that is damaged, and must not be gone on from; empty: there is none.
        taken: What must be put back before the job can go on, as it was.
    """

    def __init__(self, disk: dict[str, bytes], random: Random) -> None:
        self.refused = ""
        self.taken: dict[str, bytes] = {}
        self._put_back: frozenset[str] = frozenset()  # while this run has been under way
        self._disk, self._random = disk, random

    def run_begins(self) -> None:
        """What it finds is as it is now."""
        self._put_back = frozenset()

    def strike(self) -> str:
        """Damage something. Returns what has been done, in words that begin with one that says which kind it is."""
        if self._random.random() < 0.75 and (blob := self._of_newest()):
            return f"damage {blob}"
        if blobs := self._of_all():
            return f"ruin {' '.join(blobs)}"
        return ""

    def _of_newest(self) -> str:
        """Something of the newest snapshot, and of no other, if there must be another start without it."""
        newest, before = counted(self._disk)
        if newest is None or newest.finished:
            return ""  # whoever goes on behind the end of a job goes back no further
        needed = {part.blob for part in before.parts} if before is not None else set()
        own = [part.blob for part in newest.parts if part.blob not in needed]
        blob = self._random.choice([newest.blob, *own])
        self._harm(blob)
        self.refused = newest.blob
        return blob

    def _of_all(self) -> list[str]:
        """What there is nothing in the place of."""
        newest, before = counted(self._disk)
        snapshots = [manifest.blob for manifest in (newest, before) if manifest is not None]
        choices = [[name] for name in self._disk if name.startswith("journal/")]
        choices += [[name] for name in sorted(self._disk) if name.startswith("epoch/")][-1:]
        choices += [snapshots] * 3 if snapshots else []
        blobs = self._random.choice(choices) if choices else []
        for blob in blobs:
            self.taken.setdefault(blob, self._disk[blob])
            self._harm(blob)
        return blobs

    def _harm(self, blob: str) -> None:
        data, at = self._disk[blob], self._random.randrange(len(self._disk[blob]))
        if self._random.random() < 0.5:
            self._disk[blob] = data[:at]
        else:
            self._disk[blob] = data[:at] + bytes([data[at] ^ 1 << self._random.randrange(8)]) + data[at + 1 :]

    def accounts_for(self, error: CorruptError) -> bool:
        """Whether a run had to end with that error. If so, what it lacks is put back.

        One that was abandoned may end so while the next one is under way, which has read the same.
        """
        known = self.taken.keys() | self._put_back
        if not known or (error.blob and error.blob not in known):
            return False
        self._disk.update(self.taken)
        self._put_back = frozenset(known)
        self.taken = {}
        return True

    def went_back(self, record: EpochRecord) -> bool:
        """Whether an epoch that begins does without the snapshot that was damaged."""
        if not self.refused or self.refused in record.commits:  # who finds out when it loads it begins once more
            return False
        self.refused = ""
        return True


def counted(disk: Mapping[str, bytes]) -> tuple[Manifest | None, Manifest | None]:
    """The newest snapshot, if there must be another start without it, and the one before, if there is one.

    All that counts is whole: nothing was damaged that has not been replaced since.
    """
    epochs = sorted(name for name in disk if name.startswith("epoch/"))
    if not epochs:
        return None, None
    try:
        last = decode_epoch(disk[epochs[-1]], epochs[-1])
        own = sorted((name for name in disk if name.startswith(f"commit/{last.epoch:08d}/")), reverse=True)
        names = [*own, *(name for name in last.commits if name in disk)][:2]
        manifests = [decode_manifest(disk[name], name) for name in names]
        for part in (part for manifest in manifests for part in manifest.parts):
            unseal(disk.get(part.blob), part.blob)
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
