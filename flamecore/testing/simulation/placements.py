"""Placements drawn by chance, as no measurement would choose them."""

from __future__ import annotations

from random import Random

from flamecore.model.hashing import KEY_GROUPS
from flamecore.model.plan import Placement, Plan


def drawn_placement(plan: Plan, random: Random) -> Placement:
    """Return a placement of a plan's fronts and key groups.

    Any worker may host any front, and any of them own ranges of any length.
    """
    owning = random.sample(range(plan.workers), random.randint(1, plan.workers))
    borders = [0, *sorted(random.sample(range(1, KEY_GROUPS), len(owning) - 1)), KEY_GROUPS]
    owners = [owner for owner, start, end in zip(owning, borders, borders[1:], strict=False) for _ in range(start, end)]
    return Placement(tuple(random.randrange(plan.workers) for _ in plan.fronts), tuple(owners))
