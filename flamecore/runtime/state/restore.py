"""The state that a worker loads from a snapshot: its key groups, from all parts."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from flamecore.abc.store import Store
from flamecore.errors import CodecError
from flamecore.model.failure import shorten_repr
from flamecore.model.hashing import can_differ
from flamecore.model.messages import Resume
from flamecore.runtime.codec.codec import Codec
from flamecore.runtime.state.format import Binding, Manifest, Part, Section, decode_manifest, decode_part
from flamecore.runtime.state.schema import GroupsOf

_SAMPLE: Final = 16
"""Names of a section that are checked, if all of them are to be taken."""


def _hashed_otherwise(vertex: str, name: object) -> CodecError:
    return CodecError(
        f"{vertex!r} has state for {shorten_repr(name)}, which is not where a key of that hash is stored: "
        "its class has another form now, or key_by another place",
        hint="A class of keys keeps its fields, in their order, and a key its place. See what would be lost: "
        "flamestream plan.",
        type_name=type(name).__qualname__,
        vertex=vertex,
    )


class StateReader:
    """The state of key groups, assembled from the parts of a snapshot, oldest first.

    Args:
        groups: The wanted key groups.
        operations: The wanted operations: name → function that returns key groups.
        swept: Result of `flamecore.runtime.state.format.Manifest.swept` for these operations.
    """

    def __init__(
        self, groups: Collection[int], operations: Mapping[str, GroupsOf], swept: Mapping[str, Sequence[int]]
    ) -> None:
        self._swept = swept
        self._groups = frozenset(groups)
        self._operations = operations
        self._differing: set[str] = set()  # operations with keys that may be equal and differ
        self.states: dict[str, dict[object, object]] = {name: {} for name in operations}

    def wants(self, part: Part) -> bool:
        """Return whether a part may hold wanted state."""
        return not self._groups.isdisjoint(part.span) and any(name in self.states for name in part.operations)

    def operations_in(self, part: Part) -> frozenset[str]:
        """Return the operations whose sections to decode.

        Sections that the manifest does not list do not count.
        """
        return frozenset(self.states).intersection(part.operations)

    def apply(self, part: Part, sections: list[Section]) -> None:
        """Add the sections of the next part, in their order.

        Raises:
            CodecError: Keys hash differently than when they were stored, so others may be missed in other parts.
        """
        span = frozenset(part.span)
        both = self._groups & span
        for vertex, names, values, gone in sections:
            held, swept = self.states[vertex], self._swept[vertex]
            # Not from every part that is there: the one that says a key has gone may be dropped while a wider one,
            # which held the key, is still needed for other groups. The key would come back.
            wanted = frozenset([group for group in both if part.number >= swept[group]])
            whole = wanted == span
            some = names[:_SAMPLE] if whole else names  # a changed hash changes for all keys of a class
            try:
                groups = self._operations[vertex](some)
            except TypeError as error:
                raise CodecError(f"{vertex!r} has state for what cannot be a key any more: {error}") from error
            if not span.issuperset(groups):
                raise _hashed_otherwise(vertex, next(n for n, g in zip(some, groups, strict=True) if g not in span))
            if vertex in self._differing or can_differ(names):
                self._differing.add(vertex)
                for name in names:
                    held.pop(name, None)  # an equal one may differ, and a dictionary would keep that
            if whole:
                held.update(zip(names, values, strict=True))
            else:
                held.update(
                    (name, value) for group, name, value in zip(groups, names, values, strict=True) if group in wanted
                )
            for name in gone if whole else self._within(vertex, gone, wanted):
                held.pop(name, None)

    def _within(self, vertex: str, names: list[object], groups: Collection[int]) -> Iterator[object]:
        """Yield the names that are of some key groups."""
        return (name for name, group in zip(names, self._operations[vertex](names), strict=True) if group in groups)


@dataclass(frozen=True, slots=True)
class StateAccess:
    """Access of a node's parts to state.

    Attributes:
        store: The open store.
        codec: Codec of the state.
        resume: The snapshot and journals to continue from.
        max_uncommitted: Most records admitted since the last snapshot, for the whole job.
    """

    store: Store
    codec: Codec
    resume: Resume
    max_uncommitted: int


async def load_manifest(store: Store, resume: Resume) -> Manifest | None:
    """Return the snapshot to continue from; None: from nothing.

    Raises:
        CorruptError: It cannot be used, or differs from the one that the control has read.
    """
    if not resume.commit:
        return None
    expected = Binding(resume.identity, digest=dict(resume.digests).get(resume.commit, b""))
    return decode_manifest(await store.read(resume.commit), resume.commit, expected)


async def load_state(
    store: Store, codec: Codec, manifest: Manifest, groups: Collection[int], operations: Mapping[str, GroupsOf]
) -> dict[str, dict[object, Any]]:
    """Return the state of key groups: for each operation a dictionary by name.

    Args:
        store: The open store.
        codec: Codec of the state.
        manifest: Manifest of the snapshot.
        groups: The wanted key groups.
        operations: The wanted operations: name → function that returns key groups.

    Raises:
        CorruptError: A part is missing or damaged.
        CodecError: A class of its values is no longer declared, or has changed its form.
    """
    reader = StateReader(groups, operations, manifest.swept(operations))
    for part in manifest.parts:
        if reader.wants(part):
            blob, expected = await store.read(part.blob), Binding(manifest.identity, digest=part.digest)
            reader.apply(part, decode_part(codec, blob, part.blob, expected, reader.operations_in(part)))
    return reader.states
