"""The job that `flamestream upgrade` means."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from flamecore.cli import main
from flamecore.cli.commands import upgrade

pytestmark = pytest.mark.usefixtures("installed")

FLOW = 'import flamecore as fc\n\nflow = fc.Flow("words")\nflow.source("lines", str).sink("out")\n'


class AskedError(Exception):
    """The job that is asked for."""


@pytest.mark.parametrize(
    ("address", "job", "options", "asked"),
    [
        ("bus://1", "", [], "words"),
        ("bus://1", "name = 'letters'", [], "letters"),
        ("bus://1", "name = 'letters'", ["--job", "pages"], "pages"),
        ("bus://1#pages", "name = 'letters'", [], None),
    ],
    ids=["the flow's", "the file's", "the option's", "the address's"],
)
def test_the_name_of_the_job_is_known(
    address: str, job: str, options: list[str], asked: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def joining(address: str, *, job: str | None, **_: Any) -> None:
        raise AskedError(job)

    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(upgrade, "joining", joining)
    (tmp_path / "upgraded_words.py").write_text(FLOW)
    (tmp_path / "job.toml").write_text(f'schema = 1\n[job]\nflow = "upgraded_words.py"\n{job}\n')
    command = ["upgrade", address, str(tmp_path / "job.toml"), *options]
    done = CliRunner().invoke(main, command, prog_name="flamestream")
    assert isinstance(done.exception, AskedError)
    assert done.exception.args == (asked,)
