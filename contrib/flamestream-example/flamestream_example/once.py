"""An ordered operation: each key once, until it has been silent for some time.

flow.source("orders", Order).through(once, lambda order: order.id, silence=60_000_000).sink("new")
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

from flamecore import Stream
from flamecore.abc.operator import Work
from flamecore.errors import GraphError
from flamecore.model.ordered import Now, Ordered, Outcome, Timer

T = TypeVar("T")


@dataclass(eq=False, slots=True, repr=False)
class Once(Ordered):
    """The first item of each key; later ones only once none has come for some time.

    Attributes:
        silence: The time, in microseconds by the wall clock, in records by the sequence clock.
    """

    kind: ClassVar[str] = "once"
    timers: ClassVar[bool] = True

    silence: int = field(kw_only=True)

    def check(self) -> None:
        Ordered.check(self)
        if self.silence < 1:
            raise GraphError(f"the silence of {self!r} is {self.silence}", hint="At least 1.", vertex=self.name)

    @property
    def value(self) -> Any:
        return bool

    @property
    def state_facts(self) -> Mapping[str, str | int]:
        return {"silence": self.silence}

    def work(self) -> Work:
        return OnceWork(self.silence)


class OnceWork(Work):
    """Keeps `True` for each key that has come, and a timer that forgets it."""

    def __init__(self, silence: int) -> None:
        self._silence = silence

    def process(self, key: Any, state: Any, payload: Any, now: Now) -> Outcome:
        return Outcome(True, [] if state else [payload], [Timer(now.time + self._silence)])

    def on_time(self, key: Any, state: Any, timer: Timer, now: Now) -> Outcome:
        return Outcome(None)


def once(stream: Stream[T], key: Callable[[T], Any], *, silence: int, name: str | None = None) -> Stream[T]:
    """Return the first item of each key, and the next only after a silence of the key."""
    return stream.key_by(key).apply(Once, name=name, silence=silence)
