"""Files of dead letters: their records, and how far they were read again."""

from __future__ import annotations

import asyncio
import base64
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final

import msgspec
from xxhash import xxh3_64

from flamecore.abc.source import Batch, Reader, Rejected, Source, SourceCapabilities
from flamecore.errors import ConfigError
from flamecore.runtime.config import defaults

SUFFIX: Final = ".retried"
"""Ending of the file beside the letters that notes how far they were read again."""

_MOST_BYTES: Final = 16 * 1024 * 1024
"""Longest line that can be a dead letter."""

_CHUNK: Final = 2**20
_TURN: Final = 1000
"""Number of lines after which the reader lets other tasks run."""


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


class Mark(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The progress of reading a file of letters again.

    Attributes:
        schema: Version of this format.
        start: Offset of the first letter of the last retry.
        end: Offset behind its last one.
        digest: XXH3-64 of everything before `end`.
        done: Whether that retry has come to its end.
    """

    schema: int = 1
    start: int
    end: int
    digest: str
    done: bool


class LetterFile:
    """A file of dead letters, and the mark beside it.

    Args:
        path: The file, as the sink `jsonl` writes it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._mark_path = path.with_name(path.name + SUFFIX)

    def find(self) -> Letters | None:
        """Return the letters to read next; None: there are none.

        They are those of a retry that was cut short, or new ones.

        Raises:
            ConfigError: The file has changed where it was read before, or cannot be read.
        """
        try:
            mark = self._mark()
            start = 0
            if mark is not None:
                if _digest(self.path, mark.end) != mark.digest:
                    raise ConfigError(
                        f"{self.path} has changed before byte {mark.end}, up to which its records were read again",
                        hint="Put letters that you have corrected into a file of their own. To read all of this file: "
                        f"rm {self._mark_path}",
                        path="",
                    )
                if not mark.done:
                    return Letters(self.path, mark.start, mark.end, mark.digest, begun=True)
                start = mark.end
            end = _end_of_lines(self.path)
            return Letters(self.path, start, end, _digest(self.path, end)) if end > start else None
        except OSError as error:
            raise ConfigError(f"{error.filename} cannot be read: {error.strerror}", path="") from error

    def note(self, letters: Letters, *, done: bool) -> None:
        """Note durably that these letters are being read, or have been."""
        mark = Mark(start=letters.start, end=letters.end, digest=letters.digest, done=done)
        fresh = self._mark_path.with_name(self._mark_path.name + ".new")
        with open(fresh, "wb") as file:
            file.write(msgspec.json.encode(mark))
            file.flush()
            os.fsync(file.fileno())
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
        except msgspec.DecodeError as error:
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
        path: The file.
        start: Offset of the first.
        end: Offset behind the last.
        digest: XXH3-64 of everything before `end`.
        begun: Whether a retry has begun to read them.
    """

    path: Path
    start: int
    end: int
    digest: str
    begun: bool = False

    @property
    def name(self) -> str:
        """Return the name of the partition of these letters; no others have it."""
        return f"{self.path.name}[{self.start}:{self.end}] {self.digest}"

    def distinct(self, source: str) -> Iterator[tuple[tuple[int, int], Letter | None]]:
        """Yield the place of every letter, with the letter if it is one of the source.

        Otherwise None comes with the place.

        A record on which several operations have failed has several letters: the first counts.

        Raises:
            ConfigError: A line is no letter.
        """
        seen: set[int] = set()
        for place, letter in self.all():
            if letter.source != source or (record := letter.record) is None:
                yield place, None
                continue
            digest = xxh3_64(letter.position.encode() + b"\0" + record).intdigest()
            yield place, None if digest in seen else letter
            seen.add(digest)

    def all(self) -> Iterator[tuple[tuple[int, int], Letter]]:
        """Yield every letter and its place: the offsets of its line.

        Raises:
            ConfigError: A line is no letter.
        """
        with open(self.path, "rb") as file:
            file.seek(self.start)
            place = self.start
            while place < self.end:
                line = file.readline(min(_MOST_BYTES, self.end - place))
                end = place + len(line)
                yield (place, end), self._letter(line, place)
                place = end

    def at(self, place: Sequence[int]) -> Letter:
        """Read one letter again, by its place."""
        with open(self.path, "rb") as file:
            file.seek(place[0])
            return self._letter(file.read(place[1] - place[0]), place[0])

    def _letter(self, line: bytes, place: int) -> Letter:
        try:
            letter = msgspec.json.decode(line, type=Letter)
            _ = letter.record
        except ValueError as error:
            use = defaults.FILE_OF_RECORDS
            hint = f'A file of dead letters has one JSON object a line: [dead_letter] use = "{use}".'
            raise ConfigError(f"{self.path}: at byte {place} is no dead letter: {error}", hint=hint, path="") from error
        return letter


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

    async def open(self, partition: str, position: Any = None) -> Reader:
        if partition != self._letters.name:
            return await self._inner.open(partition, position)
        return LetterReader(self._inner, self._letters, 0 if position is None else position[1])


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
            if number % _TURN == 0:
                await asyncio.sleep(0)
        return Batch(values, places, bad) if values or bad else None

    def describe(self, position: Any) -> str:
        return self._letters.at(position).position

    def original(self, position: Any) -> bytes | None:
        return self._letters.at(position).record


def _digest(path: Path, end: int) -> str:
    digest, left = xxh3_64(), end
    with open(path, "rb") as file:
        while left and (data := file.read(min(left, _CHUNK))):
            digest.update(data)
            left -= len(data)
    return digest.hexdigest() if not left else ""


def _end_of_lines(path: Path) -> int:
    """Return the offset behind the last whole line of a file."""
    with open(path, "rb") as file:
        end = file.seek(0, os.SEEK_END)
        while end:
            start = max(end - _CHUNK, 0)
            file.seek(start)
            found = file.read(end - start).rfind(b"\n")
            if found >= 0:
                return start + found + 1
            end = start
    return 0
