"""Prefix in an object store that takes batches exactly once.

Each batch is claimed before its files come.

    _flamestream/00000000000000000041.json        claim 41: who, whose output, its files, complete below which time
    part-RUN-00000000000000000017-41.parquet      the batch of claim 41: everything of that run below time 17

There is no rename and no lock, but an object can be created on the condition that there is none of its name. So claims
are numbered, and each number is one writer's. A run that opens the output takes the next number, from which on no other
has a claim; and sees then whether the files of the last batch are all there. If not, nothing may come of it any more:
files with no rows are put in the place of all of them, so that a writer who is late finds the names taken. Spark reads
no files in `_flamestream`.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from secrets import token_hex
from types import MappingProxyType
from typing import Any, Final

import msgspec

from flamecore.abc.sink import Mode, check_time, goes_on, taken_over, would_replace
from flamecore.abc.source import EdgeContext
from flamecore.errors import SinkError, SourceError
from flamecore.model.meta import MIN_TIME
from flamestream_spark.storage.objects import written
from flamestream_spark.storage.place import Place
from flamestream_spark.tables.partitions import pieces_of
from flamestream_spark.tables.schemas import OtherColumnsError, Schema, continued

CLAIMS: Final = "_flamestream"
CLAIMED_PART: Final = re.compile(r"part-([0-9a-f]{8})-(-?\d{19,20})-(\d+)\.\w+")
_TRIES: Final = 100
"""Most attempts to take the next number while others take it, or to read the last claim while others forget it."""

Write = Callable[[Any, Path], None]


class Claim(msgspec.Struct, frozen=True):
    """The claim of one number.

    Attributes:
        fingerprint: Fingerprint of the flow and inputs that it is the output of.
        owner: The run that has the number.
        runs: Names of the runs whose files count, in order.
        partitions: The columns whose values are folders.
        since: Everything below it was there before.
        time: Everything below it is there once the files are.
        files: Those of the batch.
        void: Files of a batch that has come to nothing.
        opens: Whether it only says that a run has opened the output, and the claim before still counts.
        columns: Types of all columns, by name; empty: not known.
        added: Whether some of them came later, so that older files do not have them.
    """

    fingerprint: str
    owner: str
    runs: tuple[str, ...]
    partitions: tuple[str, ...] = ()
    since: int = MIN_TIME
    time: int = MIN_TIME
    files: tuple[str, ...] = ()
    void: tuple[str, ...] = ()
    opens: bool = False
    columns: dict[str, str] = {}
    added: bool = False


class ClaimedFolder:
    """One such output.

    Args:
        place: The prefix.
        context: The sink's context.
        mode: Fate of files that are there.
        suffix: Ending of the names of files.
        empty: A file with no rows.
        partitions: Columns whose values are folders.
        columns: Types of all columns, by name.
        schema: Fate of columns that are new to what is there.
    """

    def __init__(
        self,
        place: Place,
        context: EdgeContext,
        mode: Mode,
        suffix: str,
        empty: bytes,
        partitions: Sequence[str] = (),
        columns: Mapping[str, str] = MappingProxyType({}),
        schema: Schema = "keep",
    ) -> None:
        self._columns, self._schema = dict(columns), schema
        self._place, self._context, self._mode = place, context, mode
        self._suffix, self._empty, self._partitions = suffix, empty, tuple(partitions)
        self._mine: Claim | None = None
        self._number = -1
        self._lock = threading.Lock()

    def replaces(self) -> bool:
        """Return whether `open` would destroy output of another run.

        Raises:
            SinkError: A claim was changed.
            OSError: The server says no.
        """
        held = self._last(self._numbers())
        runs = [self._run_of(name) for name in self._names()]
        known = held is not None and any(run in held.runs for run in runs if run is not None)
        # Beside files of others nothing is replaced; `open` refuses them at once.
        return None not in runs and would_replace(
            self._context, self._mode, held.fingerprint if held else None, empty=not known
        )

    def open(self) -> int:
        """Make ready, and return the time up to which output is held.

        Raises:
            SinkError: It cannot be, or what is there is not the sink's own.
            OSError: The server says no.
        """
        with self._lock:
            self._place.make()
            owner = token_hex(8)
            for _ in range(_TRIES):
                if (opened := self._opened(owner)) is not None:
                    self._mine = opened
                    self._tidy(opened)
                    return opened.time
            raise self.error(f"{self._place.url} is opened by others again and again", "End them: one job writes.")

    def _opened(self, owner: str) -> Claim | None:
        """Take what is there over; None: others have come meanwhile."""
        numbers = self._numbers()
        held = self._last(numbers)
        names = self._names()
        strangers = sorted(name for name in names if self._run_of(name) is None)
        if strangers and self._mode != "append":
            raise self.error(
                f"{self._place.url} holds files that no such sink has written: {', '.join(strangers[:3])}",
                'Write to a place of its own; or beside them with mode = "append".',
            )
        known = held is not None and any(self._run_of(name) in held.runs for name in names)
        resumed = goes_on(
            self._context,
            self._mode,
            held.fingerprint if held else None,
            f"output {self._place.url}",
            empty=not known and not strangers,
        )
        if held is not None and held.partitions != self._partitions and (resumed or self._mode == "append"):
            was = ", ".join(held.partitions) or "nothing"
            raise self.error(
                f"{self._place.url} is partitioned by {was}", "Say so in partition_by, or write to another place."
            )
        stays = known and (resumed or self._mode == "append")
        try:
            columns, added = continued(held if stays else None, self._columns, self._schema)
        except OtherColumnsError as error:
            raise self.error(f"{self._place.url} {error}", error.hint) from error
        first = Claim(self._context.fingerprint, owner, ())
        number = max(numbers, default=-1) + 1
        if not self._create(number, msgspec.structs.replace(held or first, owner=owner, opens=True)):
            return None
        # From here on nobody else has a claim, so what is there now of the last batch is all that counts.
        held = self._last([*numbers, number])
        left = set(held.files).difference(self._names()) if held is not None else set()
        reached, void = (MIN_TIME, ()) if held is None else (held.since, held.files) if left else (held.time, held.void)
        if resumed and held is not None:
            runs = held.runs
        else:
            runs, reached = (*(held.runs if held and self._mode == "append" else ()), token_hex(4)), MIN_TIME
        made = Claim(
            self._context.fingerprint,
            owner,
            runs,
            self._partitions,
            since=reached,
            time=reached,
            void=tuple(void),
            columns=columns,
            added=added,
        )
        self._number = number + 1
        return made if self._create(self._number, made) else None

    def _tidy(self, made: Claim) -> None:
        """Empty or remove files that do not count."""
        for name in made.void:
            self._place.replace(name, self._empty)
        runs = {name: self._run_of(name) for name in self._names()}
        self._place.remove(name for name, run in runs.items() if run and run not in made.runs and name not in made.void)
        self._forget()

    def put(self, time: int, table: Any, write: Write) -> None:
        """Add the files of a batch: one, or one for each partition.

        Args:
            time: Time of the batch.
            table: Its rows.
            write: Writes rows into a file.

        Raises:
            TimeRegressionError: `time` is below an earlier one.
            SinkError: Another run has taken over.
            OSError: The server says no; the next to open takes away what has come of the batch.
        """
        with self._lock:
            mine = self._held()
            check_time(self._context, time, mine.time)
            name = f"part-{mine.runs[-1]}-{time:020d}-{self._number + 1}.{self._suffix}"
            made = [
                (f"{piece.folder}/{name}".lstrip("/"), _bytes_of(piece.table, write))
                for piece in pieces_of(table, self._partitions)
            ]
            self._mine = None  # a batch of which a part is missing is nothing to go on from
            claimed = self._claim(mine, time, tuple(name for name, _ in made))
            for path, data in made:
                if not self._place.create(path, data):
                    raise taken_over(self._context, f"output {self._place.url}")
            self._mine = claimed

    def sync(self, time: int) -> None:
        """Say that all below `time` is there. Raises as `put`."""
        with self._lock:
            mine = self._held()
            self._mine = self._claim(mine, max(time, mine.time))
            self._forget()

    def _held(self) -> Claim:
        if self._mine is None:
            raise self.error(
                f"output {self._place.url} is not open, or a batch could not be written to it",
                "Run the job again, which goes on behind the last whole batch.",
            )
        return self._mine

    def _claim(self, before: Claim, time: int, files: tuple[str, ...] = ()) -> Claim:
        """Take the next number.

        Raises:
            SinkError: It is another one's.
        """
        made = msgspec.structs.replace(before, since=before.time, time=time, files=files, void=())
        self._number += 1
        # One who has slept may find its number free again, as old ones go; but not the numbers behind it.
        if not self._create(self._number, made) or max(self._numbers()) != self._number:
            raise taken_over(self._context, f"output {self._place.url}")
        return made

    def _forget(self) -> None:
        """Take away the claims before the last one, which says all that there is to know."""
        self._place.remove(_file(number) for number in self._numbers() if number < self._number)

    def _create(self, number: int, claim: Claim) -> bool:
        return self._place.create(_file(number), msgspec.json.encode(claim))

    def _numbers(self) -> list[int]:
        names = (PurePosixPath(name) for name in self._place.names(CLAIMS))
        return sorted(int(name.stem) for name in names if name.suffix == ".json" and name.stem.isdigit())

    def _last(self, numbers: Sequence[int]) -> Claim | None:
        """Return the last claim that says how far the output is."""
        for number in reversed(numbers):
            data = self._place.read(_file(number))
            try:
                claim = None if data is None else msgspec.json.decode(data, type=Claim)
            except ValueError as error:
                raise self.error(
                    f"{self._place.at(_file(number))} is not as it was written: {error}",
                    f"Take away all of {self._place.url}, or {CLAIMS} in it to have what is there refused.",
                ) from error
            if claim is not None and not claim.opens:
                return claim
        return None

    def _names(self) -> list[str]:
        """Return the names of the files of output."""
        found = self._place.names(below=True)
        return [name for name in found if PurePosixPath(name).name[0] not in "._"]

    def _run_of(self, name: str) -> str | None:
        part = CLAIMED_PART.fullmatch(PurePosixPath(name).name)
        return part[1] if part is not None else None

    def error(self, what: str, hint: str) -> SinkError:
        """Something is wrong with the output."""
        return SinkError(f"sink {self._context.name!r}: {what}", hint=hint, sink=self._context.name)


def settled(place: Place) -> tuple[Claim, frozenset[str]] | None:
    """Return the claim that bounds an output, and its undecided files.

    The claim says how far the output is. It is open whether the undecided files count.

    A file that was there before this is called counts, if it is of a run of the claim and not an undecided one: an
    output that is opened later finds it.

    Args:
        place: The prefix.

    Returns:
        None: no run has opened it yet.

    Raises:
        OSError: The server says no.
        SourceError: A claim is not as it was written.
    """
    for _ in range(_TRIES):
        numbers, opened = _numbers(place), False
        if not numbers:
            return None
        for number in reversed(numbers):
            if (data := place.read(_file(number))) is None:
                break  # another one has taken its place
            try:
                claim = msgspec.json.decode(data, type=Claim)
            except ValueError as error:
                raise SourceError(
                    f"{place.at(_file(number))} is not as it was written: {error}",
                    hint=f"Have the job write its output anew, with all of {place.url} taken away.",
                    source="flamestream",
                    position="",
                ) from error
            if not claim.opens:
                return claim, frozenset((*claim.void, *(claim.files if opened else ())))
            opened = True
        else:
            return None
    raise OSError(f"{place.url}: its claims go faster than they can be read")


def _numbers(place: Place) -> list[int]:
    names = (PurePosixPath(name) for name in place.names(CLAIMS))
    return sorted(int(name.stem) for name in names if name.suffix == ".json" and name.stem.isdigit())


def _file(number: int) -> str:
    return f"{CLAIMS}/{number:020d}.json"


def _bytes_of(table: Any, write: Write) -> bytes:
    return written(lambda path: write(table, path))
