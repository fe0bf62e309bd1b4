"""The examples, run as their README says."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from flamestream_demo.pages import Page
from flamestream_demo.testing import plain_index

EXAMPLES = Path(__file__).resolve().parents[3] / "examples" / "spark"
EXAMPLE = EXAMPLES / "index_to_parquet.py"

pytestmark = pytest.mark.skipif(not EXAMPLE.is_file(), reason="the examples are not in the wheel")

EXECUTE = """
import sys

import nbformat
from nbclient import NotebookClient

book = nbformat.read(sys.argv[1], 4)
NotebookClient(book, timeout=None, kernel_name="python3").execute()
nbformat.write(book, sys.argv[2])
"""

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


@pytest.mark.jvm
def test_the_notebook_runs_in_a_kernel_of_jupyter(tmp_path: Path) -> None:
    for name in ("nbclient", "ipykernel"):
        if find_spec(name) is None:
            pytest.skip(f"no Jupyter: pip install {name}")
    (tmp_path / "tmp").mkdir()
    environ = os.environ | {"TMPDIR": str(tmp_path / "tmp"), "PYSPARK_PYTHON": sys.executable}
    environ["JUPYTER_RUNTIME_DIR"] = environ["IPYTHONDIR"] = str(tmp_path / "jupyter")
    command = [sys.executable, "-c", EXECUTE, str(EXAMPLES / "notebook.ipynb"), str(tmp_path / "done.ipynb")]
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    cells = [cell for cell in json.loads((tmp_path / "done.ipynb").read_text())["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in cells] == [*range(1, len(cells) + 1)]
    table = re.findall(r"\|(sensor \d)\| *([\d.]+)\| *(\d+)\|", shown(cells[-2]))
    assert [sensor for sensor, *_ in table] == ["sensor 0", "sensor 1", "sensor 2"]
    records = sum(int(count) for *_, count in table)
    assert records > 10
    assert shown(cells[-1]) == str(records), "the stream has the outputs of the table"


def test_the_notebook_is_kept_without_outputs() -> None:
    """They would be those of another version some day."""
    cells = json.loads((EXAMPLES / "notebook.ipynb").read_text())["cells"]
    assert [cell["outputs"] for cell in cells if cell["cell_type"] == "code" and cell["outputs"]] == []
    assert {cell["execution_count"] for cell in cells if cell["cell_type"] == "code"} == {None}


def shown(cell: dict[str, Any]) -> str:
    """Return what a cell has printed, and its value."""
    texts = [output.get("text") or output["data"]["text/plain"] for output in cell["outputs"] if shows(output)]
    return "".join(part for text in texts for part in text)


def shows(output: dict[str, Any]) -> bool:
    return output["output_type"] == "execute_result" or output.get("name") == "stdout"
