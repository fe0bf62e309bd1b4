"""Where the files of a Delta table lie: a folder of this machine, or an object store that delta-rs reaches."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, Protocol

import pyarrow.parquet as pq

from flamestream_spark.spool.parts import force

SCHEMES: Final = ("s3", "s3a", "gs", "az", "abfs", "abfss")
"""Object stores in which delta-rs commits on the condition that nobody else has."""


class Place(Protocol):
    """The files of one table, by their paths below it. Every method raises OSError: the disk or the server says no.

    Attributes:
        url: As delta-rs takes it, and for errors.
        options: For delta-rs.
    """

    url: str
    options: dict[str, str] | None

    def make(self) -> None:
        """Make the folder, if there are folders."""

    def names(self) -> list[str]:
        """Return the paths of the files, in no order; not of those in hidden folders, such as the log."""

    def put(self, name: str, write: Callable[[Path], None]) -> tuple[int, int]:
        """Add a file of Parquet; return its bytes and rows. If that fails nothing is left behind."""

    def remove(self, names: Iterable[str]) -> None:
        """Take files away, if they are there."""

    def force(self, names: Iterable[str]) -> None:
        """Have files outlast a loss of power; of a folder, the names in it."""


class Local:
    """A folder of this machine."""

    options: dict[str, str] | None = None

    def __init__(self, path: Path) -> None:
        self._path, self.url = path, str(path)

    def make(self) -> None:
        self._path.mkdir(exist_ok=True)

    def names(self) -> list[str]:
        return [str(file.relative_to(self._path)) for file in self._files()]

    def _files(self) -> Iterator[Path]:
        for folder, below, files in os.walk(self._path):
            below[:] = [name for name in below if not _is_hidden(name)]
            yield from (Path(folder, name) for name in files)

    def put(self, name: str, write: Callable[[Path], None]) -> tuple[int, int]:
        path = self._path / name
        path.parent.mkdir(exist_ok=True, parents=True)
        try:
            write(path)
            force(str(path))
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        return path.stat().st_size, pq.read_metadata(path).num_rows

    def remove(self, names: Iterable[str]) -> None:
        for name in names:
            (self._path / name).unlink(missing_ok=True)

    def force(self, names: Iterable[str]) -> None:
        for name in names:
            force(str(self._path / name))


class Objects:
    """A prefix in an object store: an object is there whole or not at all, and stays.

    Args:
        url: Of the prefix.
        options: What delta-rs is told, such as credentials; the rest it takes from the environment.
    """

    def __init__(self, url: str, options: Mapping[str, str]) -> None:
        self.url = url.rstrip("/")
        self.options: dict[str, str] | None = dict(options)

    def _files(self) -> Any:
        from deltalake.fs import DeltaStorageHandler
        from pyarrow.fs import PyFileSystem

        return PyFileSystem(DeltaStorageHandler(self.url, self.options))

    def make(self) -> None:
        """Do nothing: there are no folders."""

    def names(self) -> list[str]:
        from pyarrow.fs import FileSelector

        found = self._files().get_file_info(FileSelector("", recursive=True, allow_not_found=True))
        paths = (info.path for info in found if info.is_file)
        return [path for path in paths if not any(map(_is_hidden, path.split("/")[:-1]))]

    def put(self, name: str, write: Callable[[Path], None]) -> tuple[int, int]:
        with TemporaryDirectory(prefix="flamestream-") as folder:
            path = Path(folder, "part.parquet")
            write(path)
            data, rows = path.read_bytes(), pq.read_metadata(path).num_rows
        # With room for all of it Arrow hands over bytes, and not its own buffers, which delta-rs does not take.
        with self._files().open_output_stream(name, buffer_size=len(data) + 1) as stream:
            stream.write(data)
        return len(data), rows

    def remove(self, names: Iterable[str]) -> None:
        files = self._files()
        for name in names:
            files.delete_file(name)

    def force(self, names: Iterable[str]) -> None:
        """Do nothing: what a server has taken stays."""


def _is_hidden(folder: str) -> bool:
    """Whether Spark leaves a folder out."""
    return folder[0] in "._" and "=" not in folder
