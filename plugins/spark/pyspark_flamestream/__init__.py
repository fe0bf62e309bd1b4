"""Where Spark looks for data sources by itself: in modules whose name begins with `pyspark_`."""

from flamestream_spark.datasource import FlamestreamDataSource as DefaultSource

__all__ = ["DefaultSource"]
