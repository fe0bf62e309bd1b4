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


@pytest.mark.variant("sqlite")
class TestSqlite(StoreTests):
    def make(self, context: StoreContext) -> Store:
        return Sqlite(Sqlite.Options(path=f"{context.folder}/state/of/jobs"), context)


@pytest.mark.variant("sqlite")
class TestSqliteOneFile(StoreTests):
    def make(self, context: StoreContext) -> Store:
        return Sqlite(Sqlite.Options(path=f"{context.folder}/state.db"), context)


@pytest.mark.variant("sqlite")
class TestSqliteWithoutSync(StoreTests):
    def make(self, context: StoreContext) -> Store:
        return Sqlite(Sqlite.Options(path=f"{context.folder}/state", survives="process_death"), context)


@pytest.mark.variant("directory")
class TestDirectory(StoreTests):
    def make(self, context: StoreContext) -> Store:
        return Directory(Directory.Options(path=f"{context.folder}/state/of/jobs"), context)


@pytest.mark.variant("directory")
class TestDirectoryWithoutSync(StoreTests):
    def make(self, context: StoreContext) -> Store:
        return Directory(Directory.Options(path=f"{context.folder}/state", survives="process_death"), context)


@pytest.mark.variant("directory")
class TestDirectoryUrl(StoreTests):
    def make(self, context: StoreContext) -> Store:
        return Directory(Directory.Options(path=f"file://{context.folder.absolute()}/state"), context)


@pytest.mark.variant("directory")
class TestDirectoryFsspec(StoreTests):
    def make(self, context: StoreContext) -> Store:
        pytest.importorskip("fsspec", reason="fsspec is not installed: pip install 'flamestream[fsspec]'")
        return Directory(Directory.Options(path="memory://state"), context)
