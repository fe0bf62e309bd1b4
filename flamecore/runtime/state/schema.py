"""The facts of a graph that its state depends on.

They are stored with every snapshot, and compared with the graph that continues.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from flamecore.errors import JobError
from flamecore.model.failure import describe
from flamecore.model.graph import Graph
from flamecore.model.hashing import key_group, key_groups
from flamecore.model.ordered import is_shared
from flamecore.model.types import returned, type_text
from flamecore.model.vertices import ByKey, Vertex

Facts = Mapping[str, object]
"""Facts of one operation: `kind`, what else its state depends on (`Vertex.state_facts`), and, if known, the declared
types of its keys (`key`) and states (`state`) as text, and how states are made (`form`)."""

_TYPES: Final = ("key", "state", "form")
"""Facts that may change: the values show whether they still fit (`flamecore.runtime.state.fit`). A change of any other
fact makes state unusable."""


def state_schema(graph: Graph) -> dict[str, dict[str, object]]:
    """Return the facts of every operation of a graph that keeps state, by name."""
    return {vertex.name: _facts_of(vertex) for vertex in graph.vertices if vertex.keeps_state}


def _facts_of(vertex: Vertex) -> dict[str, object]:
    key = returned(vertex.route.key) if isinstance(vertex.route, ByKey) else object
    types = {name: type_text(hint) for name, hint in (("key", key), ("state", vertex.state))}
    words = {**types, "form": vertex.form}
    by = {"by": "place"} if isinstance(vertex.route, ByKey) and vertex.route.place is not None else {}
    return {"kind": vertex.kind, **vertex.state_facts, **by, **{name: text for name, text in words.items() if text}}


GroupsOf = Callable[[Sequence[Any]], Sequence[int]]
"""Function that returns the key groups of names."""


def groups_by_place(vertex: Vertex) -> GroupsOf | None:
    """Return the function from a vertex's keys to their key groups, by place.

    None: the vertex does not say the places of its keys.
    """
    place = vertex.route.place if isinstance(vertex.route, ByKey) else None
    if place is None:
        return None

    def place_of(name: object) -> object:
        if is_shared(name):  # it is stored for a key group, and no key of the flow
            return name
        try:
            return place(name)
        except Exception as error:  # the user's function, on a key of an earlier version of the flow
            raise TypeError(f"its place cannot be found, {describe(error)}") from error

    return lambda names: key_groups(list(map(place_of, names)))


def groups_function(facts: Facts, vertex: Vertex | None = None) -> GroupsOf | None:
    """Return a function from names of an operation's state to their key groups.

    The function raises `TypeError` for values that cannot be names.

    Args:
        facts: Facts of the operation.
        vertex: The operation in the flow, for places of keys.

    Returns:
        None if only the flow knows the places of the keys, and it is not given or has none.
    """
    by = facts.get("by", "key")
    if by == "key":
        return key_groups
    if by == "place":
        return None if vertex is None else groups_by_place(vertex)
    return lambda names: [key_group(name if by == "hash" else name[0]) for name in names]


def incompatibility(stored: Facts, now: Facts | None) -> str:
    """Return why an operation cannot continue with its state; empty if it can.

    Args:
        stored, now: Facts of the operation in the state and in the flow; None: the flow does not have it.
    """
    if now is None:
        return "the flow has no operation of that name which keeps state"
    if _settled(stored) == _settled(now):
        return ""
    return f"it was that of a {in_words(stored)}, and the operation is a {in_words(now)} now"


def _settled(facts: Facts) -> dict[str, object]:
    """Return the facts that may not change."""
    return {name: fact for name, fact in facts.items() if name not in _TYPES}


def in_words(facts: Facts) -> str:
    """Describe an operation by its kind and the other facts of its state."""
    window = f" of window {facts['window']}" if "window" in facts else ""
    by = "" if facts.get("by", "key") == "key" else f" by {facts['by']}"
    others = [f"{name} {fact}" for name, fact in _settled(facts).items() if name not in ("kind", "window", "by")]
    return f"{facts['kind']}{window}{by}{' with ' if others else ''}{', '.join(others)}"


def check_schema(stored: Mapping[str, Facts], graph: Graph) -> None:
    """Refuse to continue from the state of another graph.

    Raises:
        JobError: The graph lacks an operation with state, or has it as another kind.
    """
    now = state_schema(graph)
    lost = {name: why for name, facts in stored.items() if (why := incompatibility(facts, now.get(name)))}
    if lost:
        what = "; ".join(f"{name!r}: {why}" for name, why in sorted(lost.items()))
        raise JobError(
            f"the state was stored by another version of the flow, and part of it would be lost. {what}",
            hint="See what would be kept and dropped: flamestream plan. To accept that: flamestream plan --accept. "
            "Or keep the state somewhere else.",
        )
