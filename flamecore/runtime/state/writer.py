"""A worker's side of snapshots: what it writes for each, and how a state is put together again.

A cut brings what has changed. Beside that a snapshot holds some of the state as it stands, whether it has changed or
not: the next few names of a *sweep* that goes over all of them, again and again. When a sweep is through, all there is
has been written since it began, and what was written before can be dropped. So no snapshot costs more than what has
changed and a small share of the state, and what it takes to read one stays little.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from math import ceil
from typing import Any, Final, Protocol

from flamecore.abc.operator import GONE
from flamecore.runtime.codec.codec import Codec
from flamecore.runtime.state.format import Binding, Part, Row, Section, digest_of, encode_part, encode_section

_SECTION_BYTES: Final = 32 * 2**10
"""About how large a section is: it is made without a break."""

_LEAST, _MOST = 16, 4096
"""Names in a section, as far as there are so many."""

_PARTS: Final = 512
"""A sweep is the faster the more parts there are; with so many it is done in one snapshot. Commonly there are 80 to
160."""

_AT_ONCE: Final = 32_768
"""Most names that are read for a sweep at once: nothing else is done meanwhile. With very many parts there is no such
limit."""

Changes = Mapping[str, Sequence[Mapping[Any, Any]]]
"""For each operation what has changed, by name; piece by piece, as later ones may hold a name once more."""


class ReadableState(Protocol):
    """What a writer needs of an operation; see `flamecore.abc.operator.StatefulOperator`."""

    @property
    def names(self) -> list[Any]: ...

    def snapshot_of(self, names: Sequence[Any]) -> Mapping[Any, Any]: ...


class StateWriter:
    """Writes the state that one worker keeps of operations that it owns the same key groups of.

    Args:
        operations: Those that keep state, by name of their vertex.
        codec: Encodes state.
        groups: The first and the last key group of the worker; of one that owns none: (0, -1).
        parts: How many there are with state of these, in the snapshot that the worker goes on from.
        alone: Whether the job has no other operations that keep state.
    """

    def __init__(
        self,
        operations: Mapping[str, ReadableState],
        codec: Codec,
        groups: tuple[int, int],
        parts: int = 0,
        *,
        alone: bool = True,
    ) -> None:
        self.groups = groups
        self.covers = () if alone else tuple(sorted(operations))
        """Its operations, as parts tell of them; see `flamecore.runtime.state.format.Part`."""
        self.since = 0
        """The number of the snapshot in which the last sweep began that is through; 0: none is."""
        self._operations, self._codec, self._parts = operations, codec, parts
        self._begun = 0  # the number of the snapshot in which this sweep began; 0: it has not
        self._own = 0  # how many parts have been written since
        self._todo: list[tuple[str, int, int]] = []  # what is left of it: operation, from where, to where

    def prepare(self, number: int, changes: Changes) -> Iterator[tuple[Section, bytes]]:
        """Take what a cut has found, right after it. What the sweep comes to is read at once.

        Args:
            number: Of the snapshot.
            changes: Of the worker's operations. If there are none of its own, there is nothing to be written.

        Returns:
            The sections to be written, with their bytes: a moment's work each. Exhaust it before the next call.

        Raises:
            CodecError: While it is exhausted: a state is of a type that cannot be stored.
        """
        own = self._operations
        pieces = [(vertex, piece) for vertex, pieces in changes.items() if vertex in own for piece in pieces if piece]
        if pieces:
            pieces += self._sweep(number)
        return self._sections(pieces)

    def _sweep(self, number: int) -> list[tuple[str, Mapping[Any, Any]]]:
        """Go on with the sweep, or begin one."""
        self._parts += 1
        self._own += 1
        if not self._todo:
            self._begun, self._own = number, 1
            self._todo = [(name, 0, len(operation.names)) for name, operation in self._operations.items()]
        total = sum([len(operation.names) for operation in self._operations.values()])
        left = max(ceil(total * (self._parts / _PARTS) ** 3), 1)
        if self._parts < 4 * _PARTS:
            left = min(left, _AT_ONCE)
        swept: list[tuple[str, Mapping[Any, Any]]] = []
        while self._todo and left > 0:
            vertex, start, end = self._todo.pop(0)
            stop = min(start + left, end)
            left -= stop - start
            operation = self._operations[vertex]
            swept.append((vertex, operation.snapshot_of(operation.names[start:stop])))
            if stop < end:
                self._todo.insert(0, (vertex, stop, end))
        if not self._todo:
            self.since, self._parts = self._begun, self._own
        return swept

    def _sections(self, pieces: list[tuple[str, Mapping[Any, Any]]]) -> Iterator[tuple[Section, bytes]]:
        for vertex, piece in pieces:
            names, values, count = iter(piece), iter(piece.values()), _LEAST
            while some := list(islice(names, count)):
                section = _section(vertex, some, list(islice(values, count)))
                encoded = encode_section(self._codec, section)
                count = min(max(count * _SECTION_BYTES // len(encoded), _LEAST), 2 * count, _MOST)
                yield section, encoded


def _section(vertex: str, names: list[Any], values: list[Any]) -> Section:
    if type(GONE) not in set(map(type, values)):
        return Section(vertex, names, values, [])
    gone = [name for name, value in zip(names, values, strict=True) if value is GONE]
    there = {name: value for name, value in zip(names, values, strict=True) if value is not GONE}
    return Section(vertex, list(there), list(there.values()), gone)


class PartWriter:
    """Collects the sections of one part.

    Args:
        blob: Its name.
        codec: Encodes it.
        groups: The first and the last key group of the worker.
        number: Of the snapshot.
        since: See `flamecore.runtime.state.format.Part`.
        binding: The epoch's.
        covers: See `flamecore.runtime.state.format.Part`.
    """

    def __init__(
        self,
        blob: str,
        codec: Codec,
        groups: tuple[int, int],
        number: int,
        since: int,
        binding: Binding,
        covers: tuple[str, ...] = (),
    ) -> None:
        self.size = 0
        """Bytes of the sections so far."""
        self._about = (groups, number, since)
        self._covers = covers
        self._blob = blob
        self._codec = codec
        self._binding = binding
        self._rows: list[Row] = []

    def add(self, section: Section, encoded: bytes) -> None:
        """Take a section and its bytes."""
        self._rows.append((section.vertex, encoded))
        self.size += len(encoded)

    def finish(self) -> tuple[Part, bytes] | None:
        """The part and its bytes; None when there is nothing in it."""
        if not self._rows:
            return None
        data = encode_part(self._codec, self._rows, self._blob, self._binding)
        operations = tuple(dict.fromkeys(vertex for vertex, _ in self._rows))
        return Part(self._blob, len(data), operations, *self._about, digest_of(data), self._covers), data
