"""From payloads to tables of Arrow, typed by the hints of the flow.

Columns are those of `flamecore.toolkit.records.tables`. A value that Arrow has a type for is of that type, lists,
mappings and records within records too; everything else is text: scalars as they are written, the rest JSON.
"""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import json
import re
import types
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from math import isfinite
from typing import Any, Final, Literal, Union, get_args, get_origin

import pyarrow as pa

from flamecore.errors import ConfigError
from flamecore.model.types import hint_text
from flamecore.suggest import suggestion
from flamecore.toolkit.records.plain import Unencodable, cell, encode, scalar
from flamecore.toolkit.records.shapes import Column, record_columns, tuple_columns
from flamecore.toolkit.records.tables import Table
from flamestream_spark.compat import spark_schema

TIMES: Final = ("_time", "_front", "_place")
"""Columns that order outputs: the two parts of the global time, and the place among the outputs of that time."""

_PREFIX: Final = [("time", ">u8"), ("front", ">u4")]
"""The beginning of an order: see `flamecore.model.meta`."""

_TIME_TYPES: Final = (pa.int64(), pa.int64(), pa.int64())

_SCALARS: Final[dict[Any, Any]] = {
    bool: pa.bool_(),
    int: pa.int64(),
    float: pa.float64(),
    str: pa.string(),
    bytes: pa.binary(),
    datetime.date: pa.date32(),
    datetime.datetime: pa.timestamp("us", tz="UTC"),
    datetime.timedelta: pa.duration("us"),
    decimal.Decimal: pa.decimal128(38, 18),
}

_EXACT: Final = {kind: frozenset({type_, type(None)}) for type_, kind in _SCALARS.items()}
"""For each type of Arrow, types of values that it takes as they are; for others they have to be looked at."""

_NONE: Final[frozenset[Any]] = frozenset()
_REFUSED: Final = (pa.ArrowException, TypeError, ValueError, ArithmeticError, AttributeError)

_NAMED: Final[dict[str, Any]] = {"timestamp": pa.timestamp("us", tz="UTC"), "timestamp_ntz": pa.timestamp("us")}
_DECIMAL: Final = re.compile(r"decimal\((\d+),\s*(\d+)\)")
_MOST_DIGITS: Final = 38
_SPARK_SCHEMA: Final = "org.apache.spark.sql.parquet.row.metadata"
"""Key in a Parquet file under which Spark keeps its own types: Parquet has none for intervals."""


class UntypedOutputWarning(UserWarning):
    """Nothing declares the type of an output, so that each is JSON in one column."""


_untyped_told: Final[ContextVar[bool]] = ContextVar("_untyped_told", default=False)

Convert = Callable[[Any], Any]


def arrow_type(hint: Any) -> tuple[Any, Convert | None]:
    """Return Arrow's type for a hint, and a function that converts values to it.

    The function is None if the values stay the same.

    >>> str(arrow_type(int | None)[0]), str(arrow_type(object)[0])
    ('int64', 'string')
    """
    kind, convert, _ = _typed(hint, "")
    return kind, convert


def _typed(hint: Any, words: str) -> tuple[Any, Convert | None, bool]:
    """Return Arrow's type for a hint, a conversion, and whether Spark's type says something that the hint leaves open.

    Args:
        hint: The hint.
        words: Spark's type; a type of single values applies to all values within. Empty: not known.
    """
    if words and (kind := _named(hint, words)) is not None:
        return kind, _without_zone if kind == _NAMED["timestamp_ntz"] else None, True
    if hint in _SCALARS:
        return _SCALARS[hint], None, False
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        rest = [part for part in arguments if part is not type(None)]
        if len(rest) == 1 and len(rest) < len(arguments):
            return _typed(rest[0], words)  # no value is converted but those that are not None
    elif origin is Literal:
        found = {type(value) for value in arguments} - {type(None)}
        if len(found) == 1 and (only := found.pop()) in _SCALARS:
            return _SCALARS[only], None, False
    elif (fields := record_columns(hint) or tuple_columns(hint)) is not None:
        split = None if origin is tuple else Table.of(hint).split
        typed = [
            (field.name, *_typed(field.type, one))
            for field, one in zip(fields, _by_field(fields, words, hint), strict=True)
        ]
        parts = [(name, kind, convert) for name, kind, convert, _ in typed]
        said = any(one for *_, one in typed)
        return pa.struct([(name, kind) for name, kind, _ in parts]), _struct(parts, split), said
    elif origin in (list, tuple, Sequence, set, frozenset) and arguments:
        kind, convert, said = _typed(arguments[0], _within("array", words)[0])
        order: Convert = sorted if origin in (set, frozenset) else list
        return pa.list_(kind), _each(kind, convert, order), said
    elif origin in (dict, Mapping) and len(arguments) == 2 and arguments[0] is str:
        kind, convert, said = _typed(arguments[1], _within("map", words)[-1])
        return pa.map_(pa.string(), kind), _mapping(kind, convert), said
    return pa.string(), text, False


def _keyless(hint: Any, seen: frozenset[Any] = frozenset()) -> Any | None:
    """Return the type of the keys of a mapping within a hint that are records or collections; None: there is none."""
    if hint in seen:
        return None
    arguments = get_args(hint)
    if get_origin(hint) in (dict, Mapping) and len(arguments) == 2:
        key = arguments[0]
        if record_columns(key) is not None or (get_origin(key) or key) in (tuple, list, set, frozenset, dict):
            return key
    inner = [field.type for field in record_columns(hint) or ()] or [one for one in arguments if one is not Ellipsis]
    found = (_keyless(one, seen | {hint}) for one in inner if get_origin(hint) is not Literal)
    return next((one for one in found if one is not None), None)


def _by_field(fields: Sequence[Column], words: str, hint: Any) -> list[str]:
    """Return Spark's type of each field: those of a tuple in order, others by name."""
    if "<" not in words:
        return [words] * len(fields)
    parts = [part.partition(":") for part in _within("struct", words)]
    if get_origin(hint) is tuple:
        return [rest for _, _, rest in parts] if len(parts) == len(fields) else [""] * len(fields)
    by_name = {name: rest for name, _, rest in parts}
    return [by_name.get(field.name, "") for field in fields]


def _within(nest: str, words: str) -> list[str]:
    """Return the parts of one of Spark's nested types, at least one.

    >>> _within("map", "map<string,array<decimal(5,2)>>"), _within("array", "map<string,int>")
    (['string', 'array<decimal(5,2)>'], [''])
    >>> _within("array", "timestamp_ntz")
    ['timestamp_ntz']
    """
    if "<" not in words:
        return [words]
    if not (words.startswith(f"{nest}<") and words.endswith(">")):
        return [""]
    parts, depth = [""], 0
    for one in words[len(nest) + 1 : -1]:
        depth += (one in "<(") - (one in ">)")
        if one == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += one
    return parts


def named_type(hint: Any, words: str) -> tuple[Any, Convert | None] | None:
    """Return Arrow's type for a type of Spark that a hint leaves open, and a conversion; None: no match.

    >>> (
    ...     str(named_type(datetime.datetime, "timestamp_ntz")[0]),
    ...     str(named_type(decimal.Decimal | None, "decimal(5,2)")[0]),
    ... )
    ('timestamp[us]', 'decimal128(5, 2)')
    >>> str(named_type(list[decimal.Decimal], "array<decimal(5,2)>")[0])
    'list<item: decimal128(5, 2)>'
    >>> named_type(int, "timestamp")
    """
    kind, convert, said = _typed(hint, words)
    return (kind, convert) if said else None


def _named(hint: Any, words: str) -> Any:
    """Return Arrow's type for one of Spark's types of single values; None: the hint is of another."""
    if hint is datetime.datetime:
        return _NAMED.get(words)
    found = _DECIMAL.fullmatch(words)
    if hint is decimal.Decimal and found is not None:
        precision, scale = map(int, found.groups())
        if 1 <= precision <= _MOST_DIGITS and scale <= precision:
            return pa.decimal128(precision, scale)
    return None


def _without_zone(value: datetime.datetime) -> datetime.datetime:
    value = scalar(value)
    if value.tzinfo is not None:
        raise ValueError("it has a zone, and the column is a timestamp_ntz, which has none")
    return value


def text(value: Any) -> str | None:
    """Any value as text: text as it is, None as null, everything else as JSON.

    >>> text("a"), text((1, 2)), text(7), text(None)
    ('a', '[1,2]', '7', None)
    """
    if value is None or type(value) is str:
        return value
    found = cell(value)
    return found if isinstance(found, str) else encode(found).decode()


def _column(values: Sequence[Any], kind: Any, convert: Convert | None) -> Sequence[Any]:
    """Return values as Arrow is given them for a type.

    Raises:
        Exception: One is not of its declared type.
    """
    if convert is None and _EXACT.get(kind, _NONE).issuperset(map(type, values)):
        return values
    return [_value(one, kind, convert) for one in values]


# Arrow makes 1 of 1.5 where integers are declared, a day of a moment, a moment of a number, and says nothing.
def _value(value: Any, kind: Any, convert: Convert | None) -> Any:
    """Return one value as Arrow is given it for a type; see `_column`."""
    if value is None:
        return None
    if convert is not None:
        return convert(value)
    value = scalar(value)
    if pa.types.is_integer(kind):
        fits = isinstance(value, int) or (
            isinstance(value, float | decimal.Decimal) and isfinite(value) and value % 1 == 0
        )
    elif pa.types.is_date(kind):
        fits = isinstance(value, datetime.date) and not isinstance(value, datetime.datetime)
    elif pa.types.is_timestamp(kind):
        fits = isinstance(value, datetime.datetime)
    elif pa.types.is_duration(kind):
        fits = isinstance(value, datetime.timedelta)
    else:
        return value
    if not fits:
        raise TypeError(f"a {type(value).__name__} would become another value there")
    return value


def _each(kind: Any, convert: Convert | None, order: Convert) -> Convert:
    return lambda values: _column(order(values), kind, convert)


def _mapping(kind: Any, convert: Convert | None) -> Convert:
    return lambda value: [*zip(value, _column([*value.values()], kind, convert), strict=True)]


def _struct(parts: Sequence[tuple[str, Any, Convert | None]], split: Callable[[Any], Any] | None) -> Convert:
    def convert(value: Any) -> Any:
        row = value if split is None else split(value)
        return {name: _value(one, kind, change) for (name, kind, change), one in zip(parts, row, strict=True)}

    return convert


@dataclasses.dataclass(frozen=True)
class Form:
    """The form of a sink's tables.

    Attributes:
        table: The columns of its payloads.
        schema: In Arrow.
        converts: For each column, what makes Arrow's values.
        times: Whether the columns `TIMES` come behind them.
    """

    table: Table
    schema: Any
    converts: Sequence[Convert | None]
    times: bool

    @classmethod
    def of(
        cls,
        type_: Any,
        *,
        times: bool,
        types: Mapping[str, str] | None = None,
        intervals: bool = True,
        where: str = "types",
    ) -> Form:
        """Return the form for a payload type.

        Args:
            type_: The payload type.
            times: Whether the columns `TIMES` come behind the others.
            types: Spark's types of columns whose hints leave them open: "timestamp", "timestamp_ntz", "decimal(P,S)".
            intervals: Whether the format has intervals; otherwise they are text.
            where: Path of `types` in the configuration, for errors.

        Raises:
            ConfigError: There is no such column, or the type is not one of its hint's; or two columns differ by case
                alone; or a column is a mapping whose keys have no text.
        """
        table = Table.of(type_)
        wanted = dict(types or {})
        fields: list[tuple[str, Any]] = []
        converts: list[Convert | None] = []
        for column in table.columns:
            if (keys := _keyless(column.type)) is not None:
                raise ConfigError(
                    f"{where.removesuffix('.types')}: column {column.name!r} is declared {hint_text(column.type)}, and "
                    f"nothing is written of a mapping whose keys are {hint_text(keys)}",
                    hint="Give its entries: map the payload before the sink to one with list(mapping.items()).",
                    path=where.removesuffix(".types"),
                )
            kind, convert = arrow_type(column.type)
            words = wanted.pop(column.name, None)
            if words is not None:
                named = named_type(column.type, words)
                if named is None:
                    raise ConfigError(
                        f"{where}: column {column.name!r} is declared {hint_text(column.type)}, "
                        f"and cannot be of type {words!r}",
                        hint='A datetime is a "timestamp" or a "timestamp_ntz"; a Decimal is a "decimal(P,S)", P at '
                        "most 38.",
                        path=where,
                    )
                kind, convert = named
            elif not intervals and pa.types.is_duration(kind):
                kind, convert = pa.string(), text
            fields.append((column.name, kind))
            converts.append(convert)
        for name in wanted:
            names = [column.name for column in table.columns]
            raise ConfigError(f"{where}: there is no column {name!r}", hint=suggestion(name, names), path=where)
        if times:
            fields += zip(TIMES, _TIME_TYPES, strict=True)
        schema = pa.schema(fields)
        if two := _alike(schema):
            raise ConfigError(
                f"{where.removesuffix('.types')}: there are columns {two[0]!r} and {two[1]!r}, which are one to "
                "Spark and to Delta Lake: they do not distinguish case",
                hint="Give one of the fields another name; or map the payload before the sink.",
                path=where.removesuffix(".types"),
            )
        return cls(table, _with_intervals(schema), converts, times)

    def make(self, payloads: Sequence[Any], orders: Sequence[bytes] = ()) -> Any:
        """Make a `pyarrow.Table` with a row for each payload.

        Args:
            payloads: The payloads of the sink.
            orders: Their orders, where `times` are wanted: whole global times.

        Raises:
            Unencodable: A payload is not of the declared type, or has no place in a column.
        """
        rows = self.table.taken_apart(payloads)
        columns = [[row[number] for row in rows] for number in range(len(self.table.columns))]
        arrays = [self._array(number, column, payloads) for number, column in enumerate(columns)]
        if self.times:
            arrays += map(pa.array, _times(orders), _TIME_TYPES)
        return pa.Table.from_arrays(arrays, schema=self.schema)

    def _array(self, number: int, column: Sequence[Any], payloads: Sequence[Any]) -> Any:
        convert, field = self.converts[number], self.schema.field(number)
        try:
            return pa.array(_column(column, field.type, convert), field.type)
        except _REFUSED as error:
            for payload, one in zip(payloads, column, strict=True):
                try:
                    pa.array([_value(one, field.type, convert)], field.type)
                except _REFUSED as problem:
                    reason = f"column {field.name!r} is a {field.type}, and the value {one!r}: {problem}"
                    raise _misfit(payload, reason, field.name, field.type, one) from error
            raise Unencodable(payloads[0], f"column {field.name!r}: {error}") from error


class Misfit(Unencodable):
    """A payload with a value that its column can hold if that is of another type.

    Args:
        payload, reason: As for `Unencodable`.
        column: Name of the column.
        wanted: The other type, as Spark calls it.
    """

    def __init__(self, payload: object, reason: str, column: str, wanted: str) -> None:
        super().__init__(payload, reason)
        self.column = column
        self.wanted = wanted


def _misfit(payload: object, reason: str, column: str, kind: Any, value: object) -> Unencodable:
    """Return the error for a value that is not of the column's type.

    Args:
        payload, reason, column: As for `Misfit`.
        kind: The column's type in Arrow.
        value: The value.
    """
    wanted = ""
    if pa.types.is_decimal(kind) and isinstance(value, decimal.Decimal) and value.is_finite():
        _, digits, exponent = value.as_tuple()
        assert isinstance(exponent, int)
        places = max(-exponent, 0)
        if max(len(digits) + exponent, 0) + places <= _MOST_DIGITS:
            wanted = f"decimal({_MOST_DIGITS},{places})"
    elif kind == _NAMED["timestamp_ntz"] and isinstance(value, datetime.datetime):
        wanted = "timestamp"
    return Misfit(payload, reason, column, wanted) if wanted else Unencodable(payload, reason)


def warn_untyped(types: Mapping[str, Any]) -> None:
    """Warn of outputs that have one column of JSON since nothing declares them, unless that has been said.

    Args:
        types: The payload type of each sink.
    """
    for sink, type_ in {} if _untyped_told.get() else types.items():
        if type_ in (object, Any):
            warnings.warn(
                f"sink {sink!r}: nothing declares the type of its outputs, so each is text or JSON in column 'value'; "
                "annotate the function before the sink: def f(…) -> Row, a NamedTuple or dataclass with the columns",
                UntypedOutputWarning,
                stacklevel=3,
            )


@contextmanager
def untyped_told() -> Iterator[None]:
    """Have the job that is begun in the block say nothing of such outputs, as its maker has."""
    token = _untyped_told.set(True)
    try:
        yield
    finally:
        _untyped_told.reset(token)


def remedy(error: Exception) -> str:
    """Return the hint for a payload that cannot be written."""
    if not isinstance(error, Misfit):
        return "Map the payload before the sink, or declare what it is."
    entry = f"{json.dumps(error.column, ensure_ascii=False)} = {json.dumps(error.wanted)}"
    return (
        f"Map the payload before the sink, or give the column another type in the sink's options: types = {{{entry}}}."
    )


def _alike(fields: Iterable[Any]) -> tuple[str, str] | None:
    """Return two names of a record, also of one within a column, that differ by case alone."""
    names: dict[str, str] = {}
    for field in fields:
        if (other := names.setdefault(field.name.lower(), field.name)) != field.name:
            return other, field.name
        kind = field.type
        inner = [kind.field(number) for number in range(kind.num_fields)]
        if (two := _alike(inner)) is not None:
            return two
    return None


def _with_intervals(schema: Any) -> Any:
    """Return the schema, with Spark's own if there is an interval in it.

    Spark would otherwise read the interval as a number.
    """
    if not any(pa.types.is_duration(kind) for kind in schema.types):
        return schema
    return schema.with_metadata({_SPARK_SCHEMA: spark_schema(schema).json()})


def _times(orders: Sequence[bytes]) -> tuple[Any, Any, Any]:
    """Return time and front of each order, and its place among equal ones.

    The place counts the orders that follow each other with the same time and front.
    """
    import numpy as np

    prefixes = np.frombuffer(b"".join([order[:12] for order in orders]), _PREFIX)
    times = prefixes["time"].astype("u8") ^ np.uint64(1 << 63)  # signed numbers are biased, so that they sort as bytes
    fronts = prefixes["front"].astype("i8")
    numbers = np.arange(len(prefixes))
    first = np.ones(len(prefixes), bool)
    first[1:] = prefixes[1:] != prefixes[:-1]
    return times.view("i8"), fronts, numbers - np.maximum.accumulate(np.where(first, numbers, 0))
