"""A folder of this machine, or one that is mounted."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from secrets import token_hex
from typing import Any

import pyarrow as pa

from flamecore.toolkit.private_dir import write_private
from flamestream_spark.spool.parts import force
from flamestream_spark.storage.place import Place, is_hidden


class FolderPlace(Place):
    """A folder.

    Args:
        path: The folder.
        private: Whether only this user reads what is created or replaced there, and the folders that are made for it.
        durable: Whether what is created or replaced outlasts a loss of power.
    """

    def __init__(self, path: Path, *, private: bool = False, durable: bool = True) -> None:
        self._path, self.url = path, str(path)
        self._mode = 0o700 if private else 0o777
        self._private, self._durable = private, durable

    def make(self) -> None:
        self._path.mkdir(mode=self._mode, parents=self._private, exist_ok=True)

    def names(self, folder: str = "", *, below: bool = False) -> list[str]:
        found: list[str] = []
        for path, folders, files in os.walk(self._path / folder):
            folders[:] = [name for name in folders if below and not is_hidden(name)]
            within = Path(path).relative_to(self._path).as_posix()
            found += files if within == "." else [f"{within}/{name}" for name in files]
        return found

    def folder(self, name: str) -> str:
        (self._path / name).mkdir(mode=self._mode, parents=True, exist_ok=True)
        return str(self._path / name)

    def read(self, name: str) -> bytes | None:
        try:
            return (self._path / name).read_bytes()
        except FileNotFoundError:
            return None

    def open(self, name: str) -> Any:
        return pa.memory_map(str(self._path / name))

    def create(self, name: str, data: bytes) -> bool:
        aside = self._aside(name, data)
        try:
            os.link(aside, self._path / name)
        except FileExistsError:
            return False
        finally:
            aside.unlink()
            if self._durable:
                force(str(aside.parent))
        return True

    def replace(self, name: str, data: bytes) -> None:
        aside = self._aside(name, data)
        aside.replace(self._path / name)
        if self._durable:
            force(str(aside.parent))

    def _aside(self, name: str, data: bytes) -> Path:
        path = self._path / name
        if path.parent != self._path:  # one that somebody has taken away is not to come back
            path.parent.mkdir(mode=self._mode, exist_ok=True, parents=True)
        aside = path.with_name(f".{path.name}-{token_hex(4)}")
        if self._private:
            write_private(aside, data)
        else:
            aside.write_bytes(data)
        if self._durable:
            force(str(aside))
        return aside

    def put(self, name: str, write: Callable[[Path], None]) -> int:
        path = self._path / name
        path.parent.mkdir(mode=self._mode, exist_ok=True, parents=True)
        try:
            write(path)
            force(str(path))
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        return path.stat().st_size

    def remove(self, names: Iterable[str]) -> None:
        for name in names:
            (self._path / name).unlink(missing_ok=True)

    def clear(self, folder: str = "") -> None:
        shutil.rmtree(self._path / folder, ignore_errors=True)

    def force(self, names: Iterable[str]) -> None:
        for name in names:
            force(str(self._path / name))
