"""The error that the kit's checks raise, and calls that may raise no other."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TypeVar

from flamecore.errors import FlameError
from flamecore.testing.progress import patience

T = TypeVar("T")


class LawBroken(AssertionError):
    """A driver broke a law of its contract.

    Fields: `law` (its short name), `seed` (None where nothing is left to chance).
    """

    def __init__(self, law: str, what: str, seed: int | None = None) -> None:
        where = "" if seed is None else f" (seed {seed})"
        super().__init__(f"{law}: {what}{where}")
        self.law = law
        self.seed = seed


async def within(limit_s: float, law: str, awaitable: Awaitable[T], what: str) -> T:
    """Return the result of a call that must succeed soon.

    Raises:
        LawBroken: It takes too long, or raises an error.
    """
    try:
        async with patience(limit_s):
            return await awaitable
    except TimeoutError:
        raise LawBroken(law, f"{what}: nothing happened for {limit_s} s") from None
    except FlameError as error:
        raise LawBroken(law, f"{what} raises {error!r}") from error
