"""A record that failed, and the error of at most 15 lines that shows it.

A failure is an item. It has the order of the failed record, waits in the barrier like every output, and is retracted if
that record turns out to be a wrong guess of an operation that repairs itself. So the same input fails at the same
record in every run, after exactly the same outputs.
"""

from __future__ import annotations

import base64
import os
import re
import signal
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator
from functools import lru_cache, wraps
from inspect import Signature, isfunction, signature
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple, TypedDict, TypeVar, cast

from flamecore.errors import (
    ConsistencyError,
    FlameError,
    GraphError,
    JobError,
    OperationError,
    SourceError,
    wants_full_traceback,
)
from flamecore.escapes import line
from flamecore.model.meta import MIN_TIME, GlobalTime

F = TypeVar("F", bound=Callable[..., object])
T = TypeVar("T")

_ENGINE: Final = str(Path(__file__).parents[1])
_LIBRARIES: Final = tuple({*map(sysconfig.get_path, ("stdlib", "platstdlib", "purelib", "platlib"))})
GROUP: Final = "flamestream."
"""Prefix of the groups of the entry points by which plugins are found."""
_MACHINERY: Final = ("flamecore", "asyncio", "uvloop", "concurrent", "threading", "selectors")
_QUOTED: Final = re.compile(r": '([^']*)'")
_WIDTH: Final = 160
_FRAMES: Final = 3

TRACE_CHARACTERS: Final = 4000
"""Most characters of a traceback that a dead letter keeps, from its end, where the error is."""


class FlowMistake(TypeError):
    """A function of the flow breaks its contract, for any record: skipping is useless."""


_SECOND_LOOP: Final = re.compile(
    r"RuntimeError: (asyncio\.run\(\)|Runner\.run\(\)|Cannot run the event loop|[Tt]his event loop is already running)"
)
"""Reasons of a function that starts an event loop below the one that calls it, of asyncio and uvloop."""

MISTAKE: Final = "mistake in the flow: "
"""Prefix of the reason of a failure by a `FlowMistake`."""


class Cause(NamedTuple):
    """The cause of a failure.

    Attributes:
        reason: Type and text of the exception, or why the record is malformed.
        frames: The user's own lines of the traceback, innermost last.
        trace: The traceback, for dead letters, without the frames of the engine.
        error: The exception itself, as long as it stays in its process.
    """

    reason: str
    frames: tuple[str, ...] = ()
    trace: str = ""
    error: Exception | None = None


class DeadLetter(TypedDict):
    """A record that was left out, for a sink.

    The fields are in the reference of `[dead_letter]`.
    """

    source: str
    vertex: str | None
    position: str
    reason: str
    record: str
    original: str | None
    original_base64: str | None
    traceback: str


class Failure(NamedTuple):
    """A record that could not be read or processed.

    Attributes:
        source: The source that could not read it; otherwise None.
        vertex: The operation that failed on it; otherwise None.
        record: The `repr` of the record, cut to a line.
        key: The `repr` of its key at the operation; None if it has none.
        cause: The exception, or why the record is malformed.
        position: Description of the record's position in its source; empty until known.
        fatal: Whether it ends the job; otherwise it is a dead letter, or dropped.
        worker: Number of the worker.
        at: Global time of the record, by which its front finds the position.
        declared: File and line where the flow declares the vertex.
        origin: The source of the record, for dead letters.
        original: The record as the source has it, for dead letters; None if unavailable.
    """

    source: str | None
    vertex: str | None
    record: str
    key: str | None
    cause: Cause
    position: str = ""
    fatal: bool = True
    worker: int = 0
    at: GlobalTime = GlobalTime(MIN_TIME)
    declared: str = ""
    origin: str = ""
    original: bytes | None = None

    @property
    def reason(self) -> str:
        """Return type and text of the exception, or why the record is malformed."""
        return self.cause.reason

    def letter(self) -> DeadLetter:
        """Return the fields of the dead letter, for a dead-letter sink."""
        text, encoded = _as_text(self.original)
        return {
            "source": self.source or self.origin,
            "vertex": self.vertex,
            "position": self.position,
            "reason": self.reason,
            "record": self.record,
            "original": text,
            "original_base64": encoded,
            "traceback": self.cause.trace,
        }

    def raised(self) -> FlameError:
        """Return the error that ends the job, with the user's exception as its cause."""
        facts = {"position": self.position, "record": self.record, "global_time": self.at}
        where = f"\n  at        {line(self.position)}" if self.position else ""
        error: FlameError
        if self.source is not None:
            error = SourceError(
                f"source {self.source!r}: {self.reason}{where}\n  record    {line(self.record)}",
                hint=f'Correct the input, or set source.{self.source}.on_error = "skip" or "dead_letter".',
                source=self.source,
                **facts,
            )
        else:
            key = f"\n  key       {line(self.key)}" if self.key is not None else ""
            frames = "".join(f"\n    {line(frame)}" for frame in self.cause.frames)
            place = f"{self.position}, worker {self.worker}" if self.position else f"worker {self.worker}"
            declared = f"\n  declared  {self.declared}" if self.declared else ""
            error = OperationError(
                f"{self.vertex!r} failed: {self.reason}\n  record    {line(self.record)}{key}"
                f"\n  at        {line(place)}{declared}{frames}",
                hint=_hint_of(self.reason),
                vertex=self.vertex,
                key=self.key,
                worker=self.worker,
                **facts,
            )
        error.__cause__ = self.cause.error
        return error


def _hint_of(reason: str) -> str:
    """Return the hint for the reason why a function has failed."""
    if reason.startswith(MISTAKE):
        return "Correct the function, or its annotation: all records may be affected, so none is left out for it."
    if _SECOND_LOOP.match(reason):
        return (
            "Functions of a flow are called by an event loop, and it does not run a second one in its thread. Call the "
            "library's functions that wait, or await on a loop in a thread of its own: "
            "asyncio.run_coroutine_threadsafe(coroutine, loop).result()."
        )
    return 'To continue without such records: job.on_error = "skip" or "dead_letter".'


def exit_error(error: BaseException) -> JobError:
    """Return the error of user code that calls `sys.exit`, even with 0, or raises another one that is no `Exception`.

    The job has not ended then.
    """
    lines = user_lines(error)
    done = f"raised {type(error).__name__}" + (f": {error}" if str(error) else "")
    if isinstance(error, SystemExit):
        done = f"called sys.exit({error.code!r})"
    given = given_values(error)
    place = f"\n  given     {line(given)}" if given else ""
    return JobError(
        f"a function of the flow, a source or a sink has {done}{':' * bool(lines)}{place}{lines}",
        hint="Raise another exception, which says what is wrong with which record. To end the job, end its input.",
    )


def memory_error(error: MemoryError, during: str) -> JobError:
    """Return the error of a process that runs out of memory.

    Args:
        error: The error, with its traceback.
        during: Description of the current work.
    """
    *_, frame = traceback.extract_tb(error.__traceback__)
    where = f"{frame.filename}:{frame.lineno} in {frame.name}: {(frame.line or '').strip()}"[:_WIDTH]
    return JobError(
        f"memory ran out during {during}:\n    {where}",
        hint="Lower max_in_flight under [job], have more workers on more machines, or give the process more memory "
        "(ulimit -v, the limit of its container).",
    )


def ending_error(error: BaseException, during: str) -> Exception:
    """Return the error that ends a job whose code has raised `error`; itself, if it is one that others handle.

    Args:
        error: The error, with its traceback.
        during: Description of the current work.

    Raises:
        KeyboardInterrupt: The error itself, unless this process ignores Ctrl-C, as those of a job on several do.
    """
    if isinstance(error, KeyboardInterrupt) and signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        raise error
    if isinstance(error, Exception):
        return memory_error(error, during) if isinstance(error, MemoryError) else error
    # asyncio would let them through, and the process or the task would end without a reason.
    return exit_error(error)


def shorten_repr(value: object) -> str:
    """Return the `repr` of a value on one line of at most 160 characters.

    A failing `repr` of user code is reported in the text, not raised.
    """
    try:
        text = repr(value)
    except Exception as error:  # noqa: BLE001 - any error of user code is reported
        text = f"<{type(value).__name__} whose repr fails: {error!r}>"
    return text if len(text) <= _WIDTH else f"{text[: _WIDTH - 20]}… ({len(text)} characters)"


@lru_cache(maxsize=1)  # it reads the metadata of all distributions, and each dead letter asks
def plugin_packages() -> frozenset[str]:
    """Return the names of the installed plugins' packages.

    They are known by their entry points, not by their names: a package of the user's may have any.
    """
    from importlib.metadata import entry_points  # 25 ms, not needed as long as nothing fails

    points = entry_points()
    plugins = [point for group in points.groups if group.startswith(GROUP) for point in points.select(group=group)]
    return frozenset(point.module.partition(".")[0] for point in plugins)


def _engine_places() -> tuple[str, ...]:
    """Return the beginnings of paths of code files that are not the user's.

    They are files of the engine and of plugins.
    """
    places = [_ENGINE]
    for name in plugin_packages():
        module = sys.modules.get(name)
        if module is not None:  # what is not imported raises nothing
            file = [module.__file__] if module.__file__ else []
            places += [f"{place}{os.sep}" for place in module.__path__] if hasattr(module, "__path__") else file
    return tuple(places)


def user_frames(error: BaseException) -> tuple[str, ...]:
    """Return the innermost frames outside of the engine, as text.

    Each is "file:line in function: source". If user code has called a library, they are the innermost frames of user
    code, and the raising one.
    """
    engine = _engine_places()
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(engine)]
    own = [frame for frame in frames[:-1] if not frame.filename.startswith(_LIBRARIES)]
    shown = [*(own or frames[:-1])[1 - _FRAMES :], *frames[-1:]]
    return tuple(
        f"{frame.filename}:{frame.lineno} in {frame.name}: {(frame.line or '').strip()}"[:_WIDTH] for frame in shown
    )


def user_lines(error: BaseException) -> str:
    """Return the user's frames as indented lines, each after a line break."""
    return "".join(f"\n    {line}" for line in user_frames(error))


# Not the record, as of exceptions: those are found by a call for each record alone, which such an error ends, too.
def given_values(error: BaseException) -> str:
    """Return what the engine has called the user's function with that raised an error, as "name = value, …".

    Empty if no such call is in its traceback, or it has no arguments.
    """
    engine = _engine_places()
    called, by_engine = None, False
    for frame, _ in traceback.walk_tb(error.__traceback__):
        is_engine = frame.f_code.co_filename.startswith(engine)
        if by_engine and not is_engine:
            called = frame
        by_engine = is_engine
    if called is None:
        return ""
    code, values = called.f_code, called.f_locals
    names = [name for name in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount] if name in values]
    return ", ".join(
        f"{name} = {shorten_repr(values[name])}" for name in names if name.isidentifier() and name != "self"
    )


def user_traceback(error: BaseException) -> str:
    """Return the traceback of an exception and its causes without engine frames.

    A long text is cut to its last 4000 characters.
    """
    try:
        engine = _engine_places()
        whole = traceback.TracebackException.from_exception(error)
        for part in _chain(whole):
            # Caught by the engine, which then went on to the record at hand: it belongs to another record.
            if (before := part.__context__) is not None and before.stack[:1] and _begins_in(before, engine):
                part.__context__ = None
        for part in _chain(whole):
            own = [frame for frame in part.stack if not frame.filename.startswith(engine)]
            part.stack = traceback.StackSummary.from_list(own)
        text = "".join(whole.format())
    except Exception:  # noqa: BLE001 - a failing `str` of user code is reported, not raised
        text = describe(error)
    return text if len(text) <= TRACE_CHARACTERS else f"…{text[1 - TRACE_CHARACTERS :]}"


def _begins_in(part: traceback.TracebackException, places: tuple[str, ...]) -> bool:
    """Return whether the code that caught an exception is in one of some places."""
    return part.stack[0].filename.startswith(places)


def _chain(error: traceback.TracebackException | None) -> Iterator[traceback.TracebackException]:
    """Yield an exception, then its causes or contexts."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _as_text(raw: bytes | None) -> tuple[str | None, str | None]:
    """Return (text, None), or (None, base64) if the bytes are not text.

    Returns (None, None) without bytes.
    """
    if raw is None:
        return None, None
    try:
        return raw.decode(), None
    except UnicodeDecodeError:
        return None, base64.b64encode(raw).decode()


def shorten(error: FlameError | KeyboardInterrupt) -> None:
    """Remove the engine from the traceback of an error, and hide its cause.

    The caller raises the error on. Its text tells of the cause, with the user's lines. The removed parts stay in
    `FlameError.full_traceback` and `FlameError.cause`. Nothing is removed if the environment has
    `FLAMESTREAM_TRACEBACK=full`, or if a law of the model was broken, whose cause is in the engine.
    """
    if isinstance(error, ConsistencyError) or wants_full_traceback():
        return
    if isinstance(error, FlameError):
        error.full_traceback = error.full_traceback or error.__traceback__
        if error.__cause__ is not None:
            error.__context__ = error.__cause__
            error.__cause__ = None  # Python prints a cause whatever else is set; this suppresses the context as well
    else:
        error.__suppress_context__ = True  # the context is the cancellation of the job's task
    # An error of the run shows the user's lines in its text; one of drawing the flow needs the traceback of its caller.
    own = isinstance(error, (GraphError, KeyboardInterrupt))
    error.__traceback__ = _user_part(error.__traceback__) if own else None


def shown_at_caller(method: F) -> F:
    """Return a method whose errors seem to come from the line that calls it.

    They have no frames of the engine; see `shorten`. Arguments that do not fit its signature are a `GraphError`, too.
    """

    @wraps(method)
    def call(*arguments: object, **named: object) -> object:
        try:
            return method(*arguments, **named)
        except (FlameError, KeyboardInterrupt) as error:
            shorten(error)
            raise  # bare: it adds no frame of this function, as `raise error` would
        except TypeError as error:
            if error.__traceback__ is None or error.__traceback__.tb_next is not None:
                raise
            raise _misfit(method, str(error)) from None  # the method was not entered

    return cast(F, call)


def _misfit(method: Callable[..., object], why: str) -> GraphError:
    """Return the error of a call whose arguments do not fit."""
    found = signature(method)
    named = [each for each in found.parameters.values() if each.name != "self"]
    takes = _QUOTED.sub(r": \1", str(found.replace(parameters=named, return_annotation=Signature.empty)))
    purpose = (method.__doc__ or "").strip().partition("\n")[0]
    what = f"{method.__name__} takes {takes}: {why.partition('() ')[2] or why}"
    return GraphError(what, hint=purpose, vertex=None)


def all_shown_at_caller(cls: type[T]) -> type[T]:
    """Apply `shown_at_caller` to all public methods of a class; return the class."""
    for name, method in list(vars(cls).items()):
        if isfunction(method) and not name.startswith("_"):
            setattr(cls, name, shown_at_caller(method))
    return cls


def _user_part(trace: TracebackType | None) -> TracebackType | None:
    """Return a traceback without frames of the engine and of the event loop."""
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
    """Return type and text of an exception on one line.

    A failing `str` of user code is reported in the text, not raised.
    """
    if isinstance(error, FlowMistake):
        return f"{MISTAKE}{error}"
    try:
        text = str(error).strip().splitlines()
    except Exception as broken:  # noqa: BLE001 - any error of user code is reported
        text = [f"(its text cannot be had: {type(broken).__name__})"]
    return f"{type(error).__name__}: {text[0][:_WIDTH]}" if text else type(error).__name__
