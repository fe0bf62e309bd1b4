"""Settings of all tests, those of the plugins too: Hypothesis judges values, no durations; clients may be missing."""

from importlib.util import find_spec

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
