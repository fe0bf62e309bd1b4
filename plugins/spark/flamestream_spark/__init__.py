"""Spark feeds and drains flows: a DataFrame goes in, DataFrames come out, and files are read as Spark reads them.

    import flamestream_spark
    counts = flamestream_spark.run(flow, lines=df)

Source and sink `use = "spark"` do the same for job files. See `flamestream_spark.flows`, `.source` and `.sink`.
"""

from flamestream_spark.flows import TIMES, run, through

__all__ = ["TIMES", "run", "through"]
