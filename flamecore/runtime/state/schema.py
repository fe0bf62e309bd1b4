"""What of a graph its state depends on: written down with every snapshot, and held against the graph that goes on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from flamecore.errors import JobError
from flamecore.model.graph import Graph
from flamecore.model.hashing import key_group, key_groups
from flamecore.model.types import returned, type_text
from flamecore.model.vertices import ByKey, Vertex

Facts = Mapping[str, Any]
"""Of one operation: `kind`, what else its state depends on (`Vertex.state_facts`), and the declared types of its keys
(`key`) and states (`state`) in words, where they are known."""

_TYPES: Final = ("key", "state")
"""Facts that may change: the values themselves say whether they still fit. Any other makes state unusable."""


def state_schema(graph: Graph) -> dict[str, dict[str, Any]]:
    """Return the facts of every operation of a graph that keeps state, by name."""
    return {vertex.name: _facts_of(vertex) for vertex in graph.vertices if vertex.keeps_state}


def _facts_of(vertex: Vertex) -> dict[str, Any]:
    key = returned(vertex.route.key) if isinstance(vertex.route, ByKey) else object
    types = {name: type_text(hint) for name, hint in (("key", key), ("state", vertex.state))}
    return {"kind": vertex.kind, **vertex.state_facts, **{name: words for name, words in types.items() if words}}


def groups_function(facts: Facts) -> Callable[[Sequence[Any]], Sequence[int]]:
    """What finds the key groups of names of an operation's state. Raises `TypeError` for what cannot be one."""
    by = facts.get("by", "key")
    if by == "key":
        return key_groups
    return lambda names: [key_group(name if by == "hash" else name[0]) for name in names]


def incompatibility(stored: Facts, now: Facts | None) -> str:
    """Why the state of an operation cannot be gone on with, in words; empty if it can."""
    if now is None:
        return "the flow has no operation of that name which keeps state"
    if all(now.get(name) == fact for name, fact in stored.items() if name not in _TYPES):
        return ""
    return f"it was that of a {in_words(stored)}, and the operation is a {in_words(now)} now"


def in_words(facts: Facts) -> str:
    """The kind of an operation, with what else its state depends on."""
    window = f" of window {facts['window']}" if "window" in facts else ""
    by = "" if facts.get("by", "key") == "key" else f" by {facts['by']}"
    others = [f"{name} {fact}" for name, fact in facts.items() if name not in ("kind", "window", "by", *_TYPES)]
    return f"{facts['kind']}{window}{by}{' with ' if others else ''}{', '.join(others)}"


def check_schema(stored: Mapping[str, Facts], graph: Graph) -> None:
    """Refuse to go on from the state of another graph.

    Raises:
        JobError: An operation has state that this graph does not know, or knows as another kind.
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
