"""Jobs beside each other on one session of Spark.

The session takes longer to start than the measured work.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import flamecore as fc
from benchmarks.processes import ROOT
from benchmarks.report import Spread, Table, ratios
from benchmarks.several import NOTHING, SHORT_S

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

    spec = resolve(make_config(from_program(dict(settings)), folder=ROOT), flow)
    spec.problems.raise_first()
    to_the_end(job_of(spec))


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


def compared(
    title: str, unit: str, runs: Sequence[dict[str, dict[str, Any]]], names: tuple[str, str], wanted: float
) -> Table:
    """Return the table of a function in two places.

    Args:
        title: Title of the table.
        unit: Unit of the rates.
        runs: For each round the `seconds`, `rate` and `outputs` (a digest) of each place.
        names: The worker, with which the other place is compared, and that place.
        wanted: Target of the ratio of their rates.
    """
    worker, other = names
    table = Table(title, ("where the function runs", f"{unit}/s", f"x {worker}"))
    for name in names:
        faster = ratios([run[name] for run in runs], [run[worker] for run in runs], "rate")
        if any(run[name]["outputs"] != run[worker]["outputs"] for run in runs):
            table.fail(name, "outputs are not those of the worker alone")
            continue
        if any(run[each]["seconds"] < SHORT_S for run in runs for each in run):
            table.note(NOTHING)
            continue
        table.add(name, Spread.of([run[name]["rate"] for run in runs]), faster)
        if name == other:
            table.target(name, f"{name}: x {worker}", faster, wanted)
    table.note("A machine with less than three cores to give cannot show more than its cores.")
    return table
