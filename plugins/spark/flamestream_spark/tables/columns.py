"""Columns of a DataFrame as Arrow can carry them.

Wrong ones are named before the first row is read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Any, Final, NamedTuple

from flamecore.errors import SourceError
from flamecore.suggest import suggestion
from flamecore.toolkit.records.tables import Table
from flamestream_spark.compat import TYPES, arrow_type, collation_of
from flamestream_spark.compat import arrow_schema as arrow_schema_of
from flamestream_spark.spool.parts import FOLDED, SEAL
from flamestream_spark.tables.arrow import named_type

_RESERVED: Final = "__flamestream_"
_NO_ZONE: Final = "timestamp_ntz"


class Unfit(NamedTuple):
    """One column that cannot pass: its name, the reason, and the remedy."""

    column: str
    what: str
    hint: str


def fitted(frame: Any, source: str) -> Any:
    """Return the DataFrame with each column as Arrow can carry it.

    Nested columns that hold nothing (`array<void>`) become columns of text, as Arrow takes no such type where it is
    not nullable. Every other column stays as it is.

    Args:
        frame: The DataFrame, a batch one or a streaming one.
        source: Name of the source, for errors.

    Raises:
        SourceError: A column has a type without a value in Python, or a name that cannot be told from another.
    """
    schema = schema_of(frame, source)
    check(schema, source)
    types = [_without_void(field.dataType) for field in schema.fields]
    if all(kind is field.dataType for kind, field in zip(types, schema.fields, strict=True)):
        return frame
    from pyspark.sql import functions

    columns = (functions.col(str(place)).cast(kind) for place, kind in enumerate(types))
    return numbered(frame).select(*columns).toDF(*schema.names)


def schema_of(frame: Any, source: str) -> Any:
    """Return the columns of a DataFrame, as PySpark has them.

    Args:
        frame: The DataFrame.
        source: Name of the source, for errors.

    Raises:
        SourceError: One is of a type that Spark has, and PySpark does not, as calendar intervals in 3.5.
    """
    from pyspark.errors import PySparkValueError

    try:
        return frame.schema
    except PySparkValueError as error:
        raise SourceError(
            f"source {source!r}: a column has a type that this PySpark does not know: {error}",
            hint="Make a text of it: df.selectExpr(…, 'cast(COLUMN as string) as COLUMN').",
            source=source,
            position="",
        ) from error


def alike(name: str, names: Iterable[str], *, folded: bool) -> list[str]:
    """Return the columns that a name means: that of this very name, else those that differ by case alone.

    Args:
        name: The name.
        names: Names of the columns.
        folded: Whether Spark takes names for one that differ by case alone.

    >>> alike("at", ["At", "n"], folded=True), alike("at", ["At", "at"], folded=True), alike("at", ["At"], folded=False)
    (['At'], ['at'], [])
    """
    every = list(names)
    if name in every or not folded:
        return [name] if name in every else []
    return [one for one in every if one.lower() == name.lower()]


def column_of(frame: Any, name: str, source: str, role: str = "") -> str:
    """Return the column of a DataFrame that a name means, by `spark.sql.caseSensitive`.

    Args:
        frame: The DataFrame.
        name: The name.
        source: Name of the source, for errors.
        role: The use of the column, for errors.

    Raises:
        SourceError: There is none, or it may be one of several.
    """
    found = alike(name, frame.columns, folded=folds_case(frame.sparkSession))
    if len(found) == 1:
        return found[0]
    if found:
        what, hint = f"column {name!r} may be {' or '.join(map(repr, found))}", "Write its name as the column has it."
    else:
        what, hint = f"there is no column {name!r}{role}", suggestion(name, frame.columns)
    raise SourceError(f"source {source!r}: {what}", hint=hint, source=source, position=name)


def folds_case(spark: Any) -> bool:
    """Return whether a session takes names of columns for one that differ by case alone, as it does by default."""
    return str(spark.conf.get("spark.sql.caseSensitive", "false")).lower() != "true"


def numbered(frame: Any) -> Any:
    """Return the DataFrame with columns named "0", "1", and so on.

    Other names may hold characters with a meaning for Spark.
    """
    return frame.toDF(*(str(place) for place in range(len(frame.columns))))


def taken(frame: Any, names: Any) -> Any:
    """Return the DataFrame with these columns, in order.

    Names may have any characters.

    Args:
        frame: The DataFrame.
        names: For each column its name, and the name that it gets.
    """
    every = list(frame.columns)
    return numbered(frame).select(*(str(every.index(name)) for name, _ in names)).toDF(*(new for _, new in names))


def sealed(frame: Any, left_out: Collection[str]) -> Any:
    """Return the DataFrame with a column `SEAL` behind the others.

    It has another number for every other row, values of a geometry excepted, which Spark cannot compare. Nulls count as
    values, at every depth, and differences that Spark makes nothing of count, too: see `told_apart`.

    Args:
        frame: The DataFrame.
        left_out: Columns that do not count.
    """
    told = {
        f"told{place}": expression
        for place, field in enumerate(frame.schema.fields)
        if field.name not in left_out and (expression := told_apart(f"`{place}`", field.dataType)) is not None
    }
    compared = numbered(frame).selectExpr("*", *(f"{expression} as {name}" for name, expression in told.items()))
    kinds = {field.name: field.dataType for field in compared.schema.fields}
    parts = [part for name in told for part in _with_nulls(name, kinds[name])]
    seal = f"xxhash64({', '.join(parts)})" if parts else "0L"
    kept = [f"`{place}`" for place in range(len(frame.columns))]
    return compared.selectExpr(*kept, f"{seal} as {SEAL}").toDF(*frame.columns, SEAL)


def _with_nulls(value: str, kind: Any, depth: int = 0) -> list[str]:
    """Return expressions for a value such that a null at any depth counts: Spark's hashes pass it over.

    Args:
        value: The expression of the value.
        kind: Its type, without maps.
        depth: Number of lambdas around it.
    """
    from pyspark.sql.types import ArrayType, StructType

    found = [f"{value} is null"]
    if isinstance(kind, ArrayType):
        inner = f"w{depth}"
        parts = enumerate(_with_nulls(inner, kind.elementType, depth + 1))
        element = ", ".join(f"'p{place}', {part}" for place, part in parts)
        return [*found, f"size({value})", f"transform({value}, {inner} -> named_struct({element}))"]
    if isinstance(kind, StructType):
        for field in kind.fields:
            found += _with_nulls(f"{value}.{_quoted(field.name)}", field.dataType, depth)
        return found
    return [*found, value]


def arrow_schema(frame: Any) -> Any:
    """Return the schema of a fitted DataFrame in Arrow; times with a zone are in UTC."""
    schema = arrow_schema_of(frame.schema)
    return schema.with_metadata({FOLDED: b""}) if folds_case(frame.sparkSession) else schema


def types_of(schema: Any) -> dict[str, str]:
    """Return Spark's types of the columns, by name."""
    return {field.name: field.dataType.simpleString() for field in schema.fields}


def kept_types(type_: Any, schemas: Iterable[Any], *, folded: bool = False) -> dict[str, str]:
    """Return the types of Spark that outputs keep from the input where hints are open.

    A column keeps the type of the input column of its name, within lists, mappings and structs too. Times in other
    columns have no zone if none of the input has one.

    Args:
        type_: The payload type of a sink.
        schemas: Those of the DataFrames that come in.
        folded: As for `alike`.
    """
    from pyspark.sql.types import DecimalType, TimestampNTZType, TimestampType

    fields = [field for schema in schemas for field in schema.fields]
    open_ = [
        (field, kind)
        for field in fields
        for kind in _inside(field.dataType)
        if isinstance(kind, DecimalType | TimestampType | TimestampNTZType)
    ]
    times = {kind.simpleString() for _, kind in open_ if not isinstance(kind, DecimalType)}
    found: dict[str, str] = {}
    for column in Table.of(type_).columns:
        same = alike(column.name, {field.name for field in fields}, folded=folded)
        of_name = {field.dataType.simpleString() for field, _ in open_ if field.name in same}
        if not of_name and times == {_NO_ZONE}:
            of_name = times
        if len(of_name) == 1 and named_type(column.type, words := of_name.pop()) is not None:
            found[column.name] = words
    return found


def check(schema: Any, source: str) -> None:
    """Raise if a column cannot pass.

    Raises:
        SourceError: See `fitted`.
    """
    for column, what, hint in _unfit(schema):
        raise SourceError(f"source {source!r}: {what}", hint=hint, source=source, position=column)


def _unfit(schema: Any) -> Iterator[Unfit]:
    from pyspark.errors import PySparkException
    from pyspark.sql.types import YearMonthIntervalType

    seen: dict[str, int] = {}
    for number, field in enumerate(schema.fields, 1):
        name = field.name
        if name in seen:
            yield Unfit(
                name,
                f"columns {seen[name]} and {number} are both called {name!r}",
                "Give each column a name of its own: df.toDF(…), or an alias in the select or join that makes them.",
            )
        seen[name] = number
        if name.startswith(_RESERVED):
            yield Unfit(
                name,
                f"column {name!r} has a name that is used for the place of a row",
                f"Rename it: df.withColumnRenamed({name!r}, …).",
            )
        for kind in _inside(field.dataType):
            called = kind.simpleString()
            if isinstance(kind, YearMonthIntervalType):
                yield Unfit(
                    name,
                    f"column {name!r} has the type {called}, for which Python has no values",
                    f"Count its months: withColumn({name!r}, expr({_recast(_quoted(name), field.dataType)!r})).",
                )
            if isinstance(kind, TYPES.CalendarIntervalType):
                yield Unfit(
                    name,
                    f"column {name!r} has the type {called}, for which Python has no values",
                    "Make it with make_dt_interval(…) if it has days and smaller units alone; else make a text of it: "
                    f"withColumn({name!r}, expr({_recast(_quoted(name), field.dataType)!r})).",
                )
            if _is_keyless(kind):
                yield Unfit(
                    name,
                    f"column {name!r} holds a {called}, whose keys no dict of Python takes",
                    f"Read its entries: withColumn({name!r}, expr({_recast(_quoted(name), field.dataType)!r})). The "
                    "flow declares a list of records with key and value.",
                )
            if (twice := _twice(kind)) is not None:
                yield Unfit(
                    name,
                    f"column {name!r} holds a struct with two fields called {twice!r}",
                    "Give each field a name of its own.",
                )
        try:
            arrow_type(_without_void(field.dataType))
        except (PySparkException, TypeError, ValueError) as error:
            yield Unfit(
                name,
                f"column {name!r} has the type {field.dataType.simpleString()}, which Arrow cannot carry: {error}",
                f"Cast it to another type, or leave it out: df.drop({name!r}).",
            )


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"


def _recast(value: str, kind: Any, depth: int = 0) -> str:
    """Return an expression for a value as Python has one.

    Intervals of months are numbers in it, other calendar intervals text, and maps with keys that no dict has a list of
    their entries.

    Args:
        value: The expression of the value.
        kind: Its type.
        depth: Number of lambdas around it.
    """
    from pyspark.sql.types import ArrayType, MapType, StructType, YearMonthIntervalType

    unfit = YearMonthIntervalType | TYPES.CalendarIntervalType
    if not any(isinstance(part, unfit) or _is_keyless(part) for part in _inside(kind)):
        return value
    if isinstance(kind, YearMonthIntervalType):
        return f"cast(cast({value} as interval month) as int)"
    if isinstance(kind, ArrayType):
        return f"transform({value}, v{depth} -> {_recast(f'v{depth}', kind.elementType, depth + 1)})"
    if isinstance(kind, MapType):
        # Both at once: Spark compares no two calendar intervals, so keys cannot be looked up.
        key = _recast(f"v{depth}.key", kind.keyType, depth + 1)
        found = _recast(f"v{depth}.value", kind.valueType, depth + 1)
        if _is_keyless(kind):
            return f"transform(map_entries({value}), v{depth} -> named_struct('key', {key}, 'value', {found}))"
        return f"map_from_entries(transform(map_entries({value}), v{depth} -> struct({key}, {found})))"
    if isinstance(kind, StructType):
        parts = [
            f"{_text(field.name)}, {_recast(f'{value}.{_quoted(field.name)}', field.dataType, depth)}"
            for field in kind.fields
        ]
        return f"if({value} is null, null, named_struct({', '.join(parts)}))"
    return f"cast({value} as string)"


def _text(words: str) -> str:
    """Return a literal of SQL."""
    return '"' + words.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _is_keyless(kind: Any) -> bool:
    """Return whether a type is a map whose keys cannot be those of a dict."""
    from pyspark.sql.types import ArrayType, MapType, StructType

    return isinstance(kind, MapType) and isinstance(kind.keyType, ArrayType | StructType)


def _twice(kind: Any) -> str | None:
    """Return the name that two fields of a struct have, if there is one."""
    names = list(getattr(kind, "names", ()))
    return next((name for place, name in enumerate(names) if name in names[:place]), None)


def _inside(kind: Any) -> Iterator[Any]:
    """Yield a type and all types within it."""
    from pyspark.sql.types import ArrayType, MapType, StructType

    yield kind
    parts: list[Any] = []
    if isinstance(kind, ArrayType):
        parts = [kind.elementType]
    elif isinstance(kind, MapType):
        parts = [kind.keyType, kind.valueType]
    elif isinstance(kind, StructType):
        parts = [field.dataType for field in kind.fields]
    for part in parts:
        yield from _inside(part)


def sortable(kind: Any) -> bool:
    """Return whether Spark can order rows by a column of that type."""
    unordered = (TYPES.MapType, TYPES.VariantType, TYPES.CalendarIntervalType, TYPES.SpatialType)
    return not any(isinstance(part, unordered) for part in _inside(kind))


def told_apart(value: str, kind: Any, depth: int = 0) -> str | None:
    """Return an expression that orders all values of a column, also those that Spark does not, or takes as equal.

    Spark orders no maps and no variants, and takes texts as equal that are so by their collation, and zeros of both
    signs.

    Args:
        value: The expression of the value.
        kind: Its type.
        depth: Number of lambdas around it.

    Returns:
        The value itself, if Spark tells all of them apart; None: there is no such expression.
    """
    from pyspark.sql.types import ArrayType, DecimalType, FractionalType, MapType, StringType, StructType

    inner = f"v{depth}"
    match kind:
        case StringType() if collation_of(kind) != "UTF8_BINARY":
            return f"collate({value}, 'UTF8_BINARY')"
        case DecimalType():
            return value
        case FractionalType():
            return f"named_struct('value', {value}, 'minus', {value} = 0 and startswith(string({value}), '-'))"
        case TYPES.VariantType():
            return f"named_struct('value', to_json({value}), 'type', schema_of_variant({value}))"
        case TYPES.CalendarIntervalType() | TYPES.SpatialType():
            return None
        case ArrayType():
            element = told_apart(inner, kind.elementType, depth + 1)
            return value if element == inner else element and f"transform({value}, {inner} -> {element})"
        case MapType():
            key, held = f"{inner}.key", f"{inner}.value"
            parts = told_apart(key, kind.keyType, depth + 1), told_apart(held, kind.valueType, depth + 1)
            entries = f"map_entries({value})"
            if parts == (key, held):
                return entries
            return None if None in parts else f"transform({entries}, {inner} -> struct({parts[0]}, {parts[1]}))"
        case StructType():
            names = [f"{value}.{_quoted(field.name)}" for field in kind.fields]
            fields = [told_apart(name, field.dataType, depth) for name, field in zip(names, kind.fields, strict=True)]
            if fields == names:
                return value
            if None in fields:
                return None
            told = ", ".join(f"'f{place}', {field}" for place, field in enumerate(fields))
            return f"if({value} is null, null, named_struct({told}))"
    return value


def _without_void(kind: Any, *, inside: bool = False) -> Any:
    """Return the type with text for nested void; the same object if there is none."""
    from pyspark.sql.types import ArrayType, MapType, NullType, StringType, StructField, StructType

    if isinstance(kind, NullType):
        return StringType() if inside else kind
    if isinstance(kind, ArrayType):
        element = _without_void(kind.elementType, inside=True)
        return kind if element is kind.elementType else ArrayType(element, kind.containsNull)
    if isinstance(kind, MapType):
        key, value = (_without_void(part, inside=True) for part in (kind.keyType, kind.valueType))
        same = key is kind.keyType and value is kind.valueType
        return kind if same else MapType(key, value, kind.valueContainsNull)
    if isinstance(kind, StructType):
        parts = [_without_void(field.dataType, inside=True) for field in kind.fields]
        if all(part is field.dataType for part, field in zip(parts, kind.fields, strict=True)):
            return kind
        return StructType(
            [
                StructField(field.name, part, field.nullable, field.metadata)
                for part, field in zip(parts, kind.fields, strict=True)
            ]
        )
    return kind
