"""Source and sink `csv`."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypedDict

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import flamecore as fc
from flamecore.abc.source import EdgeContext
from flamecore.errors import ConfigError, SinkError, SourceError
from flamestream_edges.csv import CsvSink, CsvSource

ReadAll = Callable[..., Any]

A_NUMBER = "a number is such as 7, -007, .5 or 1e3, with a point and without separators"


class Row(NamedTuple):
    name: str
    number: int
    price: float | None = None
    day: datetime.date | None = None


class Settled(NamedTuple):
    text: str
    number: int
    flag: bool
    part: float
    maybe: int | None
    side: Literal["left", "right"]


@dataclasses.dataclass
class Data:
    number: int
    name: str = "none"


class Weight(float):
    """A float of another class, whose own text is no number, as those of numpy."""

    def __repr__(self) -> str:
        return f"Weight({float(self)})"


SPECIAL = [kind(text) for text in ("inf", "nan", "1e22") for kind in (float, Weight)]


class Struct(msgspec.Struct, rename={"number": "Number"}):
    number: int


class Typed(TypedDict):
    number: int


def csv_of(path: Path, type_: Any = object, **options: Any) -> CsvSource:
    return CsvSource(CsvSource.Options(path=str(path), **options), EdgeContext("rows", type_))


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return tmp_path / "table.csv"


@pytest.mark.parametrize(
    ("text", "options", "values"),
    [
        ("a,b\n1,2\n", {}, [{"a": "1", "b": "2"}]),
        ("\ufeffa,b\r\n1,\r\n", {}, [{"a": "1", "b": ""}]),
        ('a,b\n"x\r\n""y""",","\n\n1,2', {}, [{"a": 'x\r\n"y"', "b": ","}, {"a": "1", "b": "2"}]),
        ("a;b\n1,5;2\n", {"delimiter": ";"}, [{"a": "1,5", "b": "2"}]),
        ("a\tb\n", {"delimiter": "\t"}, []),
        ("1,2\n", {"header": False, "columns": ("x", "y")}, [{"x": "1", "y": "2"}]),
        ("a,a\n1,2\n", {"columns": ("x", "y")}, [{"x": "1", "y": "2"}]),
        ("", {}, []),
        ('a\n""\n', {}, [{"a": ""}]),
    ],
)
def test_rows_become_dicts_by_column(
    table: Path, read_all: ReadAll, text: str, options: dict[str, Any], values: list[dict[str, str]]
) -> None:
    table.write_text(text, newline="")
    found = read_all(csv_of(table, **options), 1)
    assert found.values == values
    assert not found.rejected


@pytest.mark.parametrize(
    ("type_", "value"),
    [
        (dict, {"Number": "7", "number": "7", "name": "x", "price": "", "day": ""}),
        (dict[str, str], {"Number": "7", "number": "7", "name": "x", "price": "", "day": ""}),
        (Row, Row("x", 7, None, None)),
        (Data, Data(7, "x")),
        (Struct, Struct(7)),
        (Typed, {"number": 7}),
    ],
)
def test_rows_become_the_declared_type(table: Path, read_all: ReadAll, type_: Any, value: Any) -> None:
    table.write_text("Number,number,name,price,day\n7,7,x,,\n")
    found = read_all(csv_of(table, type_))
    assert found.values == [value]
    assert type(found.values[0]) is type(value)


def test_without_a_header_the_declared_fields_are_the_columns(table: Path, read_all: ReadAll) -> None:
    table.write_text("x,7,1.5,2024-02-29\n")
    found = read_all(csv_of(table, Row, header=False))
    assert found.values == [Row("x", 7, 1.5, datetime.date(2024, 2, 29))]


def test_malformed_records_are_rejected_with_their_first_line_and_the_rest_is_read(
    table: Path, read_all: ReadAll
) -> None:
    rows = [
        b"name,number",
        b'"two\nlines",1',
        b"short",
        b"too,2,long",
        b'"\n\xff\n",3',
        b"x,many",
        b'"bad"quote,4',
        b"end,5",
    ]
    table.write_bytes(b"\n".join(rows) + b"\n")
    found = read_all(csv_of(table, Row))
    assert found.values == [Row("two\nlines", 1), Row("end", 5)]
    assert found.places == [f"{table} line {line}" for line in (4, 5, 6, 9, 10)]
    reasons = [bad.reason for bad in found.rejected]
    assert reasons[0] == "1 fields where 2 are expected"
    assert reasons[1] == "3 fields where 2 are expected"
    assert reasons[2].startswith("not utf-8: byte 1 of the record is ff")
    assert reasons[3].startswith("column 'number' is '")
    assert reasons[3].endswith(f": Expected `int`; {A_NUMBER}")
    assert reasons[4].startswith("not CSV: ")
    assert [bad.raw for bad in found.rejected] == [row if b"\xff" in row else row.decode() for row in rows[2:7]]


class Measure(NamedTuple):
    place: str
    celsius: float | None
    amount: int


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("riga,,12", None),
        pytest.param(
            f"riga,{'x' * 10_000},1",
            f"column 'celsius' is 'xxxxx{'x' * 134}… (10002 characters): Expected `float | null`; {A_NUMBER}",
            id="long",
        ),
        ("riga,warm,1", f"column 'celsius' is 'warm': Expected `float | null`; {A_NUMBER}"),
        ("riga,1.5,", "column 'amount' is '': Expected `int`; a column that may be empty is declared with | None"),
        ("riga,1.5,1.5", "column 'amount' is '1.5': Expected `int`"),
    ],
)
def test_a_cell_that_does_not_fit_is_told_with_its_column(
    table: Path, read_all: ReadAll, row: str, reason: str | None
) -> None:
    table.write_text(f"place,celsius,amount\n{row}\n")
    found = read_all(csv_of(table, Measure))
    assert [bad.reason for bad in found.rejected] == ([] if reason is None else [reason])


def test_a_quote_that_is_never_closed_costs_the_rest_of_the_file_and_says_so(table: Path, read_all: ReadAll) -> None:
    table.write_text('a,b\n1,2\n3,"4\n5,6\n7,8\n')
    found = read_all(csv_of(table))
    assert found.values == [{"a": "1", "b": "2"}]
    assert found.places == [f"{table} line 3"]
    assert found.rejected[0].reason == "not CSV: unexpected end of data"
    assert found.rejected[0].raw == '3,"4\n5,6\n7,8'


def test_a_record_beyond_the_limit_is_rejected_and_never_held(table: Path, read_all: ReadAll) -> None:
    table.write_text('a,b\n1,2\n"' + "xxx\n" * 30 + '\n3,4\n5,"' + "y" * 500 + '"\n6,7\n')
    found = read_all(csv_of(table, max_line_bytes=50))
    assert {"a": "1", "b": "2"} in found.values
    assert found.values[-1] == {"a": "6", "b": "7"}
    assert max(len(bad.raw) for bad in found.rejected) < 600
    assert found.rejected[0].reason == "longer than max_line_bytes, 50: a quote is not closed"
    assert found.places[0] == f"{table} line 3"
    assert found.rejected[-1].reason == "the line is 504 bytes long, and max_line_bytes is 50"


def test_a_field_may_be_longer_than_python_usually_allows(table: Path, read_all: ReadAll) -> None:
    table.write_text("a\n" + "x" * 1_000_000 + "\n")
    assert len(read_all(csv_of(table)).values[0]["a"]) == 1_000_000


@pytest.mark.parametrize(
    ("text", "type_", "what", "hint"),
    [
        (b"a,b,a\n", object, "two columns are named 'a'", "columns"),
        (b"nam,number\n", Row, "there is no column 'name', which Row needs", "Did you mean 'nam'?"),
        (b'"a', object, "the header is malformed", "Correct"),
        (b"\xff\n", object, "the header is malformed: not utf-8", "Correct"),
    ],
)
def test_an_unusable_header_is_refused(table: Path, text: bytes, type_: Any, what: str, hint: str) -> None:
    table.write_bytes(text)
    with pytest.raises(SourceError) as caught:
        asyncio.run(csv_of(table, type_).open(str(table)))
    error: Any = caught.value
    assert what in error.what
    assert hint in error.hint
    assert error.position == f"{table} line 1"


@pytest.mark.parametrize(("type_", "options"), [(str, {}), (tuple[str, int], {}), (object, {"header": False})])
def test_types_csv_cannot_give_are_refused_at_once(type_: Any, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        csv_of(Path("x"), type_, **options)


async def write_csv(path: Path, type_: Any, payloads: list[Any], **options: Any) -> None:
    sink = CsvSink(CsvSink.Options(path=str(path), **options), EdgeContext("out", type_))
    try:
        await sink.open()
        if payloads:
            await sink.write(1, payloads)
    finally:
        await sink.aclose()


@pytest.mark.parametrize(
    ("type_", "payloads", "text"),
    [
        (
            Row,
            [Row("x", 1), Row("y", 2, 0.5, datetime.date(2024, 1, 1))],
            "name,number,price,day\nx,1,,\ny,2,0.5,2024-01-01\n",
        ),
        (tuple[str, int], [("a", 1)], "key,value\na,1\n"),
        (tuple[str, int, bool], [("a", 1, True)], "c0,c1,c2\na,1,true\n"),
        (Data, [Data(1, "a,b")], 'number,name\n1,"a,b"\n'),
        (Struct, [Struct(1)], "Number\n1\n"),
        (Typed, [{"number": 3}], "number\n3\n"),
        (object, ["text", 1, {"a": [1]}, ("x", 2), Row("x", 1), None], 'value\ntext\n1\n"{""a"":[1]}"\n"[""x"",2]"\n'),
        (tuple[str, list[int]], [("a", [1, 2])], 'key,value\na,"[1,2]"\n'),
        (tuple[str, str], [("a\rb", "c"), ("d", "e")], 'key,value\n"a\rb","c"\nd,e\n'),
        (str, [""], 'value\n""\n'),
        (object, SPECIAL, "value\ninf\ninf\nnan\nnan\n1e+22\n1e+22\n"),
        (tuple[float, str], [(Weight("-inf"), "a")], "key,value\n-inf,a\n"),
        (tuple[str, int], [("wrongly", ["typed"])], 'key,value\nwrongly,"[""typed""]"\n'),
    ],
)
def test_rows_are_written_as_csv(table: Path, type_: Any, payloads: list[Any], text: str) -> None:
    asyncio.run(write_csv(table, type_, payloads))
    with table.open(newline="") as file:
        assert file.read().startswith(text)


def test_the_sink_takes_options(table: Path) -> None:
    asyncio.run(write_csv(table, tuple[str, int], [("a;", 1)], delimiter=";", columns=("word", "n")))
    assert table.read_text() == 'word;n\n"a;";1\n'
    asyncio.run(write_csv(table, tuple[str, int], [("b", 2)], delimiter=";", columns=("word", "n"), mode="append"))
    assert table.read_text() == 'word;n\n"a;";1\nb;2\n'
    asyncio.run(write_csv(table, tuple[str, int], [("c", 3)], header=False))
    assert table.read_text() == "c,3\n"
    with pytest.raises(ConfigError, match="has 1 names, and the payloads 2 columns: key, value"):
        asyncio.run(write_csv(table, tuple[str, int], [], columns=("word",)))
    with pytest.raises(ConfigError, match=r"sink\.out\.columns has 'word' twice"):
        asyncio.run(write_csv(table, tuple[str, int], [], columns=("word", "word")))


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("a,b,c\n1,2,3\n", "begins with the row ['a', 'b', 'c'], and rows with the columns key, value are to be added"),
        ("value,key\nx,1", "begins with the row ['value', 'key']"),
        ("key;value\nx;1\n", "begins with the row ['key;value']"),
        ("\n\n\n\n\n\n\n\n\n\n\n", "does not begin with a row of CSV"),
    ],
)
def test_rows_are_not_added_to_those_of_other_columns(table: Path, text: str, what: str) -> None:
    options = CsvSink.Options(path=str(table), mode="append")
    table.write_text(text)
    with pytest.raises(SinkError, match=re.escape(f"{table} {what}")) as caught:
        asyncio.run(write_csv(table, tuple[str, int], [("a", 1)], mode="append"))
    assert "header = false" in caught.value.hint
    with pytest.raises(SinkError, match=re.escape(what)):
        CsvSink(options, EdgeContext("out", tuple[str, int])).rehearse()
    assert table.read_text() == text
    asyncio.run(write_csv(table, tuple[str, int], [("a", 1)], mode="append", header=False))
    assert table.read_text() == text + "\n" * (not text.endswith("\n")) + "a,1\n"


@pytest.mark.parametrize("text", ["", "key,value\n", "\ufeffkey,value\r\nx,1\r\n", '"key","value"\nx,1\n'])
def test_rows_are_added_to_those_of_the_same_columns(table: Path, text: str) -> None:
    table.write_bytes(text.encode())
    CsvSink(CsvSink.Options(path=str(table), mode="append"), EdgeContext("out", tuple[str, int])).rehearse()
    asyncio.run(write_csv(table, tuple[str, int], [("a", 1)], mode="append"))
    assert table.read_bytes().decode() == (text or "key,value\n") + "a,1\n"


def test_a_job_with_state_adds_no_rows_to_those_of_other_columns(table: Path) -> None:
    async def run(continued: bool) -> None:
        sink = CsvSink(CsvSink.Options(path=str(table), mode="append"), EdgeContext("out", tuple[str, int]))
        sink.continues("job", continued=continued)
        try:
            await sink.open()
            await sink.write(1, [("a", 1)])
        finally:
            await sink.aclose()

    table.unlink(missing_ok=True)
    asyncio.run(run(continued=False))
    asyncio.run(run(continued=True))
    table.write_text("word,n\nx,1\n")  # by another program
    with pytest.raises(SinkError, match=re.escape("begins with the row ['word', 'n']")):
        asyncio.run(run(continued=True))
    assert table.read_text() == "word,n\nx,1\n"


@pytest.mark.parametrize(
    ("type_", "payload", "why"),
    [
        (Row, ("x", 1), "the flow declares Row for it"),
        (tuple[str, int], ("x", 1, 2), "it has 3 places, and the flow declares 2"),
        (object, object(), "unsupported"),
        (str, "\ud800", "surrogates not allowed"),
    ],
)
def test_the_error_names_a_payload_that_is_no_row(table: Path, type_: Any, payload: Any, why: str) -> None:
    with pytest.raises(SinkError, match=why):
        asyncio.run(write_csv(table, type_, [payload]))
    assert table.read_text().count("\n") == 1, "there is the header and nothing else"


texts = st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from('\r\n",;\0'), max_size=8)
settled = st.builds(
    Settled,
    texts,
    st.integers(-(2**63), 2**63 - 1),
    st.booleans(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.none() | st.integers(0, 9),
    st.sampled_from(["left", "right"]),
)


@settings(deadline=None)  # it waits for the disk
@given(st.lists(settled, max_size=8), st.sampled_from([",", ";", "\t"]), st.integers(1, 4))
def test_csv_comes_back_as_it_was_written(
    tmp_path_factory: pytest.TempPathFactory, values: list[Settled], delimiter: str, limit: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "round.csv"

    async def run() -> list[Any]:
        await write_csv(path, Settled, list(values), delimiter=delimiter)
        source = csv_of(path, Settled, delimiter=delimiter)
        reader = await source.open(str(path))
        found: list[Any] = []
        position = None
        while (batch := await reader.read(limit)) is not None:
            assert not batch.rejected
            found += batch.values
            position = batch.positions[-1]
            await reader.aclose()
            reader = await source.open(str(path), position)
        await reader.aclose()
        return found

    assert asyncio.run(run()) == values


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("007", 7),
        (" 7", 7),
        ("7 ", 7),
        ("+7", 7),
        ("-007", -7),
        ("0", 0),
        ("00", 0),
        ("-0", 0),
        ("1e3", 1000),
        ("07.0", 7),
    ],
)
def test_a_declared_number_may_have_zeros_spaces_and_a_sign(text: str, number: int, tmp_path: Path) -> None:
    assert read_of(dict[str, int], text, tmp_path) == read_of(Whole, text, tmp_path) == [{"n": number}]
    assert read_of(dict, text, tmp_path) == [{"n": text}], "what is not declared stays text, with all that is in it"


@pytest.mark.parametrize(
    ("text", "number"), [(".5", 0.5), ("-.5", -0.5), ("5.", 5.0), (" 00.50", 0.5), ("0", 0.0), (".5e1", 5.0)]
)
def test_a_declared_float_may_begin_or_end_with_the_point(text: str, number: float, tmp_path: Path) -> None:
    assert read_of(Real, text, tmp_path) == [{"n": number}]


@pytest.mark.parametrize("text", ["1_000", "0x1f", "1,5", ".", "+", "7 7", "1.000.0", "\uff17"])
def test_what_is_no_number_is_refused_with_what_is_one(text: str, tmp_path: Path) -> None:
    for declared in (Whole, Real):
        with pytest.raises(SourceError, match=re.escape("such as 7, -007, .5 or 1e3")):
            read_of(declared, text, tmp_path)


class Whole(TypedDict):
    n: int


class Real(TypedDict):
    n: float | None


def read_of(declared: Any, text: str, folder: Path) -> list[Any]:
    (folder / "n.csv").write_text(f'n\n"{text}"\n', "utf-8")
    flow = fc.Flow("numbers")
    flow.source("rows", declared).sink("out")
    return list(flow.run(settings={"source.rows.use": "csv", "source.rows.path": str(folder / "n.csv")})["out"])
