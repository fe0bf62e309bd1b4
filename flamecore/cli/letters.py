"""Files of dead letters: their records, and how far they were read again."""

from __future__ import annotations

import asyncio
import base64
import os
import shutil
import sys
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from secrets import token_hex
from typing import Any, ClassVar, Final

import msgspec
from xxhash import xxh3_64

from flamecore.abc.source import Batch, Reader, Rejected, Source, SourceCapabilities
from flamecore.errors import ConfigError
from flamecore.runtime.config import defaults
from flamecore.runtime.state.fronts import PASSING

SUFFIX: Final = ".retried"
"""Suffix of the file beside the letters that records how far they were read again."""

COPY_SUFFIX: Final = ".retrying"
"""Ending of the copy of the letters that a retry reads, until it has come to its end."""

_MOST_BYTES: Final = 16 * 1024 * 1024
"""Longest line that can be a dead letter."""

_CHUNK: Final = 2**20
_TURN: Final = 1000
"""Number of lines after which the reader yields to other tasks."""


class Letter(msgspec.Struct, frozen=True):
    """A dead letter, as far as a retry needs it.

    See `flamecore.model.failure.Failure.letter`.
    """

    source: str
    position: str
    original: str | None
    original_base64: str | None

    @property
    def record(self) -> bytes | None:
        """Return the record as its source had it; None if it was not kept."""
        if self.original_base64 is not None:
            return base64.b64decode(self.original_base64, validate=True)
        return None if self.original is None else self.original.encode()

    @property
    def key(self) -> tuple[str, int] | None:
        """Return what letters of the same record have in common; None if it was not kept."""
        if (record := self.record) is None:
            return None
        # By position and record: two equal records of a file are two, and each has letters of its own.
        return self.source, xxh3_64(self.position.encode() + b"\0" + record).intdigest()


class Mark(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The progress of reading a file of letters again.

    Attributes:
        schema: Version of this format.
        start: Offset of the first letter of the last retry.
        end: Offset behind its last one.
        digest: XXH3-64 of everything before `end`.
        done: Whether that retry has come to its end.
        id: Identity of that retry, which no other one has.
        copy: XXH3-64 of the copy that it reads.
        shortened: End and digest once letters that failed again have been removed before `end`; None: there are none.
    """

    schema: int = 1
    start: int
    end: int
    digest: str
    done: bool
    id: str = ""
    copy: str = ""
    shortened: tuple[int, str] | None = None


class LetterFile:
    """A file of dead letters, and the mark and the copy beside it.

    A retry reads a copy of the letters: the file is that of a sink, which adds to it meanwhile, and of a user, who may
    edit it at any time.

    Args:
        path: The file, as the sink `jsonl` writes it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._mark_path = path.with_name(path.name + SUFFIX)
        self._copy_path = path.with_name(path.name + COPY_SUFFIX)

    def find(self) -> Letters | None:
        """Return the letters to read next; None: there are none.

        They are those of a retry that was cut short, or new ones.

        Raises:
            ConfigError: The file has changed where it was read before, or cannot be read.
        """
        try:
            mark = self._mark()
            if mark is not None and not mark.done:
                return self._begun(mark)
            self._copy_path.unlink(missing_ok=True)
            if not self.path.stat().st_size:
                self._mark_path.unlink(missing_ok=True)  # it speaks of letters that are gone
                return None
            start = 0
            if mark is not None:
                start = self._read_up_to(mark)
            end = _end_of_letters(self.path)
            if end <= start:
                return None
            return Letters(self.path, start, end, _digest(self.path, end), id=token_hex(8))
        except OSError as error:
            raise ConfigError(f"{error.filename} cannot be read: {error.strerror}", path="") from error

    def begin(self, letters: Letters) -> Letters:
        """Copy letters, store durably that they are being read, and return the copy.

        Raises:
            ConfigError: The file has changed since they were found.
        """
        if letters.begun:
            return letters
        copy = _copy(letters, self._copy_path)
        if _digest(self.path, letters.end) != letters.digest:
            raise ConfigError(f"{self.path} is being edited", hint="Save it, and give the command again.", path="")
        letters = replace(letters, path=self._copy_path, copied=letters.start, copy=copy, begun=True)
        self._note(letters, done=False)
        return letters

    def finish(self, letters: Letters, *, shorten: bool = False) -> bool:
        """Store durably that letters have been read again, and remove their copy.

        Args:
            letters: The letters.
            shorten: Whether those that have failed again, and so are behind the others now, are removed where they
                were. A file that was edited meanwhile is left as it is.

        Returns:
            Whether any were removed.
        """
        places = self._failed_again(letters) if shorten and not self.has_changed(letters) else ()
        if not places:
            self._note(letters, done=True)
        else:
            fresh = self._copy_path.with_name(self._copy_path.name + ".new")
            end = _write_without(places, self.path, fresh, letters.end)
            digest = _digest(fresh, end)
            # Before the file is replaced: after a crash here, the mark speaks of both.
            self._note(letters, done=True, shortened=(end, digest))
            shutil.copymode(self.path, fresh)
            fresh.replace(self.path.resolve())
            self._note(replace(letters, end=end, digest=digest), done=True)
        self._copy_path.unlink(missing_ok=True)
        return bool(places)

    def _failed_again(self, letters: Letters) -> list[tuple[int, int]]:
        """Return the places in the file of letters whose records have failed again.

        These records have letters behind the last of `letters`.
        """
        behind = Letters(self.path, letters.end, _end_of_letters(self.path), "")
        again = {key for _, letter in behind.all() if (key := letter.key) is not None}
        if not again:
            return []
        return [place for place, letter in letters.all() if letter.key in again]

    def _read_up_to(self, mark: Mark) -> int:
        """Return the offset behind the last letter that was read.

        Raises:
            ConfigError: The file has changed before it.
        """
        # By the contents, not by time or length: letters that were edited in place would be
        # skipped, or read twice.
        ends = [(mark.end, mark.digest)]
        if mark.shortened is not None:
            ends.append(mark.shortened)
        for end, digest in ends:
            if _digest(self.path, end) == digest:
                return end
        raise self._changed(mark)

    def has_changed(self, letters: Letters) -> bool:
        """Return whether the file has changed where letters were taken from it."""
        return not self.path.exists() or _digest(self.path, letters.end) != letters.digest

    def _begun(self, mark: Mark) -> Letters:
        """Return the letters of an interrupted retry.

        They are those of its copy, or of the file if that is unchanged.
        """
        letters = Letters(self.path, mark.start, mark.end, mark.digest, id=mark.id)
        if mark.copy and self._copy_path.exists():
            if _digest(self._copy_path, self._copy_path.stat().st_size) != mark.copy:
                raise ConfigError(
                    f"{self._copy_path} has changed, and a retry that was cut short has to read it",
                    hint=f"To read the letters of {self.path} from the first on: rm {self._mark_path}",
                    path="",
                )
            return replace(letters, path=self._copy_path, copied=mark.start, copy=mark.copy, begun=True)
        if _digest(self.path, mark.end) != mark.digest:
            raise self._changed(mark)
        return replace(letters, copy=_copy(letters, self._copy_path), begun=True)

    def _changed(self, mark: Mark) -> ConfigError:
        return ConfigError(
            f"{self.path} has changed before byte {mark.end}, up to which its records were read again",
            hint="Put letters that you have corrected into a file of their own. To read all of this file: "
            f"rm {self._mark_path}",
            path="",
        )

    def _note(self, letters: Letters, *, done: bool, shortened: tuple[int, str] | None = None) -> None:
        mark = Mark(
            start=letters.start,
            end=letters.end,
            digest=letters.digest,
            done=done,
            id=letters.id,
            copy=letters.copy,
            shortened=shortened,
        )
        fresh = self._mark_path.with_name(self._mark_path.name + ".new")
        _write_durably(fresh, [msgspec.json.encode(mark)])
        # Replaced by renaming: after a crash here, a retry finds the old mark or the new one, never
        # half of one.
        fresh.replace(self._mark_path)
        if sys.platform != "win32":  # its folders cannot be opened
            folder = os.open(self.path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)  # before the state is removed, which knows as much
            finally:
                os.close(folder)

    def _mark(self) -> Mark | None:
        try:
            mark = msgspec.json.decode(self._mark_path.read_bytes(), type=Mark)
        except FileNotFoundError:
            return None
        except ValueError as error:
            hint = "Delete it to read all of the letters; outputs of those that were read before come twice then."
            raise ConfigError(f"{self._mark_path} is damaged: {error}", hint=hint, path="") from error
        if mark.schema != 1:
            hint = "Use the version of flamestream that wrote it, or a newer one."
            raise ConfigError(f"{self._mark_path} is of schema {mark.schema}, and 1 is known", hint=hint, path="")
        return mark


@dataclass(frozen=True, slots=True)
class Letters:
    """A range of letters of a file.

    Attributes:
        path: The file that they are read from: their own, or a copy of the range.
        start: Offset of the first in their own file.
        end: Offset behind the last.
        digest: XXH3-64 of everything before `end`.
        id: Identity of the retry that reads them.
        begun: Whether that has begun.
        copied: Offset, in their own file, of the first byte of the one that they are read from.
        copy: XXH3-64 of the copy; empty if there is none.
    """

    path: Path
    start: int
    end: int
    digest: str
    id: str = ""
    begun: bool = False
    copied: int = 0
    copy: str = ""

    @property
    def name(self) -> str:
        """Return the name of the partition of these letters; no others have it."""
        file = self.path.name.removesuffix(COPY_SUFFIX)
        return f"{PASSING}{file}[{self.start}:{self.end}] {self.id or self.digest}"

    def distinct(self, source: str) -> Generator[tuple[tuple[int, int], Letter | None]]:
        """Yield the place of every letter, with the letter if it is one of the source.

        Otherwise None comes with the place. The file is open until the end, or until `close`.

        A record on which several operations have failed has several letters: the first counts.

        Raises:
            ConfigError: A line is no letter.
        """
        seen: set[tuple[str, int]] = set()
        for place, letter in self.all():
            if letter.source != source or (key := letter.key) is None:
                yield place, None
                continue
            yield place, None if key in seen else letter
            seen.add(key)

    def all(self) -> Iterator[tuple[tuple[int, int], Letter]]:
        """Yield every letter and its place: the offsets of its line.

        Raises:
            ConfigError: A line is no letter.
        """
        with open(self.path, "rb") as file:
            file.seek(self.start - self.copied)
            place = self.start
            while place < self.end and (line := file.readline(min(_MOST_BYTES, self.end - place))):
                end = place + len(line)
                if line.strip():
                    yield (place, end), self._letter(line, place)
                place = end

    def at(self, place: Sequence[int]) -> Letter:
        """Read one letter again, by its place."""
        with open(self.path, "rb") as file:
            file.seek(place[0] - self.copied)
            return self._letter(file.read(place[1] - place[0]), place[0])

    def _letter(self, line: bytes, place: int) -> Letter:
        try:
            return _parsed(line)
        except ValueError as error:
            use = defaults.FILE_OF_RECORDS
            hint = f'Correct or delete that line. A dead letter is a JSON object on one line, as use = "{use}" writes.'
            number = _lines_before(self.path, place - self.copied) + 1
            what = f"{self.path}: line {number} is no dead letter: {error}"
            raise ConfigError(what, hint=hint, path="") from error


class LetterSource(Source):
    """A source that reads the records of dead letters.

    It reads them beside the records of another source, or in their place.

    Args:
        inner: The source that the records came from.
        letters: All letters; those of other sources are passed over.
        beside: Whether the partitions of `inner` are read too.
        wanted: Whether there are letters of this source.
    """

    name: ClassVar[str] = "letters"

    def __init__(self, inner: Source, letters: Letters, *, beside: bool, wanted: bool) -> None:
        super().__init__(inner.options, inner.context)
        self._inner, self._letters, self._beside, self._wanted = inner, letters, beside, wanted

    @property
    def capabilities(self) -> SourceCapabilities:
        return self._inner.capabilities if self._beside else SourceCapabilities(replayable=True, bounded=True)

    def partitions(self) -> Sequence[str]:
        return [*(self._inner.partitions() if self._beside else ()), *([self._letters.name] if self._wanted else ())]

    def partition_of(self, name: str) -> str:
        return self._inner.partition_of(name) if self._beside else name

    async def open(self, partition: str, position: Any = None) -> Reader:
        if partition != self._letters.name:
            return await self._inner.open(partition, position)
        return LetterReader(self._inner, self._letters, 0 if position is None else position[1])

    async def find_end(self, partition: str) -> Any:
        return None if partition == self._letters.name else await self._inner.find_end(partition)

    async def open_until(self, partition: str, position: Any, end: Any) -> Reader:
        return await self._inner.open_until(partition, position, end)


class LetterReader(Reader):
    """A reader of the records of dead letters.

    The position of a record is the place of its letter: the offsets of its line.
    """

    def __init__(self, source: Source, letters: Letters, after: int) -> None:
        self._source, self._letters, self._after = source, letters, after
        self._lines = letters.distinct(source.context.name)

    async def read(self, limit: int) -> Batch | None:
        values: list[object] = []
        places: list[tuple[int, int]] = []
        bad: list[Rejected] = []
        for number, (place, letter) in enumerate(self._lines, 1):
            if letter is not None and place[0] >= self._after:
                record = letter.record
                assert record is not None
                try:
                    values.append(self._source.decode_original(record))
                    places.append(place)
                except (ValueError, RecursionError) as error:
                    bad.append(Rejected(place, str(error), record))
            if len(values) + len(bad) >= limit:
                break
            # Lines of other sources are skipped without a wait, and would otherwise block the event
            # loop.
            if number % _TURN == 0:
                await asyncio.sleep(0)
        return Batch(values, places, bad, fresh=True) if values or bad else None

    def describe(self, position: Any) -> str:
        return self._letters.at(position).position

    def original(self, position: Any) -> bytes | None:
        return self._letters.at(position).record

    async def aclose(self) -> None:
        self._lines.close()


def _digest(path: Path, end: int) -> str:
    digest, left = xxh3_64(), end
    with open(path, "rb") as file:
        while left and (data := file.read(min(left, _CHUNK))):
            digest.update(data)
            left -= len(data)
    return digest.hexdigest() if not left else ""


def _parsed(line: bytes) -> Letter:
    """Parse a line. Raises ValueError: it is no letter."""
    letter = msgspec.json.decode(line, type=Letter)
    _ = letter.record
    return letter


def _copy(letters: Letters, path: Path) -> str:
    """Copy letters into a file of their own, durably; return the XXH3-64 of that."""
    # Written under another name: an interrupted copy is never taken for a whole one.
    fresh = path.with_name(path.name + ".new")
    with open(letters.path, "rb") as file:
        file.seek(letters.start)
        left = letters.end - letters.start
        sizes = [min(_CHUNK, left - done) for done in range(0, left, _CHUNK)]
        _write_durably(fresh, (file.read(size) for size in sizes))
    fresh.replace(path)
    return _digest(path, path.stat().st_size)


def _write_without(places: Sequence[tuple[int, int]], path: Path, fresh: Path, end: int) -> int:
    """Write a file without some lines, durably.

    Return the place in it of an offset behind all of them.
    """

    def chunks() -> Iterator[bytes]:
        with open(path, "rb") as file:
            at = 0
            for start, after in [*places, (path.stat().st_size, 0)]:
                file.seek(at)
                while at < start and (data := file.read(min(_CHUNK, start - at))):
                    at += len(data)
                    yield data
                at = after

    _write_durably(fresh, chunks())
    return end - sum(after - start for start, after in places)


def _write_durably(path: Path, chunks: Iterable[bytes]) -> None:
    with open(path, "wb") as file:
        file.writelines(chunks)
        file.flush()
        os.fsync(file.fileno())


def _lines_before(path: Path, end: int) -> int:
    """Return the number of line ends before an offset."""
    count = 0
    with open(path, "rb") as file:
        while end > 0 and (data := file.read(min(end, _CHUNK))):
            count += data.count(b"\n")
            end -= len(data)
    return count


def _end_of_letters(path: Path) -> int:
    """Return the offset behind the last letter of a file.

    An editor may leave the last line without its end. If it is a letter it counts; otherwise it is being written.
    """
    end = _end_of_lines(path)
    with open(path, "rb") as file:
        file.seek(end)
        last = file.read(_MOST_BYTES)
    try:
        _parsed(last)
    except ValueError:
        return end
    return end + len(last)


def _end_of_lines(path: Path) -> int:
    """Return the offset behind the last whole line of a file."""
    with open(path, "rb") as file:
        # From the end: the file may be long, and the last line end is near.
        end = file.seek(0, os.SEEK_END)
        while end:
            start = max(end - _CHUNK, 0)
            file.seek(start)
            found = file.read(end - start).rfind(b"\n")
            if found >= 0:
                return start + found + 1
            end = start
    return 0
