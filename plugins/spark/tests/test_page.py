"""The programs and connectors of the how-to pages about Spark, and a job for a cluster that no test has."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

import flamecore as fc
from flamecore.runtime.config.layers import from_program
from flamecore.runtime.config.read import make_config
from flamecore.runtime.config.resolve import resolve
from flamestream_spark import stream
from flamestream_spark.session import master
from flamestream_spark.spool.feeding import failed

ROOT = Path(__file__).resolve().parents[3]
HOW_TO = ROOT / "docs" / "how-to"
PAGE = HOW_TO / "spark.md"
TOTALS = ROOT / "examples" / "windows" / "totals"

HEADINGS = ("## DataFrames through a flow", "## Functions of Spark around a flow")

pytestmark = pytest.mark.skipif(not PAGE.is_file(), reason="the documentation is not in the wheel")


def test_functions_of_spark_run_before_and_after_a_flow(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = PAGE.read_text()
    programs = [re.search("```python\n(.*?)```", page[page.index(start) :], re.DOTALL) for start in HEADINGS]
    flow, around = [found[1] for found in programs if found is not None]
    (tmp_path / "word_count.py").write_text(flow)
    (tmp_path / "books").mkdir()
    (tmp_path / "books" / "a.txt").write_text("to <b>be</b> or\nnot to be\n")
    (tmp_path / "books" / "b.txt").write_text("be\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "word_count", raising=False)
    space: dict[str, Any] = {"spark": spark, "__name__": "page"}
    try:
        exec(around.replace('"books"', repr(str(tmp_path / "books"))), space)  # Java has a working directory of its own
    finally:
        sys.modules.pop("word_count", None)
    rows = space["texts"].orderBy("_time", "_front", "_place").collect()
    assert [row.text for row in rows] == ["to: 1", "be: 1", "or: 1", "not: 1", "to: 2", "be: 2", "be: 3"]
    assert [row._time for row in rows] == [0, 0, 0, 1, 1, 1, 2]
    assert "|not: 1|" in capsys.readouterr().out


@pytest.mark.parametrize("zone", ["UTC", "Pacific/Chatham"])
def test_late_rows_of_a_table_are_told_as_the_page_says(
    zone: str, spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (HOW_TO / "spark-windows.md").read_text()
    whole, by_time, _, by_spark = re.findall("```python\n(.*?)```", page, re.DOTALL)
    shown = re.search("```text\n(.*?)```", page, re.DOTALL)
    assert shown is not None
    monkeypatch.syspath_prepend(TOTALS)
    monkeypatch.delitem(sys.modules, "totals", raising=False)
    former = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", zone)
    space: dict[str, Any] = {"__name__": "page"}
    try:
        exec(whole.replace('"orders.jsonl"', repr(str(TOTALS / "orders.jsonl"))), space)
        # What is shown has an empty line after each table.
        assert capsys.readouterr().out.strip() == shown[1].strip()
        exec(by_time, space)
        if zone != "UTC":  # the rest does not depend on it
            return
        (tmp_path / "inbox").mkdir()
        space["live"] = spark.readStream.schema(space["columns"]).json(str(tmp_path / "inbox"))
        exec(by_spark, space)
        assert space["totals"].columns == ["minute", "shop", "amount"]
        lines = (TOTALS / "orders.jsonl").read_text().splitlines(keepends=True)
        with stream(space["flow"], orders=space["live"], checkpoint=tmp_path / "state") as running:
            for first in (0, 5):
                (tmp_path / "inbox" / f"{first}.json").write_text("".join(lines[first : first + (7 if first else 5)]))
                running.processAllAvailable()
            live = running.output("totals").orderBy("_time", "_front", "_place").collect()
            late = running.output("too_late").collect()
        at_once = space["found"]["totals"].orderBy("_time", "_front", "_place").collect()
        assert live == [row for row in at_once if row.minute != "09:04"], "that minute stays open"
        assert late == space["found"]["too_late"].collect()
    finally:
        spark.conf.set("spark.sql.session.timeZone", former)
        sys.modules.pop("totals", None)


def test_the_job_for_kubernetes_is_one_that_runs_there(monkeypatch: pytest.MonkeyPatch) -> None:
    page = (HOW_TO / "spark-clusters.md").read_text()
    text = re.search("```toml\n(# job.toml\n.*?)```", page, re.DOTALL)
    assert text is not None
    job = tomllib.loads(text[1])
    flow = fc.Flow("word-count")
    flow.source("lines", str).flat_map(str.split).key_by(lambda word: word).count().sink("counts")
    monkeypatch.setattr(master, "_of_session", lambda name: None)
    monkeypatch.setenv("POD_NAME", "word-count-x7k2p")
    del job["schema"], job["job"]["flow"]
    settings = {f"{table}.{key}": value for table, values in job.items() for key, value in values.items()}
    spec = resolve(make_config(from_program(settings)), flow)
    assert [*spec.problems, *spec.host().problems()] == []
    assert spec.drivers.host is not None
    host, options = spec.drivers.host
    assert (host.name, options.workers) == ("spark", 4)
    assert options.config["spark.kubernetes.driver.pod.name"] == "word-count-x7k2p"
    grpc = spec.config.transport.tables["grpc"]
    assert (grpc["listen"], grpc["advertise"]) == ("0.0.0.0:7070", options.config["spark.driver.host"])


def test_the_manifest_for_kubernetes_starts_that_job_again_after_a_failure() -> None:
    yaml = pytest.importorskip("yaml")
    page = (HOW_TO / "spark-clusters.md").read_text()
    text = re.search("```yaml\n(.*?)```", page, re.DOTALL)
    assert text is not None
    service, job = yaml.safe_load_all(text[1])
    assert service["spec"]["clusterIP"] == "None"
    pod = job["spec"]["template"]
    assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    assert (job["spec"]["backoffLimit"], pod["spec"]["restartPolicy"]) == (100, "OnFailure")
    name = f"{service['metadata']['name']}.{service['metadata']['namespace']}.svc"
    assert f'advertise = "{name}"' in page


@pytest.mark.parametrize("said", ["[KAFKA_DATA_SOURCE_NOT_ENABLED] no", "Failed to find data source: kafka. Please"])
def test_example_and_error_name_the_connector_of_kafka(said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    coordinates = r"org\.apache\.spark:spark-sql-kafka-0-10_[\d.]+:[\d.]*\d"
    pairs = re.findall(rf"^\| ([\d.]+) \| `({coordinates})` \|", PAGE.read_text("utf-8"), re.MULTILINE)
    newest = pairs[0][1]
    assert len(pairs) > 3
    example = PAGE.parents[2] / "examples" / "spark" / "kafka.toml"
    assert re.findall(coordinates, example.read_text("utf-8")) == [newest]
    for release, connector in pairs:
        monkeypatch.setattr("pyspark.__version__", f"{release}.9")
        assert re.findall(coordinates, failed("lines", RuntimeError(said)).hint) == [connector]
