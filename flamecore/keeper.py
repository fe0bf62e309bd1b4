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
from flamecore.snapshot import Groups, Part, Row, Section, encode_sections

_CHUNK: Final = 2048
"""Most names in a section of changes: what is encoded without a break."""

_BURDEN: Final = 4
"""With how many times as many changes in one part a key group that is written in full is soon written again."""

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
        self._codec = codec
        self._kept = {
            vertex: _Kept(vertex, function, (held or {}).get(vertex, {})) for vertex, function in group_of.items()
        }
        for vertex, group in waiting:
            self._kept[vertex].waiting[group] = None

    def sections(self, changes: Changes) -> Iterator[tuple[Section, bytes]]:
        """Take what has changed; yields the sections of the part, a moment's work each, in the order of the part.

        Exhaust it before the next call.
        """
        for vertex, changed in changes.items():
            names = list(changed)
            for start in range(0, len(names), _CHUNK):
                section = self._kept[vertex].change(changed, names[start : start + _CHUNK])
                if section.names or section.gone:
                    yield section, self._codec.encode(tuple(section))
        count = sum(map(len, changes.values()))
        for kept in self._kept.values():
            for section in kept.next_in_full(count):
                yield section, self._codec.encode(tuple(section))


class _Kept:
    """The committed state of one operation, by name; and which names each key group has."""

    def __init__(self, vertex: str, group_of: Callable[[Any], int], held: Groups) -> None:
        self._vertex = vertex
        self._group_of = group_of
        self._values: dict[Any, Any] = {}
        self._groups: dict[Any, int] = {}  # of every name that was ever here: to find it takes a hash
        self._names: dict[int, list[Any]] = {}
        for group, values in held.items():
            self._values.update(values)
            self._groups.update(dict.fromkeys(values, group))
            self._names[group] = list(values)
        self.waiting: dict[int, None] = {}  # key groups that have changed since they were written in full, by turns

    def change(self, changed: Mapping[Any, Any], names: list[Any]) -> Section:
        """Take some of what has changed. Nearly all of the work is done by loops in C."""
        groups = list(map(self._groups.get, names))
        if None in groups:
            for place, group in enumerate(groups):
                if group is None:
                    groups[place] = self._meet(names[place])
        values = [changed[name] for name in names]
        gone: list[tuple[int, Any]] = []
        if GONE in values:
            there = [place for place, value in enumerate(values) if value is not GONE]
            for place, value in enumerate(values):
                if value is GONE and self._values.pop(names[place], GONE) is not GONE:
                    gone.append((groups[place], names[place]))  # type: ignore[arg-type]
            groups, names, values = ([column[place] for place in there] for column in (groups, names, values))
        self._values.update(zip(names, values, strict=True))
        for group in sorted({*groups, *(group for group, _ in gone)}):  # type: ignore[type-var]
            self.waiting.setdefault(group)  # type: ignore[arg-type]
        return Section(self._vertex, False, groups, names, values, gone)  # type: ignore[arg-type]

    def _meet(self, name: Any) -> int:
        group = self._groups[name] = self._group_of(name)
        self._names.setdefault(group, []).append(name)
        return group

    def next_in_full(self, beside: int) -> Iterator[Section]:
        """Of the key groups that have changed since they were last written in full, the one that has waited longest:
        its beginning, which takes the place of what was there, and then what is more of it.

        Args:
            beside: How many changes are in the same part.
        """
        group = next(iter(self.waiting), None)
        if group is None:
            return
        del self.waiting[group]
        names = [name for name in self._names[group] if name in self._values]
        if beside > _BURDEN * len(names):  # the part is to be dropped some day, and so not to be needed for this
            self.waiting[group] = None
        for start in range(0, max(len(names), 1), _CHUNK):
            some = names[start : start + _CHUNK]
            values = [self._values[name] for name in some]
            yield Section(self._vertex, start == 0, [group] * len(some) if start else [group], some, values, [])


class PartWriter:
    """Collects the sections of one part."""

    def __init__(self, blob: str, codec: Codec) -> None:
        self._blob = blob
        self._codec = codec
        self._rows: list[Row] = []
        self._full: set[tuple[str, int]] = set()
        self._changed: set[tuple[str, int]] = set()

    def add(self, section: Section, encoded: bytes) -> None:
        """Take a section and its bytes."""
        if section.full:
            self._full.add((section.vertex, section.groups[0]))
        else:
            self._changed.update((section.vertex, group) for group in section.groups)
            self._changed.update((section.vertex, group) for group, _ in section.gone)
        self._rows.append(section.row(encoded))

    def finish(self) -> tuple[Part, bytes] | None:
        """The part and its bytes; None when nothing has changed."""
        if not self._rows:
            return None
        data = encode_sections(self._codec, self._rows)
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

    def wanted(self, part: Part) -> Callable[[str, int, int], bool]:
        """Which sections of a part to decode, for `decode_sections`: what the manifest does not tell of, does not
        count."""
        groups = self._groups
        counted = {
            vertex for vertex, group in (*part.full, *part.changed) if group in groups and vertex in self._vertices
        }
        return lambda vertex, first, last: vertex in counted and not groups.isdisjoint(range(first, last + 1))

    def apply(self, sections: list[Section]) -> None:
        """Take the sections of the next part, in their order."""
        for vertex, full, groups, names, values, gone in sections:
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
