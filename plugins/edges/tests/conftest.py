"""Fixtures of the edges' tests: reading a whole source, and real dumps."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from flamecore.abc.source import Rejected, Source
from flamestream_edges.reading import seal


@pytest.fixture(autouse=True)
def files_may_have_just_been_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the seals of all files be alike, whether or not two seconds pass within a test."""
    monkeypatch.setattr(seal, "SETTLED_NS", 1 << 62)


class Everything(NamedTuple):
    """All records of a source: values, and malformed ones with their descriptions."""

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
    """Return a function that reads a source to its end, `limit` records at a time."""
    return lambda source, limit=1000: asyncio.run(read_everything(source, limit))


@pytest.fixture(scope="session")
def wikipedia_dumps() -> list[Path]:
    """Return the Wikipedia dumps, sorted.

    They are in $FLAMESTREAM_DATA/wikipedia, or in shared/data/wikipedia beside the checkout.
    """
    beside = Path(__file__).resolve().parents[3].parent / "shared" / "data"
    folder = Path(os.environ.get("FLAMESTREAM_DATA", beside)) / "wikipedia"
    found = sorted(folder.glob("*.xml"))
    if not found:
        pytest.skip(f"no Wikipedia dumps at {folder}; set FLAMESTREAM_DATA to the folder that holds wikipedia/")
    return found
