"""What of a graph its state depends on: written down with every snapshot, and held against the graph that goes on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from flamecore.errors import JobError
from flamecore.fitting import in_types
from flamecore.graph import Graph
from flamecore.hashing import key_group, key_groups
from flamecore.hints import returned
from flamecore.vertices import ByKey, Drift, Grouping, Vertex

Facts = Mapping[str, Any]
"""Of one operation: `kind`, `window` of a grouping, what tells its entries apart (`by`), and the declared types of its
keys (`key`) and states (`state`) in words, where they are known."""

_BINDING: Final = ("kind", "window", "by")
"""What makes state unusable if it changes. Types are only told: the values themselves say whether they still fit."""


def keeps_state(vertex: Vertex) -> bool:
    """Whether there is anything of an operation in a snapshot."""
    if isinstance(vertex, Grouping):
        return not vertex.undo_partial and vertex.window > 1
    return isinstance(vertex, Drift)


def state_facts(graph: Graph) -> dict[str, dict[str, Any]]:
    """The facts of every operation of a graph that keeps state, by name."""
    return {vertex.name: _facts_of(vertex) for vertex in graph.vertices if keeps_state(vertex)}


def _facts_of(vertex: Vertex) -> dict[str, Any]:
    facts: dict[str, Any] = {"kind": vertex.kind}
    by_key = isinstance(vertex.route, ByKey)
    if isinstance(vertex, Grouping):
        facts["window"] = vertex.window
        facts["by"] = "key" if by_key else "hash" if vertex.equal is None else "equality"
    types = {"key": returned(vertex.route.key) if isinstance(vertex.route, ByKey) else object}
    types["state"] = getattr(vertex, "state", object)
    return facts | {name: words for name, hint in types.items() if (words := in_types(hint))}


def groups_function(facts: Facts) -> Callable[[Sequence[Any]], Sequence[int]]:
    """What finds the key groups of names of an operation's state. Raises `TypeError` for what cannot be one."""
    by = facts.get("by", "key")
    if by == "key":
        return key_groups
    return lambda names: [key_group(name if by == "hash" else name[0]) for name in names]


def difference(stored: Facts, now: Facts | None) -> str:
    """Why the state of an operation cannot be gone on with, in words; empty if it can."""
    if now is None:
        return "the flow has no operation of that name which keeps state"
    if all(stored[key] == now.get(key) for key in _BINDING if key in stored):
        return ""
    return f"it was that of a {in_words(stored)}, and the operation is a {in_words(now)} now"


def in_words(facts: Facts) -> str:
    """The kind of an operation, with what else its state depends on."""
    window = f" of window {facts['window']}" if "window" in facts else ""
    by = "" if facts.get("by", "key") == "key" else f" by {facts['by']}"
    return f"{facts['kind']}{window}{by}"


def check_facts(stored: Mapping[str, Facts], graph: Graph) -> None:
    """Refuse to go on from the state of another graph.

    Raises:
        JobError: An operation has state that this graph does not know, or knows as another kind.
    """
    now = state_facts(graph)
    lost = {name: why for name, facts in stored.items() if (why := difference(facts, now.get(name)))}
    if lost:
        what = "; ".join(f"{name!r}: {why}" for name, why in sorted(lost.items()))
        raise JobError(
            f"the state was stored by another version of the flow, and part of it would be lost. {what}",
            hint="See what would be kept and dropped: flamestream plan. To accept that: flamestream plan --accept. "
            "Or keep the state somewhere else.",
        )
