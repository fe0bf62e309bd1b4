"""A run of every target on the fuzzer's seeds and all earlier findings.

See `tests/fuzz/__main__.py`.
"""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest

HERE = Path(__file__).parent
SEEDS = sorted((HERE / "seeds").glob("*/*"))
DAMAGED = 300
SLOW = {"jobfile": 100, "names": 20}
"""Targets that take some milliseconds for each input."""


TARGETS = ("frames", "codec", "sockets", "grpc", "nats", "jobfile", "names")
NEEDS = {"grpc": [pytest.mark.grpc], "nats": [pytest.mark.nats]}


each_target = pytest.mark.parametrize("name", [pytest.param(name, marks=NEEDS.get(name, [])) for name in TARGETS])


def test_no_target_is_left_out(targets: Any) -> None:
    assert tuple(targets.TARGETS) == TARGETS


@each_target
def test_targets_accept_their_examples(targets: Any, name: str) -> None:
    target, every = targets.TARGETS[name](), list(targets.examples())
    for example in every[:: len(every) // SLOW.get(name, len(every))]:
        target(example)


@each_target
def test_targets_survive_damaged_examples(targets: Any, name: str) -> None:
    target, random = targets.TARGETS[name](), Random(5)
    every = list(targets.examples())
    for _ in range(SLOW.get(name, DAMAGED)):
        data = bytearray(random.choice(every) + random.choice(every))
        for _ in range(random.randrange(4)):
            data[random.randrange(len(data))] = random.randrange(256)
        target(bytes(data))


@pytest.mark.parametrize(
    "path",
    [pytest.param(path, marks=NEEDS.get(path.parent.name, []), id=f"{path.parent.name}-{path.name}") for path in SEEDS],
)
def test_targets_survive_inputs_that_once_failed(targets: Any, path: Path) -> None:
    targets.TARGETS[path.parent.name]()(path.read_bytes())
