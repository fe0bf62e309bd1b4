"""Where items go: the contract of sink drivers (paper 000, "rear").

A rear delivers what the barrier releases: batches in meta order, each with the time below which everything has
now been delivered. A sink that stores the batch and the time in one atomic step is exactly-once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, NamedTuple

from flamecore.abc.source import API, EdgeContext
from flamecore.errors import SinkError
from flamecore.model.failure import user_lines
from flamecore.model.meta import MIN_TIME

Guarantee = Literal["exactly_once", "at_least_once"]

Mode = Literal["replace", "append", "resume"]
"""What becomes of output that is there: it is replaced, added to, or gone on with if this job wrote it."""


Encode = Callable[[Sequence[Any]], Sequence[Any]]
"""Makes of payloads, in any sequence, what a sink stores of them, one for one."""


class Damage(NamedTuple):
    """Some bytes of an output that are not as they were written: the range, and what is wrong with them, in words."""

    start: int
    end: int
    what: str


@dataclass(frozen=True, slots=True)
class Verified:
    """The result of comparing an output with its checksums.

    Attributes:
        place: Name of the output, such as its path.
        size: How many bytes it has.
        covered: How many of them have a checksum; 0: it was written without any.
        damages: The bytes that are not as they were written, in the order of places.
    """

    place: str
    size: int
    covered: int
    damages: Sequence[Damage] = ()


def goes_on(context: EdgeContext, mode: Mode, held: str | None, place: str, *, empty: bool) -> bool:
    """Whether a sink goes on with the output it finds; if not, it starts afresh as `mode` says.

    A job that keeps state goes on with its own output, whatever `mode` says; once it has delivered, it takes nothing
    else. Without state it is `mode = "resume"` that goes on.

    Args:
        context: The sink's.
        mode: The sink's option.
        held: The fingerprint stored with the output that is there; None if there is none.
        place: What to call that output, for errors: "table counts".
        empty: Whether there is no output at all.

    Raises:
        SinkError: It has to go on, and what is there is not its own.
    """
    kept = context.continued is not None
    if held == context.fingerprint and (kept or mode == "resume"):
        return True
    if empty or not (context.continued or mode == "resume"):
        return False
    if held is None:
        why = "nothing says who wrote it, and up to where"
    else:
        why = "it was written " + ("by another job" if kept else "by another flow or from other inputs")
    what = f"{place} cannot be resumed: {why}"
    if context.continued:
        hint = "Put back what the job had written. To start afresh, take away the job's state and this output, both."
    else:
        hint = 'Go back to that flow and those inputs; or start afresh with mode = "replace", or in another place.'
    raise SinkError(f"sink {context.name!r}: {what}", hint=hint, sink=context.name)


def taken_over(context: EdgeContext, place: str) -> SinkError:
    """The error of a sink whose output another run goes on with: what this one still has is not to come twice.

    Its field `fenced` is True.
    """
    return SinkError(
        f"sink {context.name!r}: another run has taken over {place}; nothing more is written from here",
        hint="Only the newest run of a job writes. If this was it: the other one writes to the same place; end it.",
        sink=context.name,
        fenced=True,
    )


class Sink(ABC):
    """A sink driver. One object for each sink of a flow.

    Class attributes: as for `flamecore.abc.source.Source`. Calls come one after another, never at once, but for `sync`:
    while it is under way, `write` may be called. One that takes longer than `job.sink_timeout_s`, or than
    `job.grace_s` in a job that ends with an error, is given up, and with it the job; nothing more is called then.
    """

    name: ClassVar[str]
    api: ClassVar[int] = API
    Options: ClassVar[Any] = None
    wants_orders: ClassVar[bool] = False
    """Whether it keeps the global times of payloads: then `write_ordered` is called in the place of `write`."""

    def __init__(self, options: Any, context: EdgeContext) -> None:
        self.options = options
        self.context = context

    @property
    @abstractmethod
    def guarantee(self) -> Guarantee:
        """`exactly_once`: stores a batch and its time atomically, or is keyed so that a repeat changes nothing."""

    @property
    def host(self) -> str:
        """Name of the host that its data is at home on; see `flamecore.abc.source.SourceCapabilities`."""
        return ""

    @property
    def writes_to_stdout(self) -> bool:
        """Whether it writes to the standard output of the process, which then shows nothing else."""
        return False

    def continues(self, identity: str, *, continued: bool) -> None:
        """Called before `open` in a job that keeps state.

        Args:
            identity: Identifies that state, in at most 100 characters; takes the place of the context's fingerprint.
                Output of that identity is resumed by `open`, whatever the sink's options say.
            continued: The sink has been opened under that identity before. Output of another one is an error then.
        """
        self.context = replace(self.context, fingerprint=identity, continued=continued)

    def rehearse(self) -> None:
        """What `open` would refuse, as far as that can be known without touching anything. For `flamestream check`.

        Raises:
            SinkError: It would refuse.
        """
        return

    def verify(self) -> Verified | None:
        """Compare what is held with the checksums that were stored with it, without touching it. The sink is not open;
        another process may have it open.

        Returns:
            What was found; None: outputs of this sink have no checksums.

        Raises:
            SinkError: It cannot be read.
        """
        return None

    async def open(self) -> int:
        """Make ready to take batches. From here on only this object writes: older ones on this output are refused.

        Returns:
            The time of the last batch held from an earlier run that is being resumed: batches are filtered so
            that nothing below it is written again. `MIN_TIME` when there is none.

        Raises:
            SinkError: It cannot be opened, or what is there cannot be resumed.
        """
        return MIN_TIME

    @abstractmethod
    async def write(self, time: int, payloads: Sequence[Any]) -> None:
        """Store a batch and its time, both or neither.

        Args:
            time: Everything with a time below it has been delivered once this returns. Grows from call to call.
            payloads: What to deliver, in meta order; never empty.

        Raises:
            SinkError: It could not be stored, or another run has taken over (field `fenced`). The job stops; nothing of
                this batch is left behind.
        """

    async def write_ordered(self, time: int, orders: Sequence[bytes], payloads: Sequence[Any]) -> None:
        """As `write`, told the meta order of each payload; `flamecore.model.meta.GlobalTime.decode` reads its global
        time.

        Payloads of one global time are all in one batch. Only called where `wants_orders` is set; dead letters have the
        order of the record that failed.
        """
        await self.write(time, payloads)

    def encoder(self) -> Encode | None:
        """What may be done to payloads before they come here: where they are made, by all workers at once, in other
        processes too. None: nothing.

        It is asked of a sink that is not open, whose options and context are those of the one that writes. It depends
        on each payload alone, and raises nothing: a payload that cannot be stored is left as it is, for
        `write_encoded` to refuse it at its place.
        """
        return None

    async def write_encoded(self, time: int, encoded: Sequence[Any]) -> None:
        """As `write`, given what the encoder has made of the payloads. Only called where there is an encoder."""
        await self.write(time, encoded)

    async def sync(self, time: int) -> None:
        """Make durable what was written, and that it is complete below `time`: a snapshot of that time is about to be
        recorded, and nothing below it will be written again. `open` returns at least `time` from then on.

        Batches written while this waits need not be covered.

        Raises:
            SinkError: It cannot be made durable, or another run has taken over.
        """
        return

    async def aclose(self) -> None:
        """Make durable what was written and release what is held. May be called twice."""
        return


def encoders_of(sinks: Mapping[str, Sink]) -> dict[str, Encode]:
    """What is done to payloads before they come to sinks, by name. A sink that wants orders is given payloads.

    They raise `SinkError` where an encoder breaks its contract.
    """
    made = {name: sink.encoder() for name, sink in sinks.items() if not sink.wants_orders}
    return {name: _one_for_one(name, encode) for name, encode in made.items() if encode is not None}


def _one_for_one(name: str, encode: Encode) -> Encode:
    hint = "A mistake in the sink's driver: an encoder leaves what it cannot encode as it is."

    def encoded(payloads: Sequence[Any]) -> Sequence[Any]:
        try:
            made = encode(payloads)
        except Exception as error:
            on = next((f" on {payload!r:.160}" for payload in payloads if not _bears(encode, payload)), "")
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
