"""The disk of the made-up world (`flamecore.testing.world`), the store that processes see of it, and damage to it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from random import Random
from typing import ClassVar, TypeVar

from flamecore.errors import CorruptError, StoreError
from flamecore.snapshot import Manifest, decode_epoch, decode_manifest, unseal
from flamecore.store import Store, StoreCapabilities, StoreContext, check_name
from flamecore.testing.world import Process

T = TypeVar("T")


class SimulatedStore(Store):
    """The disk of the world, as one process sees it: calls take time, fail, are lost, or are done and not heard of."""

    name: ClassVar[str] = "simulated"

    def __init__(self, process: Process) -> None:
        super().__init__(None, StoreContext("job"))
        self._process, self._world = process, process.world

    @property
    def capabilities(self) -> StoreCapabilities:
        return StoreCapabilities(durable=True, shared=True)

    async def _call(self, do: Callable[[], T], late: Callable[[], None] = lambda: None) -> T:
        mishap = self._world.store_mishap
        return await self._process.reach(lambda: mishap.around(do, self._failed), late)

    def _failed(self) -> StoreError:
        return StoreError("the simulated store fails", store=self.name, blob="", injected=True)

    async def create(self, name: str, data: bytes) -> bool:
        check_name(name, self.name)
        disk, world = self._world.disk, self._world

        def write() -> bool:
            return disk.setdefault(name, data) is data

        def tear() -> None:
            if world.tears and name.startswith(("part/", "commit/")) and world.random.random() < 0.5:
                disk.setdefault(name, data[: world.random.randrange(len(data))])

        return await self._call(write, tear)

    async def read(self, name: str) -> bytes | None:
        return await self._call(lambda: self._world.disk.get(name))

    async def names(self, prefix: str = "") -> list[str]:
        return await self._call(lambda: sorted(name for name in self._world.disk if name.startswith(prefix)))

    async def delete(self, names: Collection[str]) -> None:
        def forget() -> None:
            for name in names:
                self._world.disk.pop(name, None)

        await self._call(forget)


def damage(disk: dict[str, bytes], random: Random) -> str | None:
    """Change something of the newest snapshot, and of no other, if there must be another start without it.

    Returns:
        The blob; None: nothing was changed.
    """
    newest, before = counted(disk)
    if newest is None or newest.finished:
        return None  # whoever goes on behind the end of a job goes back no further
    needed = {part.blob for part in before.parts} if before is not None else set()
    blob = random.choice([newest.blob, *(part.blob for part in newest.parts if part.blob not in needed)])
    disk[blob] = disk[blob][: random.randrange(len(disk[blob]))]
    return blob


def counted(disk: Mapping[str, bytes]) -> tuple[Manifest | None, Manifest | None]:
    """The newest snapshot, if there must be another start without it, and the one before, if there is one.

    All that counts is whole: nothing was damaged that has not been replaced since.
    """
    epochs = sorted(name for name in disk if name.startswith("epoch/"))
    if not epochs:
        return None, None
    last = decode_epoch(disk[epochs[-1]], epochs[-1])
    own = sorted((name for name in disk if name.startswith(f"commit/{last.epoch:08d}/")), reverse=True)
    names = [*own, *(name for name in last.commits if name in disk)][:2]
    try:
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
