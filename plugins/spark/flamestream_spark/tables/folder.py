"""Folder that takes batches exactly once, each as a file.

A file has its time in its name, and is there at once or not at all.

    _flamestream.json               whose output it is, who writes it, which runs count, complete below which time
    part-RUN-00000000000000000017.parquet   everything of that run below time 17 that no earlier file holds

Spark reads no files that begin with `_` or `.`. Writing is a rename, so a reader never sees half a file. With
partitions a batch is several files, each in the folder of its values, and their names say how many:

    letter=a/part-RUN-00000000000000000017-of-2.parquet

A batch of which some are missing is the last one of a run that died, and goes when the folder is opened again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePath
from secrets import token_hex
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import msgspec

from flamecore.abc.sink import Mode, check_time, goes_on, taken_over, would_replace
from flamecore.abc.source import EdgeContext
from flamecore.errors import SinkError
from flamecore.model.meta import MIN_TIME
from flamestream_spark.spool.parts import force
from flamestream_spark.tables.partitions import LONGEST_BYTES, FoldedNameError, Folders, pieces_of
from flamestream_spark.tables.schemas import OtherColumnsError, Schema, continued

MANIFEST: Final = "_flamestream.json"
_LOCK: Final = "_flamestream.lock"
PART: Final = re.compile(r"part-([0-9a-f]{8})-(-?\d{19,20})(?:-of-(\d+))?\.\w+")


class Manifest(msgspec.Struct, frozen=True):
    """The manifest of a folder, stored in it.

    Attributes:
        fingerprint: Fingerprint of the flow and inputs that it is the output of.
        owner: The run that opened it last, the only one that writes.
        runs: Names of the runs whose files count, in order. Files of others are of a run that was to be replaced.
        time: Everything below it is there, whatever the names of the files say.
        partitions: The columns whose values are folders.
        columns: Types of all columns, by name; empty: not known.
        added: Whether some of them came later, so that older files do not have them.
    """

    fingerprint: str
    owner: str
    runs: tuple[str, ...]
    time: int = MIN_TIME
    partitions: tuple[str, ...] = ()
    columns: dict[str, str] = {}
    added: bool = False


class _Part(NamedTuple):
    """A file of output.

    Attributes:
        run: Name of its run.
        time: Time of its batch.
        files: Number of files of the batch.
        name: Its path below the folder.
    """

    run: str
    time: int
    files: int
    name: str


def read_manifest(folder: Path) -> Manifest | None:
    """Return the manifest of a folder; None: there is none.

    Raises:
        ValueError: It was changed.
    """
    try:
        return msgspec.json.decode((folder / MANIFEST).read_bytes(), type=Manifest)
    except FileNotFoundError:
        return None


class Folder:
    """One such folder.

    Args:
        path: Made if it is not there; the folder it lies in must be.
        context: The sink's.
        mode: Fate of files that are there.
        suffix: Ending of the names of files.
        partitions: Columns whose values are folders.
        columns: Types of all columns, by name.
        schema: Fate of columns that are new to what is there.
    """

    def __init__(
        self,
        path: Path,
        context: EdgeContext,
        mode: Mode,
        suffix: str,
        partitions: Sequence[str] = (),
        columns: Mapping[str, str] = MappingProxyType({}),
        schema: Schema = "keep",
    ) -> None:
        self.path = path
        self._columns, self._schema = dict(columns), schema
        self._partitions = tuple(partitions)
        self._context = context
        self._mode = mode
        self._suffix = suffix
        self._mine: Manifest | None = None
        self._folders_made = Folders(path)

    @property
    def time(self) -> int:
        """Everything below it is there."""
        return self._mine.time if self._mine is not None else MIN_TIME

    def replaces(self) -> bool:
        """Return whether `open` would destroy output of another run.

        Raises:
            SinkError: The manifest was changed.
            OSError: The disk says no.
        """
        if not self.path.is_dir():
            return False
        held = self._manifest()
        known = held is not None and any(part.run in held.runs for part in self._parts())
        strangers = any(PART.fullmatch(PurePath(name).name) is None for name in self._names())
        # Beside files of others nothing is replaced; `open` refuses them at once.
        return not strangers and would_replace(
            self._context, self._mode, held.fingerprint if held else None, empty=not known
        )

    def open(self) -> int:
        """Make ready, and return the time up to which output is held.

        Raises:
            SinkError: It cannot be, or what is there is not the sink's own.
            OSError: The disk says no.
        """
        self.path.mkdir(exist_ok=True)
        with self._locked():
            held, parts = self._manifest(), self._parts()
            if held is not None and held.runs:
                parts = self._whole(parts, held.runs[-1])
            strangers = [name for name in self._names() if PART.fullmatch(PurePath(name).name) is None]
            if strangers and self._mode != "append":
                raise self.error(
                    f"{self.path} holds files that no such sink has written: {', '.join(strangers[:3])}",
                    'Write to a folder of its own; or beside them with mode = "append".',
                )
            known = [part for part in parts if held is not None and part.run in held.runs]
            empty = not known and not strangers
            resumed = goes_on(
                self._context, self._mode, held.fingerprint if held else None, f"folder {self.path}", empty=empty
            )
            if held is not None and held.partitions != self._partitions and (resumed or self._mode == "append"):
                was = ", ".join(held.partitions) or "nothing"
                raise self.error(
                    f"folder {self.path} is partitioned by {was}", "Say so in partition_by, or write to another folder."
                )
            stays = known and (resumed or self._mode == "append")
            try:
                columns, added = continued(held if stays else None, self._columns, self._schema)
            except OtherColumnsError as error:
                raise self.error(f"folder {self.path} {error}", error.hint) from error
            if resumed and held is not None:
                runs = held.runs
                last = max((part.time for part in parts if part.run == runs[-1]), default=MIN_TIME)
                reached = max(last, held.time)
            else:
                keep = held.runs if held is not None and self._mode == "append" else ()
                runs, reached = (*keep, token_hex(4)), MIN_TIME
            self._mine = Manifest(
                self._context.fingerprint, token_hex(8), runs, reached, self._partitions, columns, added
            )
            self._say(self._mine)
            # From here on they do not count; until here they did.
            for part in parts:
                if part.run not in runs:
                    (self.path / part.name).unlink()
            for folder in self._folders():
                for left in folder.glob(".part-*"):
                    left.unlink()
                if folder != self.path and not any(folder.iterdir()):
                    folder.rmdir()
        return reached

    def _whole(self, parts: Sequence[_Part], run: str) -> list[_Part]:
        """Remove an incomplete last batch of a run; return the other parts."""
        mine = [part for part in parts if part.run == run]
        last = [part for part in mine if part.time == max(part.time for part in mine)]
        if not last or len(last) == last[0].files:
            return list(parts)
        for part in last:
            (self.path / part.name).unlink()
        return [part for part in parts if part not in last]

    def put(self, time: int, table: Any, write: Callable[[Any, Path], None]) -> None:
        """Add the files of a batch: one, or one for each partition.

        Args:
            time: Time of the batch.
            table: Its rows.
            write: Writes rows into a file.

        Raises:
            TimeRegressionError: `time` is below an earlier one.
            SinkError: Another run has taken over; or the folders of two values have one name.
            Unencodable: The name of a folder is too long.
            OSError: The disk says no; nothing is left behind.
        """
        assert self._mine is not None, "write before open"
        check_time(self._context, time, self._mine.time)
        pieces = pieces_of(table, self._partitions, LONGEST_BYTES)
        count = f"-of-{len(pieces)}" if self._partitions else ""
        name = f"part-{self._mine.runs[-1]}-{time:020d}{count}.{self._suffix}"
        try:
            folders = [self._folders_made.make(piece.folder) for piece in pieces]
        except FoldedNameError as error:
            raise self.error(
                f"the file system has no folder {error} beside those that are there: to it, their names are equal",
                "Write to a file system that distinguishes case and keeps blanks and dots at the end of a name; or map "
                "the column, such as to lower case.",
            ) from error
        hidden = [folder / f".{name}-{self._mine.owner}" for folder in folders]
        try:
            for piece, file in zip(pieces, hidden, strict=True):
                write(piece.table, file)
                force(str(file))
            with self._locked():
                self._still_mine()
                for folder, file in zip(folders, hidden, strict=True):
                    file.rename(folder / name)
        except BaseException:
            for file in hidden:
                file.unlink(missing_ok=True)
            raise
        self._mine = msgspec.structs.replace(self._mine, time=time)

    def sync(self, time: int) -> None:
        """Make durable what is there, and that it is complete below `time`.

        It raises what `put` raises.
        """
        assert self._mine is not None, "sync before open"
        with self._locked():
            self._still_mine()
            for folder in self._folders():
                force(str(folder))
            self._mine = msgspec.structs.replace(self._mine, time=max(time, self._mine.time))
            self._say(self._mine)

    def _still_mine(self) -> None:
        held = self._manifest()
        assert self._mine is not None
        if held is None or held.owner != self._mine.owner:
            raise taken_over(self._context, f"folder {self.path}")

    def _say(self, manifest: Manifest) -> None:
        new = self.path / f".{MANIFEST}"
        new.write_bytes(msgspec.json.encode(manifest))
        force(str(new))
        new.replace(self.path / MANIFEST)
        force(str(self.path))

    def _manifest(self) -> Manifest | None:
        try:
            return read_manifest(self.path)
        except ValueError as error:
            raise self.error(
                f"{self.path / MANIFEST} is not as it was written: {error}",
                "Take the folder away, or that file to have what is there refused.",
            ) from error

    def _folders(self) -> list[Path]:
        """Return this folder and those of partitions in it, the innermost first."""
        return [*sorted((entry for entry in self.path.rglob("*=*") if entry.is_dir()), reverse=True), self.path]

    def _names(self) -> list[str]:
        """Return the relative paths of all files below, sorted, without hidden ones."""
        folders = self._folders()
        found = (entry for folder in folders for entry in folder.iterdir() if entry.name[0] not in "._")
        return sorted(str(entry.relative_to(self.path)) for entry in found if entry not in folders)

    def _parts(self) -> list[_Part]:
        found = ((name, PART.fullmatch(PurePath(name).name)) for name in self._names())
        return [_Part(part[1], int(part[2]), int(part[3] or 1), name) for name, part in found if part is not None]

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Lock out other readers and writers meanwhile.

        Systems without such locks (Windows) do not lock them out.
        """
        try:
            import fcntl
        except ImportError:
            yield
            return
        with (self.path / _LOCK).open("wb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def error(self, what: str, hint: str) -> SinkError:
        """Something is wrong with the folder."""
        return SinkError(f"sink {self._context.name!r}: {what}", hint=hint, sink=self._context.name)
