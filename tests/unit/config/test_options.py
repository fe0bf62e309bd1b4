"""Tests of the options of a transport for other processes of a machine."""

from __future__ import annotations

import pytest

from flamecore.runtime.config.options import node_options


@pytest.mark.parametrize(
    ("given", "others"),
    [
        ({}, {}),
        ({"listen": "unix"}, {"listen": "unix"}),
        ({"listen": "node1"}, {"listen": "node1"}),
        ({"listen": "node1:7070", "keepalive_s": 5}, {"listen": "node1:0", "keepalive_s": 5}),
        ({"listen": "[::1]:7070"}, {"listen": "[::1]:0"}),
        ({"listen": "[::1]"}, {"listen": "[::1]"}),
        (
            {"listen": "0.0.0.0:7070", "advertise": "node1.example:443"},
            {"listen": "0.0.0.0:0", "advertise": "node1.example"},
        ),
        ({"listen": "0.0.0.0", "advertise": "node1.example"}, {"listen": "0.0.0.0", "advertise": "node1.example"}),
    ],
)
def test_a_port_belongs_to_one_process(given: dict[str, object], others: dict[str, object]) -> None:
    assert node_options(given) == others
