"""Checks of sinks; used through `flamecore.testing.checks.edges`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol, get_args

from flamecore.abc.sink import Guarantee, Sink
from flamecore.errors import SinkError
from flamecore.model.meta import MIN_TIME
from flamecore.testing.checks.sources import EdgeBroken, expect_same


class MakeSink(Protocol):
    """Function that makes the sink under test, anew, in the same place.

    Args:
        resume: Whether to continue the output of the last one; otherwise start afresh.
        fingerprint: For `EdgeContext.fingerprint`.
    """

    def __call__(self, *, resume: bool, fingerprint: str) -> Sink: ...


PAYLOADS: Final = ("one", "two words", "три", "", 'a "quote", a comma', "two\nlines", "7")
"""Payloads to write if the caller gives none."""

ReadBack = Callable[[], Sequence[Any]]
"""Function that reads the payloads written, in order, without the sink's help."""


def batches_of(payloads: Sequence[Any]) -> list[tuple[int, Sequence[Any]]]:
    """Return the payloads as batches of one, two, three, …, with growing times."""
    batches: list[tuple[int, Sequence[Any]]] = []
    start = 0
    while start < len(payloads):
        size = len(batches) + 1
        batches.append((10 * size, payloads[start : start + size]))
        start += size
    return batches


async def deliver(sink: Sink, batches: Sequence[tuple[int, Sequence[Any]]]) -> int:
    """Deliver batches as a rear does: open, and write those that are not held.

    Returns:
        The time held when the sink was opened.
    """
    held = await sink.open()
    for time, payloads in batches:
        if time > held:
            await sink.write(time, payloads)
    return held


async def check_sink_delivers(make: MakeSink, read_back: ReadBack, payloads: Sequence[Any] = PAYLOADS) -> None:
    """Check that payloads are there, once and in order, after `write` and `aclose`.

    Raises:
        EdgeBroken: `declares`, `fresh`, `keeps`, `visible`, `delivers`, `closes`.
    """
    sink = make(resume=False, fingerprint="kit")
    if sink.guarantee not in get_args(Guarantee):
        raise EdgeBroken(
            "declares", f"its guarantee is {sink.guarantee!r}; there is {' and '.join(get_args(Guarantee))}"
        )
    if not isinstance(sink.takes_more, bool):
        raise EdgeBroken("declares", f"takes_more is {sink.takes_more!r}, and not True or False")
    if (held := await sink.open()) != MIN_TIME:
        raise EdgeBroken("fresh", f"started afresh, it says that it holds everything below {held}")
    written: list[Any] = []
    for time, batch in batches_of(payloads):
        given = list(batch)
        await sink.write(time, given)
        expect_same("keeps", f"the list given to write({time})", given, batch)
        written += batch
        expect_same("visible", f"after write({time})", read_back(), written)
    try:
        await sink.aclose()
        await sink.aclose()
    except SinkError as error:
        raise EdgeBroken("closes", f"aclose, called twice, raised {error!r}") from error
    expect_same("delivers", "after aclose", read_back(), payloads)


async def check_sink_replaces(make: MakeSink, read_back: ReadBack, payloads: Sequence[Any] = PAYLOADS) -> None:
    """Check that a sink says whether `open` would destroy output, and that the question destroys none.

    Raises:
        EdgeBroken: `replaces`.
    """
    for resume, fingerprint in ((True, "kit"), (False, "another")):
        earlier = make(resume=False, fingerprint="kit")
        await deliver(earlier, batches_of(payloads))
        await earlier.aclose()
        sink = make(resume=resume, fingerprint=fingerprint)
        there = list(read_back())  # `make` itself may have made room, as a new list in memory
        replaces = await sink.replaces()
        expect_same("replaces", f"after replaces, with resume={resume}", read_back(), there)
        held = await sink.open()
        if not replaces and list(read_back()) != there:
            what = f"it does not say that open would destroy output, and open left {len(read_back())} payloads of "
            what += f"{len(there)}"
            raise EdgeBroken("replaces", what)
        if replaces and (held != MIN_TIME or list(read_back()) == there):
            what = "it says that open would destroy output, and open "
            what += f"returned {held} with {len(read_back())} payloads there"
            raise EdgeBroken("replaces", what)
        await sink.aclose()


async def check_sink_is_atomic(make: MakeSink, read_back: ReadBack, payloads: Sequence[Any] = PAYLOADS) -> None:
    """Check that a batch that cannot be stored leaves nothing, and the sink works on.

    The batch has a plain `object()` amid it; a sink that stores even that passes.

    Raises:
        EdgeBroken: `atomic`.
    """
    sink = make(resume=False, fingerprint="kit")
    await sink.open()
    await sink.write(10, payloads[:1])
    try:
        await sink.write(20, [*payloads, object(), *payloads])
    except SinkError:
        expect_same("atomic", "after a batch that could not be stored", read_back(), payloads[:1])
        await sink.write(20, payloads[1:])
        expect_same("atomic", "after a good batch behind that one", read_back(), payloads)
    else:
        if len(read_back()) != 2 * len(payloads) + 2:
            raise EdgeBroken("atomic", f"write of a batch returned, and {len(read_back())} payloads are there")
    await sink.aclose()


class _Whatever(Sequence[Any]):
    """Payloads in a sequence that is no list: those of a job come in several types."""

    def __init__(self, payloads: Sequence[Any]) -> None:
        self._payloads = payloads

    def __len__(self) -> int:
        return len(self._payloads)

    def __getitem__(self, index: Any) -> Any:
        return self._payloads[index]


async def check_sink_encodes(make: MakeSink, read_back: ReadBack, payloads: Sequence[Any] = PAYLOADS) -> None:
    """Check that payloads encoded by a sink's encoder are stored as by `write`.

    The encoder makes one value for each payload, independently, and raises nothing: a plain `object()` among the
    payloads is left for the sink to refuse. It takes any sequence, not lists alone.

    Raises:
        EdgeBroken: `encodes`.
    """
    encode = make(resume=False, fingerprint="kit").encoder()
    if encode is None:
        return
    odd = [*payloads, object(), *payloads]
    try:
        made = encode(odd)
    except Exception as error:
        raise EdgeBroken("encodes", f"its encoder raised {error!r} where a payload cannot be stored") from error
    if len(made) != len(odd):
        raise EdgeBroken("encodes", f"its encoder made {len(made)} of {len(odd)} payloads")
    sink = make(resume=False, fingerprint="kit")
    await sink.open()
    for time, batch in batches_of(payloads):
        await sink.write_encoded(time, [one for payload in batch for one in encode([payload])])
    expect_same("encodes", "written as they were encoded, one by one,", read_back(), payloads)
    await sink.aclose()
    sink = make(resume=False, fingerprint="kit")
    await sink.open()
    await sink.write_encoded(10, [*encode(_Whatever(payloads))])
    expect_same("encodes", "written as they were encoded, all at once,", read_back(), payloads)
    await sink.aclose()


async def check_sink_resumes(make: MakeSink, read_back: ReadBack, payloads: Sequence[Any] = PAYLOADS) -> None:
    """Check that an exactly-once sink knows its output after any end of the last run.

    The job delivers everything again from the start, as jobs do; payloads must not come twice. Output of another flow,
    or of other inputs, is not resumed.

    Raises:
        EdgeBroken: `resumes`, `foreign`.
    """
    if make(resume=False, fingerprint="kit").guarantee != "exactly_once":
        return
    batches = batches_of(payloads)
    for done in range(len(batches) + 1):
        for closed in (True, False):
            earlier = make(resume=False, fingerprint="kit")
            await deliver(earlier, batches[:done])
            if closed:
                await earlier.aclose()
            sink = make(resume=True, fingerprint="kit")
            held = await deliver(sink, batches)
            last = batches[done - 1][0] if done else MIN_TIME
            how = f"resumed after {done} batches, {'closed' if closed else 'not closed'}"
            if held != last:
                raise EdgeBroken("resumes", f"{how}: it says that it holds what is below {held}, not {last}")
            expect_same("resumes", how, read_back(), payloads)
            await sink.aclose()
            await earlier.aclose()
    sink = make(resume=True, fingerprint="another")
    try:
        await sink.open()
    except SinkError:
        await sink.aclose()
        expect_same("foreign", "after a refused resumption", read_back(), payloads)
        return
    await sink.aclose()
    raise EdgeBroken("foreign", "the output of a job with another fingerprint was resumed")
