"""A record that failed: what is known of it, and the error of at most 15 lines that shows it.

A failure is an item. It has the order of the record that failed, waits in the barrier like every output, and is taken
back if that record turns out to have been a wrong guess of an operation that repairs itself. So the same input fails at
the same record in every run, after exactly the same outputs.
"""

from __future__ import annotations

import base64
import sysconfig
import traceback
from collections.abc import Callable, Iterator
from functools import wraps
from inspect import isfunction
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NamedTuple, TypeVar, cast

from flamecore.errors import (
    ConsistencyError,
    FlameError,
    GraphError,
    JobError,
    OperationError,
    SourceError,
    wants_full_traceback,
)
from flamecore.model.meta import MIN_TIME, GlobalTime

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

_ENGINE: Final = str(Path(__file__).parents[1])
_LIBRARIES: Final = tuple({*map(sysconfig.get_path, ("stdlib", "platstdlib", "purelib", "platlib"))})
_MACHINERY: Final = ("flamecore", "asyncio", "concurrent", "threading", "selectors")
_WIDTH: Final = 160
_FRAMES: Final = 3

TRACE_CHARACTERS: Final = 4000
"""Most of a traceback that a dead letter keeps: its end, where the error is."""


class FlowMistake(TypeError):
    """A function of the flow does what it must not, whatever the record: going on without the record mends nothing."""


MISTAKE: Final = "mistake in the flow: "
"""How the reason of a failure begins that a `FlowMistake` has made."""


class Failure(NamedTuple):
    """A record that could not be read or processed.

    Attributes:
        source: The source it came from, if it could not be read.
        vertex: The operation that failed on it, otherwise.
        record: The record in words, cut to a line.
        key: The key the operation sees it under, in words; None if it has none.
        reason: Type and text of the exception, or why the record is malformed.
        frames: The user's own lines of the traceback, innermost last.
        position: Where the record stood in its source, in words; empty until it is known.
        fatal: Whether it ends the job; otherwise it is a dead letter, or dropped.
        worker: On which worker.
        at: Global time of the record, by which its front finds the position.
        declared: File and line at which the flow declares the vertex.
        origin: The source of the record, for dead letters.
        original: The record as the source has it, for dead letters; None if it cannot be had.
        trace: The traceback, for dead letters, without the frames of the engine.
        error: The exception itself, as long as it stays in its process.
    """

    source: str | None
    vertex: str | None
    record: str
    key: str | None
    reason: str
    frames: tuple[str, ...] = ()
    position: str = ""
    fatal: bool = True
    worker: int = 0
    at: GlobalTime = GlobalTime(MIN_TIME)
    declared: str = ""
    origin: str = ""
    original: bytes | None = None
    trace: str = ""
    error: Exception | None = None

    def letter(self) -> dict[str, Any]:
        """Return the dead letter: the fields that a dead-letter sink is given."""
        text, encoded = _as_text(self.original)
        return {
            "source": self.source or self.origin,
            "vertex": self.vertex,
            "position": self.position,
            "reason": self.reason,
            "record": self.record,
            "original": text,
            "original_base64": encoded,
            "traceback": self.trace,
        }

    def raised(self) -> FlameError:
        """The error that ends the job, with the user's exception as its cause."""
        facts = {"position": self.position, "record": self.record}
        where = f"\n  at        {self.position}" if self.position else ""
        error: FlameError
        if self.source is not None:
            error = SourceError(
                f"source {self.source!r}: {self.reason}{where}\n  record    {self.record}",
                hint=f'Mend the input, or set source.{self.source}.on_error = "skip" or "dead_letter".',
                source=self.source,
                **facts,
            )
        else:
            key = f"\n  key       {self.key}" if self.key is not None else ""
            frames = "".join(f"\n    {line}" for line in self.frames)
            place = f"{self.position}, worker {self.worker}" if self.position else f"worker {self.worker}"
            declared = f"\n  declared  {self.declared}" if self.declared else ""
            error = OperationError(
                f"{self.vertex!r} failed: {self.reason}\n  record    {self.record}{key}"
                f"\n  at        {place}{declared}{frames}",
                hint="Mend the function, or its annotation: it is no matter of one record, so none is left out for it."
                if self.reason.startswith(MISTAKE)
                else 'To go on without such records: job.on_error = "skip" or "dead_letter".',
                vertex=self.vertex,
                key=self.key,
                worker=self.worker,
                **facts,
            )
        error.__cause__ = self.error
        return error


def exit_error(error: SystemExit) -> JobError:
    """The error for user code that calls `sys.exit`, also with 0: the job is not at its end."""
    lines = user_lines(error)
    return JobError(
        f"a function of the flow, a source or a sink has called sys.exit({error.code!r}){':' * bool(lines)}{lines}",
        hint="Raise another exception, which says what is wrong with which record. To end the job, end its input.",
    )


def memory_error(error: MemoryError, during: str) -> JobError:
    """Return the error of a process that is given no more memory.

    Args:
        error: Where it was noticed.
        during: What the process was about.
    """
    *_, frame = traceback.extract_tb(error.__traceback__)
    where = f"{frame.filename}:{frame.lineno} in {frame.name}: {(frame.line or '').strip()}"[:_WIDTH]
    return JobError(
        f"memory ran out during {during}:\n    {where}",
        hint="Lower max_in_flight under [job], have more workers on more machines, or give the process more memory "
        "(ulimit -v, the limit of its container).",
    )


def ending_error(error: SystemExit | Exception, during: str) -> Exception:
    """Return the error that a job ends with where its code has raised `error`.

    Args:
        error: Where it was noticed.
        during: What the process was about.
    """
    if isinstance(error, SystemExit):  # asyncio would let it through, and nobody would hear why the process is gone
        return exit_error(error)
    return memory_error(error, during) if isinstance(error, MemoryError) else error


def shorten_repr(value: Any) -> str:
    """A value on one line of at most 160 characters. A failing `repr` of user code is told, not raised."""
    try:
        text = repr(value)
    except Exception as error:  # noqa: BLE001 - whatever user code raises is told
        text = f"<{type(value).__name__} whose repr fails: {error!r}>"
    return text if len(text) <= _WIDTH else f"{text[: _WIDTH - 20]}… ({len(text)} characters)"


def user_frames(error: BaseException) -> tuple[str, ...]:
    """Return the innermost frames of the traceback that are not the engine's: "file:line in function: source".

    Where the user's code has called a library, they are its own innermost ones, and the one that has raised.
    """
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(_ENGINE)]
    own = [frame for frame in frames[:-1] if not frame.filename.startswith(_LIBRARIES)]
    shown = [*(own or frames[:-1])[1 - _FRAMES :], *frames[-1:]]
    return tuple(
        f"{frame.filename}:{frame.lineno} in {frame.name}: {(frame.line or '').strip()}"[:_WIDTH] for frame in shown
    )


def user_lines(error: BaseException) -> str:
    """Return the user's frames as they follow on a text: a line each, indented."""
    return "".join(f"\n    {line}" for line in user_frames(error))


def user_traceback(error: BaseException) -> str:
    """Return the traceback of an exception and its causes, without frames of the engine: its last 4000 characters."""
    try:
        whole = traceback.TracebackException.from_exception(error)
        for part in _chain(whole):
            own = [frame for frame in part.stack if not frame.filename.startswith(_ENGINE)]
            part.stack = traceback.StackSummary.from_list(own)
        text = "".join(whole.format())
    except Exception:  # noqa: BLE001 - a failing `str` of user code is told, not raised
        text = describe(error)
    return text if len(text) <= TRACE_CHARACTERS else f"…{text[1 - TRACE_CHARACTERS :]}"


def _chain(error: traceback.TracebackException | None) -> Iterator[traceback.TracebackException]:
    """Yield what an exception came of, and itself."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _as_text(raw: bytes | None) -> tuple[str | None, str | None]:
    """Return bytes as text, or in base64 if they are none: one of the two."""
    if raw is None:
        return None, None
    try:
        return raw.decode(), None
    except UnicodeDecodeError:
        return None, base64.b64encode(raw).decode()


def shorten(error: FlameError | KeyboardInterrupt) -> None:
    """Take the engine out of the traceback of an error that its caller raises on, and its cause out of print.

    The text of an error tells of its cause, and shows the user's lines of it. What is left out stays in
    `FlameError.full_traceback` and `FlameError.cause`. Nothing is left out if the environment says
    `FLAMESTREAM_TRACEBACK=full`, or if a law of the model was broken: that is looked for in the engine.
    """
    if isinstance(error, ConsistencyError) or wants_full_traceback():
        return
    if isinstance(error, FlameError):
        error.full_traceback = error.full_traceback or error.__traceback__
        if error.__cause__ is not None:
            error.__context__ = error.__cause__
            error.__cause__ = None  # Python prints a cause whatever else is set; this suppresses the context as well
    else:
        error.__suppress_context__ = True  # that the task of the job was cancelled for it
    # The text of an error of the run shows the user's lines; a flow may be drawn by functions that it does not know of.
    own = isinstance(error, (GraphError, KeyboardInterrupt))
    error.__traceback__ = _user_part(error.__traceback__) if own else None


def shown_at_caller(method: F) -> F:
    """Have a method's errors come from the line that calls it: without the frames of the engine, see `shorten`."""

    @wraps(method)
    def call(*arguments: Any, **named: Any) -> Any:
        try:
            return method(*arguments, **named)
        except (FlameError, KeyboardInterrupt) as error:
            shorten(error)
            raise  # bare: it adds no frame of this function, as `raise error` would

    return cast(F, call)


def all_shown_at_caller(cls: type[T]) -> type[T]:
    """Have the errors of all public methods of a class come from the lines that call them."""
    for name, method in list(vars(cls).items()):
        if isfunction(method) and not name.startswith("_"):
            setattr(cls, name, shown_at_caller(method))
    return cls


def _user_part(trace: TracebackType | None) -> TracebackType | None:
    """Return a traceback without the frames of the engine, and of the event loop that it runs on."""
    kept = []
    while trace is not None:
        if trace.tb_frame.f_globals.get("__name__", "").partition(".")[0] not in _MACHINERY:
            kept.append(trace)
        trace = trace.tb_next
    shown: TracebackType | None = None
    for own in reversed(kept):
        shown = TracebackType(shown, own.tb_frame, own.tb_lasti, own.tb_lineno)
    return shown


def describe(error: BaseException) -> str:
    """Type and text of an exception on one line. A failing `str` of user code is told, not raised."""
    if isinstance(error, FlowMistake):
        return f"{MISTAKE}{error}"
    try:
        text = str(error).strip().splitlines()
    except Exception as broken:  # noqa: BLE001 - whatever user code raises is told
        text = [f"(its text cannot be had: {type(broken).__name__})"]
    return f"{type(error).__name__}: {text[0][:_WIDTH]}" if text else type(error).__name__
