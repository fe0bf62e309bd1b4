"""Payloads as rows: the columns of a payload type, and tuples of cells."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from flamecore.toolkit.records.plain import Unencodable, cell
from flamecore.toolkit.records.shapes import Column, is_named_tuple, record_columns, scalar_kinds, tuple_columns

Row = Sequence[object]


@dataclass(frozen=True)
class Table:
    """The shape of a sink's output.

    Attributes:
        columns: Columns in order, at least one.
        kind: Class of the payloads; None if any payload will do.
        split: Function that returns one value for each column; None if the payload is already such a row.
        exact: Whether the declared types allow only scalars in every column.
    """

    columns: tuple[Column, ...]
    kind: type | None
    split: Callable[[object], Row] | None
    exact: bool

    @classmethod
    def of(cls, type_: object) -> Table:
        """Return the table of a payload type.

        A record type (NamedTuple, dataclass, TypedDict, Struct) has a column for each field, a tuple of two `key` and
        `value`, a longer one of fixed length `c0`, `c1`, …; every other type, also unions and `object`, has one column
        `value`.
        """
        split: Callable[[object], Row] | None = None
        if (columns := record_columns(type_)) and isinstance(type_, type):
            names = [column.name for column in columns]
            kind: type | None = type_
            if issubclass(type_, dict):
                kind, split = dict, _by_key(names)
            elif not is_named_tuple(type_):
                split = _by_attribute(type_, names)
        elif columns := tuple_columns(type_):
            kind = tuple
        else:
            columns, kind, split = (Column("value", type_),), None, lambda payload: (payload,)
        return cls(columns, kind, split, all(scalar_kinds(column.type) is not None for column in columns))

    def rows(self, payloads: Sequence[object], *, trusting: bool = True) -> Sequence[Row]:
        """Return a row of cells for each payload.

        Args:
            payloads: Payloads of the sink.
            trusting: Whether to pass on rows unchecked if the declared types allow only scalars.

        Raises:
            Unencodable: A payload is not of the declared type, or something in it cannot be written.
        """
        rows = self.taken_apart(payloads)
        return rows if trusting and self.exact else [tuple(map(cell, row)) for row in rows]

    def taken_apart(self, payloads: Sequence[Any]) -> Sequence[Row]:
        """Return a row for each payload, with its values unchanged.

        A sink may iterate over the rows more than once.

        Raises:
            Unencodable: A payload is not of the declared type.
        """
        kind, split, width = self.kind, self.split, len(self.columns)
        if kind is not None and not {kind}.issuperset(map(type, payloads)):
            for payload in payloads:
                if not isinstance(payload, kind):
                    raise Unencodable(payload, f"the flow declares {kind.__name__} for it")
        if kind is tuple and not {width}.issuperset(map(len, payloads)):
            for payload in payloads:
                if len(payload) != width:
                    raise Unencodable(payload, f"it has {len(payload)} places, and the flow declares {width}")
        return payloads if split is None else list(map(split, payloads))


def _by_key(names: Sequence[str]) -> Callable[[Any], Row]:
    return lambda payload: [payload.get(name) for name in names]


def _by_attribute(type_: type, names: Sequence[str]) -> Callable[[object], Row]:
    # The encoded names of a Struct's fields may differ from its attributes.
    attributes = getattr(type_, "__struct_fields__", names)
    if len(attributes) == 1:
        return lambda payload: (getattr(payload, attributes[0]),)
    return attrgetter(*attributes)
