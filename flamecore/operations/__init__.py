"""What a vertex does with an item.

An operation is compiled into a *step*, a function of one item's four parts:

    step(order, trace, alive, payload)

A step does its work and calls the step of what comes next; so an item runs depth first to its end on a worker, and
nothing is boxed on the way. Steps know neither workers nor transports nor progress: routes are steps too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Step = Callable[[bytes, int, bool, Any], None]
"""(order, trace, alive, payload): `alive` is False for a tombstone."""

Fail = Callable[[bytes, int, bool, Any, Exception], None]
"""Called instead of the next step when a user function raises. What fails is an item of its own: it is held by the
barrier like every output, and taken back if the failing item turns out to be a wrong guess."""
