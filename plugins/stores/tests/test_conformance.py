"""The stores against the laws of the contract, by the public kit."""

from __future__ import annotations

import pytest

from flamecore.abc.store import Store, StoreContext
from flamecore.testing.checks.stores import StoreTests
from flamestream_stores.directory import Directory
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


class TestDirectory(StoreTests):
    def make(self, context: StoreContext) -> Store:
        return Directory(Directory.Options(path="state/of/jobs"), context)


class TestDirectoryWithoutSync(StoreTests):
    def make(self, context: StoreContext) -> Store:
        return Directory(Directory.Options(path="state", survives="process_death"), context)


class TestDirectoryUrl(StoreTests):
    def make(self, context: StoreContext) -> Store:
        return Directory(Directory.Options(path=f"file://{context.folder.absolute()}/state"), context)


class TestDirectoryFsspec(StoreTests):
    def make(self, context: StoreContext) -> Store:
        pytest.importorskip("fsspec", reason="fsspec is not installed: pip install 'flamestream[fsspec]'")
        return Directory(Directory.Options(path="memory://state"), context)
