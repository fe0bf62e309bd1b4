"""What of a graph its state depends on: written down with every snapshot, and held against the graph that goes on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from flamecore.errors import JobError
from flamecore.model.graph import Graph
from flamecore.model.hashing import key_group, key_groups
from flamecore.model.types import returned, type_text
from flamecore.model.vertices import Broadcast, ByKey, Vertex

Facts = Mapping[str, Any]
"""Of one operation: `kind`, what else its state depends on (`Vertex.state_facts`), and the declared types of its keys
(`key`) and states (`state`) in words, where they are known, and how states come about (`form`)."""

_COPIES: Final = {"copies": "by place"}
"""Fact of an operation to which several copies of one item come, in the order of their places. Those whose state says
nothing of it took them in the order in which the lines of the flow used them."""

NEW: Final = frozenset(("copies", "form"))
"""Facts that earlier versions did not know."""

_TYPES: Final = ("key", "state", "form")
"""Facts that may change: the values themselves say whether they still fit (`flamecore.runtime.state.fit`). Any other
makes state unusable."""


def state_schema(graph: Graph) -> dict[str, dict[str, Any]]:
    """Return the facts of every operation of a graph that keeps state, by name."""
    kept = [vertex for vertex in graph.vertices if vertex.keeps_state]
    copied = _fed_by_copies(graph, [fork for fork in graph.vertices if isinstance(fork, Broadcast)])
    return {vertex.name: _facts_of(vertex) | (_COPIES if vertex in copied else {}) for vertex in kept}


def _fed_by_copies(graph: Graph, forks: Sequence[Vertex]) -> set[Vertex]:
    """Return the vertices to which several copies of one item come."""
    fed: set[Vertex] = set()
    for fork in forks:
        count = Counter(vertex for end in graph.successors(fork) for vertex in graph.reach_of(end))
        fed |= {vertex for vertex, ways in count.items() if ways > 1}
    return fed


def _facts_of(vertex: Vertex) -> dict[str, Any]:
    key = returned(vertex.route.key) if isinstance(vertex.route, ByKey) else object
    types = {name: type_text(hint) for name, hint in (("key", key), ("state", vertex.state))}
    words = {**types, "form": vertex.form}
    return {"kind": vertex.kind, **vertex.state_facts, **{name: text for name, text in words.items() if text}}


def groups_function(facts: Facts) -> Callable[[Sequence[Any]], Sequence[int]]:
    """What finds the key groups of names of an operation's state. Raises `TypeError` for what cannot be one."""
    by = facts.get("by", "key")
    if by == "key":
        return key_groups
    return lambda names: [key_group(name if by == "hash" else name[0]) for name in names]


def resorted(graph: Graph) -> frozenset[str]:
    """Return the names of operations to which copies come in another order than in earlier versions."""
    forks = [fork for fork in graph.vertices if isinstance(fork, Broadcast) and fork.resorted]
    return frozenset(vertex.name for vertex in _fed_by_copies(graph, forks))


def incompatibility(stored: Facts, now: Facts | None, *, resorted: bool = False) -> str:
    """Why the state of an operation cannot be gone on with, in words; empty if it can.

    Args:
        stored, now: What the state and the flow say of the operation.
        resorted: Whether copies come to it in another order than in earlier versions.
    """
    if now is None:
        return "the flow has no operation of that name which keeps state"
    if resorted and "copies" not in stored:
        return (
            "it was stored by an earlier flamestream, to which the copies of an item came in the order of the flow's "
            "lines, and they come by their places now: swap the places in the broadcast's tuple, or the merge's inputs"
        )
    if all(now.get(name) == fact for name, fact in stored.items() if name not in (*_TYPES, "copies")):
        return ""
    return f"it was that of a {in_words(stored)}, and the operation is a {in_words(now)} now"


def in_words(facts: Facts) -> str:
    """The kind of an operation, with what else its state depends on."""
    window = f" of window {facts['window']}" if "window" in facts else ""
    by = "" if facts.get("by", "key") == "key" else f" by {facts['by']}"
    others = [
        f"{name} {fact}" for name, fact in facts.items() if name not in ("kind", "window", "by", "copies", *_TYPES)
    ]
    return f"{facts['kind']}{window}{by}{' with ' if others else ''}{', '.join(others)}"


def check_schema(stored: Mapping[str, Facts], graph: Graph) -> None:
    """Refuse to go on from the state of another graph.

    Raises:
        JobError: An operation has state that this graph does not know, or knows as another kind.
    """
    now, moved = state_schema(graph), resorted(graph)
    lost = {
        name: why
        for name, facts in stored.items()
        if (why := incompatibility(facts, now.get(name), resorted=name in moved))
    }
    if lost:
        what = "; ".join(f"{name!r}: {why}" for name, why in sorted(lost.items()))
        raise JobError(
            f"the state was stored by another version of the flow, and part of it would be lost. {what}",
            hint="See what would be kept and dropped: flamestream plan. To accept that: flamestream plan --accept. "
            "Or keep the state somewhere else.",
        )
