"""From columns of Arrow to payloads of the type a flow declares.

A fault of a column as such, which is missing or of another type, is found before the first row; a fault that only a row
can show (a null, a list with a wrong element) is that row's, and names the column.
"""

from __future__ import annotations

import datetime
import decimal
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, get_origin

import msgspec
from pyarrow import types as kinds

from flamecore.errors import SourceError
from flamecore.suggest import install_command, suggestion
from flamecore.toolkit.records.objects import arrays_for
from flamecore.toolkit.records.shapes import Column, is_named_tuple, record_columns, scalar_kinds, tuple_columns
from flamestream_spark.spool.parts import FOLDED
from flamestream_spark.tables.columns import alike

_NONE: Final = type(None)
_AS_DICT: Final = {"maps_as_pydicts": "lossy"}

_FITS: Final[dict[type, Callable[[Any], bool]]] = {
    bool: kinds.is_boolean,
    int: kinds.is_integer,
    float: lambda kind: kinds.is_floating(kind) or kinds.is_integer(kind),
    str: lambda kind: kinds.is_string(kind) or kinds.is_large_string(kind),
    bytes: lambda kind: kinds.is_binary(kind) or kinds.is_large_binary(kind),
    datetime.date: kinds.is_date,
    datetime.datetime: kinds.is_timestamp,
    datetime.timedelta: kinds.is_duration,
    datetime.time: kinds.is_time,
    decimal.Decimal: kinds.is_decimal,
}
"""Which columns a hint takes, of those whose values are then what the hint says without a further look."""


class Bad(NamedTuple):
    """A row that is no payload: its place in the batch, and why."""

    place: int
    reason: str


class Made(NamedTuple):
    """The payloads of a batch with their places, and the rows that are none."""

    values: list[Any]
    places: Sequence[int]
    bad: list[Bad]


class Taken(NamedTuple):
    """The conversion of one column.

    Attributes:
        name: Name of the column.
        nullable: Whether null is a value.
        convert: Converts a value of Arrow, None excepted; None: nothing is converted.
    """

    name: str
    nullable: bool
    convert: Callable[[Any], Any] | None


class Payloads:
    """Makes payloads of batches.

    Args:
        schema: Schema of the batches, without columns that are no part of the data.
        type_: The type that the flow declares. `object` and `dict`: a dict by column; a record type: its fields by
            name; a tuple of fixed length: the columns in order; everything else: the only column.
        source: Name of the source, for errors.
        spare: Columns that may be left out where the type takes fewer than there are: they order the rows.

    Raises:
        SourceError: A column is missing, or of a type that cannot be what is declared.
    """

    def __init__(self, schema: Any, type_: Any, source: str, spare: Sequence[str] = ()) -> None:
        self._source = source
        self._schema = schema
        self._folded = FOLDED in (schema.metadata or {})
        self._spare = {column for name in spare for column in self._alike(name)}
        names: list[str] = schema.names
        fields = record_columns(type_)
        if fields is not None:
            self._taken = [self._field(field) for field in fields if self._alike(field.name) or not field.optional]
            attributes = getattr(type_, "__struct_fields__", [field.name for field in fields])
            called = [
                attribute
                for field, attribute in zip(fields, attributes, strict=True)
                if self._alike(field.name) or not field.optional
            ]
            self._build = _builder(type_, called, attributes)
        elif type_ in (object, Any) or (get_origin(type_) or type_) is dict:
            self._taken = [self._field(Column(name, object)) for name in names]
            self._build = lambda columns: [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
        elif (places := tuple_columns(type_)) is not None:
            names = self._chosen(len(places), type_)
            self._taken = [self._field(place._replace(name=name)) for place, name in zip(places, names, strict=True)]
            self._build = lambda columns: list(zip(*columns, strict=True))
        else:
            names = self._chosen(1, type_)
            self._taken = [self._field(Column(names[0], type_))]
            self._build = lambda columns: list(columns[0])

    def _chosen(self, wanted: int, type_: Any) -> list[str]:
        """Return the columns for a type with `wanted` fields, in order."""
        names: list[str] = self._schema.names
        if len(names) > wanted:
            names = [name for name in names if name not in self._spare]
        if len(names) != wanted:
            raise self._error(
                f"the flow declares {_words(type_)}, which takes {wanted} column{'s' * (wanted != 1)}, and there are "
                f"{len(names)}: {', '.join(names)}",
                'Choose: columns = ["…"], or df.select(…). A NamedTuple or dataclass finds its columns by name.',
                ", ".join(names),
            )
        return names

    def _alike(self, name: str) -> list[str]:
        return alike(name, self._schema.names, folded=self._folded)

    def _field(self, field: Column) -> Taken:
        names = self._schema.names
        found = self._alike(field.name)
        if not found:
            raise self._error(f"there is no column {field.name!r}", suggestion(field.name, names), field.name)
        if len(found) > 1:
            raise self._error(
                f"column {field.name!r} may be {' or '.join(map(repr, found))}",
                "Give the field, or one of the columns, another name.",
                field.name,
            )
        field = field._replace(name=found[0])
        kind = self._schema.field(field.name).type
        wanted = field.type
        allowed = scalar_kinds(wanted) or set()
        nullable = wanted in (object, Any) or _NONE in allowed or _is_optional(wanted)
        scalars = [one for one in (allowed - {_NONE} or {_without_none(wanted)}) if one in _FITS]
        if kinds.is_null(kind):
            if nullable:
                return Taken(field.name, True, None)
            raise self._error(
                f"column {field.name!r} is void, so it holds nothing but nulls, and the flow declares {_words(wanted)}",
                f"Cast it: df.withColumn({field.name!r}, …cast(…)), or declare {_words(wanted)} | None.",
                field.name,
            )
        value_of = self._value_of(kind, field.name)
        if wanted in (object, Any):
            return Taken(field.name, nullable, value_of)
        if scalars and not _is_variant(kind) and not any(_FITS[one](kind) for one in scalars):
            raise self._error(
                f"column {field.name!r} is of type {kind}, and the flow declares {_words(wanted)}",
                f"Cast it: df.withColumn({field.name!r}, …cast(…)), or declare another type.",
                field.name,
            )
        plain = scalars and get_origin(wanted) is not Literal
        if not plain or _is_variant(kind):
            return Taken(field.name, nullable, _chain(value_of, _converter(wanted)))
        if float in scalars and int not in scalars and kinds.is_integer(kind):
            return Taken(field.name, nullable, float)
        return Taken(field.name, nullable, value_of)

    def _value_of(self, kind: Any, column: str) -> Callable[[Any], Any] | None:
        try:
            return value_of(kind)
        except ModuleNotFoundError as error:
            raise self._error(
                f"column {column!r} holds a VARIANT, which {error.name} decodes, and that is not installed",
                f"Run: {install_command('flamestream', 'spark')}",
                column,
            ) from error

    def make(self, batch: Any) -> Made:
        """Return the payloads of a `pyarrow.RecordBatch`, and the rows that are none."""
        count = batch.num_rows
        bad: dict[int, str] = {}
        columns: list[list[Any]] = []
        for taken in self._taken:
            column = batch.column(taken.name)
            values = _listed(column, taken.name, bad)
            if column.null_count and not taken.nullable:
                kind = f"column {taken.name!r} is null, and the flow's type does not allow that"
                for place, value in enumerate(values):
                    if value is None:
                        bad.setdefault(place, kind)
            if taken.convert is not None:
                values = list(self._converted(taken, values, bad))
            columns.append(values)
        if not columns:
            return Made(self._build([[None] * count]), range(count), [])
        return self._built(columns, count, bad)

    def _converted(self, taken: Taken, values: Iterable[Any], bad: dict[int, str]) -> Iterable[Any]:
        assert taken.convert is not None
        for place, value in enumerate(values):
            if value is None:
                yield None
                continue
            try:
                yield taken.convert(value)
            except (ValueError, TypeError, OverflowError) as error:
                bad.setdefault(place, f"column {taken.name!r}: {error}")
                yield None

    def _built(self, columns: list[list[Any]], count: int, bad: dict[int, str]) -> Made:
        places: Sequence[int] = range(count)
        if bad:
            places = [place for place in places if place not in bad]
            columns = [[column[place] for place in places] for column in columns]
        try:
            return Made(self._build(columns), places, [Bad(*one) for one in sorted(bad.items())])
        except (ValueError, TypeError):
            # A class of the user's says no to some row: one by one.
            values: list[Any] = []
            good: list[int] = []
            for at, place in enumerate(places):
                try:
                    values += self._build([column[at : at + 1] for column in columns])
                    good.append(place)
                except (ValueError, TypeError) as error:
                    bad[place] = f"{type(error).__name__}: {error}"
            return Made(values, good, [Bad(*one) for one in sorted(bad.items())])

    def _error(self, what: str, hint: str, column: str) -> SourceError:
        return SourceError(f"source {self._source!r}: {what}", hint=hint, source=self._source, position=column)


def _listed(column: Any, name: str, bad: dict[int, str]) -> list[Any]:
    """Return the values of a column; note the places of those out of Python's range.

    Times after 9999 are such values.
    """
    try:
        return _listed_at_once(column)
    except (ValueError, OverflowError):
        values: list[Any] = []
        for place in range(len(column)):
            try:
                values.append(column[place].as_py(**_AS_DICT))
            except (ValueError, OverflowError) as error:
                values.append(None)
                bad.setdefault(place, f"column {name!r} holds a value of type {column.type} beyond Python's: {error}")
        return values


def _listed_at_once(column: Any) -> list[Any]:
    kind = column.type
    texts = kinds.is_string(kind) or kinds.is_large_string(kind)
    plain = kinds.is_integer(kind) or kinds.is_float64(kind) or kinds.is_boolean(kind)
    fast = texts or (plain and column.null_count == 0)  # in a twentieth of the time
    values: list[Any] = column.to_numpy(zero_copy_only=False).tolist() if fast else column.to_pylist(**_AS_DICT)
    return values


def value_of(kind: Any) -> Callable[[Any], Any] | None:
    """Return a function from values of Arrow to those of Python; None: no conversion.

    The function does not take None.

    Times with a zone come in UTC, whatever the zone of the session, and VARIANTs as the values that they hold.

    Raises:
        ModuleNotFoundError: There is a VARIANT, and PySpark is not installed.
    """
    if kinds.is_timestamp(kind) and kind.tz is not None:
        return lambda value: value.astimezone(datetime.UTC)
    if _is_variant(kind):
        from pyspark.sql.types import VariantVal

        return lambda value: VariantVal(value["value"], value["metadata"]).toPython()
    if kinds.is_struct(kind):
        fields = {field.name: one for field in kind if (one := value_of(field.type)) is not None}
        return _in_struct(fields) if fields else None
    if kinds.is_list(kind) or kinds.is_large_list(kind):
        element = value_of(kind.value_type)
        return None if element is None else lambda values: [None if one is None else element(one) for one in values]
    if kinds.is_map(kind):
        key, item = value_of(kind.key_type) or _same, value_of(kind.item_type) or _same
        if key is _same and item is _same:
            return None
        return lambda value: {key(k): None if v is None else item(v) for k, v in value.items()}
    return None


def type_words(schema: Any) -> dict[str, str]:
    """Return the types of the columns by name, without nullability.

    Nullability may change from row to row.
    """
    return {field.name: _words_of(field.type) for field in schema}


def _words_of(kind: Any) -> str:
    if _is_variant(kind):
        return "variant"
    if kinds.is_struct(kind):
        return f"struct<{', '.join(f'{field.name}: {_words_of(field.type)}' for field in kind)}>"
    if kinds.is_list(kind):
        return f"list<{_words_of(kind.value_type)}>"
    if kinds.is_map(kind):
        return f"map<{_words_of(kind.key_type)}, {_words_of(kind.item_type)}>"
    return str(kind)


def _is_variant(kind: Any) -> bool:
    return kinds.is_struct(kind) and any((field.metadata or {}).get(b"variant") == b"true" for field in kind)


def _same(value: Any) -> Any:
    return value


def _in_struct(fields: Mapping[str, Callable[[Any], Any]]) -> Callable[[Any], Any]:
    def convert(value: Any) -> Any:
        made = {name: one if one is None else fields[name](one) for name, one in value.items() if name in fields}
        return value | made

    return convert


def _chain(first: Callable[[Any], Any] | None, second: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return second if first is None else lambda value: second(first(value))


Build = Callable[[Sequence[list[Any]]], list[Any]]


def _builder(type_: Any, names: Sequence[str], every: Sequence[str]) -> Build:
    """Return a function that makes instances of a class of columns for some fields.

    `every` are all fields of the class.
    """
    if issubclass(type_, dict):
        return lambda columns: [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
    in_place = list(every[: len(names)]) == list(names) and not _by_keyword(type_)
    if in_place:
        return lambda columns: list(map(type_, *columns))
    return lambda columns: [type_(**dict(zip(names, row, strict=True))) for row in zip(*columns, strict=True)]


def _by_keyword(type_: Any) -> bool:
    """Return whether some field cannot be given by its place."""
    if is_named_tuple(type_):
        return False
    parameters = inspect.signature(type_).parameters.values()
    return any(parameter.kind is parameter.KEYWORD_ONLY for parameter in parameters)


def _converter(type_: Any) -> Callable[[Any], Any]:
    change = arrays_for(type_)
    if change is None:
        return lambda value: msgspec.convert(value, type_, strict=True)
    return lambda value: msgspec.convert(change(value), type_, strict=True)


def _is_optional(type_: Any) -> bool:
    return _NONE in getattr(type_, "__args__", ())


def _without_none(type_: Any) -> Any:
    """X of X | None; the type itself otherwise."""
    rest = [part for part in getattr(type_, "__args__", ()) if part is not _NONE]
    return rest[0] if _is_optional(type_) and len(rest) == 1 else type_


def _words(type_: Any) -> str:
    return getattr(type_, "__name__", None) or str(type_)
