"""The line with the place of a job, before it begins."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from flamecore.cli.running import say_placed

SPEC: Any = SimpleNamespace(
    name="index",
    at_home=("source pages", "sink index"),
    config=SimpleNamespace(deploy=SimpleNamespace(on="spark"), transport=SimpleNamespace(use="grpc")),
)


def test_a_run_says_where_it_is_and_why(capsys: pytest.CaptureFixture[str]) -> None:
    say_placed(SPEC)
    assert capsys.readouterr().err == (
        "on spark over grpc: the data of source pages, sink index is at home there "
        '(deploy.on = "here" runs it in this process)\n'
    )


def test_a_log_says_where_a_run_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLAMESTREAM_LOG", "json")
    with capture_logs() as said:
        say_placed(SPEC)
    because = ["source pages", "sink index"]
    placed = {"job": "index", "on": "spark", "transport": "grpc", "because": because}
    assert said == [{"event": "job.placed", "log_level": "info", **placed}]
