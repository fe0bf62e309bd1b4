"""A sink that only tells of what it is given."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final

NOTING: Final = "noting"
"""Its name in configurations."""


def noting(
    note: Callable[[int, Sequence[Any]], None], ready: Callable[[], None] = lambda: None
) -> AbstractContextManager[None]:
    """Provide a driver named `NOTING`, as long as the context is open.

    Args:
        note: Called with every batch: the time it goes up to, and its payloads.
        ready: Called when the job is about to begin.
    """
    from flamecore.abc.sink import Guarantee, Sink
    from flamecore.testing import override

    class Noting(Sink):
        name = NOTING

        @property
        def guarantee(self) -> Guarantee:
            return "at_least_once"

        async def open(self) -> int:
            ready()
            return await super().open()

        async def write(self, time: int, payloads: Sequence[Any]) -> None:
            note(time, payloads)

    return override("sink", NOTING, Noting)
