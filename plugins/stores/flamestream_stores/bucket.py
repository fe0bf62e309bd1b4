"""An object store for blobs, by way of fsspec: one object for each blob.

An object is created only if there is none of its name: a state store depends on this condition.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from typing import Any, Final

from flamecore.errors import ConfigError, MissingDependencyError, StoreError
from flamecore.toolkit.objects import PACKAGES, create_object, message_of, missing_package, object_store
from flamecore.toolkit.places import scheme_of
from flamestream_stores.places import store_error

MEMORY: Final = "memory"
"""fsspec's file system for tests: blobs of this process."""

_SUFFIX: Final = ".blob"
_ONE_BY_ONE: Final = threading.Lock()


def check_url(store: str, url: str) -> None:
    """Refuse a file system that cannot create a file only if there is none.

    Raises:
        ConfigError: The URL is not of a file system that can.
    """
    protocol = scheme_of(url)
    if protocol not in (MEMORY, *PACKAGES) or "://" not in url or "::" in url:
        raise ConfigError(
            f"state.path: {url!r}: fsspec's {protocol!r} cannot create a file only if there is none of that name",
            hint=f"Give a folder, or a URL of {', '.join(f'{name}://' for name in PACKAGES)}; store {store!r}.",
            path="state.path",
        )


class Bucket:
    """Blocking calls to an object store; any thread may make them.

    Args:
        store: The driver's name, for errors.
        url: URL of the folder with the blobs of all jobs, checked.
        folder: Name of the job's folder below it.
        options: fsspec's options, such as credentials.
    """

    def __init__(self, store: str, url: str, folder: str, options: Mapping[str, Any]) -> None:
        self.shown = f"{url.rstrip('/')}/{folder}"
        self._store = store
        self._protocol = scheme_of(url)
        self._options = options
        self._files: Any = None
        self._root = ""

    def open(self) -> None:
        """Connect.

        Raises:
            MissingDependencyError: The client is not installed.
            StoreError: The server or the bucket cannot be reached.
        """
        try:
            self._files = object_store(self.shown, self._options)
        except ImportError as error:
            raise self._missing(error) from error
        except Exception as error:  # clients raise any error
            raise self._failed("cannot be used", error) from error
        self._root = self._files._strip_protocol(self.shown)
        self.names()

    def create(self, name: str, data: bytes) -> bool:
        """Create a blob, as `Store.create` does; `name` has been checked."""
        try:
            if self._protocol != MEMORY:
                return create_object(self._files, self._path(name), data)
            with _ONE_BY_ONE:  # memory looks first, then writes
                return create_object(self._files, self._path(name), data)
        except Exception as error:
            raise self._failed(f"cannot take {len(data)} bytes", error, name) from error

    def read(self, name: str) -> bytes | None:
        """Read a blob, as `Store.read` does."""
        try:
            return bytes(self._files.cat_file(self._path(name)))
        except FileNotFoundError:
            return None
        except Exception as error:
            raise self._failed("cannot be read", error, name) from error

    def names(self) -> list[str]:
        """Return the names of all blobs, unordered."""
        try:
            paths = self._files.ls(self._root, detail=False)
        except FileNotFoundError:
            return self._none_yet()
        except Exception as error:
            raise self._failed("cannot be listed", error) from error
        files = (path.rpartition("/")[2] for path in paths)
        return [file.removesuffix(_SUFFIX).replace("=", "/") for file in files if file.endswith(_SUFFIX)]

    def _none_yet(self) -> list[str]:
        """Return no names if the bucket exists: its folder exists from the first blob on."""
        if self._protocol != MEMORY:
            try:
                self._files.ls(self._root.partition("/")[0], detail=False)
            except Exception as error:
                raise self._failed("cannot be listed", error) from error
        return []

    def delete(self, names: Iterable[str]) -> None:
        """Delete blobs, as `Store.delete` does."""
        for name in names:
            try:
                self._files.rm_file(self._path(name))
            except FileNotFoundError:
                pass
            except Exception as error:
                raise self._failed("cannot be cleared", error, name) from error

    def _path(self, name: str) -> str:
        return f"{self._root}/{name.replace('/', '=')}{_SUFFIX}"

    def _failed(self, what: str, error: Exception, blob: str = "") -> StoreError:
        hint = "Are the URL and the credentials right? storage_options under [state] are handed on to fsspec."
        return store_error(self._store, f"{self.shown} {what}: {message_of(error)}", hint, blob)

    def _missing(self, error: ImportError) -> MissingDependencyError:
        package, command = missing_package(self.shown, error)
        what = f"store {self._store!r} needs module {package!r} for {self._protocol}://"
        return MissingDependencyError(
            f"{what}, which is not installed or does not work: {error}",
            hint=f"Run: {command}",
            kind="store",
            name=self._store,
            distribution="flamestream",
            module=package,
            extra="fsspec",
        )
