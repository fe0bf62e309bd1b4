"""The classes that may cross: the flow's declared ones, and the engine's own.

Bytes can name no others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from inspect import isabstract
from types import UnionType
from typing import Annotated, Final, Union, get_args, get_origin

from flamecore.errors import CodecError
from flamecore.model import messages
from flamecore.model.drift import DriftState
from flamecore.model.failure import Cause, Failure, shorten_repr
from flamecore.model.messages import Ack, MinTimes, Report
from flamecore.model.meta import DataItem, GlobalTime, Meta
from flamecore.model.type_codec import RESERVED, TypeCodec, full_name
from flamecore.model.types import hints_of
from flamecore.runtime.codec import numpy as arrays
from flamecore.runtime.codec.classes import Enumeration, FieldCodec, entry_for
from flamecore.runtime.codec.stdlib import INTEGERS, STANDARD, Standard
from flamecore.runtime.codec.wire import unreadable
from flamecore.suggest import suggestion

Entry = FieldCodec | Enumeration | Standard | TypeCodec | arrays.Scalars

_GENERAL: Final = frozenset(("builtins", "typing", "collections", "collections.abc", "abc", "numbers"))
"""Modules whose classes stand for others, or cross as they are."""

_PLAIN_VALUES: Final = "Use plain values, tuples, NamedTuples, dataclasses or enums"


NAMES: Final[Mapping[type, str]] = {
    messages.Items: "Items",
    messages.Released: "Released",
    messages.Busy: "Busy",
    messages.FrontEnded: "FrontEnded",
    messages.Patient: "Patient",
    messages.Found: "Found",
    messages.FoundNothing: "FoundNothing",
    messages.Searched: "Searched",
    messages.Reached: "Reached",
    messages.Failing: "Failing",
    messages.Delivered: "Delivered",
    messages.Settled: "Settled",
    messages.Full: "Full",
    messages.Prepare: "Prepare",
    messages.Prepared: "Prepared",
    messages.Committed: "Committed",
    messages.Resume: "Resume",
    messages.Join: "Join",
    messages.Welcome: "Welcome",
    messages.Status: "Status",
    messages.Rescale: "Rescale",
    messages.Upgrade: "Upgrade",
    messages.Refusal: "Refusal",
    messages.Assignment: "Assignment",
    messages.Opened: "Opened",
    messages.Load: "Load",
    messages.Ready: "Ready",
    messages.Begin: "Begin",
    messages.Halt: "Halt",
    messages.Halted: "Halted",
    messages.Left: "Left",
    messages.Stop: "Stop",
    messages.NodeReport: "NodeReport",
    messages.NodeFailed: "NodeFailed",
    messages.Watched: "Watched",
    Report: "Report",
    MinTimes: "MinTimes",
    Ack: "Ack",
    Failure: "Failure",
    Cause: "Cause",
    GlobalTime: "GlobalTime",
    Meta: "Meta",
    DataItem: "DataItem",
    DriftState: "State",
}
"""Names in bytes of the engine's own classes. A class may move or get another name; its name in bytes stays, because
stored state and processes of the same job refer to it."""


@cache
def _own() -> dict[type, Entry]:
    """Return the entries of the standard types and of the engine's own classes."""
    own: dict[type, Entry] = {codec.type: codec for codec in STANDARD}
    for kind, name in NAMES.items():
        own[kind] = _entry_of_own(kind, name)
    return own


def _entry_of_own(kind: type, name: str) -> Entry:
    entry = entry_for(kind, RESERVED + name)
    assert entry is not None
    return entry


class TypeTable:
    """A table of codecs, by type for writers and by name for readers."""

    def __init__(self) -> None:
        self._by_type: dict[type, Entry] = dict(_own())
        self._by_name: dict[str, Entry] = {entry.name: entry for entry in self._by_type.values()}
        self._by_name[INTEGERS.name] = INTEGERS
        self._registered: set[str] = set()
        self._clashes: dict[str, set[type]] = {}
        self._seen: dict[int, object] = {}

    def register(self, codec: TypeCodec) -> None:
        """Add a codec, or a name for a class that crosses field by field.

        Raises:
            CodecError: Another type has one of its names, or neither fields nor functions can encode the type.
        """
        entry: Entry | None = codec if codec.encode is not None else entry_for(codec.type, codec.name)
        if entry is None:
            raise self.refusal(codec.type, codec.type)
        for name in (codec.name, *codec.formerly):
            other = self._by_name.get(name, entry)
            if _type_of(other) is not codec.type:
                raise CodecError(
                    f"two types are called {name!r} in bytes: {_title(_type_of(other))} and {_title(codec.type)}",
                    hint="Give the codec of one of them another name.",
                    type_name=codec.type.__qualname__,
                )
            self._by_name[name] = entry
            self._registered.add(name)
        self._by_type[codec.type] = entry
        if codec.encode is None:
            self._declare(hints_of(codec.type).values())

    def reserve(self, kind: type) -> None:
        """Add a class of the engine, which crosses field by field, under its own name."""
        entry = _entry_of_own(kind, kind.__name__)
        self._by_type[kind] = self._by_name[entry.name] = entry

    def declare(self, hint: object) -> None:
        """Allow values of a class, and of all classes that its hints name.

        Args:
            hint: A class or a type hint. A class that cannot cross is skipped; its first value raises.
        """
        self._declare([hint])

    def _declare(self, hints: Iterable[object]) -> None:
        todo = list(hints)
        while todo:
            hint = todo.pop()
            if isinstance(hint, list):  # the parameters of Callable[[A, B], C]
                todo += hint
                continue
            # By identity, since some hints cannot be hashed. The hint is kept with it, or its id
            # could be used again.
            if id(hint) in self._seen:
                continue
            self._seen[id(hint)] = hint
            todo += (*get_args(hint), *_behind(hint))
            kind = get_origin(hint) or hint
            if not isinstance(kind, type):
                kind = type(kind)  # a Literal may hold members of an enum
            if self._add(kind):
                todo += hints_of(kind).values()

    def _add(self, kind: type) -> bool:
        """Add a class that crosses field by field; return whether it is new and can."""
        if kind in self._by_type or (entry := entry_for(kind, full_name(kind))) is None:
            return False
        name = entry.name
        if name in self._clashes or name in self._by_name:
            # Bytes could not tell the two apart, so a value of either is an error.
            clash = self._clashes.setdefault(name, set())
            clash.add(kind)
            if name not in self._registered and (other := self._by_name.pop(name, None)) is not None:
                clash.add(_type_of(other))
                del self._by_type[_type_of(other)]
            return False
        self._by_type[kind] = self._by_name[name] = entry
        return True

    def entry(self, kind: type, value: object) -> Entry:
        """Return the codec that writes values of a class.

        Args:
            kind: The class.
            value: A value of it, for the error.

        Raises:
            CodecError: The class cannot cross, or has not been declared.
        """
        entry = self._by_type.get(kind)
        if entry is None:
            entry = arrays.entry_for(kind)
            if entry is None:
                raise self.refusal(kind, value)
            self._by_type[kind] = entry
        return entry

    def unable(self, hint: object) -> CodecError | None:
        """Return the error of a declared class no value of which can cross, also within others; None: all may.

        Of a union one class may be the only one that comes, and a class may stand for those below it: these are not
        looked at.
        """
        if get_origin(hint) in (Union, UnionType):
            others = [one for one in get_args(hint) if one is not type(None)]
            return self.unable(others[0]) if len(others) == 1 else None
        kind = get_origin(hint) or hint
        if isinstance(kind, type) and self._is_unable(kind):
            return self.refusal(kind)
        inner = (self.unable(one) for one in get_args(hint) if isinstance(kind, type) or kind is Annotated)
        return next(filter(None, inner), None)

    def _is_unable(self, kind: type) -> bool:
        if kind in self._by_type or kind.__module__ in _GENERAL or getattr(kind, "_is_protocol", False):
            return False
        return not isabstract(kind) and not kind.__subclasses__() and arrays.entry_for(kind) is None

    def named(self, name: str) -> Entry:
        """Return the codec that reads values under a name.

        Raises:
            CodecError: No declared type has this name.
        """
        entry = self._by_name.get(name) or arrays.entry_named(name)
        if entry is None:
            raise unreadable(
                f"bytes with values of {name!r}, which was not declared: no class or codec of the flow has that name",
                hint=f"{suggestion(name, self._declared())} For a class that was renamed: "
                f"flow.codec(Class, formerly=[{name!r}]).",
                type_name=name,
            )
        return entry

    def _declared(self) -> list[str]:
        """Return the names that the flow has declared."""
        own = {entry.name for entry in _own().values()} | {INTEGERS.name}
        return [name for name in self._by_name if name not in own]

    def refusal(self, kind: type, *values: object) -> CodecError:
        """Return the error of a class that cannot cross, with the reason, a remedy, and the value if there is one."""
        title = _title(kind)
        if full_name(kind) in self._clashes and kind in self._clashes[full_name(kind)]:
            why, hint = "another class of the flow has the same name", "Give each a name: flow.codec(Class, name=…)."
        elif entry_for(kind, "") is not None:
            why = "it was not declared"
            hint = f"Declare it: name it in the hints of the flow's functions, or flow.codec({kind.__name__})."
        else:
            why = "it is not made of fields"
            hint = f"{_PLAIN_VALUES}, or say how: flow.codec({kind.__name__}, encode=…, decode=…)."
        return CodecError(
            f"a value of type {title} cannot cross a process boundary, since {why}"
            + "".join(f": {shorten_repr(value)}" for value in values),
            hint=hint,
            type_name=kind.__qualname__,
        )


def _type_of(entry: Entry) -> type:
    return entry.type if isinstance(entry, (Standard, TypeCodec)) else entry.kind


def _title(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _behind(hint: object) -> Iterable[object]:
    """Return the types behind a NewType, a type alias or a type variable."""
    if isinstance(hint, type):
        return ()
    found = [getattr(hint, name, None) for name in ("__supertype__", "__value__", "__bound__")]
    return (*(one for one in found if one is not None), *getattr(hint, "__constraints__", ()))
