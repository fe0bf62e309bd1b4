"""Store `memory`: blobs in this process, for tests; lost when it ends."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, ClassVar

from flamecore.abc.hooks import hookimpl
from flamecore.abc.store import Store, StoreCapabilities, StoreContext, check_name


class Memory(Store):
    """Blobs by name. Objects that are given one dictionary share its content."""

    name: ClassVar[str] = "memory"

    def __init__(self, options: Any, context: StoreContext, blobs: dict[str, bytes] | None = None) -> None:
        super().__init__(options, context)
        self.blobs = {} if blobs is None else blobs

    @property
    def capabilities(self) -> StoreCapabilities:
        return StoreCapabilities(durable=False, shared=False)

    async def create(self, name: str, data: bytes) -> bool:
        check_name(name, self.name)
        if name in self.blobs:
            return False
        self.blobs[name] = data
        return True

    async def read(self, name: str) -> bytes | None:
        return self.blobs.get(name)

    async def names(self, prefix: str = "") -> list[str]:
        return sorted(name for name in self.blobs if name.startswith(prefix))

    async def delete(self, names: Collection[str]) -> None:
        for name in names:
            self.blobs.pop(name, None)


@hookimpl
def flamestream_store() -> type[Store]:
    return Memory
