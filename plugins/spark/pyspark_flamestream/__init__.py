"""The data source where Spark finds it: in a module named `pyspark_…`."""

from flamestream_spark.datasource import FlamestreamDataSource as DefaultSource

__all__ = ["DefaultSource"]
