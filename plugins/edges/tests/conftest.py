"""What the tests of the edges share: reading a whole source, and the folder of real dumps."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from flamecore.front import Rejected, Source


class Everything(NamedTuple):
    """All that a source gives: values, and malformed records with the place each stood at, in words."""

    values: list[Any]
    rejected: list[Rejected]
    places: list[str]


async def read_everything(source: Source, limit: int) -> Everything:
    found = Everything([], [], [])
    for partition in source.partitions():
        reader = await source.open(partition)
        try:
            while (batch := await reader.read(limit)) is not None:
                found.values.extend(batch.values)
                found.rejected.extend(batch.rejected)
                found.places.extend(reader.describe(bad.position) for bad in batch.rejected)
        finally:
            await reader.aclose()
    return found


ReadAll = Callable[..., Everything]


@pytest.fixture(scope="session")
def read_all() -> ReadAll:
    """Reads a source to its end, `limit` records at a time."""
    return lambda source, limit=1000: asyncio.run(read_everything(source, limit))


@pytest.fixture(scope="session")
def wikipedia_dumps() -> list[Path]:
    """The Wikipedia dumps: in $FLAMESTREAM_DATA/wikipedia, or in shared/data/wikipedia beside the checkout."""
    beside = Path(__file__).resolve().parents[3].parent / "shared" / "data"
    folder = Path(os.environ.get("FLAMESTREAM_DATA", beside)) / "wikipedia"
    found = sorted(folder.glob("*.xml"))
    if not found:
        pytest.skip(f"no Wikipedia dumps at {folder}; set FLAMESTREAM_DATA to the folder that holds wikipedia/")
    return found


@contextmanager
def _file_limit(limit: int) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


@pytest.fixture
def file_limit() -> Callable[[int], AbstractContextManager[None]]:
    """`with file_limit(2**20):` no file grows beyond that many bytes."""
    return _file_limit
