"""Sources `lines` and `jsonl`, and the sink `jsonl`, with good and bad input."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
import decimal
import enum
import json
import math
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import flamecore as fc
from flamecore.abc.source import EdgeContext
from flamecore.errors import ConfigError, SinkError
from flamecore.toolkit.records.plain import Unencodable, encode_lines
from flamecore.toolkit.records.plain import encode as encode_alone
from flamestream_edges.jsonl import JsonlSink, JsonlSource
from flamestream_edges.lines import Lines

ReadAll = Callable[..., Any]


class Point(NamedTuple):
    x: int
    y: float = 0.5
    tags: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Circle:
    centre: Point
    radius: float


class Plain(msgspec.Struct, frozen=True):
    x: int


class Typed(TypedDict):
    x: int


def lines_of(path: Path, **options: Any) -> Lines:
    return Lines(Lines.Options(path=str(path), **options), EdgeContext("lines", str))


def jsonl_of(path: Path, type_: Any = object, **options: Any) -> JsonlSource:
    return JsonlSource(JsonlSource.Options(path=str(path), **options), EdgeContext("records", type_))


def test_undecodable_lines_are_rejected_with_their_place_and_the_rest_is_read(
    tmp_path: Path, read_all: ReadAll
) -> None:
    path = tmp_path / "mixed.txt"
    path.write_bytes("раз\n".encode() + b"\xd0\xd0\n" + "два\n".encode() + b"ok \xe9\n")
    found = read_all(lines_of(path))
    assert found.values == ["раз", "два"]
    assert found.places == [f"{path} line 2", f"{path} line 4"]
    assert [bad.raw for bad in found.rejected] == [b"\xd0\xd0", b"ok \xe9"]
    assert found.rejected[1].reason == "not utf-8: byte 4 of the record is e9 (unexpected end of data)"


def test_lines_are_read_in_other_encodings(tmp_path: Path, read_all: ReadAll) -> None:
    path = tmp_path / "old.txt"
    path.write_bytes("раз\nдва\n".encode("cp1251"))
    assert read_all(lines_of(path, encoding="windows-1251")).values == ["раз", "два"]
    path.write_bytes("\ufeffраз\n".encode())
    assert read_all(lines_of(path, encoding="utf-8-sig")).values == ["раз"]
    path.write_bytes('"раз"\n'.encode("cp1251"))
    assert read_all(jsonl_of(path, encoding="cp1251")).values == ["раз"]


@pytest.mark.parametrize("partial", ["hold", "record"])
def test_a_file_of_nothing_but_a_byte_order_mark_is_empty(tmp_path: Path, read_all: ReadAll, partial: str) -> None:
    path = tmp_path / "marked.txt"
    path.write_bytes("\ufeff".encode())
    assert read_all(lines_of(path, partial=partial)).values == []
    path.write_bytes("\ufeff\n".encode())
    assert read_all(lines_of(path, partial=partial)).values == [""]


def test_a_line_beyond_the_limit_is_rejected_and_the_rest_is_read(tmp_path: Path, read_all: ReadAll) -> None:
    path = tmp_path / "long.txt"
    path.write_text("short\n" + "x" * 1000 + "\nshort too\n" + "y" * 1001)
    found = read_all(lines_of(path, max_line_bytes=10))
    assert found.values == ["short", "short too"]
    assert found.places == [f"{path} line 2", f"{path} line 4"]
    assert found.rejected[0].reason == "the line is 1,000 bytes long, and max_line_bytes is 10"


def test_lines_refuses_other_types_than_text(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the flow declares int, and lines gives str"):
        Lines(Lines.Options(path="x"), EdgeContext("lines", int))


@pytest.mark.parametrize(
    ("type_", "line", "value"),
    [
        (object, '{"a": [1, 2.5, null, true, "x"]}', {"a": [1, 2.5, None, True, "x"]}),
        (Point, '{"x": 1}', Point(1)),
        (Point, '{"y": 2, "tags": ["a"], "x": 1, "more": 0}', Point(1, 2.0, ("a",))),
        (Point, '[1, 2.5, ["b"]]', Point(1, 2.5, ("b",))),
        (tuple[str, int], '["a", 1]', ("a", 1)),
        (Plain, '{"x": 1}', Plain(1)),
        (Typed, '{"x": 1}', {"x": 1}),
        (datetime.date, '"2024-02-29"', datetime.date(2024, 2, 29)),
        (str, '"раз\\u0301"', "раз\u0301"),
    ],
)
def test_json_becomes_the_declared_type(tmp_path: Path, read_all: ReadAll, type_: Any, line: str, value: Any) -> None:
    path = tmp_path / "one.jsonl"
    path.write_text(f"\n{line}\n \n")
    found = read_all(jsonl_of(path, type_))
    assert found.values == [value]
    assert type(found.values[0]) is type(value)
    assert not found.rejected


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"x": 1', "truncated"),
        (b'{"x": 1} {"x": 2}', "trailing characters"),
        (b'{"x": "one"}', "Expected `int`, got `str` - at `$.x`"),
        (b'{"y": 1}', "missing required field `x`"),
        (b'{"x": 1, "tags": ["\xff"]}', "utf-8"),
        (b"[" * 100_000, "nested too deep"),
        (b"\x00", "malformed"),
    ],
)
def test_bad_json_is_rejected_with_file_line_and_reason(
    tmp_path: Path, read_all: ReadAll, line: bytes, reason: str
) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_bytes(b'{"x": 1}\n' + line + b'\n{"x": 3}\n')
    found = read_all(jsonl_of(path, Point if b"[[" not in line else object))
    assert [getattr(value, "x", None) or value["x"] for value in found.values] == [1, 3]
    assert found.places == [f"{path} line 2"]
    assert reason.lower() in found.rejected[0].reason.lower()
    raw = found.rejected[0].raw
    assert line.startswith(raw.encode() if isinstance(raw, str) else raw)


class Unknown:
    pass


@pytest.mark.parametrize("type_", [Unknown, Plain | Point | Typed])
def test_a_type_that_json_cannot_become_is_refused_at_once(type_: Any) -> None:
    with pytest.raises(ConfigError, match="cannot be decoded into"):
        jsonl_of(Path("x"), type_)


class Colour(enum.Enum):
    RED = "red"


class Word(str):
    __slots__ = ()


MEAN_TIME = datetime.timezone(datetime.timedelta(minutes=53, seconds=28))
NOON_OF_BERLIN = datetime.datetime(1890, 1, 1, 12, tzinfo=MEAN_TIME)


class Moment(msgspec.Struct, tag="moment"):
    at: datetime.datetime
    raw: bytes


class Level(msgspec.Struct):
    height: float


@pytest.mark.parametrize(
    ("payload", "text"),
    [
        (Point(1, 2.0, ("a",)), '{"x":1,"y":2.0,"tags":["a"]}'),
        (Circle(Point(1), 2.0), '{"centre":{"x":1,"y":0.5,"tags":[]},"radius":2.0}'),
        ({"deep": [(Point(1),)]}, '{"deep":[[{"x":1,"y":0.5,"tags":[]}]]}'),
        ({3, 20, 1}, "[1,3,20]"),
        (frozenset({"b", 1, None}), '["b",1,null]'),
        ({"z": 1, "a": {Word("w")}}, '{"z":1,"a":["w"]}'),
        (("word", 3), '["word",3]'),
        (Colour.RED, '"red"'),
        (decimal.Decimal("1.10"), '"1.10"'),
        (uuid.UUID(int=1), '"00000000-0000-0000-0000-000000000001"'),
        (datetime.datetime(2024, 1, 2, 3, tzinfo=datetime.UTC), '"2024-01-02T03:00:00Z"'),
        (NOON_OF_BERLIN, '"1890-01-01T11:06:32Z"'),
        ({NOON_OF_BERLIN: [NOON_OF_BERLIN]}, '{"1890-01-01T11:06:32Z":["1890-01-01T11:06:32Z"]}'),
        (Moment(NOON_OF_BERLIN, b"ab"), '{"type":"moment","at":"1890-01-01T11:06:32Z","raw":"YWI="}'),
        (b"ab", '"YWI="'),
        ({"a": None, "b": [1.5, "null"]}, '{"a":null,"b":[1.5,"null"]}'),
        ("line\nfeed", '"line\\nfeed"'),
        (2**70, str(2**70)),
        (Plain(1), '{"x":1}'),
    ],
)
def test_payloads_are_written_as_json_lines(payload: Any, text: str) -> None:
    assert encode_lines([payload]).decode() == text + "\n"


def endless() -> list[Any]:
    inside: list[Any] = []
    inside.append(inside)
    return inside


@pytest.mark.parametrize(
    ("payload", "named"),
    [
        (datetime.time(12, tzinfo=MEAN_TIME), "time"),
        (datetime.datetime(1, 1, 1, tzinfo=MEAN_TIME), "datetime"),
        (object(), "object"),
        ({(1, 2): 3}, "dict"),
        ("\ud800", "str"),
        (endless(), "list"),
        ([1, Unknown()], "list"),
        (math.nan, "float"),
        ({"a": [None, -math.inf]}, "dict"),
        (("a", math.nan), "tuple"),
        ({math.inf, 1.0}, "set"),
        (Circle(Point(1, math.nan), 2.0), "Circle"),
        (Level(math.inf), "Level"),
    ],
)
def test_a_payload_that_cannot_be_written_is_named_and_its_batch_is_not_there(
    tmp_path: Path, payload: Any, named: str
) -> None:
    path = tmp_path / "out.jsonl"

    async def run() -> None:
        sink = JsonlSink(JsonlSink.Options(path=str(path)), EdgeContext("out"))
        await sink.open()
        await sink.write(1, ["good"])
        try:
            with pytest.raises(SinkError) as caught:
                await sink.write(2, ["good too", payload])
        finally:
            await sink.aclose()
        error: Any = caught.value
        assert error.sink == "out"
        assert str(path) in error.what
        assert f"a payload of type {named} cannot be written" in error.what
        assert f"\n    It is {repr(payload)[:2]}" in error.what

    asyncio.run(run())
    assert path.read_text() == '"good"\n'


def test_a_number_that_json_has_not_is_told_with_its_place() -> None:
    with pytest.raises(Unencodable, match=r"at \['a'\]\[1\], of type float: JSON has no -inf; let the flow"):
        encode_lines([{"a": [None, 1.0]}, {"a": [None, -math.inf]}])


finite = st.floats(allow_nan=False, allow_infinity=False)
texts = st.text(st.characters(exclude_categories=["Cs"]))
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | finite | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text('aб\n"', max_size=3), inner, max_size=4),
    max_leaves=10,
)


UNKNOWN: Any = Unknown()


class Strange(enum.Enum):
    """Has a value that JSON does not have."""

    ONE = object()


@pytest.mark.parametrize(
    ("payload", "where"),
    [
        ({"id": 1, "kind": Strange.ONE}, "at ['kind'], of type Strange: "),
        ([1, {"a": (2, Point(1, tags=(UNKNOWN,)))}], "at [1]['a'][1].tags[0], of type Unknown: "),
        (Circle(Point(1, tags=(UNKNOWN,)), 1.0), "at .centre.tags[0], of type Unknown: "),
        (Unknown(), "cannot be written: Encoding"),
        (Circle, "cannot be written: Encoding"),
        ([Circle], "at [0], of type type: "),
        ({"k" * 99: UNKNOWN}, f"at ['{'k' * 39}], of type Unknown: "),
        (endless(), "at [0][0]"),
    ],
)
def test_the_part_of_a_payload_that_cannot_be_written_is_named(payload: Any, where: str) -> None:
    with pytest.raises(Unencodable) as caught:
        encode_lines([1, payload])
    assert where in str(caught.value)


@settings(deadline=None)  # it waits for the disk
@given(st.lists(json_values, max_size=20))
def test_jsonl_comes_back_as_it_was_written(tmp_path_factory: pytest.TempPathFactory, values: list[Any]) -> None:
    path = tmp_path_factory.getbasetemp() / "round.jsonl"

    async def run() -> list[Any]:
        sink = JsonlSink(JsonlSink.Options(path=str(path)), EdgeContext("out"))
        await sink.open()
        if values:
            await sink.write(1, values)
        await sink.aclose()
        source = jsonl_of(path)
        reader = await source.open(str(path))
        found: list[Any] = []
        while (batch := await reader.read(3)) is not None:
            assert not batch.rejected
            found += batch.values
        await reader.aclose()
        return found

    assert asyncio.run(run()) == values
    assert [json.loads(line) for line in path.read_text().split("\n")[:-1]] == values


points = st.builds(Point, st.integers(-(2**63), 2**63), finite)


@given(st.lists(points, min_size=1, max_size=5))
def test_named_tuples_come_back_as_they_were_written(
    tmp_path_factory: pytest.TempPathFactory, read_all: ReadAll, values: list[Point]
) -> None:
    path = tmp_path_factory.getbasetemp() / "points.jsonl"
    path.write_bytes(encode_lines(values))
    assert read_all(jsonl_of(path, Point)).values == values


def encoded(*payloads: Any) -> list[Any]:
    encode = JsonlSink(JsonlSink.Options(path="unused"), EdgeContext("out")).encoder()
    assert encode is not None
    return list(encode(payloads))


async def written_ahead(path: Path, lines: list[Any]) -> None:
    sink = JsonlSink(JsonlSink.Options(path=str(path)), EdgeContext("out"))
    await sink.open()
    try:
        await sink.write_encoded(1, lines)
    finally:
        await sink.aclose()


ODD = {
    "text that ends a line": "a\n",
    "raw JSON of several lines": msgspec.Raw(b'{\n"x": 1\n}'),
    "a text of another class": type("Text", (str,), {})("a"),
    "bytes": b"a\n",
    "a record": Point(1),
}


@pytest.mark.parametrize("odd", ODD.values(), ids=ODD.keys())
def test_lines_are_encoded_ahead_as_they_are_written(tmp_path: Path, odd: Any) -> None:
    lines = encoded(Circle(Point(1), 2.0), odd, "b")
    assert len(lines) == 3
    for number, some in enumerate(
        (lines, [line for one in (Circle(Point(1), 2.0), odd, "b") for line in encoded(one)])
    ):
        asyncio.run(written_ahead(tmp_path / str(number), some))
        assert (tmp_path / str(number)).read_bytes() == encode_lines([Circle(Point(1), 2.0), odd, "b"])


@pytest.mark.parametrize(
    "refused", [object(), "a\ud800", "\ud800\n", {1: "\ud800"}], ids=["object", "surrogate", "line", "dict"]
)
def test_a_payload_without_a_line_is_refused_where_it_would_be_written(tmp_path: Path, refused: Any) -> None:
    lines = encoded("a", refused, "b")
    assert lines == ['"a"\n', refused, '"b"\n']
    with pytest.raises(SinkError, match=f"a payload of type {type(refused).__name__} cannot be written"):
        asyncio.run(written_ahead(tmp_path / "out", lines))
    assert (tmp_path / "out").read_bytes() == b"", "nothing of the batch is left behind"


def test_raw_bytes_that_are_no_text_are_written_as_they_are(tmp_path: Path) -> None:
    raw = msgspec.Raw(b'"\xff"')
    asyncio.run(written_ahead(tmp_path / "out", encoded("a", raw)))
    assert (tmp_path / "out").read_bytes() == b'"a"\n"\xff"\n'


class Named(NamedTuple):
    a: Any
    b: Any = None


class Empty(NamedTuple):
    pass


def of_another_width(value: object) -> Named:
    return tuple.__new__(Named, (value,))


leaves = st.one_of(
    st.none(),
    st.integers(0, 9),
    st.text(max_size=2),
    st.just(object()),
    st.frozensets(st.integers(0, 3)),
    st.datetimes(),
)


def around(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        st.tuples(inner),
        st.tuples(inner, inner),
        st.builds(Named, inner, inner),
        st.builds(of_another_width, inner),
        st.builds(Circle, inner, inner),
        st.lists(inner, max_size=2),
        st.lists(inner, max_size=2).map(tuple),
        st.dictionaries(st.integers(0, 3), inner, max_size=2),
        st.just(Empty()),
    )


@given(st.data())
def test_a_line_of_json_does_not_depend_on_its_neighbours(data: st.DataObject) -> None:
    shape = data.draw(
        st.sampled_from([st.recursive(leaves, around, max_leaves=6), *map(around, (leaves, around(leaves)))])
    )
    payloads = data.draw(st.lists(data.draw(st.sampled_from([shape, around(shape)])), max_size=4))
    assert encoded(*payloads) == [line for payload in payloads for line in encoded(payload, None)[:1]]


@pytest.mark.parametrize("form", [tuple, Named._make], ids=["tuples", "named tuples"])
def test_columns_are_written_as_their_values(form: Callable[[Any], Any]) -> None:
    columns = [1, "a", None], [(1,), (2,), (3,)], [(), (1, 2), (3,)], [Point(1), Point(2), Point(3)], [{1}, {2}, (1,)]
    for one in columns:
        for other in columns:
            payloads = [form(row) for row in zip(one, other, strict=True)]
            assert encode_lines(payloads) == b"".join(encode_alone(payload) + b"\n" for payload in payloads)


ARRAY_SCALARS = {
    "int64": 5,
    "uint8": 200,
    "int16": -3,
    "float16": 0.5,
    "float32": 1.5,
    "float64": 2.25,
    "bool_": True,
}


@pytest.mark.parametrize("name", ARRAY_SCALARS)
def test_numbers_of_numpy_are_written_as_numbers(name: str) -> None:
    numpy = pytest.importorskip("numpy", reason="numpy is not installed")
    value = wanted = ARRAY_SCALARS[name]
    value = getattr(numpy, name)(wanted)
    for payload, text in (
        (value, wanted),
        (Point(value, 0.5, ("a",)), {"x": wanted, "y": 0.5, "tags": ["a"]}),
        ({"n": [value, {"m": value}]}, {"n": [wanted, {"m": wanted}]}),
        (numpy.array(value), wanted),
    ):
        assert json.loads(encode_alone(payload)) == text
        assert encode_lines([payload]) == encode_alone(payload) + b"\n"
    if isinstance(wanted, int) and not isinstance(wanted, bool):
        assert json.loads(encode_alone({value: "key"})) == {str(wanted): "key"}
    with pytest.raises(Unencodable, match="ndarray"):
        encode_alone(numpy.array([value, value]))
    with pytest.raises(Unencodable, match="JSON has no inf"):
        encode_lines([[value], [numpy.float32("inf")]])


@pytest.mark.parametrize("use", ["jsonl", "csv", "sqlite", "stdout"])
def test_numbers_of_numpy_pass_every_sink(use: str, tmp_path: Path) -> None:
    numpy = pytest.importorskip("numpy", reason="numpy is not installed")
    flow = fc.Flow("numbers")
    flow.source("numbers", int).map(lambda n: (numpy.int64(n), numpy.float32(n))).sink("out")
    path = {} if use == "stdout" else {"sink.out.path": str(tmp_path / "out")}
    flow.run({"numbers": [1, 2]}, settings={"sink.out.use": use, **path})


def test_a_payload_that_cannot_be_shown_is_refused_like_others(tmp_path: Path) -> None:
    """Python shows no integer of so many digits."""

    async def run() -> None:
        sink = JsonlSink(JsonlSink.Options(path=str(tmp_path / "out.jsonl")), EdgeContext("out"))
        await sink.open()
        try:
            await sink.write(1, [{"n": 10**5000}])
        finally:
            await sink.aclose()

    with pytest.raises(SinkError, match="cannot be written") as caught:
        asyncio.run(run())
    assert "It is a dict whose repr fails: ValueError" in caught.value.what


@pytest.mark.parametrize("use", ["jsonl", "csv", "sqlite", "stdout"])
def test_times_and_bytes_of_numpy_pass_every_sink_as_what_they_are(use: str, tmp_path: Path) -> None:
    numpy = pytest.importorskip("numpy", reason="numpy is not installed")
    values = {
        "time": numpy.datetime64("2024-01-01T00:00:00"),
        "date": numpy.datetime64("2024-01-01"),
        "span": numpy.timedelta64(5, "s"),
        "bytes": numpy.bytes_(b"x"),
        "text": numpy.str_("a"),
    }
    assert encode_alone(values) == encode_alone({name: value.item() for name, value in values.items()})
    path = {} if use == "stdout" else {"sink.out.path": str(tmp_path / "out")}
    flow = fc.Flow("numpy")
    flow.source("values", object).sink("out")
    flow.run({"values": [*values.values()]}, settings={"sink.out.use": use, **path})
    for value in (numpy.datetime64(1, "ns"), numpy.datetime64("NaT", "s"), numpy.complex64(1j)):
        with pytest.raises(Unencodable):
            encode_alone([value])
