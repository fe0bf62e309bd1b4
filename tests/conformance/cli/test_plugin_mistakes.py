"""Mistakes of plugins and configurations: the exit code is the same wherever the job runs, and as `check` says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.usefixtures("installed")

PLUGIN = """
    from flamecore.plugin import hookimpl
    from flamestream_edges.lines import Lines


    class OddSource(Lines):
        name = "odd"

        async def open(self, partition, position):
            {open}


    @hookimpl
    def flamestream_source():
        return OddSource
"""
APP = """
import flamecore as fc

flow = fc.Flow("mistaken")
flow.source("lines", str).key_by(lambda line: line).count().sink("out")
"""
JOB = """
schema = 1
[job]
flow = "app.py"
[source.lines]
use = "{source}"
path = "lines.txt"
[sink.out]
use = "jsonl"
path = "out.jsonl"
"""


def called(folder: Path, *arguments: str, source: str = "odd") -> subprocess.CompletedProcess[str]:
    (folder / "app.py").write_text(APP)
    (folder / "job.toml").write_text(JOB.format(source=source))
    (folder / "lines.txt").write_text("a\nb\n")
    line = [sys.executable, "-m", "flamecore", *arguments]
    return subprocess.run(line, cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("on", ["here", "processes"])
@pytest.mark.parametrize("mistake", ["return 5", "raise KeyError('odd')"])
def test_a_mistake_of_a_plugin_has_one_exit_code(
    tmp_path: Path, distributions: Any, monkeypatch: pytest.MonkeyPatch, mistake: str, on: str
) -> None:
    distributions.add(
        "flamestream-odd",
        modules={"flamestream_odd": PLUGIN.format(open=mistake)},
        entry_points={"flamestream.source": {"odd": "flamestream_odd"}},
    )
    monkeypatch.setenv("PYTHONPATH", str(distributions.folder))
    done = called(tmp_path, "run", "job.toml", "--on", on, "-q")
    assert "source 'odd' (flamestream-odd 1.0)" in done.stderr
    assert "open" in done.stderr, "it is that call that is at fault"
    assert done.returncode == 3, done.stderr


@pytest.mark.parametrize("transport", ["socket", pytest.param("grpc", marks=pytest.mark.grpc)])
def test_check_refuses_a_transport_that_a_job_in_one_process_cannot_start(tmp_path: Path, transport: str) -> None:
    for command in ("check", "run"):
        done = called(
            tmp_path, command, "job.toml", "--on", "here", "--set", f"transport.use={transport}", source="lines"
        )
        assert done.returncode == 2, done.stderr
        assert "this job has no folder for sockets, as one in a single process has none" in done.stderr
        assert "Leave transport.use out" in done.stderr


@pytest.mark.grpc
def test_check_refuses_to_listen_for_others_where_all_is_in_one_process(tmp_path: Path) -> None:
    """Such a job has no token, also if the environment has one."""
    listen = ("--set", "transport.use=grpc", "--set", "transport.grpc.listen=node1.example:7070")
    for command in ("check", "run"):
        done = called(tmp_path, command, "job.toml", "--on", "here", *listen, source="lines")
        assert done.returncode == 2, done.stderr
        assert "without TLS and a token of the job" in done.stderr
