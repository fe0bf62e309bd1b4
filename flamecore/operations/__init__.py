"""What a vertex does with an item.

An operation is compiled into a *step*, a function of one item's four parts:

    step(order, trace, alive, payload)

A step does its work and calls the step of what comes next; so an item runs depth first to its end on a worker, and
nothing is boxed on the way. Steps know neither workers nor transports nor progress: routes are steps too.

Where the way is straight, items that are in order anyway go in *runs*, which cost a fraction:

    run(orders, trace, payloads)

A run means a step for each of its items, one after another. It ends at the head of a cycle and at a fork whose ways
meet again, where the items go on one by one: what comes of one must meet before anything that comes of the next.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from flamecore.orders import Orders

Step = Callable[[bytes, int, bool, Any], None]
"""(order, trace, alive, payload): `alive` is False for a tombstone."""

Run = Callable[[Orders, int, Sequence[Any]], None]
"""(orders, trace, payloads): at least one live item, all of one trace, in ascending order. Both sequences belong to
nobody: whoever takes a run may keep them, and nobody changes them."""

GONE: Final = object()
"""In the changes of a snapshot: there is nothing of that name any more."""

CHANGES: Final = 1 << 17
"""Most names in one piece of the changes of a snapshot. Larger dictionaries take long to grow, and to let go."""

Fail = Callable[[bytes, int, bool, Any, Exception], None]
"""Called instead of the next step when a user function raises. What fails is an item of its own: it is held by the
barrier like every output, and taken back if the failing item turns out to be a wrong guess."""


def each(step: Step) -> Run:
    """The run that steps through its items."""

    def run(orders: Orders, trace: int, payloads: Sequence[Any]) -> None:
        for order, payload in zip(orders, payloads, strict=True):
            step(order, trace, True, payload)

    return run
