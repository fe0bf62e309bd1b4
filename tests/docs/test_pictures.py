"""The pictures in the documentation are those that its commands draw."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner

from flamecore.cli import main

ROOT = Path(__file__).resolve().parents[2]


def test_the_picture_of_windows_is_what_the_command_draws(tmp_path: Path) -> None:
    job, made = ROOT / "examples/windows/totals/corrected.toml", tmp_path / "run.svg"
    found = CliRunner().invoke(main, ["windows", str(job), "--key", "south", "-o", str(made)])
    assert found.exit_code == 0, found.output
    assert made.read_text("utf-8") == (ROOT / "docs/how-to/windows.svg").read_text("utf-8")
