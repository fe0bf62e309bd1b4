"""The contract of source drivers, which read records (paper 000, "front").

A *source* is what a flow names; a *driver* reads it. A source has partitions; each is read
by a front of its own, which gives every record its global time. Drivers know nothing of time.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from flamecore.errors import SourceError

API: int = 1
"""Version of this contract; a driver states the one it was written for."""


class Rejected(NamedTuple):
    """A record that could not be read: its position, the reason, and its raw form.

    `raw` is bytes or text, possibly cut.
    """

    position: Any
    reason: str
    raw: Any


class Batch(NamedTuple):
    """The result of one `read`.

    `values` are in order; `positions`, of the same length, are any sequence (a `range` costs nothing). A position is a
    plain value (int, str, tuple of these) from which `Source.open` can go on, and which `Reader.describe` can put in
    words. `rejected` are the malformed records. `fresh` says that `values` is a list which was made for this batch: the
    reader gives it away, and neither changes it nor uses it again, so the engine need not copy it.
    """

    values: Sequence[Any]
    positions: Sequence[Any]
    rejected: Sequence[Rejected] = ()
    fresh: bool = False


class Unfinished(NamedTuple):
    """The beginning of a record at the end of a partition, which was not read, as the rest of it may come yet.

    Attributes:
        place: The place in words, such as a file.
        reason: How much it is, where it begins, why it was not read, and how to have it read as it is.
    """

    place: str
    reason: str


@dataclass(frozen=True, slots=True)
class SourceCapabilities:
    """The promises of a source.

    Attributes:
        replayable: Opening it again at a position gives the same records from there on. Exactly-once needs it.
        bounded: Whether it ends by itself.
        remedy: A sentence that says how to make it replayable, if it is not, and options can.
        host: Name of the host that its data is at home on: a job runs there unless `deploy.on` says another. Empty: it
            reads as well from anywhere.
    """

    replayable: bool
    bounded: bool
    remedy: str = ""
    host: str = ""


@dataclass(frozen=True, slots=True)
class EdgeContext:
    """The surroundings of a source or sink driver.

    Attributes:
        name: The source's or sink's name in the flow.
        type: The payload type the flow declares; `object` when it declares none.
        given: Values handed over in a program (`flow.run({"lines": [...]})`), None otherwise.
        fingerprint: Sinks: a digest of all that their output depends on (flow and inputs); compared when output is
            resumed. In a job that keeps state it identifies that state, whose runs all write one output.
        continued: Sinks: None in a job that keeps no state, otherwise whether that job has delivered before; see
            `flamecore.abc.sink.goes_on`.
        job: Name of the job; empty where it is used alone.
        keeps_state: Sources: whether the job keeps state, so that a later run reads on where this one has ended.
        folder: Folder of the job. Paths in options are whole; names of partitions and fingerprints have those in this
            folder relative to it (`flamecore.toolkit.places.within`), so that a job goes on from where its folder is.
    """

    name: str
    type: Any = object
    given: Any = None
    fingerprint: str = ""
    continued: bool | None = None
    job: str = ""
    keeps_state: bool = False
    folder: Path = Path()


# Pulled, not pushed: the engine asks for as many records as it has credit for, so no driver needs a
# buffer or a bound of its own.
class Reader(ABC):
    """One open partition. Used by one front at a time.

    Attributes:
        waits: Whether a read may wait, for others or for a thread. Partitions of which none does, such as files, are
            read in turn by one task.
    """

    waits: bool = True

    @abstractmethod
    async def read(self, limit: int) -> Batch | None:
        """Return the next records, in order.

        Waits until there is at least one, and then returns those that are there without waiting for more: a batch is
        never held back to grow. Cancelling the wait loses nothing,
        and ends it soon: within `job.source_timeout_s`, or the job ends with an error.

        Args:
            limit: Most records to return, at least 1.

        Returns:
            At least one value or one rejected record; None at the end of the partition, and again ever after.

        Raises:
            SourceError: Nothing more can be read, and it is not the fault of one record.
        """

    async def acknowledge(self, position: Any) -> None:
        """Tell upstream that it may forget everything up to this position.

        It is in a snapshot that the job will never go back behind.

        Called only in jobs that keep state, with growing positions, never while `read` runs on other threads.

        Raises:
            SourceError: Upstream could not be told.
        """
        return

    def describe(self, position: Any) -> str:
        """Return a position in words for errors, such as file and line, or offset."""
        return str(position)

    def original(self, position: Any) -> bytes | None:
        """Return the record at a position as it was read, for dead letters.

        `flamestream retry` reads them again.

        Called for records that fail, between two reads, while their positions are not acknowledged. It must not wait.

        Returns:
            The whole record, from which `Source.decode_original` makes the payload again; None if it is not available.
        """
        return None

    def unfinished(self) -> Unfinished | None:
        """Return the beginning of a record that was left at the end of the partition to a later run.

        Called when `read` has returned None; the job says it at its end. It must not wait.
        """
        return None

    async def aclose(self) -> None:
        """Release all resources of the reader. May be called twice."""
        return


class Source(ABC):
    """A source driver: one object for each source of a flow.

    Class attributes: `name` is the name used in configuration, `api` the contract's version, `Options` a frozen
    `msgspec.Struct` (or None) that the driver's configuration table is checked against.
    """

    name: ClassVar[str]
    api: ClassVar[int] = API
    Options: ClassVar[Any] = None

    def __init__(self, options: Any, context: EdgeContext) -> None:
        self.options = options
        self.context = context

    @property
    @abstractmethod
    def capabilities(self) -> SourceCapabilities:
        """Return the promises of this source with these options."""

    def partitions(self) -> Sequence[str]:
        """Return the names of the partitions, in a stable order; each gets a front.

        By default there is one, unnamed.

        Raises:
            SourceError: The input cannot be found (a missing file, an empty glob).
        """
        return ("",)

    def partition_of(self, name: str) -> str:
        """Return the partition that the state of the job has under a name.

        Called for each of a source's partitions in the state that has no front in `partitions`, such as one that an
        earlier version, or an earlier configuration, has named otherwise.

        Returns:
            One of `partitions`, where it is the same input; else `name` itself.
        """
        return name

    @property
    def reads_stdin(self) -> bool:
        """Return whether it reads the standard input of the process, which one source of a job may do."""
        return False

    def reads(self, place: str) -> bool:
        """Return whether the source reads the data that is written to a place.

        A job whose source reads the output of its own sink is refused.

        Args:
            place: A place that a sink names in `flamecore.abc.sink.Sink.writes`.
        """
        return False

    def fingerprint(self) -> str:
        """Return a text that changes with the input; empty when that cannot be told."""
        return ""

    def decode_original(self, original: bytes) -> Any:
        """Make the payload of a record again from the result of `Reader.original`.

        Args:
            original: The record as it was read, perhaps corrected by hand.

        Raises:
            ValueError: It is malformed; the text says why.
            SourceError: This source keeps no originals, or lacks something else that it needs.
        """
        raise SourceError(
            f"source {self.context.name!r}: driver {self.name!r} cannot read dead letters again",
            hint="Read them by another source, or put them back where they came from.",
            source=self.context.name,
            position="",
        )

    @abstractmethod
    async def open(self, partition: str, position: Any = None) -> Reader:
        """Open one partition.

        Args:
            partition: One of `partitions()`.
            position: Go on *after* the record at this position; None: from the start.

        Raises:
            SourceError: It cannot be opened, or not at that position.
        """

    # A start is decided once for ever; an end belongs to a run that has not finished. A position cannot hold it: the
    # position of the last record of a finished run, and that of the last one before a crash, look alike.
    async def find_end(self, partition: str) -> Any:
        """Return the place where a run that begins now ends in a partition, if it is decided now.

        Called where the job is planned, in jobs that keep state: once for each run, before anything is read. The job
        keeps the result until the run has finished, whatever crashes meanwhile, and passes it to `open_until`. A run
        that begins after a finished one asks anew.

        Returns:
            A plain value (int, str, tuple of these); None: the partition ends where its reader finds nothing more, or
            not at all.

        Raises:
            SourceError: It cannot be found.
        """
        return None

    async def open_until(self, partition: str, position: Any, end: Any) -> Reader:
        """Open one partition for a run that ends at a place, which may be behind the position already.

        A source that has a `find_end` has this too.

        Args:
            partition, position: As for `open`.
            end: Result of `find_end` when the run began, perhaps with other options. Not None.

        Raises:
            SourceError: It cannot be opened, or not at that position.
        """
        raise NotImplementedError(f"{type(self).__name__} finds ends, and has no open_until")
