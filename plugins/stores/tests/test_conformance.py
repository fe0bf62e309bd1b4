"""Every store, held against the laws of the contract by the public kit."""

from __future__ import annotations

from flamecore.store import Store, StoreContext
from flamecore.testing.stores import StoreTests
from flamestream_stores.memory import Memory
from flamestream_stores.sqlite import Sqlite


class TestMemory(StoreTests):
    def make(self, context: StoreContext) -> Store:
        blobs: dict[str, dict[str, bytes]] = self.__dict__.setdefault("blobs", {})
        return Memory(None, context, blobs.setdefault(context.job, {}))


class TestSqlite(StoreTests):
    def make(self, context: StoreContext) -> Store:
        return Sqlite(Sqlite.Options(path="state/of/jobs"), context)


class TestSqliteOneFile(StoreTests):
    def make(self, context: StoreContext) -> Store:
        return Sqlite(Sqlite.Options(path="state.db"), context)


class TestSqliteWithoutSync(StoreTests):
    def make(self, context: StoreContext) -> Store:
        return Sqlite(Sqlite.Options(path="state", survives="process_death"), context)
