"""The examples, run as their README says."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from flamestream_demo.pages import Page
from flamestream_demo.testing import plain_index

EXAMPLES = Path(__file__).resolve().parents[3] / "examples" / "spark"
EXAMPLE = EXAMPLES / "index_to_parquet.py"

pytestmark = pytest.mark.skipif(not EXAMPLE.is_file(), reason="the examples are not in the wheel")

PAGES = {"a.txt": "to be <b>or</b> not to be", "c/b.txt": "{{box}} the team\nand the command", "d.txt": ""}


def test_a_folder_of_text_becomes_two_tables(spark: Any, tmp_path: Path) -> None:
    for name, text in PAGES.items():
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / name).write_text(text)
    command = [sys.executable, str(EXAMPLE), str(tmp_path / "in"), str(tmp_path / "out"), "--on", "spark"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    texts = ["to be   or   not to be", "  the team\nand the command"]  # Spark has no row for an empty file
    expected = list(plain_index(Page(number, "", text) for number, text in enumerate(texts, 1)))
    assert done.stdout == f"changes: {len(expected)} rows\nindex: {len(expected)} rows\n"
    changes = spark.read.parquet(str(tmp_path / "out" / "changes")).orderBy("_time", "_front", "_place").collect()
    assert [(row.word, row.page, tuple(row.positions)) for row in changes] == [
        (change.word, change.page, change.positions) for change in expected
    ]
    assert sorted(path.name for path in (tmp_path / "out" / "index").glob("letter=*")) == sorted(
        {f"letter={change.word[0]}" for change in expected}
    )


@pytest.mark.jvm
def test_a_query_feeds_a_running_job(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_text("To be, or not to be\n")
    command = [sys.executable, str(EXAMPLES / "live_words.py"), str(tmp_path / "in"), str(tmp_path / "job"), "--once"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "be 2, to 2, not 1, or 1"


def test_the_cells_of_the_notebook_run(spark: Any, capsys: pytest.CaptureFixture[str]) -> None:
    cells = json.loads((EXAMPLES / "notebook.ipynb").read_text())["cells"]
    space: dict[str, Any] = {"__name__": "notebook"}
    for cell in cells:
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]), space)
    records = space["records"].orderBy("_time").collect()
    assert space["running"].output("records").count() == len(records) > 10
    assert [row.sensor for row in space["last"].collect()] == ["sensor 0", "sensor 1", "sensor 2"]
    assert "sensor" in capsys.readouterr().out
