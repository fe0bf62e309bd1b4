"""Every error a user can meet, in one tree.

    FlameError
    ├── ConfigError               a job file, option or environment variable that cannot be used
    │   ├── UnknownKeyError       a key that is not known
    │   └── UnknownPluginError    a driver name that no plugin provides
    ├── PluginError               a plugin that is there but cannot be used
    │   ├── PluginLoadError       importing it failed
    │   ├── MissingDependencyError  its client library is not installed
    │   ├── PluginConflictError   two distributions provide one name
    │   ├── PluginApiError        it speaks another version of the contract
    │   └── PluginContractError   it raises or returns what its contract does not allow
    ├── GraphError                a graph that cannot work, found when it is built
    ├── OperationError            a user function failed on a record
    ├── SourceError               a record or a source that cannot be read
    ├── SinkError                 a sink that cannot take or keep what it is given
    ├── StoreError                a store of snapshots that cannot be read or written
    │   ├── CorruptError          stored bytes that are not what was written
    │   │   └── StateBehindError  a state that is older than what a sink holds
    │   ├── HeldError             another run of the job is at work
    │   └── FencedError           another run of the job has taken over
    ├── RegistryError             a registry of jobs that cannot be used, or does not know one
    │   └── ClaimedError          another supervisor runs the job
    ├── CodecError                a payload that cannot cross a process boundary, or bytes that are none
    │   └── TooLargeError         an item that alone costs more than a message may
    ├── JobError                  a job that cannot go on (a stuck stream, a dead worker)
    │   ├── RunawayLoopError      an item that goes round a cycle without end
    │   ├── CallLimitError        a call of a function that lasts too long
    │   ├── LoopKeyError          an item of a loop by key that has changed its key
    │   ├── PlaceError            an item whose key has not the place of its record
    │   └── TooManyFailedError    a job that has left out more records than it may
    ├── TransportError            hand-over between addresses failed
    │   ├── ConnectError          a server or process does not answer, or refuses this process
    │   ├── TransportClosedError  used after close
    │   ├── PeerGoneError         the other side is gone
    │   ├── SendTimeout           no room at the receiver for too long
    │   └── FrameError            bytes that are not a frame of this job
    └── ConsistencyError          a law of the model was broken: a bug in the engine, a plugin or user code
        ├── TimeRegressionError   a time went backwards
        ├── OrderViolationError   an item would sort before its ancestor, or order is not total
        ├── DuplicateItemError    two live items of one identity
        └── NoInvalideeError      a tombstone whose victim is not there

Every message has three parts: what happened with its values, what is known instead, what to do.
The same facts are attributes of the error, for programs and tests.
"""

from __future__ import annotations

import os
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from flamecore.escapes import block

if TYPE_CHECKING:
    from types import TracebackType

TRACEBACK: Final = "FLAMESTREAM_TRACEBACK"
"""Environment variable: `full` has errors of `Flow.run` show the frames of the engine and the cause too."""


def wants_full_traceback() -> bool:
    """Return whether the environment asks for tracebacks with engine frames."""
    return os.environ.get(TRACEBACK, "").lower() == "full"


class FlameError(Exception):
    """Root of the tree. `hint` says what to do; it is part of the printed message.

    Args:
        what: The event, with the values that matter. Text from outside needs no care here: whatever would act on a
            terminal, or look like a line of its own, is made visible.
        hint: The remedy; empty when `what` says it all.
        fields: The facts in a form for programs; each becomes an attribute.

    Attributes:
        before_start: Whether it was found before the job began to read.
    """

    hint: str
    before_start: bool = False
    full_traceback: TracebackType | None = None
    """The whole traceback, with the frames of the engine that an error which has ended `Flow.run` leaves out."""

    def __init__(self, what: str, *, hint: str = "", **fields: Any) -> None:
        what, hint = block(what), block(hint)
        super().__init__(f"{what}\n  {hint}" if hint else what)
        self.what = what
        self.hint = hint
        for name, value in fields.items():
            setattr(self, name, value)

    @property
    def cause(self) -> BaseException | None:
        """Return the exception that caused this error, or None.

        The error's text tells of it.

        It is `__cause__`, unless the error has ended `Flow.run`: then it is out of the traceback, which Python would
        begin with it.
        """
        return self.__context__ if self.__cause__ is None and self.__suppress_context__ else self.__cause__

    def _render_traceback_(self) -> list[str]:
        """Return the lines that IPython shows, in notebooks too.

        They are the text, and the user's line that has raised it.
        """
        if wants_full_traceback():
            return "".join(traceback.format_exception(self)).splitlines()
        package = str(Path(__file__).parent)
        frames = [f for f in traceback.extract_tb(self.__traceback__) if not f.filename.startswith(package)]
        places = [f"  raised by {frame.filename}:{frame.lineno}: {frame.line}" for frame in frames[-1:]]
        text = "\n".join([f"{type(self).__name__}: {self}", *getattr(self, "__notes__", ()), *places])
        return text.splitlines()

    if TYPE_CHECKING:  # the fields differ from class to class and are set when the error is made

        def __getattr__(self, name: str) -> Any: ...


class ConfigError(FlameError):
    """A job file, option or environment variable cannot be used.

    Fields: `path` (dotted key).
    """


class UnknownKeyError(ConfigError):
    """A configuration key that is not known. Fields: `path`, `known`, `nearest`."""


class UnknownPluginError(ConfigError):
    """A driver name that no plugin provides.

    Fields: `kind`, `name`, `known`, `nearest`.
    """


class PluginError(FlameError):
    """A plugin is there but cannot be used. Fields: `kind`, `name`, `distribution`."""


class PluginLoadError(PluginError):
    """Importing the plugin failed; it is `cause`."""


class MissingDependencyError(PluginError):
    """The plugin's client library is not installed. Fields: also `module`, `extra`."""


class PluginConflictError(PluginError):
    """Two distributions provide one name. Fields: also `distributions`."""


class PluginApiError(PluginError):
    """The plugin speaks another version of the contract.

    Fields: also `api`, `floor`, `current`.
    """


class PluginContractError(PluginError):
    """The plugin raised or returned what its contract does not allow.

    The exception that it raised is `cause`. Fields: also `version`, `call` (the method).
    """


class GraphError(FlameError):
    """A graph that cannot work.

    Fields: `vertex` (its name, or None for the whole graph).
    """


class OperationError(FlameError):
    """A user function failed on a record.

    The text is at most 15 lines (`flamecore.model.failure.Failure.raised` composes it). The user's exception
    is `cause`. Fields: `vertex`, `record`, `key`, `global_time`, `position`, `worker`.
    """


class SourceError(FlameError):
    """A record or a source cannot be read.

    Fields: `source`, `position` (file and line, or offset).
    """


class SinkError(FlameError):
    """A sink cannot take or keep what it is given.

    Fields: `sink`; `fenced` if another run writes in its place.
    """


class StoreError(FlameError):
    """A store of snapshots cannot be read or written.

    Fields: `store` (its driver), `blob` (its name, or empty).
    """


class CorruptError(StoreError):
    """Stored bytes are not what was written.

    They are damaged, cut short, of a newer format, or of another place. Fields: as `StoreError`.
    """


class StateBehindError(CorruptError):
    """A sink holds outputs whose times no journal of the state accounts for.

    Fields: also `sinks` (for each that is ahead the time up to which it holds its output) and `accounted` (the time up
    to which the state accounts for outputs).
    """


class HeldError(StoreError):
    """Another run of the job is at work on its state.

    Fields: as `StoreError`, `job`, and of the other run `pid`, `host`, `since` and `seen` (when it took the state, and
    sent its last heartbeat, in seconds since the epoch by its own clock).
    """


class FencedError(StoreError):
    """Another run of the job has taken over this one's state.

    Fields: as `StoreError`, and `epoch` of the other.
    """


class RegistryError(FlameError):
    """A registry of jobs cannot be used, or does not know a job.

    Fields: `registry` (its driver, or empty), `key`.
    """


class ClaimedError(RegistryError):
    """Another supervisor runs the job.

    Fields: also `job`, `holder` (host and process), `incarnation`.
    """


class CodecError(FlameError):
    """A payload cannot be encoded, or bytes cannot be decoded.

    Fields: `type_name`, `path`, `vertex`.
    """

    type_name: str = ""
    path: str = ""
    vertex: str | None = None

    def going_to(self, vertex: str, where: str) -> CodecError:
        """Return the same error, of a payload on its way to an operation or sink.

        `where` names that in words.
        """
        return type(self)(
            f"on the way to {where}: {self.what}",
            hint=self.hint,
            type_name=self.type_name,
            path=self.path,
            vertex=vertex,
        )

    def kept_by(self, vertex: str, key: str) -> CodecError:
        """Return the same error, of the state of an operation for a key, which is given in words."""
        return type(self)(
            f"the state of {vertex!r} for the key {key} cannot be stored: {self.what}",
            hint=self.hint,
            type_name=self.type_name,
            path=self.path,
            vertex=vertex,
        )


class TooLargeError(CodecError):
    """A payload that costs more to decode than a receiver allows.

    Fields: as of `CodecError`.
    """


class JobError(FlameError):
    """The job cannot go on."""


class RunawayLoopError(JobError):
    """An item went round a cycle beyond `[job] max_rounds`, or as many wait there.

    Fields: `vertex`, `record`.
    """


class CallLimitError(JobError):
    """A call of a user's function lasts for longer than `[job] call_limit_s`.

    It is raised in the midst of the call.
    """


class LoopKeyError(JobError):
    """An item of a loop by key has another key than what it came of entered with.

    Fields: `vertex` (where that was seen), `loop`, `record`, `entered`, `key`.
    """


class PlaceError(JobError):
    """An item came to a `key_by` with a key whose place is not that of its record.

    The `key_by` is behind a `place_by`. Fields: `vertex` (where it came to), `placing` (the `place_by`), `record` (the
    item), `key`, `place` (of the key), `expected` (the place of the record).
    """


class TooManyFailedError(JobError):
    """A job has ended, and left out more records than `[job] max_failed` allows.

    Its outputs are complete without them. Fields: `records` (read), `rejected`, `failed`, `dead_letters`, `limit`.
    """


class TransportError(FlameError):
    """Hand-over between two addresses failed. Fields: `address`, `peer`."""


class ConnectError(TransportError):
    """A server or process that the transport needs is unreachable or refuses access.

    Fields: also `location` (where it was looked for, without credentials).
    """


class TransportClosedError(TransportError):
    """The endpoint was used after it was closed."""


class PeerGoneError(TransportError):
    """The peer is not there, or no longer. Fields: also `refused`, whether it is there and has refused this process."""

    refused: bool = False


class SendTimeout(TransportError):
    """The receiver gave no room within the limit. Fields: also `timeout_s`."""


class FrameError(TransportError):
    """Bytes that are not a frame of this job and incarnation, or missing frames.

    Fields: also `reason`, one word: short, magic, version, oversized, length, damaged, job, incarnation, addresses,
    gap.
    """


class ConsistencyError(FlameError):
    """A law of the model was broken.

    The cause is a bug in the engine or a plugin, or a user function that is not deterministic.
    """


class TimeRegressionError(ConsistencyError):
    """A time went backwards. Fields: `time`, `limit`."""


class OrderViolationError(ConsistencyError):
    """An item sorts before its ancestor, or two valid items have one order.

    Fields: `vertex`, `record`.
    """


class DuplicateItemError(ConsistencyError):
    """Two live items have one identity. Fields: `vertex`, `record`."""


class NoInvalideeError(ConsistencyError):
    """A tombstone came whose victim is not there. Fields: `vertex`, `record`.

    The usual cause is a user function, key or hash that is not deterministic: it sent the item one way and
    its tombstone another.
    """
