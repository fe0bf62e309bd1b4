"""The bundled job files: they work in any directory."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from flamecore.cli import main

EXAMPLES = Path(__file__).parents[3] / "examples"
JOBS = sorted(EXAMPLES.glob("[!s]*/**/*.toml"))
"""All but those on Spark, which need its libraries."""
MORE = {"inverted_index": ("--set", f"source.pages.path={EXAMPLES / 'word_count.py'}")}

pytestmark = pytest.mark.usefixtures("installed")


@pytest.mark.parametrize("job", JOBS, ids=[str(job.relative_to(EXAMPLES)) for job in JOBS])
def test_a_bundled_job_is_right_in_any_directory(job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    command = ["check", str(job), *MORE.get(job.parent.name, ())]
    done = CliRunner().invoke(main, command, prog_name="flamestream")
    assert done.exit_code == 0, done.output
    assert f"path = '{EXAMPLES}" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_there_are_bundled_jobs() -> None:
    assert len(JOBS) > 15
