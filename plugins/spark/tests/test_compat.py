"""Releases of Spark that differ: in place of a part that one of them lacks there is another, or a clear error."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import flamecore as fc
import flamestream_spark
from flamecore.errors import MissingDependencyError, SourceError
from flamestream_spark import compat
from flamestream_spark.compat import TYPES


def without(monkeypatch: pytest.MonkeyPatch, *names: str) -> ModuleType:
    """Take names out of PySpark's module of data sources; return it."""
    sources = ModuleType("pyspark.sql.datasource")
    for name in {"DataSourceStreamWriter", "DataSourceArrowWriter", "DataSourceStreamArrowWriter"}.difference(names):
        setattr(sources, name, type(name, (), {}))
    monkeypatch.setitem(sys.modules, sources.__name__, sources)
    return sources


def test_types_that_spark_does_not_have_are_those_of_no_column() -> None:
    types = pytest.importorskip("pyspark.sql.types")
    assert TYPES.MapType is types.MapType
    assert not isinstance(types.StringType(), TYPES.NoSuchType)


def test_a_spark_without_data_sources_is_told_so_at_the_first_call(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark.sql.datasource", None)
    monkeypatch.delitem(sys.modules, "flamestream_spark.datasource", raising=False)
    monkeypatch.delattr(flamestream_spark, "datasource", raising=False)
    with pytest.raises(MissingDependencyError, match=r'format "flamestream" .* needs Spark 4.0 or newer') as caught:
        flamestream_spark.register(spark)
    assert "run, through and stream work" in caught.value.hint


def test_data_sources_that_take_no_arrow_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyspark")
    without(monkeypatch, "DataSourceArrowWriter")
    with pytest.raises(MissingDependencyError, match=r"needs Spark 4.0"):
        compat.data_sources()


def test_writers_of_streams_take_arrow_in_every_release(monkeypatch: pytest.MonkeyPatch) -> None:
    newer = without(monkeypatch)
    assert compat.arrow_stream_writer() is newer.DataSourceStreamArrowWriter
    older = without(monkeypatch, "DataSourceStreamArrowWriter")
    assert compat.arrow_stream_writer().__mro__[1:3] == (older.DataSourceStreamWriter, older.DataSourceArrowWriter)


def test_the_metadata_of_files_is_found_where_spark_has_no_function_for_it(spark: Any, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x")
    frame = spark.read.text(str(tmp_path)).withColumnRenamed("value", "_metadata")
    found = compat.file_metadata(SimpleNamespace(_jdf=frame._jdf))
    assert frame.select(found.getField("file_name")).collect()[0][0] == "a.txt"
    assert "_metadata" in str(compat.file_metadata(SimpleNamespace()))


def test_a_column_of_a_type_that_pyspark_does_not_know_is_an_error_of_the_source(
    spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyspark.errors import PySparkValueError

    def schema(self: object) -> None:
        raise PySparkValueError("Unable to parse datatype. interval.")

    frame = spark.range(3)
    monkeypatch.setattr(type(frame), "schema", property(schema))
    flow = fc.Flow("numbers")
    flow.source("numbers", int).sink("out")
    with pytest.raises(
        SourceError, match=r"'numbers': a column has a type that this PySpark does not know: .*interval"
    ):
        flamestream_spark.run(flow, numbers=frame, order_by="id")


def test_tags_that_a_session_does_not_have_are_none() -> None:
    class Session:
        def getTags(self) -> set[str]:
            raise RuntimeError("SparkSession.getTags is only supported with Spark Connect")

    assert compat.tags_of(Session()) == frozenset()


def test_a_data_source_that_spark_has_found_by_itself_stays() -> None:
    def register(source: type) -> None:
        raise RuntimeError(f"[{words}] Data source 'flamestream'")

    spark = SimpleNamespace(dataSource=SimpleNamespace(register=register))
    words = "DATA_SOURCE_ALREADY_EXISTS"
    compat.register_source(spark, int)
    words = "INTERNAL_ERROR"
    with pytest.raises(RuntimeError, match="INTERNAL_ERROR"):
        compat.register_source(spark, int)
