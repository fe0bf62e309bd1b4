"""A store of which no call holds the job for ever."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from flamecore.abc.store import Store, StoreCapabilities
from flamecore.runtime.tasks.deadlines import Deadlines


class LimitedStore(Store):
    """A store whose deletions have a deadline.

    What snapshots write and read has that of the snapshot. Nothing else limits deletions, which happen beside.

    Args:
        store: The store.
        deadlines: The deadlines of the job.
        limit_s: Seconds that a deletion may take.
    """

    def __init__(self, store: Store, deadlines: Deadlines, limit_s: float) -> None:
        super().__init__(store.options, store.context)
        self._store = store
        self._deadline = deadlines.store(store.name, limit_s)
        self._turn = asyncio.Lock()  # a deadline is of one call at a time

    @property
    def name(self) -> str:  # type: ignore[override]
        return self._store.name

    @property
    def capabilities(self) -> StoreCapabilities:
        return self._store.capabilities

    async def open(self) -> None:
        await self._store.open()

    async def create(self, name: str, data: bytes) -> bool:
        return await self._store.create(name, data)

    async def read(self, name: str) -> bytes | None:
        return await self._store.read(name)

    async def names(self, prefix: str = "") -> list[str]:
        return await self._store.names(prefix)

    async def delete(self, names: Collection[str]) -> None:
        if not names:
            return
        async with self._turn:
            await self._deadline.call(self._store.delete(names), f"delete {len(names)} of its blobs")

    async def aclose(self) -> None:
        self._deadline.aclose()
        await self._store.aclose()
