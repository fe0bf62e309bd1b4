"""Index of a folder of text, or of a dump of Wikipedia pages, kept as Parquet.

Spark reads and cleans the pages; a flow indexes them.

    python examples/spark/index_to_parquet.py INPUT OUTPUT [--on spark]

INPUT is a folder of text files, or a file of `<page id="7" title="…">text</page>`. OUTPUT gets two tables, partitioned
by the first letter of the word: `changes`, every change of the index in the order in which it came, and `index`, what
it comes to. See README.md beside this file.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as f

import flamestream_spark
from flamestream_demo.inverted_index import flow
from flamestream_spark.session.session import session


def pages_of(spark: SparkSession, path: Path) -> DataFrame:
    """Return the input as pages: id, title, text.

    The pages of a dump are in the order of the file, those of a folder in none.
    """
    if path.is_file():
        columns = "_id int, _title string, _VALUE string"
        read = spark.read.format("xml").option("rowTag", "page").schema(columns).load(str(path))
        return read.select(f.col("_id").alias("id"), f.col("_title").alias("title"), cleaned("_VALUE").alias("text"))
    read = spark.read.text(str(path), wholetext=True, recursiveFileLookup=True)
    named = read.select(f.col("_metadata.file_path").alias("title"), cleaned("value").alias("text"))
    return named.select(f.row_number().over(Window.orderBy("title")).alias("id"), "title", "text")


def cleaned(column: str) -> Any:
    """Return the text without markup: tags, and what stands in double braces."""
    return f.regexp_replace(f.coalesce(f.col(column), f.lit("")), r"<[^<>]*>|\{\{[^{}]*\}\}", " ")


def index_of(changes: DataFrame) -> DataFrame:
    """Return the index after all changes.

    For each word and page it has the posting that was added last.
    """
    last = Window.partitionBy("word", "page").orderBy(*(f.desc(name) for name in flamestream_spark.TIMES))
    ranked = changes.withColumn("rank", f.row_number().over(last))
    return ranked.where("rank = 1 AND change = 'add'").select(
        "letter", "word", "page", "version", "first", "count", "positions"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("input", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--master", default="local[4]", help="where Spark runs (default: %(default)s)")
    parser.add_argument("--workers", type=int, default=2, help="how many workers share the flow (default: %(default)s)")
    parser.add_argument("--on", choices=["spark"], help="spark: the workers are tasks of Spark, not of this process")
    arguments = parser.parse_args()
    if not arguments.input.exists():
        parser.error(f"there is no {arguments.input}")
    with session(arguments.master, {"spark.sql.shuffle.partitions": "4"}) as spark:
        pages = pages_of(spark, arguments.input)
        order_by = () if arguments.input.is_file() else "id"
        on_spark = True if arguments.on == "spark" else None
        workers = arguments.workers
        changes = flamestream_spark.run(flow, pages=pages, order_by=order_by, workers=workers, on_spark=on_spark)
        changes = changes.withColumn("letter", f.substring("word", 1, 1))
        for name, table in (("changes", changes), ("index", index_of(changes))):
            table.write.partitionBy("letter").mode("overwrite").parquet(str(arguments.output / name))
            print(f"{name}: {spark.read.parquet(str(arguments.output / name)).count():,} rows")


if __name__ == "__main__":
    main()
