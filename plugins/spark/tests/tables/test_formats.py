"""Tables of Hive and of Iceberg, as Spark reads and writes them: into a flow, and out of it.

Hive's are made with the jars that pyspark brings, in a catalogue of its own. Iceberg's need a jar of their own. A
session has one catalogue for its life, so each is a program.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

FLOW = """
from typing import NamedTuple

import flamecore as fc


class Count(NamedTuple):
    word: str
    number: int


def made(pair: tuple[str, int]) -> Count:
    return Count(*pair)


flow = fc.Flow("words")
flow.source("lines", str).flat_map(str.split).key_by(lambda word: word).count().map(made).sink("counts")
"""

PROGRAM = """
import json
import sys

import flamestream_spark
from flamestream_spark.session.session import settings_of
from pyspark.sql import SparkSession
from words import flow

config, using = json.loads(sys.argv[1]), sys.argv[2]
builder = SparkSession.builder.master("local[2]")
for key, value in settings_of("local[2]", config).items():
    builder = builder.config(key, value)
spark = builder.getOrCreate()
spark.sql("CREATE DATABASE shelf")
spark.sql(f"CREATE TABLE shelf.lines (id INT, line STRING) {using}")
spark.sql("INSERT INTO shelf.lines VALUES (2, 'b a'), (1, 'a b'), (3, 'a')")

counts = flamestream_spark.run(flow, lines=spark.table("shelf.lines").select("line"), order_by="line")
spark.sql(f"CREATE TABLE shelf.counts (word STRING, number BIGINT) {using}")
counts.select("word", "number").write.insertInto("shelf.counts")
counts.select("word", "number").write.format(sys.argv[3]).saveAsTable("shelf.again")

source = {"use": "spark", "sql": "SELECT id, line FROM shelf.lines", "columns": ["line"], "order_by": ["id"]}
settings = {f"source.lines.{name}": value for name, value in source.items()}
result = flow.run(settings={**settings, "deploy.on": "here"})
found = {name: sorted(map(tuple, spark.table(f"shelf.{name}").collect())) for name in ("counts", "again")}
provider = spark.sql("DESCRIBE TABLE EXTENDED shelf.again").where("col_name = 'Provider'").first().data_type
print(json.dumps({**found, "read": [list(pair) for pair in result["counts"]], "provider": provider}))
spark.stop()
"""


ICEBERG = {
    "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
    "spark.sql.catalog.spark_catalog": "org.apache.iceberg.spark.SparkSessionCatalog",
    "spark.sql.catalog.spark_catalog.type": "hadoop",
    "spark.sql.catalog.spark_catalog.warehouse": "warehouse",
}

HIVE = {
    "spark.sql.catalogImplementation": "hive",
    "spark.hadoop.javax.jdo.option.ConnectionURL": "jdbc:derby:;databaseName=metastore;create=true",
    "spark.hadoop.datanucleus.schema.autoCreateAll": "true",
    "spark.hadoop.hive.metastore.schema.verification": "false",
}


@pytest.mark.jvm
def test_a_flow_reads_and_writes_tables_of_hive(tmp_path: Path) -> None:
    check(tmp_path, "hive", HIVE, "STORED AS ORC")


@pytest.mark.jvm
def test_a_flow_reads_and_writes_tables_of_iceberg(iceberg_jars: str, tmp_path: Path) -> None:
    check(tmp_path, "iceberg", ICEBERG | {"spark.jars": iceberg_jars}, "USING iceberg")


def check(tmp_path: Path, kind: str, config: dict[str, str], using: str) -> None:
    """Read and write tables of a kind, which SQL makes `using` it."""
    (tmp_path / "words.py").write_text(FLOW)
    (tmp_path / "program.py").write_text(PROGRAM)
    config = config | {"spark.sql.warehouse.dir": str(tmp_path / "warehouse")}
    done = subprocess.run(
        [sys.executable, "program.py", json.dumps(config), using, kind],
        cwd=tmp_path,
        env=os.environ | {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["counts"] == found["again"] == [["a", 1], ["a", 2], ["a", 3], ["b", 1], ["b", 2]]
    assert found["read"] == [["a", 1], ["b", 1], ["b", 2], ["a", 2], ["a", 3]]
    assert found["provider"] == kind
