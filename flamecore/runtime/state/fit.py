"""A check of stored values against the operation that continues with them.

Compares them with declared types, and with the initial states of the operation.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Final

from flamecore.abc.store import Store
from flamecore.errors import CodecError, CorruptError, JobError
from flamecore.model.failure import shorten_repr as shown
from flamecore.model.graph import Graph
from flamecore.model.ordered import is_shared
from flamecore.model.types import TypeMatcher, hint_text, returned
from flamecore.model.vertices import ByKey, Vertex
from flamecore.runtime.codec.codec import Codec
from flamecore.runtime.state.format import Binding, Manifest, decode_part
from flamecore.runtime.state.schema import Facts, state_schema

_SAMPLE: Final = 1000
"""Values per operation checked before a run, newest first: states of one operation are of one kind."""


def has_changed(stored: Facts, now: Facts) -> bool:
    """Return whether the declared types or the form of the states have changed."""
    return any(stored.get(name) != now.get(name) for name in ("key", "state", "form"))


def misfit(vertex: Vertex, stored: Facts, now: Facts, values: Mapping[object, object]) -> str:
    """Return why stored values do not fit an operation; empty if they do."""
    matcher = TypeMatcher()
    declared = returned(vertex.route.key) if isinstance(vertex.route, ByKey) else object
    key_fits, state_fits = matcher.test_of(declared), matcher.test_of(vertex.state)
    begins = vertex.begins if has_changed(stored, now) and vertex.state is object else object
    goes_on = TypeMatcher(depth=0).test_of(begins)
    for key, value in values.items():
        if is_shared(key):
            continue
        if not key_fits(key):
            return f"there is a key {shown(key)}, and its keys are declared otherwise: {hint_text(declared)}"
        if not state_fits(value):
            return f"its state for {shown(key)} is {shown(value)}, and is declared otherwise: {hint_text(vertex.state)}"
        if not goes_on(value):
            return f"its state for {shown(key)} is {shown(value)}, and that of a {now['form']} is something else"
    return ""


def unknown(vertex: Vertex, stored: Facts, now: Facts) -> str:
    """Return why the fit of stored states cannot be known; empty if it can."""
    if not has_changed(stored, now) or vertex.state is not object or vertex.begins is not object:
        return ""
    form = now.get("form")
    return f"cannot know whether they fit a {form}: its function is not annotated" if form else ""


async def check_values(store: Store, codec: Codec, identity: str, manifest: Manifest, graph: Graph) -> None:
    """Refuse states that do not fit; read no state of unchanged operations.

    Args:
        store: The open store.
        codec: Codec with the types of the graph.
        identity: Identity of the state.
        manifest: Manifest of the snapshot, without the accepted loss.
        graph: The graph that continues; its schema fits.

    Raises:
        JobError: A value does not fit.
        StoreError: The store fails.
    """
    now = state_schema(graph)
    vertices = {vertex.name: vertex for vertex in graph.vertices}
    left = {name: _SAMPLE for name, facts in manifest.flow.items() if has_changed(facts, now[name])}
    for part in reversed(manifest.parts):
        wanted = left.keys() & frozenset(part.operations)
        if not wanted:
            continue
        expected, blob = Binding(identity, digest=part.digest), await store.read(part.blob)
        sections = []
        with suppress(CorruptError, CodecError):  # loading the state reports it, and knows the alternatives
            sections = decode_part(codec, blob, part.blob, expected, wanted)
        for name, keys, values, _ in sections:
            sample = dict(zip(keys[: left.get(name, 0)], values, strict=False))
            if why := misfit(vertices[name], manifest.flow[name], now[name], sample):
                raise JobError(
                    f"{name!r} cannot continue from the state that is stored for it: {why}",
                    hint="flamestream plan shows what would be kept. To continue without the rest: flamestream plan "
                    "--accept. Or give the operation another name.",
                )
            if name in left and (rest := left[name] - len(sample)) > 0:
                left[name] = rest
            else:
                left.pop(name, None)
