"""Settings of all tests, those of the plugins too: Hypothesis judges values, no durations; clients may be missing.

FLAMESTREAM_CASES=0.25 runs of each test with parameters a quarter of its cases, and at least one. All tests run, and
Python versions that follow each other take different cases.
"""

import math
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path

import hypothesis
import pytest

# By default an example that takes 200 ms fails. On a busy machine any may.
hypothesis.settings.register_profile("flamestream", deadline=None)
hypothesis.settings.load_profile("flamestream")

CLIENTS = ("grpc", "nats")
"""Marks of tests that need the module of that name. Each environment of tox selects by them: no test runs in two."""


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test whose client is not installed."""
    for client in CLIENTS:
        if item.get_closest_marker(client) is not None and find_spec(client) is None:
            pytest.skip(f"the client of {client} is not installed")


# Last, when -m and -k have chosen: a test must not lose all cases of an environment to those that run in another one.
@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave a part of the cases of each test, as FLAMESTREAM_CASES says."""
    share = float(os.environ.get("FLAMESTREAM_CASES", "1"))
    chosen: set[pytest.Item] = set()
    for test, cases in groupby(sorted(items, key=_test_of), key=_test_of):
        chosen.update(_part(test, list(cases), share))
    config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
    items[:] = [item for item in items if item in chosen]


def _test_of(item: pytest.Item) -> str:
    return item.nodeid.partition("[")[0]


def _part(test: str, cases: list[pytest.Item], share: float) -> list[pytest.Item]:
    """Return a part of a test's cases, the same in each run on this version of Python."""
    # Shuffled, since each n-th of a product of parameters may be all cases of one value, and none of another.
    random.Random(test).shuffle(cases)
    count = math.ceil(len(cases) * min(share, 1))
    first = sys.version_info.minor * count
    return [cases[(first + number) % len(cases)] for number in range(count)]


@pytest.fixture(scope="session")
def hdfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yield the URL of HDFS, with a NameNode and a DataNode of its own."""
    if find_spec("hdfs_native") is None:
        pytest.skip("no client of HDFS: pip install hdfs-native")
    script = Path(__file__).with_name("tests") / "servers" / "hdfs.py"
    command = [sys.executable, str(script), str(tmp_path_factory.mktemp("hdfs"))]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as servers:
        assert servers.stdin is not None
        assert servers.stdout is not None
        said = servers.stdout.readline().strip()  # its own limits end it
        if not said.startswith("hdfs://"):
            if servers.wait(60) == 3:
                pytest.skip(f"no HDFS: {said}")
            pytest.fail("HDFS does not start; see above")
        yield said
        servers.stdin.close()
