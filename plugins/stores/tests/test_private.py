"""State is private to its user, whatever the umask."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from flamecore.abc.store import Store, StoreContext
from flamestream_stores.directory import Directory
from flamestream_stores.sqlite import Sqlite


@pytest.fixture
def open_umask() -> Iterator[None]:
    """Make files and folders accessible to everybody by default."""
    before = os.umask(0)
    try:
        yield
    finally:
        os.umask(before)


def modes(folder: Path) -> dict[str, str]:
    """Return the modes of all entries in a folder, by relative path."""
    return {str(path.relative_to(folder)): f"{path.stat().st_mode & 0o777:o}" for path in folder.rglob("*")}


@pytest.mark.parametrize("driver", [Directory, Sqlite])
@pytest.mark.parametrize("survives", ["crash", "power_loss"])
def test_nobody_else_can_read_state(open_umask: None, tmp_path: Path, driver: type[Store], survives: str) -> None:
    async def run() -> dict[str, str]:
        store = driver(driver.Options(path=str(tmp_path / "deep/state"), survives=survives), StoreContext("job"))
        await store.open()
        try:
            for number in range(3):
                await store.create(f"part/{number}", b"payloads" * 1000)
            return modes(tmp_path)
        finally:
            await store.aclose()

    found = asyncio.run(run())
    assert len(found) >= 5
    for path, mode in found.items():
        assert mode == ("700" if (tmp_path / path).is_dir() or path in ("deep", "deep/state") else "600"), path
    if driver is Sqlite:
        assert {"deep/state/job.db", "deep/state/job.db-wal", "deep/state/job.db-shm"} <= found.keys()
