"""Inverted index of a dump of Wikipedia, read by Spark, to Parquet.

The time that Spark takes for the rest is measured too.

Beside flamestream stands the same job without it: Spark reads the same pages, Python splits them into words with their
positions by the same function, batch by batch, and Spark writes these as Parquet. This job has no order, no versions
and no index.
"""

from __future__ import annotations

import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from benchmarks.processes import measured
from benchmarks.report import Spread, Table, ratios
from benchmarks.sparkjobs import digest, run_job, spark_of

MASTERS: Final = ("local[2]", "local-cluster[2,1,2048]")
TWICE: Final = 2.0
_HERE: Final = "flamestream, worker in the driver"
_THERE: Final = "flamestream, worker on Spark"
_PLAIN: Final = "Spark alone, without an index"
_ID: Final = re.compile(r'<page id="\d+"')
_LIMIT_S: Final = 7200.0
_SCHEMA: Final = "id int, title string, text string"
_READ: Final = {"rowTag": "page", "attributePrefix": "", "valueTag": "text"}


def compare(*, dump: str, megabytes: float, rounds: int) -> tuple[Table, dict[str, Any]]:
    """Measure all of it, on each master in a process of its own.

    Args:
        dump: File of pages, which are repeated, each under a number of its own.
        megabytes: Until there are so many.
        rounds: How often, after once with the dump as it is, to warm up.
    """
    columns = ("contender", "s", f"x {_PLAIN}")
    table = Table(
        f"Inverted index from Spark to Parquet, dump repeated to {megabytes:g} MB, from session to end", columns
    )
    facts: dict[str, Any] = {"megabytes": megabytes, "runs": {}}
    for master in MASTERS:
        arguments = {"dump": dump, "megabytes": megabytes, "rounds": rounds, "master": master}
        found = measured("sparkindex", arguments, what=f"index from Spark to Parquet, {master}", limit_s=_LIMIT_S)
        runs: list[dict[str, dict[str, Any]]] = found["runs"]
        facts["runs"][master] = runs
        for name in runs[0]:
            seconds = Spread.of([run[name]["seconds"] for run in runs])
            against = ratios([run[name] for run in runs], [run[_PLAIN] for run in runs], "seconds")
            outputs = {run[name]["outputs"] for run in runs}
            if name == _THERE and outputs != {run[_HERE]["outputs"] for run in runs}:
                table.fail(f"{name}, {master}", "outputs are not those of the worker in the driver")
                continue
            table.add(f"{name}, {master}", seconds, against)
            if name == _THERE:
                table.target(name, f"{name}, {master}: x {_PLAIN}", against, TWICE, at_most=True)
                own = ratios([run[name] for run in runs], [run[_HERE] for run in runs], "seconds")
                table.target(name, f"{name}, {master}: x {_HERE}", own, TWICE, at_most=True)
    return table, facts | {"targets": table.targets}


def repeated(dump: Path, megabytes: float, to: Path) -> int:
    """Write the pages of a dump again and again; return their number.

    Args:
        dump: The file.
        megabytes: How large the other is to be; 0: as large as this one.
        to: The other.
    """
    text = dump.read_text("utf-8-sig")
    start, end = text.index("<page "), text.rindex("</page>") + len("</page>")
    parts = _ID.split(text[start:end])
    pages = 0
    with to.open("w", encoding="utf-8") as file:
        file.write("<pages>\n")
        while not pages or file.tell() < megabytes * 1e6:
            for part in parts[1:]:
                pages += 1
                file.write(f'<page id="{pages}"{part}')
            file.write("\n")
        file.write("</pages>\n")
    return pages


def run(*, dump: str, megabytes: float, rounds: int, master: str) -> dict[str, Any]:
    """In the measured process."""
    with spark_of(master) as spark, tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        contenders: dict[str, Callable[[Path, Path], None]] = {
            _PLAIN: lambda pages, out: _plain(spark, pages, out),
            _HERE: lambda pages, out: _indexed(pages, out, "here"),
            _THERE: lambda pages, out: _indexed(pages, out, "spark"),
        }
        few, many = place / "few.xml", place / "many.xml"
        repeated(Path(dump), 0, few)
        count = repeated(Path(dump), megabytes, many)
        runs = []
        for number in range(rounds + 1):
            of: dict[str, dict[str, Any]] = {}
            for name, contender in contenders.items():
                out = place / "out"
                shutil.rmtree(out, ignore_errors=True)
                begin = time.perf_counter()
                contender(many if number else few, out)
                of[name] = {"seconds": time.perf_counter() - begin, "outputs": digest(spark, out)}
            if number:
                runs.append(of)
        return {"runs": runs, "pages": count}


def _indexed(pages: Path, out: Path, on: str) -> None:
    """Run the job of examples/spark/job.toml, with the change log alone."""
    from benchmarks.flows.tokenized_index import flow

    source: dict[str, Any] = {"use": "spark", "path": str(pages), "format": "xml", "schema": _SCHEMA, "read": _READ}
    sink = {"use": "spark", "path": str(out), "times": True}
    settings = {f"source.pages.{key}": value for key, value in source.items()}
    settings |= {f"sink.index.{key}": value for key, value in sink.items()}
    run_job(flow, settings | {"job.workers": 1, "deploy.on": on})


def _plain(spark: Any, pages: Path, out: Path) -> None:
    import pandas as pd

    from flamestream_demo.inverted_index import VersionedPage, split_page

    def split(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        for frame in frames:
            found = (split_page(VersionedPage(page, 1, text or "")) for page, text in zip(frame.id, frame.text))  # noqa: B905
            yield pd.DataFrame(
                ((word, page, 1, at[0], len(at), at) for words in found for word, page, _, at in words),
                columns=["word", "page", "version", "first", "count", "positions"],
            )

    read = spark.read.format("xml").options(**_READ).schema(_SCHEMA).load(str(pages)).select("id", "text")
    columns = "word string, page int, version int, first int, count int, positions array<int>"
    read.mapInPandas(split, columns).write.parquet(str(out))
