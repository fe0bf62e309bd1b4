"""Fixtures of the stores' tests: disks that are full or read-only."""

from __future__ import annotations

import subprocess
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from flamecore.abc.store import Store
from flamecore.errors import StoreError


def _mount(*arguments: str) -> None:
    try:
        done = subprocess.run(["mount", *arguments], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("needs the program mount")
    if done.returncode:
        pytest.skip(f"cannot mount a small disk: {done.stderr.strip()}; run as root")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Yield the folder of a disk of 4 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    _mount("-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder))
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.fixture
def fixed_disk(small_disk: Path) -> Path:
    """Return the folder of a disk that cannot be written to."""
    _mount("-o", "remount,ro", str(small_disk))
    return small_disk


async def _fill(made: Store, size: int) -> tuple[dict[str, bytes], StoreError]:
    held: dict[str, bytes] = {}
    for number in range(1000):
        name, data = f"{number}", bytes([number % 251]) * size
        try:
            assert await made.create(name, data)
        except StoreError as error:
            return held, error
        held[name] = data
    pytest.fail("it is never full")


async def _holds(made: Store, held: dict[str, bytes]) -> None:
    assert await made.names() == sorted(held)
    for name, data in held.items():
        assert await made.read(name) == data
    assert await made.read("none") is None


Fill = Callable[[Store, int], Awaitable[tuple[dict[str, bytes], StoreError]]]
Holds = Callable[[Store, dict[str, bytes]], Awaitable[None]]


@pytest.fixture
def fill() -> Fill:
    """Return `fill`: `held, error = await fill(store, size)` fills the store.

    It creates blobs of that size until there is no more room.
    """
    return _fill


@pytest.fixture
def holds() -> Holds:
    """Return `holds`: `await holds(store, blobs)` checks the content of a store.

    The store must hold these blobs, whole, and no others.
    """
    return _holds
