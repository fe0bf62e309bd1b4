"""The store of the simulated world's disk.

See `flamecore.testing.simulation.world`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import ClassVar, TypeVar

from flamecore.abc.store import Store, StoreCapabilities, StoreContext, check_name
from flamecore.errors import StoreError
from flamecore.testing.simulation.world import Process

T = TypeVar("T")


class SimulatedStore(Store):
    """The disk of the world, as one process sees it.

    Calls take time, fail, are lost, or succeed and lose the answer.
    """

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
            if disk.setdefault(name, data) is not data:
                return False
            world.stored(name)
            return True

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
