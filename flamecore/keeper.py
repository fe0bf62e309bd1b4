"""A worker's side of snapshots: what it has committed, and the part it writes for the next one.

The keeper holds the state as it was at the last snapshot, by key group. A cut brings what has changed; the part for it
holds these changes and one of the key groups in full, the one that has waited longest: so what the oldest parts hold is
written anew little by little, and they can be dropped. No snapshot costs more than what has changed and that one group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from flamecore.codec import Codec
from flamecore.operations import GONE
from flamecore.snapshot import Groups, Part, Section, encode_sections

_CHUNK: Final = 2048
"""Most names in a section of changes: what is encoded without a break."""

Changes = Mapping[str, Mapping[Any, Any]]
"""For each operation what has changed, by name."""


class Keeper:
    """The committed state of one worker.

    Args:
        group_of: For each stateful operation, by name of its vertex: the key group of a name.
        codec: Encodes state.
        held: The state of the snapshot that the worker goes on from.
        waiting: (vertex, key group) of what has changed there since it was last written in full, longest first: see
            `flamecore.snapshot.Manifest.waiting`.
    """

    def __init__(
        self,
        group_of: Mapping[str, Callable[[Any], int]],
        codec: Codec,
        held: Mapping[str, Groups] | None = None,
        waiting: Iterable[tuple[str, int]] = (),
    ) -> None:
        self._group_of = group_of
        self._codec = codec
        self._held: dict[str, dict[int, dict[Any, Any]]] = {name: {} for name in group_of}
        for vertex, groups in (held or {}).items():
            for group, values in groups.items():
                self._held[vertex][group] = dict(values)
        self._waiting: dict[str, dict[int, None]] = {name: {} for name in group_of}  # in the order of their turns
        for vertex, group in waiting:
            self._waiting[vertex][group] = None

    def sections(self, changes: Changes) -> Iterator[tuple[Section, bytes]]:
        """Take what has changed; yields the sections of the part, a moment's work each.

        Exhaust it before the next call.
        """
        for vertex, changed in changes.items():
            names = list(changed)
            for start in range(0, len(names), _CHUNK):
                section = self._changes(vertex, changed, names[start : start + _CHUNK])
                if section.names or section.gone:
                    yield section, self._codec.encode(tuple(section))
        for vertex in self._group_of:
            full = self._in_turn(vertex)
            if full is not None:
                yield full, self._codec.encode(tuple(full))

    def _changes(self, vertex: str, changed: Mapping[Any, Any], names: list[Any]) -> Section:
        group_of, held, waiting = self._group_of[vertex], self._held[vertex], self._waiting[vertex]
        section = Section(vertex, False, [], [], [], [])
        for name in names:
            group = group_of(name)
            values = held.get(group)
            if values is None:
                values = held[group] = {}
            value = changed[name]
            if value is not GONE:
                section.groups.append(group)
                section.names.append(name)
                section.values.append(value)
                values[name] = value
            elif name in values:
                section.gone.append((group, name))
                del values[name]
            else:
                continue
            waiting.setdefault(group)
        return section

    def _in_turn(self, vertex: str) -> Section | None:
        """Of the key groups that have changed since they were last written in full, the one that has waited longest."""
        waiting = self._waiting[vertex]
        if not waiting:
            return None
        group = next(iter(waiting))
        del waiting[group]
        values = self._held[vertex].get(group, {})
        return Section(vertex, True, [group], list(values), list(values.values()), [])


class PartWriter:
    """Collects the sections of one part."""

    def __init__(self, blob: str, codec: Codec) -> None:
        self._blob = blob
        self._codec = codec
        self._encoded: list[bytes] = []
        self._full: set[tuple[str, int]] = set()
        self._changed: set[tuple[str, int]] = set()

    def add(self, section: Section, encoded: bytes) -> None:
        """Take a section and its bytes."""
        if section.full:
            self._full.add((section.vertex, section.groups[0]))
        else:
            self._changed.update((section.vertex, group) for group in section.groups)
            self._changed.update((section.vertex, group) for group, _ in section.gone)
        self._encoded.append(encoded)

    def finish(self) -> tuple[Part, bytes] | None:
        """The part and its bytes; None when nothing has changed."""
        if not self._encoded:
            return None
        data = encode_sections(self._codec, self._encoded)
        return Part(self._blob, len(data), tuple(sorted(self._full)), tuple(sorted(self._changed))), data


class Restored:
    """Puts the state of some key groups together from the parts of a snapshot, given oldest first.

    Args:
        groups: The key groups that are wanted.
        vertices: The operations that are wanted.
    """

    def __init__(self, groups: frozenset[int], vertices: frozenset[str]) -> None:
        self._groups = groups
        self._vertices = vertices
        self.held: dict[str, dict[int, dict[Any, Any]]] = {name: {} for name in vertices}

    def wants(self, part: Part) -> bool:
        """Whether there is anything in a part for these."""
        return any(group in self._groups and vertex in self._vertices for vertex, group in (*part.full, *part.changed))

    def apply(self, sections: list[Section]) -> None:
        """Take the sections of the next part."""
        for vertex, full, groups, names, values, gone in sorted(sections, key=lambda section: section.full):
            if vertex not in self._vertices:
                continue
            held = self.held[vertex]
            if full:
                if groups[0] in self._groups:
                    held[groups[0]] = dict(zip(names, values, strict=True))
                continue
            for group, name, value in zip(groups, names, values, strict=True):
                if group in self._groups:
                    held.setdefault(group, {})[name] = value
            for group, name in gone:
                held.get(group, {}).pop(name, None)
