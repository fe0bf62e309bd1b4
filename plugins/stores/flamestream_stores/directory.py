"""Store `directory`: a file for each blob, in a folder or an object store.

The folder is one of this machine; fsspec reaches the object store.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar, Final, TypeVar

import msgspec

from flamecore.abc.hooks import hookimpl
from flamecore.abc.paths import FilePath
from flamecore.abc.store import Store, StoreCapabilities, StoreContext, check_name
from flamecore.toolkit.places import is_url
from flamestream_stores.bucket import MEMORY, Bucket, check_url
from flamestream_stores.folder import Folder
from flamestream_stores.places import Survives, file_name, no_state, store_error

T = TypeVar("T")

_THREADS: Final = 8
_LOCAL: Final = ("file://", "local://")


class DirectoryOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Options of the store.

    Attributes:
        path: A folder, created if it does not exist; or a URL of an object store,
            such as `s3://bucket/folder`. Each job has a folder of its own in it.
        survives: Event that a blob in a local folder outlasts once it is created: `power_loss` forces each to the disk;
            `process_death`, which is much quicker, leaves that to the system, and a loss of power may leave blobs cut
            short.
        storage_options: fsspec's options when `path` is a URL, such as credentials or an endpoint.
    """

    path: FilePath
    survives: Survives = "power_loss"
    storage_options: Mapping[str, Any] = {}

    def __repr__(self) -> str:
        shown = f"DirectoryOptions(path={self.path!r}, survives={self.survives!r}"
        return f"{shown}, storage_options={dict.fromkeys(self.storage_options, '***')})"


class Directory(Store):
    """Blobs as files. Calls that block on the disk or a server run in threads."""

    name: ClassVar[str] = "directory"
    Options: ClassVar[Any] = DirectoryOptions

    def __init__(self, options: Any, context: StoreContext) -> None:
        super().__init__(options, context)
        path, job = options.path, file_name(context.job)
        for prefix in _LOCAL:
            path = path.removeprefix(prefix)
        self._remote = is_url(path)
        self._mountable = not self._remote and Path(path).expanduser().is_absolute()
        self._place: Bucket | Folder
        if self._remote:
            check_url(self.name, path)
            self._place = Bucket(self.name, path, job, options.storage_options)
        else:
            folder = Path(path).expanduser() / job
            self._place = Folder(self.name, folder, sync=options.survives == "power_loss")
        self._looked_for = None if self._remote or context.create else folder
        self._threads: ThreadPoolExecutor | None = None

    @property
    def capabilities(self) -> StoreCapabilities:
        memory = self.options.path.startswith(f"{MEMORY}://")
        return StoreCapabilities(not memory, self._remote and not memory, self._mountable)

    async def open(self) -> None:
        if self._looked_for is not None and not self._looked_for.is_dir():
            raise no_state(self.name, self._looked_for, self.context.job)
        self._threads = ThreadPoolExecutor(_THREADS, f"store of {self.context.job}")
        try:
            await self._call(self._place.open)
        except BaseException:
            await self.aclose()
            raise

    async def create(self, name: str, data: bytes) -> bool:
        check_name(name, self.name)
        return await self._call(self._place.create, name, data)

    async def read(self, name: str) -> bytes | None:
        return await self._call(self._place.read, name)

    async def names(self, prefix: str = "") -> list[str]:
        return sorted(name for name in await self._call(self._place.names) if name.startswith(prefix))

    async def delete(self, names: Collection[str]) -> None:
        if names:
            await self._call(self._place.delete, tuple(names))

    async def aclose(self) -> None:
        threads, self._threads = self._threads, None
        if threads is not None:
            threads.shutdown(wait=False)

    async def _call(self, function: Callable[..., T], *arguments: Any) -> T:
        if self._threads is None:
            raise store_error(self.name, f"{self._place.shown} is not open", "Call open() first.")
        return await asyncio.get_running_loop().run_in_executor(self._threads, function, *arguments)


@hookimpl
def flamestream_store() -> type[Store]:
    return Directory
