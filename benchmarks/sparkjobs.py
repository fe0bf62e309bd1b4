"""Jobs beside each other on one session of Spark.

The session takes longer to start than the measured work.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import flamecore as fc

_CONF: Final = {"spark.sql.shuffle.partitions": "2", "spark.sql.files.openCostInBytes": "0"}
_CLUSTER: Final = {"spark.executor.memory": "1g", "spark.driver.memory": "2g"}


@contextmanager
def spark_of(master: str, **conf: str) -> Iterator[Any]:
    """Yield a session whose executors find the flows of the benchmarks.

    Args:
        master: Where it runs.
        conf: More configuration, with `__` for the dots.
    """
    from flamestream_spark.session.session import session

    more = {f"spark.{key.replace('__', '.')}": value for key, value in conf.items()}
    with session(master, _CONF | (_CLUSTER if master.startswith("local-cluster") else {}) | more) as spark:
        yield spark


def run_job(flow: fc.Flow, settings: Mapping[str, Any]) -> None:
    """Run a flow as a job of its own, to its end, as `flamestream run` does.

    Args:
        flow: A variable of a module.
        settings: As dotted keys.
    """
    from flamecore.runtime.config.layers import from_program
    from flamecore.runtime.config.read import make_config
    from flamecore.runtime.config.resolve import resolve
    from flamecore.runtime.launch import job_of, to_the_end

    spec = resolve(make_config(from_program(dict(settings))), flow)
    spec.problems.raise_first()
    to_the_end(job_of(spec).run())


def digest(spark: Any, path: Path) -> str:
    """Return a digest of a table of outputs: its rows, in the order of delivery.

    Args:
        spark: The session.
        path: A folder of Parquet files with the columns that tell the order.
    """
    found = spark.read.parquet(str(path))
    columns = ", ".join(f"`{name}`" for name in sorted(found.columns))
    row = found.selectExpr("count(*)", f"sum(CAST(xxhash64({columns}) AS DECIMAL(38, 0)))").first()
    return " ".join(map(str, row))
