"""Fixtures of all tests: one session of Spark."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any, Final
from urllib.request import Request, urlopen

import pytest

from flamestream_spark.session.session import session

SERVER: Final = "import sys; from moto.server import main; main(['-H', '127.0.0.1', '-p', sys.argv[1]])"


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """Yield a session that runs four tasks at once, on this machine."""
    with session("local[4]", {"spark.sql.shuffle.partitions": "2", "spark.sql.session.timeZone": "UTC"}) as made:
        yield made


@pytest.fixture(scope="session")
def s3() -> Iterator[str]:
    """Return the URL of a server that speaks S3, with a bucket `bucket`."""
    if find_spec("moto") is None or find_spec("s3fs") is None:
        pytest.skip("no S3 server: pip install s3fs 'moto[server]'")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    # A process of its own: delta-rs does not let other threads of this one run while it waits.
    server = subprocess.Popen(
        [sys.executable, "-c", SERVER, str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        limit = time.monotonic() + 60
        while True:
            try:
                urlopen(Request(f"http://127.0.0.1:{port}/bucket", method="PUT"), timeout=30).close()
                break
            except OSError:
                assert server.poll() is None
                assert time.monotonic() < limit
                time.sleep(0.05)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.kill()
        server.wait()


@pytest.fixture
def s3_environment(s3: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the environment by which clients of S3 know the server."""
    for name, value in (
        ("AWS_ENDPOINT_URL", s3),
        ("AWS_ACCESS_KEY_ID", "key"),
        ("AWS_SECRET_ACCESS_KEY", "hush"),
        ("AWS_DEFAULT_REGION", "us-east-1"),
    ):
        monkeypatch.setenv(name, value)
