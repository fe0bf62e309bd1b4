"""Outputs cut into folders by their values, and tables that hold the last row of each key."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from flamecore.abc.sink import Mode
from flamecore.abc.source import EdgeContext
from flamecore.errors import ConfigError, SinkError, SourceError
from flamecore.testing.checks.edges import SinkTests
from flamestream_spark.sink import SparkSink
from flamestream_spark.storage.places import place_of
from flamestream_spark.tables.outputs import output_of
from flamestream_spark.tables.partitions import last_of, pieces_of


class Posting(NamedTuple):
    letter: str | None
    page: int
    word: str


DEFAULT = "__HIVE_DEFAULT_PARTITION__"
ODD = [
    "a",
    "A",
    "é",
    ":",
    "%",
    "%5F",
    "a b",
    "a ",
    "a.",
    "=/x",
    "..",
    None,
    DEFAULT,
    DEFAULT.lower(),
    f"%5F{DEFAULT[1:]}",
]


def make(folder: Path, fingerprint: str = "kit", type_: Any = Posting, **options: Any) -> SparkSink:
    return SparkSink(SparkSink.Options(path=str(folder), **options), EdgeContext("index", type_, None, fingerprint))


async def deliver(sink: SparkSink, *batches: tuple[int, list[Any]]) -> int:
    time = await sink.open()
    for at, payloads in batches:
        await sink.write(at, payloads)
    await sink.sync(batches[-1][0])
    await sink.aclose()
    return time


def rows(folder: Path) -> list[dict[str, Any]]:
    """Return the rows of a folder of partitions, or of a Delta table."""
    if (folder / "_delta_log").is_dir():
        found = pa.table(DeltaTable(folder).to_pyarrow_dataset().to_table()).to_pylist()
    else:
        cut = ds.partitioning(pa.schema([("letter", pa.string())]), flavor="hive")
        found = ds.dataset(folder, partitioning=cut).to_table().to_pylist()
    return sorted(found, key=lambda row: (row["page"], row["word"]))


class Cut(SparkSink):
    """A sink that is given texts, and cuts by the last letter."""

    async def write(self, time: int, payloads: Sequence[Any]) -> None:
        await super().write(time, [Posting(str(text)[-1:], time * 1000 + at, text) for at, text in enumerate(payloads)])

    async def write_ordered(self, time: int, orders: Sequence[bytes], payloads: Sequence[Any]) -> None:
        if payloads and isinstance(payloads[0], Posting):
            await super().write_ordered(time, orders, payloads)
        else:
            await self.write(time, payloads)


class PartitionTests(SinkTests):
    """The laws of a sink, for one that cuts."""

    kind: Literal["parquet", "delta"]

    def make(self, folder: Path, *, resume: bool, fingerprint: str) -> SparkSink:
        mode: Mode = "resume" if resume else "replace"
        options = SparkSink.Options(path=str(folder / "out"), format=self.kind, mode=mode, partition_by=("letter",))
        return Cut(options, EdgeContext("index", Posting, None, fingerprint))

    def read_back(self, folder: Path) -> Sequence[Any]:
        return [row["word"] for row in rows(folder / "out")]


class TestPartitions(PartitionTests):
    kind = "parquet"


class TestDeltaPartitions(PartitionTests):
    kind = "delta"


@pytest.mark.parametrize("kind", ["parquet", "delta"])
def test_rows_are_in_the_folders_of_their_values(kind: str, tmp_path: Path) -> None:
    payloads = [Posting(letter, page, f"w{page}") for page, letter in enumerate(ODD)]
    asyncio.run(deliver(make(tmp_path / "out", format=kind, partition_by=["letter"]), (1, payloads)))
    if kind == "parquet":  # Arrow, unlike Spark, looks for the word of null behind the escapes
        expected = [one._replace(letter=None) if one.letter == DEFAULT else one for one in payloads]
    else:
        expected = payloads
    assert rows(tmp_path / "out") == [one._asdict() for one in expected]
    folders = {folder.name for folder in (tmp_path / "out").glob("letter=*")}
    assert {"letter=a", "letter=%3A", "letter=%25", "letter=..", "letter=__HIVE_DEFAULT_PARTITION__"} < folders
    assert len(folders) == len(ODD)


@pytest.mark.parametrize("kind", ["parquet", "delta"])
def test_a_value_too_long_for_the_name_of_a_folder_is_named(kind: str, tmp_path: Path) -> None:
    sink = make(tmp_path / "out", format=kind, partition_by=["letter"])
    longest = "é" * 124  # of 2 bytes each, behind "letter="
    asyncio.run(deliver(sink, (1, [Posting(longest, 1, "kept")])))
    again = make(tmp_path / "out", format=kind, partition_by=["letter"], mode="resume")
    words = "column 'letter' would have a name of 258 bytes, 255 at most"
    with pytest.raises(SinkError, match=words) as caught:
        asyncio.run(deliver(again, (2, [Posting("a", 2, "lost"), Posting(f"{longest}éx", 3, "lost")])))
    assert "Map the payload before the sink" in caught.value.hint
    assert rows(tmp_path / "out") == [{"letter": longest, "page": 1, "word": "kept"}]


def lower(path: Path) -> Path:
    return path.with_name(path.name.lower())


def test_folders_that_a_file_system_takes_for_one_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asyncio.run(deliver(make(tmp_path / "out", partition_by=["letter"]), (1, [Posting("a", 1, "kept")])))
    mkdir = Path.mkdir
    monkeypatch.setattr(Path, "mkdir", lambda path, *a, **b: mkdir(lower(path), *a, **b))
    again = make(tmp_path / "out", partition_by=["letter"], mode="resume")
    with pytest.raises(SinkError, match=r"has no folder .*/letter=A beside those that are there"):
        asyncio.run(deliver(again, (2, [Posting("A", 2, "lost")])))
    assert rows(tmp_path / "out") == [{"letter": "a", "page": 1, "word": "kept"}]


def test_files_of_one_batch_of_a_delta_table_have_different_names(tmp_path: Path) -> None:
    asyncio.run(deliver(make(tmp_path / "out", format="delta", partition_by=["letter"]), *BATCHES))
    names = [path.name for path in (tmp_path / "out").rglob("part-*.parquet")]
    assert len(set(names)) == len(names) == len(ALL)


def test_spark_reads_what_was_cut(spark: Any, tmp_path: Path) -> None:
    payloads = [Posting(letter, page, f"w{page}") for page, letter in enumerate(ODD)]
    for kind in ("parquet", "json", "csv"):
        asyncio.run(deliver(make(tmp_path / kind, format=kind, partition_by=["letter"]), (1, payloads)))
        reader = spark.read.schema("page bigint, word string, letter string").option("header", "true")
        found = reader.format(kind).load(str(tmp_path / kind)).orderBy("page").collect()
        assert [(row.letter, row.page, row.word) for row in found] == payloads


def test_several_columns_cut_in_their_order(tmp_path: Path) -> None:
    class Sale(NamedTuple):
        amount: float
        day: datetime.date
        shop: int

    day = datetime.date(2024, 2, 29)
    sink = make(tmp_path / "out", type_=Sale, partition_by=["day", "shop"])
    asyncio.run(deliver(sink, (1, [Sale(1.0, day, 7), Sale(2.0, day, 8), Sale(3.0, day, 7)])))
    files = sorted((tmp_path / "out").glob("day=2024-02-29/shop=*/part-*-of-2.parquet"))
    assert [pq.ParquetFile(file).read().to_pylist() for file in files] == [
        [{"amount": 1.0}, {"amount": 3.0}],
        [{"amount": 2.0}],
    ]


BATCHES = [(time, [Posting(letter, time, f"{letter}{time}") for letter in "abc"]) for time in (1, 2, 3)]
ALL = [one._asdict() for _, batch in BATCHES for one in batch]


@pytest.mark.parametrize("lost", [["a"], ["a", "c"]], ids=str)
@pytest.mark.parametrize("mode", ["resume", "append"])
def test_half_a_batch_goes_when_the_folder_is_opened_again(lost: list[str], mode: Mode, tmp_path: Path) -> None:
    asyncio.run(deliver(make(tmp_path / "out", partition_by=["letter"]), *BATCHES[:2]))
    for letter in lost:  # as if it had died before it renamed these
        (last,) = (tmp_path / "out").glob(f"letter={letter}/part-*2-of-3.parquet")
        last.rename(last.with_name(f".{last.name}-0123"))
    (tmp_path / "out" / "_flamestream.json").write_bytes(
        (tmp_path / "out" / "_flamestream.json").read_bytes().replace(b'"time":2', b'"time":1')
    )
    reached = asyncio.run(deliver(make(tmp_path / "out", mode=mode, partition_by=["letter"]), *BATCHES[1:]))
    assert rows(tmp_path / "out") == ALL
    if mode == "resume":
        assert reached == 1
    assert not [*(tmp_path / "out").rglob(".part-*")]


@pytest.mark.parametrize("kind", ["parquet", "delta"])
def test_output_that_is_replaced_leaves_no_rows(kind: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {"format": kind, "partition_by": ["letter"]}
    asyncio.run(deliver(make(tmp_path / "out", **options), *BATCHES))
    asyncio.run(deliver(make(tmp_path / "out", "other", **options), (1, [Posting("z", 1, "z")])))
    assert rows(tmp_path / "out") == [{"letter": "z", "page": 1, "word": "z"}]
    if kind == "parquet":
        assert [folder.name for folder in (tmp_path / "out").glob("letter=*")] == ["letter=z"]


@pytest.mark.parametrize("kind", ["parquet", "delta"])
@pytest.mark.parametrize("by", [[], ["word"]], ids=str)
def test_output_with_other_partitions_is_not_added_to(kind: str, by: list[str], tmp_path: Path) -> None:
    asyncio.run(deliver(make(tmp_path / "out", format=kind, partition_by=["letter"]), *BATCHES))
    with pytest.raises(SinkError, match="is partitioned by letter"):
        asyncio.run(deliver(make(tmp_path / "out", format=kind, partition_by=by, mode="append"), *BATCHES))
    assert rows(tmp_path / "out") == ALL


def test_files_of_others_in_a_partition_are_not_touched(tmp_path: Path) -> None:
    (tmp_path / "out" / "letter=a").mkdir(parents=True)
    (tmp_path / "out" / "letter=a" / "data.parquet").touch()
    (tmp_path / "out" / "empty=1").mkdir()
    with pytest.raises(SinkError, match=r"files that no such sink has written: letter=a/data.parquet"):
        asyncio.run(deliver(make(tmp_path / "out", partition_by=["letter"]), *BATCHES))


def test_a_folder_with_partitions_is_for_others_to_read(tmp_path: Path) -> None:
    asyncio.run(deliver(make(tmp_path / "out", partition_by=["letter"]), *BATCHES))
    with pytest.raises(SourceError, match="is partitioned by letter"):
        output_of(place_of(tmp_path / "out", "path")).files()


@pytest.mark.parametrize("by", [(), ("letter",)], ids=str)
def test_a_table_holds_the_last_row_of_each_key(by: tuple[str, ...], tmp_path: Path) -> None:
    def table(**more: Any) -> SparkSink:
        return make(tmp_path / "out", format="delta", key=("letter", "page"), partition_by=by, **more)

    first = [Posting("a", 1, "one"), Posting("a", 2, "two"), Posting("a", 1, "uno")]
    asyncio.run(deliver(table(), (1, first), (2, [Posting("b", 1, "eins"), Posting("a", 2, "due")])))
    expected = [("b", 1, "eins"), ("a", 1, "uno"), ("a", 2, "due")]
    assert [tuple(row.values()) for row in rows(tmp_path / "out")] == expected
    again = [Posting("c", 1, "unu"), Posting("a", 1, "ein")]
    assert asyncio.run(deliver(table(mode="resume"), (3, again))) == 2
    assert [tuple(row.values()) for row in rows(tmp_path / "out")] == [
        ("a", 1, "ein"), ("b", 1, "eins"), ("c", 1, "unu"), ("a", 2, "due")
    ]  # fmt: skip


@pytest.mark.parametrize(("by", "empty"), [((), None), (("letter",), ""), (("letter",), None)], ids=str)
def test_an_empty_key_is_an_error(by: tuple[str, ...], empty: str | None, tmp_path: Path) -> None:
    sink = make(tmp_path / "out", format="delta", key=("letter",), partition_by=by)
    with pytest.raises(SinkError, match="column 'letter' is part of the key, and empty"):
        asyncio.run(deliver(sink, (1, [Posting(empty, 1, "one")])))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"partition_by": ["leter"]}, "sink.index.partition_by: there is no column 'leter'\n  Did you mean 'letter'?"),
        ({"partition_by": ["letter", "page", "word"]}, "no other column is left"),
        ({"key": ["page"]}, "sink.index.key: files of format 'parquet' are added to"),
        ({"type_": tuple[float, str], "partition_by": ["key"]}, "column 'key' is of type double"),
    ],
)
def test_columns_that_cannot_cut_are_refused_before_the_start(options: Any, words: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        make(tmp_path / "out", **options)
    assert words in str(caught.value)


def test_pieces_keep_the_order_of_rows() -> None:
    table = pa.table({"n": [1, 2, 3, 4], "x": ["b", "a", "b", ""]})
    pieces = pieces_of(table, ["x"])
    assert [(piece.folder, piece.table.to_pydict()) for piece in pieces] == [
        ("x=__HIVE_DEFAULT_PARTITION__", {"n": [4]}),
        ("x=a", {"n": [2]}),
        ("x=b", {"n": [1, 3]}),
    ]
    assert last_of(table, ["x"]).to_pydict() == {"n": [2, 3, 4], "x": ["a", "b", ""]}
    assert pieces_of(table, []) == [("", {}, table)]
