"""Codecs of user types without a built-in one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from flamecore.errors import GraphError

BUILT_IN: Final = frozenset({type(None), bool, int, float, str, bytes, tuple, list, dict, set, frozenset})
"""Types whose values cross unchanged."""

RESERVED: Final = "!"
"""Names that begin with it are the engine's."""


@dataclass(frozen=True, slots=True)
class TypeCodec:
    """The codec of one type.

    A library may export one for its type, for flows to use: `flow.codec(it)`.

    Attributes:
        type: The class. Values of its subclasses need a codec of their own.
        name: Its name in bytes, the only link between bytes and the class, so it must stay.
        encode: Function from a value to one that crosses: bytes, text, a tuple, a dictionary, a declared class. None:
            the class is a dataclass, NamedTuple, enum or `msgspec.Struct`, and crosses field by field.
        decode: Function from the output of `encode` to the value. It must not trust its argument.
        version: Version of the output of `encode`, from 1, written with the bytes.
        older: For each earlier version that is still read, its `decode`.
        formerly: Earlier names of the class in bytes.
    """

    type: type
    name: str
    encode: Callable[[Any], Any] | None = None
    decode: Callable[[Any], Any] | None = None
    version: int = 1
    older: Mapping[int, Callable[[Any], Any]] = field(default_factory=dict)
    formerly: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        problem = self._problem()
        if problem:
            raise GraphError(f"the codec {self.name!r} cannot be: {problem}", vertex=None)

    def _problem(self) -> str:
        if not isinstance(self.type, type):
            return f"{self.type!r} is no class"
        if self.type in BUILT_IN:
            return f"{self.type.__name__} has a fixed encoding, and cannot have a codec"
        if (self.encode is None) != (self.decode is None):
            return "it has encode or decode, and needs both or neither"
        if self.encode is None and (self.version != 1 or self.older):
            return "versions are of what encode makes, and it has none"
        if any(not name or name.startswith(RESERVED) for name in (self.name, *self.formerly)):
            return f"a name must not be empty or begin with {RESERVED!r}"
        if self.version < 1 or any(not 0 < version < self.version for version in self.older):
            return f"versions count from 1, and {sorted(self.older)} are not all before {self.version}"
        return ""


def full_name(kind: type) -> str:
    """Return the default name of a class in bytes."""
    return f"{kind.__module__}:{kind.__qualname__}"
