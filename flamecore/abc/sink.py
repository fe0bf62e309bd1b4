"""The contract of sink drivers, which store outputs (paper 000, "rear").

A rear delivers what the barrier releases: batches in meta order, each with the time below which everything has
now been delivered. A sink that stores the batch and the time in one atomic step is exactly-once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, NamedTuple

from flamecore.abc.source import API, EdgeContext
from flamecore.errors import SinkError, TimeRegressionError
from flamecore.model.clock import global_time
from flamecore.model.failure import shorten_repr, user_lines
from flamecore.model.meta import MIN_TIME

Guarantee = Literal["exactly_once", "at_least_once"]

Mode = Literal["replace", "append", "resume"]
"""The fate of output that is there: it is replaced, added to, or resumed if this job wrote it."""


Encode = Callable[[Sequence[Any]], Sequence[Any]]
"""Makes the stored form of payloads, in any sequence, one for one."""


class Damage(NamedTuple):
    """A range of bytes of an output that are not as written, and the fault."""

    start: int
    end: int
    what: str


@dataclass(frozen=True, slots=True)
class Verified:
    """The result of comparing an output with its checksums.

    Attributes:
        place: Name of the output, such as its path.
        size: Number of its bytes.
        covered: Number of bytes that have a checksum; 0: it was written without any.
        damages: The bytes that are not as they were written, in the order of places.
    """

    place: str
    size: int
    covered: int
    damages: Sequence[Damage] = ()


def goes_on(context: EdgeContext, mode: Mode, held: str | None, place: str, *, empty: bool) -> bool:
    """Return whether a sink resumes the output it finds.

    If not, it starts afresh as `mode` says.

    A job that keeps state resumes its own output, whatever `mode` says; once it has delivered, it accepts no other.
    Without state only `mode = "resume"` does.

    Args:
        context: The sink's.
        mode: The sink's option.
        held: The fingerprint stored with the output that is there; None if there is none.
        place: Name of that output for errors, such as "table counts".
        empty: Whether there is no output at all.

    Raises:
        SinkError: It has to go on, and the output that is there is not its own.
    """
    kept = context.continued is not None
    if held == context.fingerprint and (kept or mode == "resume"):
        return True
    if empty or not (context.continued or mode == "resume"):
        return False
    if held is None:
        why = "its writer and its last time are not recorded"
    else:
        why = "it was written " + ("by another job" if kept else "by another flow or from other inputs")
    what = f"{place} cannot be resumed: {why}"
    if context.continued:
        hint = "Put back what the job had written. To start afresh, take away the job's state and this output, both."
    else:
        hint = 'Go back to that flow and those inputs; or start afresh with mode = "replace", or in another place.'
    raise SinkError(f"sink {context.name!r}: {what}", hint=hint, sink=context.name)


def would_replace(context: EdgeContext, mode: Mode, held: str | None, *, empty: bool) -> bool:
    """Return whether a sink that opens as `goes_on` says destroys the output that is there.

    Args:
        context, mode, held, empty: As for `goes_on`.
    """
    own = held == context.fingerprint and context.continued is not None
    return mode == "replace" and not (empty or own or context.continued)


def taken_over(context: EdgeContext, place: str) -> SinkError:
    """Return the error of a sink whose output another run has taken over.

    This run writes nothing more, so that nothing comes twice. The error's field `fenced` is True.
    """
    return SinkError(
        f"sink {context.name!r}: another run has taken over {place}; nothing more is written from here",
        hint="Only the newest run of a job writes. If this was it: the other one writes to the same place; end it.",
        sink=context.name,
        fenced=True,
    )


def check_time(context: EdgeContext, time: int, last: int) -> None:
    """Check that the time of a batch is not below that of the batch before.

    Raises:
        TimeRegressionError: It is.
    """
    if time < last:
        raise TimeRegressionError(
            f"sink {context.name!r}: a batch of time {global_time(time)} after one of time {global_time(last)}",
            time=time,
            limit=last,
        )


# The time goes with each batch, not with a snapshot: outputs leave before the next snapshot, so
# only the sink can say how far it has them.
class Sink(ABC):
    """A sink driver. One object for each sink of a flow.

    Class attributes: as for `flamecore.abc.source.Source`. Calls come one after another, never at once, but for `sync`:
    while it is under way, `write` may be called. If one takes longer than `job.sink_timeout_s`, or than
    `job.grace_s` in a job that ends with an error, the job fails, and nothing more is called.
    """

    name: ClassVar[str]
    api: ClassVar[int] = API
    Options: ClassVar[Any] = None
    wants_orders: ClassVar[bool] = False
    """Whether it keeps the global times of payloads: then `write_ordered` is called in the place of `write`."""
    retractions: ClassVar[bool] = False
    """True: its output shows which payloads retract earlier ones. A job with retractions for any other sink is
    refused, unless the flow declares that its readers handle them."""

    def __init__(self, options: Any, context: EdgeContext) -> None:
        self.options = options
        self.context = context

    @property
    @abstractmethod
    def guarantee(self) -> Guarantee:
        """Return the guarantee of this sink with these options.

        `exactly_once`: stores a batch and its time atomically, or is keyed so that a repeat changes nothing.
        """

    @property
    def host(self) -> str:
        """Return the name of the host where its data is at home.

        See `flamecore.abc.source.SourceCapabilities`.
        """
        return ""

    @property
    def takes_more(self) -> bool:
        """Return whether a job without the state of the one that wrote its output can add to it.

        `flamestream retry` does so with the letters of a job that keeps none, by `mode = "append"` if the sink has that
        option.
        """
        return True

    @property
    def writes_to_stdout(self) -> bool:
        """Return whether it writes to the standard output of the process.

        Nothing else is then shown there.
        """
        return False

    def writes(self) -> Sequence[str]:
        """Return the places that the sink writes.

        They are absolute paths without links, or URLs; that of a folder ends with `/`. A job with a source that reads
        one of them is refused, since it would read its own output. See `flamecore.toolkit.places.place_of`.
        """
        return ()

    def continues(self, identity: str, *, continued: bool) -> None:
        """Set the identity of the output, in a job that keeps state.

        Called before `open`.

        Args:
            identity: Identifies that state, in at most 100 characters; takes the place of the context's fingerprint.
                Output of that identity is resumed by `open`, whatever the sink's options say.
            continued: A snapshot relies on output of that identity. Output of another one is an error then.
        """
        self.context = replace(self.context, fingerprint=identity, continued=continued)

    def partitioned(self) -> PartitionedSink | None:
        """Return the sink, with these options, in partitions that the workers write.

        For `order = "partitioned"`. None: it cannot be divided, and a job that asks for it is refused.

        Raises:
            ConfigError: It can, but not with these options.
        """
        return None

    def rehearse(self) -> None:
        """Raise the error that `open` would raise, without touching anything.

        It finds the faults that can be known beforehand. For `flamestream check`.

        Raises:
            SinkError: It would refuse.
        """
        return

    def verify(self) -> Verified | None:
        """Compare the output with its stored checksums, without touching it.

        The sink is not open; another process may have it open.

        Returns:
            The result; None: outputs of this sink have no checksums.

        Raises:
            SinkError: It cannot be read.
        """
        return None

    async def replaces(self) -> bool:
        """Return whether `open` would destroy output that is there, without touching anything.

        Called before `open`. If so, the job opens the sink with its first output, or when it has ended well without
        any: a source or an operation may fail before, and the output that is there stays. `open` returns `MIN_TIME`
        then. A sink whose `open` will be refused may say either.

        Raises:
            SinkError: It cannot be found out.
        """
        return False

    async def open(self) -> int:
        """Make ready to take batches.

        From here on only this object writes: older ones on this output are refused.

        Returns:
            The time of the last batch held from an earlier run that is being resumed: batches are filtered so
            that nothing below it is written again. `MIN_TIME` when there is none.

        Raises:
            SinkError: It cannot be opened, or the output that is there cannot be resumed.
        """
        return MIN_TIME

    @abstractmethod
    async def write(self, time: int, payloads: Sequence[Any]) -> None:
        """Store a batch and its time, both or neither.

        Args:
            time: Everything with a time below it has been delivered once this returns. Grows from call to call.
            payloads: The payloads to deliver, in meta order; never empty. Others may hold the same list: it must not be
                changed.

        Raises:
            SinkError: It could not be stored, or another run has taken over (field `fenced`). The job stops; nothing of
                this batch is left behind.
        """

    async def write_ordered(self, time: int, orders: Sequence[bytes], payloads: Sequence[Any]) -> None:
        """Store a batch as `write` does, given the meta order of each payload.

        `flamecore.model.meta.GlobalTime.decode` reads its global time.

        Payloads of one global time are all in one batch. Only called where `wants_orders` is set; dead letters have the
        order of the record that failed.
        """
        await self.write(time, payloads)

    def encoder(self) -> Encode | None:
        """Return a function that encodes payloads where they are made, or None.

        All workers call it at once, in other processes too.

        It is asked of a sink that is not open, whose options and context are those of the one that writes. It depends
        on each payload alone, and raises nothing: a payload that cannot be stored is left as it is, for
        `write_encoded` to refuse it at its place.
        """
        return None

    async def write_encoded(self, time: int, encoded: Sequence[Any]) -> None:
        """Store a batch as `write` does, in the form that the encoder has made of it.

        Only called where there is an encoder.
        """
        await self.write(time, encoded)

    async def sync(self, time: int) -> None:
        """Make the written output durable, and the fact that it is complete below `time`.

        A snapshot of that time is about to be recorded, and nothing below it will be written again. `open` returns at
        least `time` from then on.

        Batches written while this waits need not be covered.

        Raises:
            SinkError: It cannot be made durable, or another run has taken over.
        """
        return

    async def aclose(self) -> None:
        """Make the written output durable, and release all resources. May be called twice."""
        return


class Division(NamedTuple):
    """The start of an epoch of a sink in partitions.

    Attributes:
        time: Time below which the partitions together hold all outputs, and from which they hold none.
        grant: Text that lets the workers of this epoch write, and no others.
    """

    time: int
    grant: str


# The workers write, and only this object says how far the output is complete: no reader, and no later run, then needs
# to know which worker was how far when it was killed. Not a commit of the partitions with each snapshot: outputs would
# be seen an interval later.
class PartitionedSink(Sink):
    """A sink in partitions, one for each worker, in the process that has the control.

    The outputs of a worker go to its partition, in meta order. Which worker makes an output depends on the number of
    workers, and may differ after a fault; all partitions merged by the orders of outputs are the same in every run. So
    an epoch begins with all partitions cut at one time, below which none lacks an output (`divide`).

    `write` is given numbers of outputs in the place of payloads: those that partitions have stored since the last call.
    From then on the outputs below its time are complete. `sync` and `aclose` apply to all of them together; a partition
    has made its output durable before `sync` is called here.
    """

    @property
    def takes_more(self) -> bool:
        return False  # the times of another job's outputs are not those of these

    @abstractmethod
    async def divide(self, workers: int) -> Division:
        """Begin an epoch: exclude all earlier writers, and cut the partitions at one time.

        The sink is open. The time is the latest below which no output is missing in any of them, at least that of the
        last `sync`. Partitions of more workers than before begin there, and those of workers that are no longer there
        keep what they hold.

        Args:
            workers: Number of workers of the epoch.

        Raises:
            SinkError: It cannot be done, or another run has taken over (field `fenced`).
        """

    @abstractmethod
    def partition(self, worker: int, grant: str) -> Sink:
        """Return the sink of one worker's partition, in the process of that worker.

        This object is not open there. The partition is written by `write_ordered` alone. Its `open` returns the time of
        the division, and raises `taken_over` if the grant is not the last one; so do `write_ordered` and `sync`.

        Args:
            worker: Number of the worker.
            grant: The grant of the division.
        """

    @abstractmethod
    def stored(self) -> Mapping[str, Sink]:
        """Return the sinks of all partitions of the output, by name, for `verify`.

        A partition that is missing is among them: its `verify` returns a damage. This object need not be open.

        Raises:
            SinkError: They cannot be found, or there is no output.
        """

    @abstractmethod
    def merged(self) -> Iterator[bytes]:
        """Yield the output as the sink writes it without partitions, in pieces.

        Records that have no bytes of their own, such as rows of a table, are JSON objects, one a line.

        It goes up to the time of the last `write`; the sink need not be open, and another process may write it.

        Raises:
            SinkError: It cannot be read, or is damaged.
        """


def encoders_of(sinks: Mapping[str, Sink]) -> dict[str, Encode]:
    """Return the encoders of sinks, by name of the sink.

    A sink that wants orders is given payloads, so it has none. Encoders raise `SinkError` where they break their
    contract.
    """
    made = {name: sink.encoder() for name, sink in sinks.items() if not sink.wants_orders}
    return {name: _one_for_one(name, encode) for name, encode in made.items() if encode is not None}


def _one_for_one(name: str, encode: Encode) -> Encode:
    hint = "A mistake in the sink's driver: an encoder leaves what it cannot encode as it is."

    def encoded(payloads: Sequence[Any]) -> Sequence[Any]:
        try:
            made = encode(payloads)
        except Exception as error:
            on = next((f" on {shorten_repr(payload)}" for payload in payloads if not _bears(encode, payload)), "")
            what = f"sink {name!r}: its encoder has failed{on}: {type(error).__name__}: {error}"
            raise SinkError(f"{what}{user_lines(error)}", hint=hint, sink=name) from error
        if len(made) != len(payloads):
            what = f"sink {name!r}: its encoder has made {len(made)} of {len(payloads)} payloads"
            raise SinkError(what, hint=hint, sink=name)
        return made

    return encoded


def _bears(encode: Encode, payload: Any) -> bool:
    try:
        encode([payload])
    except Exception:  # noqa: BLE001 - it has been told of already
        return False
    return True
