"""Spark for flows: DataFrames and files go in, DataFrames come out.

Files are read as Spark reads them.

    import flamestream_spark
    counts = flamestream_spark.run(flow, lines=df)

Source and sink `use = "spark"` do the same for job files; `stream` takes streaming DataFrames. See
`flamestream_spark.flows`, `.streaming`, `.source`, `.sink` and `.datasource`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flamestream_spark.flows import TIMES, run, through
    from flamestream_spark.queries import Into
    from flamestream_spark.spool.ordering import UnstableOrderWarning
    from flamestream_spark.streaming import Streaming, stream
    from flamestream_spark.tables.arrow import UntypedOutputWarning

_WHERE = {
    "TIMES": "flows",
    "run": "flows",
    "through": "flows",
    "Into": "queries",
    "Streaming": "streaming",
    "UnstableOrderWarning": "spool.ordering",
    "UntypedOutputWarning": "tables.arrow",
    "stream": "streaming",
}
"""Imported when they are asked for: a task that is started anew does not wait for them."""


def __getattr__(name: str) -> Any:
    if (place := _WHERE.get(name)) is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{place}"), name)


def register(spark: Any) -> None:
    """Register the data source "flamestream" in a session.

    Needed where the session does not find it by itself.

    Raises:
        MissingDependencyError: This Spark has no data sources in Python: 3.5.
    """
    from flamestream_spark.compat import data_sources

    data_sources()
    from flamestream_spark import datasource

    datasource.register(spark)


__all__ = [
    "TIMES",
    "Into",
    "Streaming",
    "UnstableOrderWarning",
    "UntypedOutputWarning",
    "register",
    "run",
    "stream",
    "through",
]
