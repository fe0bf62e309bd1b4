"""Marks: numbers that go beside the items, straight to the next ordered operations.

A mark says something of all items before its place, such as that no earlier event is to come. An *origin* of marks is a
front, or a partition of an ordered operation; the watermark of an ordered operation is the least of what its origins
have said last. The place of a mark is behind the record that caused it and all that comes of that.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from flamecore.errors import GraphError
from flamecore.model.hashing import KEY_GROUPS, key_group, stable_hash
from flamecore.model.meta import GLOBAL_TIME_BYTES, MAX_TIME, encode_child
from flamecore.model.vertices import Payload, Vertex

Origin = tuple[int, int]
"""(index of a vertex, number of the front or of the worker)."""

CLOSING: Final = MAX_TIME
"""The mark at the end of a front: nothing is to come any more."""

_LAST: Final = encode_child(2**64 - 1)


@dataclass(eq=False, slots=True, repr=False)
class Marking(Vertex):
    """A vertex that passes items on, and says marks of them; right behind a source, but for maps.

    Attributes:
        function: Function from a payload to the mark that holds from its record on; None: no other than before. A mark
            that is not above the front's last one says nothing.
        step: Marks are rounded down to multiples of it, so that there are few.
        closes: Whether the end of a front is a mark, `CLOSING`, at a time of its own. Otherwise the last one stays.
    """

    kind: ClassVar[str] = "marking"
    functions: ClassVar[tuple[str, ...]] = ("function",)
    marks: ClassVar[bool] = True

    function: Callable[[Payload], int | None] = field(kw_only=True)
    step: int = field(default=1, kw_only=True)
    closes: bool = field(default=True, kw_only=True)

    def check(self) -> None:
        if self.route is not None:
            raise GraphError(
                f"{self!r} has a route, and marks are said where records are read",
                hint="Call key_by or rebalance behind it.",
                vertex=self.name,
            )
        if self.step < 1:
            raise GraphError(f"the step of {self!r} is {self.step}", hint="It must be at least 1.", vertex=self.name)


def behind_record(order: bytes) -> bytes:
    """Return the place of a mark that a record causes: behind all that comes of the record."""
    return order[:GLOBAL_TIME_BYTES] + _LAST


def behind(place: bytes) -> bytes:
    """Return the place of a mark that another one causes: behind all that comes of it."""
    return place + _LAST


def shared_names() -> tuple[Any, ...]:
    """Return a name for each key group, under which its owner stores what all partitions of an operation share."""
    found: dict[int, Any] = {}
    number = 0
    while len(found) < KEY_GROUPS:
        found.setdefault(key_group(stable_hash((_SHARED, number))), (_SHARED, number))
        number += 1
    return tuple(found[group] for group in range(KEY_GROUPS))


_SHARED: Final = "\0shared"


def is_shared(name: Any) -> bool:
    """Return whether a name is one of `shared_names`."""
    return type(name) is tuple and len(name) == 2 and type(name[0]) is str and name[0] == _SHARED
