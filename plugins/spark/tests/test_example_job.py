"""The example of a whole job: one command, from Spark, on Spark, to tables."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable

import flamestream_spark
from flamestream_demo.pages import Page
from flamestream_demo.testing import plain_index

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"

pytestmark = [
    pytest.mark.jvm,
    pytest.mark.skipif(not (EXAMPLES / "spark").is_dir(), reason="the examples are not in the wheel"),
]


def run(folder: Path, *options: str, job: str = "checkout/examples/spark/job.toml") -> str:
    """Run the command of the README outside of the folder that has the examples; what it says on standard error."""
    shutil.copytree(EXAMPLES / "spark", folder / "checkout" / "examples" / "spark")
    tables = [f"--set=sink.{sink}.path={name}" for sink, name in (("changes", "index-changes"), ("index", "index"))]
    command = ["flamestream", "run", job, *tables, *options]
    path = os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", "")])
    environ = {**os.environ, "PATH": path}
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stderr


def dump_job(folder: Path, dump: Path) -> str:
    """Make the job of a dump, as the comment in job.toml says; return its path below the folder."""
    head, _, rest = (EXAMPLES / "spark" / "job.toml").read_text("utf-8").partition("[source.pages]")
    rest = rest[rest.index("# A dump of") :]
    said, _, sinks = rest.partition("\n\n")
    lines = [line.removeprefix("# ") for line in said.splitlines() if " = " in line]
    source = "\n".join(["[source.pages]", 'use = "spark"', *lines]).replace("DUMP.xml", str(dump))
    job = folder / "dump"
    job.mkdir()
    (job / "index.py").symlink_to(EXAMPLES / "spark" / "index.py")
    (job / "job.toml").write_text(f"{head}{source}\n\n{sinks}")
    return str(job / "job.toml")


def changes(folder: Path) -> list[dict[str, Any]]:
    """Return the change log, in its order."""
    cut = ds.partitioning(pa.schema([("letter", pa.string())]), flavor="hive")
    rows: list[dict[str, Any]] = ds.dataset(folder / "index-changes", partitioning=cut).to_table().to_pylist()
    return sorted(rows, key=lambda row: [row[name] for name in flamestream_spark.TIMES])


def index(folder: Path) -> list[dict[str, Any]]:
    """Return the final index."""
    rows = pa.table(DeltaTable(folder / "index").to_pyarrow_dataset().to_table()).to_pylist()
    return sorted(rows, key=lambda row: (row["word"], row["page"]))


def cleaned(text: str) -> str:
    return re.sub(r"<[^<>]*>|\{\{[^{}]*\}\}", " ", text)


def test_one_command_runs_the_job_on_spark_as_it_runs_here(tmp_path: Path) -> None:
    said = run(tmp_path / "spark")
    assert (
        "on spark over grpc: the data of source pages, sink changes, sink index is at home there "
        '(deploy.on = "here" runs it in this process)\n'
    ) in said
    assert "where.workers=2" in said
    files = sorted((EXAMPLES / "spark" / "pages").iterdir())
    pages = [Page(number, file.stem, cleaned(file.read_text("utf-8"))) for number, file in enumerate(files, 1)]
    expected = list(plain_index(pages))
    found = changes(tmp_path / "spark")
    assert [(row["change"], row["word"], row["page"], row["version"], tuple(row["positions"])) for row in found] == [
        (one.change, one.word, one.page, one.version, one.positions) for one in expected
    ]
    assert {row["letter"] for row in found} == {one.word[0] for one in expected}
    last = {(one.word, one.page): list(one.positions) for one in expected if one.change == "add"}
    assert {(row["word"], row["page"]): row["positions"] for row in index(tmp_path / "spark")} == last
    assert DeltaTable(tmp_path / "spark" / "index").metadata().partition_columns == ["letter"]

    assert "on spark" not in run(tmp_path / "here", "--on", "here")
    assert changes(tmp_path / "here") == found
    assert index(tmp_path / "here") == index(tmp_path / "spark")


@pytest.mark.spark4
def test_a_dump_of_pages_in_xml_gives_the_same_on_spark_as_here(tmp_path: Path) -> None:
    beside = EXAMPLES.parents[1] / "shared" / "data"
    dump = Path(os.environ.get("FLAMESTREAM_DATA", beside), "wikipedia", "test_index_small_dump.xml")
    if not dump.is_file():
        pytest.skip(f"there is no {dump}; set FLAMESTREAM_DATA to the folder that holds wikipedia/")
    job = dump_job(tmp_path, dump.resolve())
    assert "is at home there" in run(tmp_path / "spark", job=job)
    assert "on spark" not in run(tmp_path / "here", "--on", "here", job=job)
    found = changes(tmp_path / "spark")
    texts = dump.read_text("utf-8")
    ids = [int(number) for number in re.findall(r'<page id="(\d+)"', texts)]
    assert {row["page"] for row in found} == set(ids)
    assert list(dict.fromkeys(row["page"] for row in found)) == list(dict.fromkeys(ids)), "the order is the file's"
    assert changes(tmp_path / "here") == found
    assert index(tmp_path / "here") == index(tmp_path / "spark")
