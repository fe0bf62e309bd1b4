"""A prefix in an object store, or a folder of HDFS, by way of fsspec.

An object that a server has accepted stays, and is visible to all at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from flamecore.errors import ConfigError, MissingDependencyError
from flamecore.toolkit.objects import PACKAGES, create_object, message_of, missing_package, object_store
from flamecore.toolkit.places import scheme_of
from flamestream_spark.storage.place import Place, is_hidden

_BLOCK_BYTES: Final = 1 << 22


def check_url(url: str, where: str) -> None:
    """Refuse a place that cannot create a file only if there is none.

    Args:
        url: Its URL.
        where: Path of the option, for errors.

    Raises:
        ConfigError: It is none of the object stores that can.
    """
    protocol, whole = scheme_of(url), "://" in url
    if protocol not in PACKAGES or not whole or "::" in url:
        raise ConfigError(
            f"{where}: {url}: nothing here writes to {protocol}:/{'/' * whole} so that a file is created only if there "
            "is none",
            hint=f"Give a folder that is mounted, or a URL of {', '.join(f'{name}://' for name in PACKAGES)}.",
            path=where,
        )


class ObjectPlace(Place):
    """A prefix.

    Args:
        url: Its URL, checked.
        options: fsspec's, such as credentials; without them a client takes those of its environment.

    Raises:
        MissingDependencyError: fsspec, or its client for such URLs, is not installed.
    """

    patience_s = 0.5

    def __init__(self, url: str, options: Mapping[str, Any] | None = None) -> None:
        self.url = url.rstrip("/")
        try:
            self._files = object_store(self.url, options or {})
        except ImportError as error:
            module, command = missing_package(self.url, error)
            raise MissingDependencyError(
                f"{self.url} needs module {module!r}, which is not installed or does not work: {error}",
                hint=f"Run: {command}",
                kind="sink",
                name="spark",
                distribution="flamestream",
                module=module,
                extra="fsspec",
            ) from error
        self._root = self._files._strip_protocol(self.url)

    def make(self) -> None:
        with _said(self.url):
            self._files.ls(self._root.partition("/")[0], detail=False)

    def names(self, folder: str = "", *, below: bool = False) -> list[str]:
        top = f"{self._root}/{folder}".rstrip("/")
        with _said(self.url):
            try:
                found = self._files.find(top, maxdepth=None if below else 1)
            except FileNotFoundError:
                return []
        names = (path[len(self._root) + 1 :] for path in found)
        skip = len(folder) + 1 if folder else 0
        return [name for name in names if not any(map(is_hidden, name[skip:].split("/")[:-1]))]

    def folder(self, name: str) -> str:
        return self.at(name)

    def read(self, name: str) -> bytes | None:
        with _said(self.at(name)):
            try:
                return bytes(self._files.cat_file(self._path(name)))
            except FileNotFoundError:
                return None

    def open(self, name: str) -> Any:
        with _said(self.at(name)):
            return self._files.open(self._path(name), "rb", block_size=_BLOCK_BYTES)

    def create(self, name: str, data: bytes) -> bool:
        with _said(self.at(name)):
            return create_object(self._files, self._path(name), data)

    def replace(self, name: str, data: bytes) -> None:
        with _said(self.at(name)):
            self._files.pipe_file(self._path(name), data)

    def put(self, name: str, write: Callable[[Path], None]) -> int:
        data = written(write)
        self.replace(name, data)
        return len(data)

    def remove(self, names: Iterable[str]) -> None:
        with _said(self.url):
            for name in names:
                try:
                    self._files.rm_file(self._path(name))
                except FileNotFoundError:
                    continue

    def clear(self, folder: str = "") -> None:
        with _said(self.url):
            try:
                self._files.rm(self._path(folder).rstrip("/"), recursive=True)
            except FileNotFoundError:
                return

    def force(self, names: Iterable[str]) -> None:
        """Do nothing."""

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"


def written(write: Callable[[Path], None]) -> bytes:
    """Return what a function writes to a path."""
    with TemporaryDirectory(prefix="flamestream-") as folder:
        path = Path(folder, "file")
        write(path)
        return path.read_bytes()


@contextmanager
def _said(url: str) -> Iterator[None]:
    """Turn any error of a client into an OSError that names the place."""
    try:
        yield
    except Exception as error:
        raise OSError(f"{url}: {message_of(error)}") from error
