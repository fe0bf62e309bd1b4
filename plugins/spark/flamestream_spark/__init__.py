"""Spark feeds and drains flows: a DataFrame goes in, DataFrames come out, and files are read as Spark reads them.

    import flamestream_spark
    counts = flamestream_spark.run(flow, lines=df)

Source and sink `use = "spark"` do the same for job files; `stream` takes streaming DataFrames. See
`flamestream_spark.flows`, `.streaming`, `.source`, `.sink` and `.datasource`.
"""

from typing import Any

from flamestream_spark.flows import TIMES, run, through
from flamestream_spark.queries import Into
from flamestream_spark.streaming import Streaming, stream


def register(spark: Any) -> None:
    """Register the data source "flamestream" in a session.

    Needed where the session does not find it by itself.
    """
    from flamestream_spark import datasource

    datasource.register(spark)


__all__ = ["TIMES", "Into", "Streaming", "register", "run", "stream", "through"]
