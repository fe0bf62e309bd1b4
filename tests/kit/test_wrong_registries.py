"""The kit for registries is tested: each wrong registry fails in the checks meant for it, and only there."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pytest
from wrong_drivers import WrongDrivers

from flamecore.abc.registry import Entry, RegistryContext
from flamecore.errors import RegistryError
from flamecore.testing.checks import registries as kit
from flamestream_inproc.registry import Held, SupervisorRegistry


class Wrong(SupervisorRegistry):
    """The good registry: what is wrong with it is said by those that inherit."""

    def __init__(self, held: Held | None = None) -> None:
        super().__init__(None, RegistryContext(), held)


class LosesZeros(Wrong):
    """Keeps text as C does."""

    def _put(self, key: str, value: bytes) -> int:
        return super()._put(key, value.partition(b"\0")[0])


class ShortKeys(Wrong):
    """Knows only the first 100 characters of a key."""

    async def get(self, key: str) -> Entry | None:
        if len(key) > 100:
            raise RegistryError("the key is too long", registry=self.name, key=key)
        return await super().get(key)


class ShortValues(Wrong):
    """Has room for 64 KiB under a key."""

    def _put(self, key: str, value: bytes) -> int:
        return super()._put(key, value[: 64 * 2**10])


class KeepsToItself(Wrong):
    """Others do not see what it does."""

    def __init__(self, held: Held | None = None) -> None:
        super().__init__()


class ReadsOnce(Wrong):
    """Does not look again at what it has read before."""

    def __init__(self, held: Held | None = None) -> None:
        super().__init__(held)
        self.seen: dict[str, Entry] = {}

    async def get(self, key: str) -> Entry | None:
        entry = self.seen.get(key) or await super().get(key)
        if entry is not None:
            self.seen[key] = entry
        return entry


class SaysAnotherRevision(Wrong):
    """Counts from another number where it says what a change has made."""

    async def create(self, key: str, value: bytes) -> int | None:
        revision = await super().create(key, value)
        return None if revision is None else revision - 1


class CountsAnew(Wrong):
    """Has a count for each entry, which is deleted with it."""

    def _put(self, key: str, value: bytes) -> int:
        entry = self.held.entries.get(key, Entry(b"", 0))
        self.held.entries[key] = Entry(value, entry.revision + 1)
        return entry.revision + 1


class Overwrites(Wrong):
    async def create(self, key: str, value: bytes) -> int | None:
        return self._put(key, value)


class LooksBeforeItMakes(Wrong):
    """Has seen that there is nothing, and makes it a moment later."""

    async def create(self, key: str, value: bytes) -> int | None:
        if key in self.held.entries:
            return None
        await asyncio.sleep(0)
        return self._put(key, value)


class LastOneWins(Wrong):
    """Does not care for revisions."""

    async def update(self, key: str, value: bytes, revision: int) -> int | None:
        return self._put(key, value) if key in self.held.entries else None


class LooksBeforeItChanges(Wrong):
    """Has seen that the revision is the last one, and changes it a moment later."""

    async def update(self, key: str, value: bytes, revision: int) -> int | None:
        if not self._is_last(key, revision):
            return None
        await asyncio.sleep(0)
        return self._put(key, value)


class TakesLaterOnes(Wrong):
    """Refuses old revisions only."""

    def _is_last(self, key: str, revision: int) -> bool:
        entry = self.held.entries.get(key)
        return entry is not None and entry.revision <= revision


class MakesByChanging(Wrong):
    """Takes revision 0 for: there is none."""

    async def update(self, key: str, value: bytes, revision: int) -> int | None:
        if revision == 0:
            return await self.create(key, value)
        return await super().update(key, value, revision)


class DeletesAnyway(Wrong):
    async def delete(self, key: str, revision: int) -> bool:
        return self.held.entries.pop(key, None) is not None


class KeepsDeleted(Wrong):
    """Deletes by writing nothing."""

    async def delete(self, key: str, revision: int) -> bool:
        return await self.update(key, b"", revision) is not None


class OneRevisionForAll(Wrong):
    """Refuses a change if any entry has changed."""

    def _is_last(self, key: str, revision: int) -> bool:
        return key in self.held.entries and revision == self.held.revision


class ForgetsCase(Wrong):
    async def get(self, key: str) -> Entry | None:
        return await super().get(key.lower())

    async def create(self, key: str, value: bytes) -> int | None:
        return await super().create(key.lower(), value)

    async def update(self, key: str, value: bytes, revision: int) -> int | None:
        return await super().update(key.lower(), value, revision)


class ListsFolders(Wrong):
    """Takes a prefix for a folder."""

    async def keys(self, prefix: str = "") -> list[str]:
        return await super().keys(prefix if prefix.endswith("/") else f"{prefix}/")


class ListsUnsorted(Wrong):
    async def keys(self, prefix: str = "") -> list[str]:
        return [key for key in self.held.entries if key.startswith(prefix)]


class ClosesOnce(Wrong):
    closed = False

    async def aclose(self) -> None:
        if self.closed:
            raise RegistryError("closed already", registry=self.name, key="")
        self.closed = True


class TakesItsEntriesAlong(Wrong):
    """Forgets, when it is closed, what it holds for all."""

    async def aclose(self) -> None:
        self.held.entries.clear()


WRONG: Final[Mapping[type[Wrong], Mapping[str, str]]] = {
    LosesZeros: {"content": "content"},
    ShortKeys: {"content": "content"},
    ShortValues: {"content": "content"},
    KeepsToItself: {
        "content": "content",
        "create": "create",
        "update": "update",
        "delete": "delete",
        "apart": "apart",
        "keys": "keys",
        "close": "close",
    },
    ReadsOnce: {"content": "content", "update": "update", "delete": "delete"},
    SaysAnotherRevision: {
        "content": "revision",
        "create": "revision",
        "update": "update",
        "delete": "update",
        "apart": "apart",
        "keys": "keys",
        "close": "revision",
    },
    CountsAnew: {"delete": "revision"},
    Overwrites: {"create": "create"},
    LooksBeforeItMakes: {"create": "create"},
    LastOneWins: {"update": "update"},
    LooksBeforeItChanges: {"update": "update"},
    TakesLaterOnes: {"update": "update"},
    MakesByChanging: {"update": "update"},
    DeletesAnyway: {"delete": "delete"},
    KeepsDeleted: {"delete": "delete", "keys": "keys"},
    OneRevisionForAll: {"apart": "apart", "keys": "keys"},
    ForgetsCase: {"apart": "apart"},
    ListsFolders: {"keys": "keys"},
    ListsUnsorted: {"keys": "keys"},
    ClosesOnce: {"close": "close"},
    TakesItsEntriesAlong: {"close": "close"},
}
"""For each wrong registry the checks that see it, and the law that they find broken."""


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kit, "LIMIT_S", 1.0)


class TestWrongRegistries(WrongDrivers):
    checks = kit.CHECKS
    tests = kit.RegistryTests
    right = Wrong
    wrong = WRONG

    def subject(self, driver: type[Wrong], folder: Path) -> kit.Make:
        held = Held()
        return lambda: driver(held)


def test_check_registry_runs_all_checks() -> None:
    held = Held()
    asyncio.run(kit.check_registry(lambda: Wrong(held)))
