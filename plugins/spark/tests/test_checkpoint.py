"""Checkpoints of streams, without Spark: which flow one belongs to."""

from __future__ import annotations

from pathlib import Path

import pytest

from flamecore.errors import ConfigError
from flamestream_spark.checkpoint import Checkpoint
from flamestream_spark.storage.folder import FolderPlace


@pytest.fixture
def place(tmp_path: Path) -> FolderPlace:
    for name in ("query", "spool", "state", "output"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").touch()
    return FolderPlace(tmp_path)


def left(place: FolderPlace) -> set[str]:
    return {name.partition("/")[0] for name in place.names(below=True) if "/" in name}


def test_a_checkpoint_is_taken_by_the_first_flow_and_kept_for_it(place: FolderPlace) -> None:
    Checkpoint(place, "a").take(replace=False)
    Checkpoint(place, "a").take(replace=False)
    for refused in (Checkpoint(place, "b").check, Checkpoint(place, "b").take):
        with pytest.raises(ConfigError, match="belongs to flow 'a', and this is flow 'b'"):
            refused(replace=False)
    assert left(place) == {"query", "spool", "state", "output"}


def test_a_flow_that_is_replaced_leaves_its_output_to_the_sinks(place: FolderPlace) -> None:
    Checkpoint(place, "a").take(replace=False)
    Checkpoint(place, "b").take(replace=True)
    assert left(place) == {"output"}
    with pytest.raises(ConfigError, match="belongs to flow 'b'"):
        Checkpoint(place, "a").check(replace=False)


def test_a_removal_that_was_cut_short_is_completed(place: FolderPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    Checkpoint(place, "a").take(replace=False)
    with monkeypatch.context() as patch:
        patch.setattr(FolderPlace, "clear", cut_short)
        with pytest.raises(KeyboardInterrupt):
            Checkpoint(place, "b").take(replace=True)
    assert left(place) == {"query", "spool", "state", "output"}
    Checkpoint(place, "b").take(replace=False)
    assert left(place) == {"output"}


def cut_short(place: FolderPlace, folder: str = "") -> None:
    raise KeyboardInterrupt


def test_a_checkpoint_that_cannot_be_read_is_left_alone(place: FolderPlace) -> None:
    place.replace("_flow.json", b"{")
    with pytest.raises(ConfigError, match=r"_flow.json cannot be read"):
        Checkpoint(place, "a").take(replace=True)
    assert left(place) == {"query", "spool", "state", "output"}
