"""A server without JetStream: whatever needs it fails soon, not at its limit."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from flamestream_nats.testing import NatsServer

APP = """
import flamecore as fc

flow = fc.Flow("words")
flow.source("lines", str).flat_map(str.split).key_by(lambda word: word).count().sink("counts")
"""
LIMIT_S = 60
FAR_S = 3600
"""Limit that would be waited for if the server's own word on JetStream were ignored."""


@pytest.mark.parametrize("part", ["state", "registry", "source.lines", "sink.counts"])
def test_a_server_without_jetstream_is_named_long_before_the_limit(tmp_path: Path, part: str) -> None:
    (tmp_path / "app.py").write_text(APP)
    (tmp_path / "in.txt").write_text("to be or not to be\n")
    used = {"source.lines": {"path": "in.txt", "use": "lines"}}
    with NatsServer() as server:
        nats = {"use": "nats", "servers": f'["{server.url}"]', "request_timeout_s": str(FAR_S)}
        used[part] = {**nats, **({"stream": "some"} if "." in part else {})}
        settings = [f"{table}.{key}={value}" for table, keys in used.items() for key, value in keys.items()]
        if part == "registry":
            settings.append("transport.use=nats")
            settings.append(f'transport.nats.servers=["{server.url}"]')
        done = subprocess.run(
            [sys.executable, "-m", "flamecore", "run", "app.py", "-q", *(f"--set={setting}" for setting in settings)],
            cwd=tmp_path,
            env=dict(os.environ),
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 2, done.stderr
    assert "it runs without JetStream" in done.stderr
    assert "nats-server -js" in done.stderr
    assert "Traceback" not in done.stderr
