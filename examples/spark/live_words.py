"""Live word count: a query of Spark feeds a running job; another shows the output.

    python examples/spark/live_words.py FOLDER CHECKPOINT [--once]

Every text file that is put into FOLDER is counted, word by word; after each batch the words are shown that were seen
most often. Ctrl-C ends it. Started again with the same CHECKPOINT it goes on, and no word counts twice.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any

import flamecore as fc
import flamestream_spark
from flamestream_spark.session.session import session


def words_of(line: str) -> list[str]:
    """Return the words of a line, in lower case."""
    return re.findall(r"[^\W\d_]+", line.lower())


def itself(word: str) -> str:
    """Return the key of a word."""
    return word


flow = fc.Flow("live-words")
flow.source("lines", str).flat_map(words_of).key_by(itself).count(name="count").sink("counts")


def show(spark: Any, output: Path, most: int = 10) -> None:
    """Print the words that were seen most often."""
    counts = spark.read.format("flamestream").load(str(output))
    top = counts.groupBy("key").agg({"value": "max"}).toDF("word", "count")
    rows = top.orderBy("count", "word", ascending=[False, True]).limit(most).collect()
    print(", ".join(f"{row.word} {row['count']:,}" for row in rows), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("folder", type=Path)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--once", action="store_true", help="end when everything that is there has been counted")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    with session("local[2]", {"spark.sql.shuffle.partitions": "2"}) as spark:
        lines = spark.readStream.text(str(arguments.folder))
        trigger = {"availableNow": True} if arguments.once else {"processingTime": "1 second"}
        running = flamestream_spark.stream(flow, lines=lines, checkpoint=arguments.checkpoint, trigger=trigger)
        seen = 0
        try:
            while not running.awaitTermination(timeout=1):
                if running.progress()["items_in"] > seen:
                    running.processAllAvailable()
                    seen = running.progress()["items_in"]
                    show(spark, arguments.checkpoint / "output" / "counts")
        except KeyboardInterrupt:
            running.stop()
        if arguments.once:
            show(spark, arguments.checkpoint / "output" / "counts")


if __name__ == "__main__":
    main()
