"""The error that the kit's checks raise."""

from __future__ import annotations


class LawBroken(AssertionError):
    """A driver broke a law of its contract.

    Fields: `law` (its short name), `seed` (None where nothing is left to chance).
    """

    def __init__(self, law: str, what: str, seed: int | None = None) -> None:
        where = "" if seed is None else f" (seed {seed})"
        super().__init__(f"{law}: {what}{where}")
        self.law = law
        self.seed = seed
