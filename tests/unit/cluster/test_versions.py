"""The configuration that comes with an upgrade: any bytes are answered."""

from __future__ import annotations

from typing import Any

import pytest

from flamecore.errors import ConfigError
from flamecore.model.messages import Upgrade
from flamecore.runtime.cluster.versions.upgrade import config_of


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"\xff\xfe",
        b"[]",
        b'{"job": 5}',
        b'{"job": {"flow": "\xed\xa0\x80"}}',
        b'{"job": {"workers": 1e999}}',
        b'{"folder": 5}',
        b"[" * 100_000,
    ],
    ids=["nothing", "no text", "another kind", "no table", "no letter", "no number", "no path", "deep"],
)
def test_bytes_that_are_no_configuration_are_an_error_of_the_client(sent: bytes) -> None:
    old: Any = None
    with pytest.raises(ConfigError, match="the configuration that was sent cannot be read") as caught:
        config_of(old, Upgrade(sent, False))
    assert len(str(caught.value)) < 1000
