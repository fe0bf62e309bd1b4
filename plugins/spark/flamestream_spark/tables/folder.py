"""A folder that takes batches exactly once: a file for each, its time in its name, that is there at once or not at all.

    _flamestream.json               whose output it is, who writes it, which runs count, complete below which time
    part-RUN-00000000000000000017.parquet   everything of that run below time 17 that no earlier file holds

Spark reads no files that begin with `_` or `.`. Writing is a rename, so a reader never sees half a file.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from secrets import token_hex
from typing import Final

import msgspec

from flamecore.abc.sink import Mode, goes_on, taken_over
from flamecore.abc.source import EdgeContext
from flamecore.errors import SinkError, TimeRegressionError
from flamecore.model.meta import MIN_TIME
from flamestream_spark.spool.parts import force

MANIFEST: Final = "_flamestream.json"
_LOCK: Final = "_flamestream.lock"
PART: Final = re.compile(r"part-([0-9a-f]{8})-(-?\d{19,20})\.\w+")


class Manifest(msgspec.Struct, frozen=True):
    """What the folder says of itself.

    Attributes:
        fingerprint: Of what it is the output.
        owner: Who opened it last; nobody else writes.
        runs: Names of the runs whose files count, in order. Files of others are of a run that was to be replaced.
        time: Everything below it is there, whatever the names of the files say.
    """

    fingerprint: str
    owner: str
    runs: tuple[str, ...]
    time: int = MIN_TIME


def read_manifest(folder: Path) -> Manifest | None:
    """What a folder says of itself; None: nothing.

    Raises:
        msgspec.DecodeError: It was changed.
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
        mode: What becomes of files that are there.
        suffix: Of the files.
    """

    def __init__(self, path: Path, context: EdgeContext, mode: Mode, suffix: str) -> None:
        self.path = path
        self._context = context
        self._mode = mode
        self._suffix = suffix
        self._mine: Manifest | None = None

    @property
    def time(self) -> int:
        """Everything below it is there."""
        return self._mine.time if self._mine is not None else MIN_TIME

    def open(self) -> int:
        """Make ready, and return the time up to which output is held.

        Raises:
            SinkError: It cannot be, or what is there is not the sink's own.
            OSError: The disk says no.
        """
        self.path.mkdir(exist_ok=True)
        with self._locked():
            held, parts = self._manifest(), self._parts()
            strangers = [name for name in self._names() if PART.fullmatch(name) is None]
            if strangers and self._mode != "append":
                raise self.error(
                    f"{self.path} holds files that no such sink has written: {', '.join(strangers[:3])}",
                    'Write to a folder of its own; or beside them with mode = "append".',
                )
            known = [(run, time) for run, time in parts if held is not None and run in held.runs]
            empty = not known and not strangers
            resumed = goes_on(
                self._context, self._mode, held.fingerprint if held else None, f"folder {self.path}", empty=empty
            )
            if resumed and held is not None:
                runs = held.runs
                last = max((time for run, time in parts if run == runs[-1]), default=MIN_TIME)
                reached = max(last, held.time)
            else:
                keep = held.runs if held is not None and self._mode == "append" else ()
                runs, reached = (*keep, token_hex(4)), MIN_TIME
            self._mine = Manifest(self._context.fingerprint, token_hex(8), runs, reached)
            self._say(self._mine)
            # From here on they do not count; until here they did.
            for (run, _), name in parts.items():
                if run not in runs:
                    (self.path / name).unlink()
            for left in self.path.glob(".part-*"):
                left.unlink()
        return reached

    def put(self, time: int, write: Callable[[Path], None]) -> None:
        """Add the file of a batch.

        Args:
            time: Of the batch.
            write: Writes the file.

        Raises:
            TimeRegressionError: `time` is below an earlier one.
            SinkError: Another run has taken over.
            OSError: The disk says no; nothing is left behind.
        """
        assert self._mine is not None, "write before open"
        if time < self._mine.time:
            raise TimeRegressionError(
                f"sink {self._context.name!r}: a batch of time {time} after one of time {self._mine.time}",
                time=time,
                limit=self._mine.time,
            )
        name = f"part-{self._mine.runs[-1]}-{time:020d}.{self._suffix}"
        hidden = self.path / f".{name}-{self._mine.owner}"
        try:
            write(hidden)
            force(str(hidden))
            with self._locked():
                self._still_mine()
                hidden.rename(self.path / name)
        except BaseException:
            hidden.unlink(missing_ok=True)
            raise
        self._mine = msgspec.structs.replace(self._mine, time=time)

    def sync(self, time: int) -> None:
        """Make durable what is there, and that it is complete below `time`. Raises as `put`."""
        assert self._mine is not None, "sync before open"
        with self._locked():
            self._still_mine()
            force(str(self.path))
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
        except msgspec.DecodeError as error:
            raise self.error(
                f"{self.path / MANIFEST} is not as it was written: {error}",
                "Take the folder away, or that file to have what is there refused.",
            ) from error

    def _names(self) -> list[str]:
        return sorted(entry.name for entry in self.path.iterdir() if entry.name[0] not in "._")

    def _parts(self) -> dict[tuple[str, int], str]:
        found = {name: PART.fullmatch(name) for name in self._names()}
        return {(part[1], int(part[2])): name for name, part in found.items() if part is not None}

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Keep others from looking or writing meanwhile. Where there are no such locks (Windows) they are not kept."""
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
