"""A worker's side of snapshots: the sections that it writes for each.

A cut brings the changes. A snapshot also holds some unchanged state: the next few names of a *sweep*, which goes over
all names again and again. When a sweep ends, the whole state has been written since it began, so older parts can be
dropped. A snapshot thus costs the changes and a small share of the state, and reading one stays cheap.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import islice
from math import ceil
from typing import Final, Protocol

from flamecore.abc.operator import GONE
from flamecore.errors import CodecError
from flamecore.model.failure import shorten_repr
from flamecore.runtime.codec.codec import Codec
from flamecore.runtime.codec.encode import PLAIN
from flamecore.runtime.state.format import Binding, Part, Row, Section, digest_of, encode_part, encode_section

_SECTION_BYTES: Final = 32 * 2**10
"""Approximate size of a section, which is encoded without a break."""

_LEAST, _MOST = 16, 4096
"""Fewest and most names in a section, if there are so many."""

_PARTS: Final = 512
"""Number of parts at which a sweep takes one snapshot; with fewer parts it is slower. Usually there are 80 to 160."""

_AT_ONCE: Final = 32_768
"""Most names read for a sweep at once, without a break. With very many parts there is no such limit."""

Changes = Mapping[str, Sequence[Mapping[object, object]]]
"""Operation → pieces of changes, by name, oldest first; a name may be in several pieces."""


class ReadableState(Protocol):
    """The part of `flamecore.abc.operator.StatefulOperator` that a writer needs."""

    @property
    def names(self) -> list[object]: ...

    @property
    def name_types(self) -> Collection[type] | None: ...

    @property
    def state_type(self) -> type | None: ...

    def snapshot_of(self, names: Sequence[object]) -> Mapping[object, object]: ...

    def compact(self) -> None: ...


class StateWriter:
    """A writer of one worker's state, for operations with the same key groups.

    Args:
        operations: Operations that keep state, by name of their vertex.
        codec: Codec of the state.
        groups: The first and the last key group of the worker; (0, -1) if it owns none.
        parts: Number of parts with state of these, in the snapshot that the worker continues from.
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
        """Value of `flamecore.runtime.state.format.Part.covers` in its parts."""
        self.since = 0
        """Number of the snapshot in which the last finished sweep began; 0: none has finished."""
        self._operations, self._codec, self._parts = operations, codec, parts
        self._begun = 0  # number of the snapshot in which this sweep began; 0: not begun
        self._own = 0  # number of parts written since
        self._todo: list[tuple[str, int, int]] = []  # the rest of it: operation, start, end
        self._dropping: set[str] = set()  # operations that have dropped names

    def prepare(self, number: int, changes: Changes) -> Iterator[tuple[Section, bytes]]:
        """Prepare the sections of a snapshot, right after its cut.

        Reads the names that the sweep has reached at once.

        Args:
            number: Number of the snapshot.
            changes: Changes of all operations of the worker. Without changes to its own, there are no sections.

        Returns:
            The sections, each encoded when it is taken. Exhaust the iterator before the next call.

        Raises:
            CodecError: From the iterator: a state is of a type that cannot be stored.
        """
        own = self._operations
        pieces = [(vertex, piece) for vertex, pieces in changes.items() if vertex in own for piece in pieces if piece]
        # Only with changes: an idle job does not write its state again and again for a sweep.
        if pieces:
            pieces += self._sweep(number)
        return self._sections(pieces)

    def _sweep(self, number: int) -> list[tuple[str, Mapping[object, object]]]:
        """Continue the sweep, or begin one; return the state of its next names."""
        self._parts += 1
        self._own += 1
        if not self._todo:
            # The names of now: those that come later are changes, and in a part anyway.
            self._begun, self._own = number, 1
            self._todo = [(name, 0, len(operation.names)) for name, operation in self._operations.items()]
        total = sum([len(operation.names) for operation in self._operations.values()])
        # By the cube: a sweep is slow while there are few parts, and catches up before there are too many to read.
        left = max(ceil(total * (self._parts / _PARTS) ** 3), 1)
        if self._parts < 4 * _PARTS:
            left = min(left, _AT_ONCE)
        swept: list[tuple[str, Mapping[object, object]]] = []
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
            for operation in self._operations.values():  # no place in their names is to be remembered now
                operation.compact()
        return swept

    def _sections(self, pieces: list[tuple[str, Mapping[object, object]]]) -> Iterator[tuple[Section, bytes]]:
        for vertex, piece in pieces:
            # Small sections, each encoded without a break: between two of them items have their
            # turn.
            names, values, count = iter(piece), iter(piece.values()), _LEAST
            while some := list(islice(names, count)):
                section, encoded = self._encoded(vertex, some, list(islice(values, count)))
                # By the size of the section before, since values may be of any size; at most twice as many, since the
                # next may be larger.
                count = min(max(count * _SECTION_BYTES // len(encoded), _LEAST), 2 * count, _MOST)
                yield section, encoded

    def _encoded(self, vertex: str, names: list[object], values: list[object]) -> tuple[Section, bytes]:
        """Return the section of some names, and its bytes."""
        operation = self._operations[vertex]
        # Types that are known are not looked at again. Every look at a name or a state that has left the caches of the
        # processor takes longer than to write it.
        types, state_type = operation.name_types, operation.state_type
        plain_names, plain_values = types is not None and PLAIN.issuperset(types), state_type in PLAIN
        if vertex not in self._dropping:
            section = Section(vertex, names, values, [])
            try:
                return section, encode_section(self._codec, section, plain_names=plain_names, plain_values=plain_values)
            except CodecError as error:
                if not any(value is GONE for value in values):
                    raise self._at_key(section, error) from error
                self._dropping.add(vertex)
        section = _section(vertex, names, values)
        try:
            return section, encode_section(self._codec, section, plain_names=plain_names)
        except CodecError as error:
            raise self._at_key(section, error) from error

    def _at_key(self, section: Section, error: CodecError) -> CodecError:
        """Return the error of the first state that cannot be stored, with its operation and key."""
        # One by one, and only now: while all is well nobody asks which state it was.
        for name, value in zip(section.names, section.values, strict=True):
            try:
                encode_section(self._codec, Section(section.vertex, [name], [value], []))
            except CodecError as alone:
                return alone.kept_by(section.vertex, shorten_repr(name))
        return error  # each fits alone, but not all together


def _section(vertex: str, names: list[object], values: list[object]) -> Section:
    # One pass of C where nothing has gone.
    if type(GONE) not in set(map(type, values)):
        return Section(vertex, names, values, [])
    gone = [name for name, value in zip(names, values, strict=True) if value is GONE]
    there = {name: value for name, value in zip(names, values, strict=True) if value is not GONE}
    return Section(vertex, list(there), list(there.values()), gone)


class PartWriter:
    """A writer of one part.

    Args:
        blob: Name of its blob.
        codec: Codec of the state.
        groups: The first and the last key group of the worker.
        number: Number of the snapshot.
        since: See `flamecore.runtime.state.format.Part`.
        binding: Binding of the epoch.
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
        """Add a section and its bytes."""
        self._rows.append((section.vertex, encoded))
        self.size += len(encoded)

    def finish(self) -> tuple[Part, bytes] | None:
        """Return the part and its bytes; None if it has no sections."""
        if not self._rows:
            return None
        data = encode_part(self._codec, self._rows, self._blob, self._binding)
        operations = tuple(dict.fromkeys(vertex for vertex, _ in self._rows))
        return Part(self._blob, len(data), operations, *self._about, digest_of(data), self._covers), data
