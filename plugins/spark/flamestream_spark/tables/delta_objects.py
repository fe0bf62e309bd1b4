"""Files of a Delta table in an object store, by the credentials of delta-rs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from flamestream_spark.storage.objects import written
from flamestream_spark.storage.place import is_hidden

SCHEMES: Final = ("s3", "s3a", "gs", "az", "abfs", "abfss", "hdfs")
"""Object stores, and HDFS, in which delta-rs commits on the condition that no other writer has."""


class DeltaObjects:
    """The part of a `flamestream_spark.storage.place.Place` that a table needs.

    Args:
        url: URL of the prefix.
        options: Options of delta-rs, such as credentials; the rest it takes from the environment.
    """

    def __init__(self, url: str, options: Mapping[str, str]) -> None:
        self.url = url.rstrip("/")
        self._options = dict(options)

    def _files(self) -> Any:
        from deltalake.fs import DeltaStorageHandler
        from pyarrow.fs import PyFileSystem

        return PyFileSystem(DeltaStorageHandler(self.url, self._options))

    def make(self) -> None:
        """Do nothing: there are no folders."""

    def names(self, folder: str = "", *, below: bool = False) -> list[str]:
        from pyarrow.fs import FileSelector

        found = self._files().get_file_info(FileSelector(folder, recursive=below, allow_not_found=True))
        paths = (info.path for info in found if info.is_file)
        return [path for path in paths if not any(map(is_hidden, path.split("/")[:-1]))]

    def put(self, name: str, write: Callable[[Path], None]) -> int:
        data = written(write)
        # With room for all of it Arrow hands over bytes, and not its own buffers, which delta-rs does not take.
        with self._files().open_output_stream(name, buffer_size=len(data) + 1) as stream:
            stream.write(data)
        return len(data)

    def remove(self, names: Iterable[str]) -> None:
        files = self._files()
        for name in names:
            files.delete_file(name)

    def force(self, names: Iterable[str]) -> None:
        """Do nothing: what a server has taken stays."""
