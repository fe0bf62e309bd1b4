"""What the fuzzer begins with, and what it has ever found, goes through every target; see `tests/fuzz/__main__.py`."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from random import Random
from typing import Any

import pytest

HERE = Path(__file__).parent
SEEDS = sorted((HERE / "seeds").glob("*/*"))
DAMAGED = 300


TARGETS = ("frames", "codec", "grpc", "nats")


def made(targets: Any, name: str) -> Any:
    if name in ("grpc", "nats") and find_spec(name) is None:
        pytest.skip(f"the client of {name} is not installed")
    return targets.TARGETS[name]()


def test_no_target_is_left_out(targets: Any) -> None:
    assert tuple(targets.TARGETS) == TARGETS


@pytest.mark.parametrize("name", TARGETS)
def test_targets_accept_their_examples(targets: Any, name: str) -> None:
    target = made(targets, name)
    for example in targets.examples():
        target(example)


@pytest.mark.parametrize("name", TARGETS)
def test_targets_survive_damaged_examples(targets: Any, name: str) -> None:
    target, random = made(targets, name), Random(5)
    every = list(targets.examples())
    for _ in range(DAMAGED):
        data = bytearray(random.choice(every) + random.choice(every))
        for _ in range(random.randrange(4)):
            data[random.randrange(len(data))] = random.randrange(256)
        target(bytes(data))


@pytest.mark.parametrize("path", SEEDS, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_targets_survive_inputs_that_once_failed(targets: Any, path: Path) -> None:
    made(targets, path.parent.name)(path.read_bytes())
