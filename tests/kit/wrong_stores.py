"""Stores that are wrong on purpose.

They have a module of their own because processes that the kit starts import it, and have no pytest.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import secrets
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, ClassVar, Final
from urllib.parse import quote, unquote

from flamecore.abc.store import MAX_NAME, Store, StoreCapabilities, check_name
from flamecore.errors import StoreError


class Files(Store):
    """The good store: a file for each blob, written elsewhere and then linked to its place."""

    name: ClassVar[str] = "files"
    limit_s: ClassVar[float] = 60.0
    """How long a check may wait. Only a store that hangs is waited for as long as that."""

    @property
    def capabilities(self) -> StoreCapabilities:
        return StoreCapabilities(durable=True, shared=False)

    @property
    def home(self) -> Path:
        return self.context.folder / "state" / self.folder_of(self.context.job)

    def folder_of(self, job: str) -> str:
        return hashlib.sha256(job.encode()).hexdigest()

    def file_of(self, name: str) -> str:
        return quote(name, safe="").replace(".", "%2E")

    async def open(self) -> None:
        self.home.mkdir(parents=True, exist_ok=True)

    async def create(self, name: str, data: bytes) -> bool:
        check_name(name, self.name)
        return await self.put(name, data)

    async def put(self, name: str, data: bytes) -> bool:
        new = self.home.parent / secrets.token_hex(8)
        new.write_bytes(data)
        try:
            os.link(new, self.home / self.file_of(name))
        except FileExistsError:
            return False
        finally:
            new.unlink()
        return True

    async def read(self, name: str) -> bytes | None:
        path = self.home / self.file_of(name)
        return path.read_bytes() if path.exists() else None

    async def names(self, prefix: str = "") -> list[str]:
        return sorted(name for name in map(unquote, os.listdir(self.home)) if name.startswith(prefix))  # noqa: PTH208

    async def delete(self, names: Collection[str]) -> None:
        for name in names:
            (self.home / self.file_of(name)).unlink(missing_ok=True)


class Cuts(Files):
    """Stores no more than half a MiB."""

    async def put(self, name: str, data: bytes) -> bool:
        return await super().put(name, data[: 2**19])


class EndsLines(Files):
    """Writes text."""

    async def put(self, name: str, data: bytes) -> bool:
        return await super().put(name, data.replace(b"\r\n", b"\n"))


class GivesArrays(Files):
    """Hands out what can be changed."""

    async def read(self, name: str) -> Any:
        data = await super().read(name)
        return None if data is None else bytearray(data)


class Replaces(Files):
    """Says that the name is taken, and takes it all the same."""

    async def put(self, name: str, data: bytes) -> bool:
        if await super().put(name, data):
            return True
        (self.home / self.file_of(name)).write_bytes(data)
        return False


class TakesForTrue(Files):
    """Says that it has created what was there, if it is the same."""

    async def put(self, name: str, data: bytes) -> bool:
        return await super().put(name, data) or await self.read(name) == data


class LooksFirst(Files):
    """Looks whether the name is taken, and then takes its time."""

    async def put(self, name: str, data: bytes) -> bool:
        path = self.home / self.file_of(name)
        if path.exists():
            return False
        await asyncio.sleep(0)
        new = self.home.parent / secrets.token_hex(8)
        new.write_bytes(data)
        new.replace(path)
        return True


class KeepsToItself(Files):
    """Says that it is durable, and is known to one process alone."""

    blobs: ClassVar[dict[str, dict[str, bytes]]] = {}

    @property
    def mine(self) -> dict[str, bytes]:
        return self.blobs.setdefault(self.context.job, {})

    async def put(self, name: str, data: bytes) -> bool:
        if name in self.mine:
            return False
        self.mine[name] = data
        return True

    async def read(self, name: str) -> bytes | None:
        return self.mine.get(name)

    async def names(self, prefix: str = "") -> list[str]:
        return sorted(name for name in self.mine if name.startswith(prefix))

    async def delete(self, names: Collection[str]) -> None:
        for name in names:
            self.mine.pop(name, None)


class WritesLater(KeepsToItself):
    """Writes to the disk when it is closed."""

    async def open(self) -> None:
        await super().open()
        for path in self.home.iterdir():
            self.mine.setdefault(unquote(path.name), path.read_bytes())

    async def aclose(self) -> None:
        for name, data in self.mine.items():
            await Files.put(self, name, data)


class Unsorted(Files):
    async def names(self, prefix: str = "") -> list[str]:
        return (await super().names(prefix))[::-1]


class Matches(Files):
    """Takes a prefix for a pattern."""

    async def names(self, prefix: str = "") -> list[str]:
        pattern = re.escape(prefix).replace("_", ".")
        return [name for name in await super().names() if re.match(pattern, name)]


class WholeParts(Files):
    """Takes a prefix for a folder."""

    async def names(self, prefix: str = "") -> list[str]:
        folder = f"{prefix}/" if prefix and not prefix.endswith("/") else prefix
        return await super().names(folder)


class FoldsCase(Files):
    def file_of(self, name: str) -> str:
        return super().file_of(name).lower()


class Flattens(Files):
    """Makes one name of two."""

    def file_of(self, name: str) -> str:
        return super().file_of(name).replace("%2F", "_")


class DeletesOnce(Files):
    """Has an error for what is not there."""

    async def delete(self, names: Collection[str]) -> None:
        for name in names:
            if await self.read(name) is None:
                raise StoreError(f"no blob {name}", store=self.name, blob=name)
        await super().delete(names)


class DeletesBelow(Files):
    """Deletes what is below a name, too."""

    async def delete(self, names: Collection[str]) -> None:
        for name in names:
            await super().delete([name, *await self.names(f"{name}/")])


class Remembers(Files):
    """Never has a name again that was deleted."""

    async def put(self, name: str, data: bytes) -> bool:
        return not (self.home.parent / f"deleted {self.file_of(name)}").exists() and await super().put(name, data)

    async def delete(self, names: Collection[str]) -> None:
        await super().delete(names)
        for name in names:
            (self.home.parent / f"deleted {self.file_of(name)}").touch()


class TakesAnything(Files):
    async def create(self, name: str, data: bytes) -> bool:
        return await self.put(name[:MAX_NAME], data)


class FailsItsOwnWay(Files):
    """Has an error that nobody expects."""

    async def create(self, name: str, data: bytes) -> bool:
        try:
            return await super().create(name, data)
        except StoreError as error:
            raise ValueError(name) from error


class OneJob(Files):
    def folder_of(self, job: str) -> str:
        return "job"


class ShortJobs(Files):
    """Tells jobs by the beginning of their names."""

    def folder_of(self, job: str) -> str:
        return quote(job, safe="").replace(".", "%2E")[:200]


class InPlace(Files):
    """Writes where the blob will be."""

    async def put(self, name: str, data: bytes) -> bool:
        try:
            with (self.home / self.file_of(name)).open("xb", buffering=0) as file:
                half = len(data) // 2
                file.write(data[:half])
                if half > 1000:
                    time.sleep(0.05)
                file.write(data[half:])
        except FileExistsError:
            return False
        return True


class LeavesLocks(Files):
    """Cannot write what a writer that died has begun."""

    async def put(self, name: str, data: bytes) -> bool:
        if len(data) < 1000:
            return await super().put(name, data)
        lock = self.home.parent / f"lock {self.file_of(name)}"
        try:
            lock.touch(exist_ok=False)
        except FileExistsError:
            if (await self.read(name)) is not None:
                return False
            raise StoreError(f"{lock} is there", store=self.name, blob=name) from None
        time.sleep(0.05)
        try:
            return await super().put(name, data)
        finally:
            lock.unlink()


class ClosesOnce(Files):
    closed = False

    async def aclose(self) -> None:
        if self.closed:
            raise StoreError("closed already", store=self.name, blob="")
        self.closed = True


class ClosesForAll(Files):
    """Takes everything along when it leaves."""

    async def aclose(self) -> None:
        await self.delete(await self.names())


class Hangs(Files):
    """Waits without end for what is not there."""

    limit_s = 10.0

    async def delete(self, names: Collection[str]) -> None:
        if not set(names) <= set(await self.names()):
            await asyncio.Event().wait()
        await super().delete(names)


WRONG: Final[Mapping[type[Files], Mapping[str, str]]] = {
    Cuts: {"content": "content", "once": "once", "durable": "closes", "whole": "durable"},
    EndsLines: {"content": "content", "once": "once", "durable": "closes", "whole": "durable"},
    GivesArrays: {
        **{name: name for name in ("content", "once", "race", "names", "deletes", "jobs")},
        **{"durable": "closes", "whole": "durable"},
    },
    Replaces: {"once": "once", "race": "race"},
    TakesForTrue: {"once": "once", "whole": "whole"},
    LooksFirst: {"race": "race"},
    KeepsToItself: {"race": "race", "whole": "durable"},
    WritesLater: {"race": "race", "whole": "durable"},
    Unsorted: {name: name for name in ("once", "names", "deletes", "jobs", "durable", "whole")},
    Matches: {"names": "names"},
    WholeParts: {"names": "names"},
    FoldsCase: {"content": "content", "names": "names"},
    Flattens: {"names": "names", "deletes": "deletes", "jobs": "jobs", "whole": "whole"},
    DeletesOnce: {"deletes": "deletes"},
    DeletesBelow: {"deletes": "deletes"},
    Remembers: {"deletes": "deletes"},
    TakesAnything: {"refuses": "refuses"},
    FailsItsOwnWay: {"refuses": "refuses"},
    OneJob: {"jobs": "jobs"},
    ShortJobs: {"jobs": "jobs"},
    InPlace: {"whole": "whole"},
    LeavesLocks: {"whole": "whole"},
    ClosesOnce: {"durable": "closes"},
    ClosesForAll: {"race": "race", "durable": "closes"},
    Hangs: {"deletes": "deletes"},
}
"""For each wrong store the checks that see it, and the law that they find broken."""
