"""Ordered operations: vertices that take their items in the order of metas, each once.

They wait for the minimum time inbound to them, so nothing they do is ever taken back: their state is a plain fold, and
what they do may be expensive, or end windows.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from flamecore.errors import GraphError
from flamecore.model.vertices import ByKey, Vertex

__all__ = ["Now", "Ordered", "Outcome"]


class Now(NamedTuple):
    """The place of a call of an operation's work in the order of items.

    Attributes:
        time: The global time.
    """

    time: int


class Outcome(NamedTuple):
    """The state that a call of an operation's work leaves, and the outputs.

    Attributes:
        state: The state of the key from now on, an immutable value; None: the key has none, and is forgotten.
        outputs: The outputs, in order.
    """

    state: Any = None
    outputs: Iterable[Any] = ()


@dataclass(eq=False, slots=True, repr=False)
class Ordered(Vertex):
    """An operation by key whose items come in order, in their only version.

    A plugin derives from it: the fields are the settings, and `work` returns what does the work. The engine has one
    operator for all of them, and a flow takes one by `apply`.
    """

    kind: ClassVar[str] = "ordered"
    stateful: ClassVar[bool] = True
    ordered: ClassVar[bool] = True
    appends: ClassVar[bool] = True

    def work(self) -> Any:
        """Return the work on one worker, a new `flamecore.abc.operator.Work`."""
        raise NotImplementedError(f"{type(self).__qualname__} does not define work")

    @property
    def value(self) -> Any:
        """Return the declared type of a key's state; `object` if not known."""
        return object

    @property
    def state(self) -> Any:
        """Return the type of what is stored for a key: its state, its timers and its hold."""
        value: Any = self.value
        return object if value is object else tuple[value, tuple[tuple[int, int, bool], ...], int | None]

    def check(self) -> None:
        if not isinstance(self.route, ByKey):
            raise GraphError(
                f"{self!r} goes by a hash, and keeps its state by key", hint="Call key_by before it.", vertex=self.name
            )
