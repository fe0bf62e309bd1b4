"""Where the tests of the demo find real text."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def wikipedia() -> Path:
    """The folder with the Wikipedia dumps."""
    beside = Path(__file__).resolve().parents[3].parent / "shared" / "data"
    folder = Path(os.environ.get("FLAMESTREAM_DATA", beside)) / "wikipedia"
    if not folder.is_dir():
        pytest.skip(f"no Wikipedia dumps at {folder}; set FLAMESTREAM_DATA to the folder that holds wikipedia/")
    return folder
