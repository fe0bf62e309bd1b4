"""Sources of files: paths, a partition for each file, and fingerprints."""

from __future__ import annotations

import codecs
import errno
import glob
import os
from abc import abstractmethod
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal

import msgspec
import xxhash

from flamecore.abc.paths import FilePath
from flamecore.abc.source import EdgeContext, Reader, Source, SourceCapabilities
from flamecore.errors import ConfigError, SourceError
from flamecore.suggest import nearest
from flamecore.toolkit.places import covers, pattern_of, within
from flamestream_edges.checksums import SUFFIX as CHECKSUMS
from flamestream_edges.position import SUFFIX
from flamestream_edges.reading.linereader import FinishedReader
from flamestream_edges.reading.packed import refuse_packed
from flamestream_edges.reading.seal import is_read

_SAMPLE_BYTES: Final = 64 * 1024
_BESIDE: Final = (SUFFIX, CHECKSUMS)
"""Endings of the files that file sinks leave beside their output."""


class PathOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Options of every source that reads files.

    Attributes:
        path: A file, a directory (the files in it, not those below, none that is hidden), a glob (`**` goes down), or
            several of these.
    """

    path: FilePath | tuple[FilePath, ...]


class LineOptions(PathOptions, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Options of every source that reads files line by line.

    Attributes:
        encoding: Any encoding that ends a line with the one byte 0A. A UTF-8 byte order mark is dropped.
        max_line_bytes: A longer line is malformed; it is never held in memory.
        partial: Treatment of a last line without line end: `hold` it back until it has one, or make it a `record`.
            `auto`: it is held back in a job that keeps state, whose next run reads it, and a record in any other.
    """

    encoding: str = "utf-8"
    max_line_bytes: Annotated[int, msgspec.Meta(ge=1)] = 16 * 1024 * 1024
    partial: Literal["auto", "hold", "record"] = "auto"

    def holds(self, context: EdgeContext) -> bool:
        """Return whether a last line without line end is held back."""
        return context.keeps_state if self.partial == "auto" else self.partial == "hold"


class FileSource(Source):
    """A source of files; each file is a partition, named by its path, in sorted order.

    The path begins at the folder of the job, if the file lies below it: then state is of use wherever the folder is,
    and whatever the working directory.
    """

    options: Any
    Options: ClassVar[Any] = PathOptions
    position_numbers: ClassVar[int] = 2
    """Number of the integers in a position, before its seal."""

    def __init__(self, options: Any, context: EdgeContext) -> None:
        super().__init__(options, context)
        if "" in self._patterns():
            raise empty_path(f"source.{context.name}.path")

    @property
    def capabilities(self) -> SourceCapabilities:
        return SourceCapabilities(replayable=True, bounded=True)

    def partitions(self) -> tuple[str, ...]:
        found = {name for pattern in self._patterns() for name in _expand(self.context.name, pattern)}
        if not found:
            raise _error(self.context.name, "", "path names no file", "Give a file, a directory or a glob.")
        return tuple(sorted([within(self.context.folder, name) for name in found]))

    def partition_of(self, name: str) -> str:
        """Return the partition of a file that the state has by another path.

        Earlier versions took paths as they were written, and relative to the working directory.
        """
        meant = {os.path.normpath(os.path.join(base, name)) for base in (Path.cwd(), self.context.folder.absolute())}  # noqa: PTH118
        folder = self.context.folder.absolute()
        same = [one for one in self.partitions() if os.path.normpath(os.path.join(folder, one)) in meant]  # noqa: PTH118
        return same[0] if len(same) == 1 else name

    @property
    def _base(self) -> str:
        """Return the folder that partitions are relative to; empty: the working directory.

        Errors show paths as short as they may be. A machine without the folder of the job has the
        files where it works.
        """
        folder = self.context.folder
        return "" if folder == Path.cwd() or not folder.is_dir() else str(folder)

    async def open(self, partition: str, position: Any = None) -> Reader:
        name = os.path.join(self._base, partition)  # noqa: PTH118
        if position is not None and is_read(name, position, self.position_numbers):
            return FinishedReader(name, position, self.position_numbers, self.open_at)
        return await self.open_at(name, position)

    @abstractmethod
    async def open_at(self, partition: str, position: Any) -> Reader:
        """Open a file at its start (None) or at a position, and check that it is still the same.

        Args:
            partition: Its path.
            position: See `open`.
        """

    def reads(self, place: str) -> bool:
        return any(covers(path, place) for path in self._patterns())

    def _patterns(self) -> tuple[str, ...]:
        paths = self.options.path
        return (paths,) if isinstance(paths, str) else paths

    def fingerprint(self) -> str:
        """Hash the name, size, and first and last 64 KiB of each file, and the options.

        All options but `path` count. It is cheap: a change in the middle of a large file that keeps its size is not
        seen. In a job that keeps state, whose positions are sealed, the time of a file stands for its bytes: no output
        is resumed by this, and files that were read in earlier runs need not be opened.
        """
        # Against changes by accident, at each start of each job: a cryptographic hash would be most of a small job's
        # time over many files.
        digest = xxhash.xxh3_128()
        options = {name: value for name, value in msgspec.structs.asdict(self.options).items() if name != "path"}
        if options.get("partial") == "auto":  # as before there was the option: outputs of older versions are resumed
            del options["partial"]
        digest.update(msgspec.json.encode([self.name, options]))
        folder = self._base
        for partition in self.partitions():
            name = os.path.join(folder, partition)  # noqa: PTH118 - for each of many files
            try:
                size, *samples = _facts(name) if self.context.keeps_state else self._samples(name)
            except OSError as error:
                raise unreadable(self.context.name, name, error) from error
            base = os.path.basename(name)  # noqa: PTH119 - for each of many files
            for part in (base.encode(errors="surrogateescape"), str(size).encode(), *samples):
                digest.update(len(part).to_bytes(8, "big"))
                digest.update(part)
        return digest.hexdigest()

    def _samples(self, name: str) -> tuple[int, bytes, bytes]:
        """Return the size of a file, and its first and last bytes."""
        with open(name, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            head = file.read(_SAMPLE_BYTES)
            file.seek(max(size - _SAMPLE_BYTES, len(head)))
            tail = file.read(_SAMPLE_BYTES)
        refuse_packed(self.context.name, name, head)
        return size, head, tail


def _facts(name: str) -> tuple[int, bytes]:
    """Return the size of a file that may be read, and the time of its last change."""
    found = os.stat(name)  # noqa: PTH116 - for each of many files
    if not os.access(name, os.R_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), name)
    return found.st_size, str(found.st_mtime_ns).encode()


def _expand(source: str, pattern: str) -> list[str]:
    """Return the files that one path stands for."""
    path = Path(pattern).expanduser()
    try:
        if path.is_file():
            return [str(path)]
        if path.is_dir():
            names = _files_in(path)
        elif glob.has_magic(pattern):
            found = [Path(name) for name in glob.iglob(pattern_of(str(path)), recursive=True)]  # noqa: PTH207 – is absolute
            names = [str(entry) for entry in found if entry.is_file() and _is_input(entry.name)]
        elif path.exists():
            hint = "Read what a pipe delivers through the source stdin: flamestream run … --source NAME=stdin < PIPE"
            raise _error(source, pattern, f"{pattern} is neither a file nor a directory", hint)
        else:
            raise _error(source, pattern, f"there is no file {pattern}", _near(path))
    except OSError as error:
        raise unreadable(source, pattern, error) from error
    if names:
        return names
    if path.is_dir():
        hint = "For files further down give a glob with **."
        raise _error(source, pattern, f"directory {pattern} has no files in it", hint)
    raise _error(source, pattern, f"no file matches {pattern}", _near(path))


def _files_in(folder: Path) -> list[str]:
    # No path object for each: these cost more than a small file, and keep the parts of all names.
    prefix = "" if str(folder) == "." else str(folder)
    with os.scandir(folder) as entries:
        names = [entry.name for entry in entries if _is_input(entry.name) and entry.is_file()]
    return [os.path.join(prefix, name) for name in names]  # noqa: PTH118


def _is_input(name: str) -> bool:
    return not name.startswith(".") and not name.endswith(_BESIDE)


def _near(path: Path) -> str:
    """Return a hint: the most similar name in the nearest folder that exists."""
    folder = path
    while folder != folder.parent and not folder.is_dir():
        path, folder = folder, folder.parent
    try:
        names = sorted(entry.name for entry in folder.iterdir())
    except OSError:
        names = []  # this is only a hint
    where = folder.absolute()
    if close := nearest(path.name, names):
        return f"Did you mean {folder / close}? (looked in {where})"
    some = ", ".join(names[:8]) + (", …" if len(names) > 8 else "")
    return f"In {where} there is: {some}." if names else f"{where} is empty."


def _error(source: str, path: str, what: str, hint: str) -> SourceError:
    return SourceError(f"source {source!r}: {what}", hint=hint, source=source, position=path)


def unreadable(source: str, name: str, error: OSError) -> SourceError:
    """Return the error of a file that cannot be opened."""
    hint = (
        f"Give this user permission to read it: chmod +r {name}"
        if isinstance(error, PermissionError)
        else "Check the path and its device."
    )
    return _error(source, name, f"{name} cannot be opened: {error.strerror or error}", hint)


def empty_path(key: str) -> ConfigError:
    """Return the error of an empty path, which `Path` takes for the working directory."""
    return ConfigError(f"{key} is empty", hint="Give the path of a file.", path=key)


def output_file(context: EdgeContext, path: str, hint: str = "Give the path of a file.") -> Path:
    """Return the path of the file that a sink writes.

    Raises:
        ConfigError: It cannot be that of a file.
    """
    key = f"sink.{context.name}.path"
    if not path:
        raise empty_path(key)
    if os.path.basename(path) in ("", "."):  # noqa: PTH119 – a Path has lost the slash at its end
        raise ConfigError(f"{key} = {path!r} is the path of a folder, and a file is to be written", hint=hint, path=key)
    return Path(path).expanduser()


def unwritable(path: Path) -> tuple[str, str] | None:
    """Return why a file cannot be written, as (what, hint), or None if it may be."""
    folder = path.parent
    if path.is_dir():
        return f"{path} is a folder, and a file is to be written", "Give the path of a file."
    if not folder.is_dir():
        return f"{path} cannot be made: there is no folder {folder}", f"Make it: mkdir -p {folder}"
    if not os.access(path if path.exists() else folder, os.W_OK):
        return f"{path} cannot be written by this user", "Change its owner or mode, or write elsewhere."
    return None


def line_encoding(context: EdgeContext, encoding: str) -> str:
    """Return Python's name of an encoding whose lines can be cut before decoding.

    Raises:
        ConfigError: It is unknown, or its line end is not the single byte 0A.
    """
    path = f"source.{context.name}.encoding"
    try:
        name = codecs.lookup(encoding).name
        single = "\n".encode(name.removesuffix("-sig")) == b"\n"
    except (LookupError, AttributeError) as error:
        raise ConfigError(
            f"{path} = {encoding!r} is no text encoding", hint="For instance: utf-8, latin-1, cp1251.", path=path
        ) from error
    if not single:
        raise ConfigError(
            f"{path} = {encoding!r}: its lines do not end with the one byte 0A, so they cannot be cut before decoding",
            hint=f"Convert the file first: iconv -f {encoding} -t utf-8",
            path=path,
        )
    return name.removesuffix("-sig")


def wrong_type(context: EdgeContext, driver: str, gives: str, hint: str) -> ConfigError:
    """Return the error of a declared payload type that a driver does not give."""
    wanted = getattr(context.type, "__name__", str(context.type))
    return ConfigError(
        f"source {context.name!r}: the flow declares {wanted}, and {driver} gives {gives}",
        hint=hint,
        path=f"source.{context.name}.use",
    )
