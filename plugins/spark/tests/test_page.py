"""The program of the how-to page with functions of Spark around a flow."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).resolve().parents[3] / "docs" / "how-to" / "spark.md"

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
