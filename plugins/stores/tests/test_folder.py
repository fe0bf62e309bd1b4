"""Store `directory` in a folder: syncs, files of killed writers, full disks."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
from pathlib import Path
from typing import Any

import pytest

from flamecore.abc.store import StoreContext
from flamecore.errors import StoreError
from flamecore.testing.bench.disks import file_limit
from flamecore.testing.bench.stores import refusal, using
from flamestream_stores import folder, places
from flamestream_stores.directory import Directory


def store(top: Path, path: str = "state", job: str = "job", **options: Any) -> Directory:
    return Directory(Directory.Options(path=str(top / path), **options), StoreContext(job))


def files(top: Path) -> list[str]:
    return sorted(str(path.relative_to(top)) for path in top.rglob("*") if path.is_file())


def test_a_blob_is_a_file(tmp_path: Path) -> None:
    using(store(tmp_path, job="my/job"), lambda made: made.create("epoch/7", b"data"))
    assert files(tmp_path) == ["state/my%2Fjob/epoch=7.blob"]
    assert (tmp_path / "state" / "my%2Fjob" / "epoch=7.blob").read_bytes() == b"data"


def test_other_files_are_no_blobs(tmp_path: Path) -> None:
    async def do(made: Directory) -> list[str]:
        (tmp_path / "state" / "job" / "notes.txt").touch()
        await made.create("a", b"")
        return await made.names()

    assert using(store(tmp_path), do) == ["a"]


# -- syncs to the disk ------------------------------------------------------------------------------------------------


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the list of system calls made, in order, as far as it matters."""
    made: list[str] = []

    def told(what: str, call: Any) -> Any:
        def do(*arguments: Any) -> Any:
            made.append(what)
            return call(*arguments)

        return do

    monkeypatch.setattr(folder, "_force", told("file", folder._force))
    monkeypatch.setattr(folder, "sync_folder", told("folder", places.sync_folder))
    monkeypatch.setattr(places, "sync_folder", told("parent", places.sync_folder))
    monkeypatch.setattr(os, "link", told("link", os.link))
    return made


def test_a_file_is_forced_to_the_disk_before_its_link_and_the_folder_after_it(tmp_path: Path, calls: list[str]) -> None:
    async def do(made: Directory) -> None:
        assert calls == ["parent", "parent"]  # `state` and `state/job` were made
        calls.clear()
        await made.create("a", b"data")
        assert calls == ["file", "link", "folder"]
        calls.clear()
        assert not await made.create("a", b"other")
        assert calls == ["folder"]  # a creator that is told so may rely on it

    using(store(tmp_path), do)


def test_nothing_is_forced_to_the_disk_if_loss_of_power_does_not_count(tmp_path: Path, calls: list[str]) -> None:
    async def do(made: Directory) -> None:
        await made.create("a", b"data")
        await made.create("a", b"data")
        assert calls == ["link"]

    using(store(tmp_path, survives="process_death"), do)


def test_a_blob_that_cannot_be_forced_to_the_disk_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(path: Any) -> None:
        raise OSError(errno.EIO, "Input/output error")

    async def do(made: Directory) -> None:
        monkeypatch.setattr(folder, "sync_folder", broken)
        with pytest.raises(StoreError, match="Input/output error") as caught:
            await made.create("a", b"data")
        assert "device" in caught.value.hint
        monkeypatch.undo()
        assert await made.names() == []
        assert await made.create("a", b"data")

    using(store(tmp_path), do)
    assert files(tmp_path) == ["state/job/a.blob"]


# -- links -------------------------------------------------------------------------------------------------------------


def test_a_file_system_without_links_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refused)
    error = refusal(store(tmp_path), lambda made: made.create("a", b"data"))
    assert "without hard links" in error.what
    assert "sqlite" in error.hint
    assert files(tmp_path) == []


def test_a_link_that_a_file_server_makes_twice_is_created(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its first answer was lost; the second says that the name is taken."""
    link = os.link

    def twice(*paths: Any) -> None:
        link(*paths)
        link(*paths)

    monkeypatch.setattr(os, "link", twice)
    assert using(store(tmp_path), lambda made: made.create("a", b"data")) is True


# -- files of killed writers ------------------------------------------------------------------------------------------


def test_files_of_dead_writers_are_deleted_and_those_of_live_ones_stay(tmp_path: Path) -> None:
    home = tmp_path / "state" / "job"
    home.mkdir(parents=True)
    (home / "=left").write_bytes(b"half")
    (home / "a.blob").write_bytes(b"whole")
    with (home / "=written").open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        using(store(tmp_path), Directory.names)
        assert files(home) == ["=written", "a.blob"]
    using(store(tmp_path), Directory.names)
    assert files(home) == ["a.blob"]


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="no /proc to find out the path of a descriptor")
def test_a_file_deleted_before_it_is_locked_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process deletes a new file as abandoned, before its writer locks it."""
    flock = fcntl.flock
    meddled: list[int] = []

    def meddle(descriptor: int, how: int) -> None:
        if len(meddled) < 2:
            meddled.append(descriptor)
            path = Path(f"/proc/self/fd/{descriptor}").readlink()
            if len(meddled) == 1:
                folder._clear(str(path))
            else:
                with path.open("rb") as other:
                    flock(other, fcntl.LOCK_EX)
                    flock(descriptor, how)
        flock(descriptor, how)

    async def do(made: Directory) -> None:
        monkeypatch.setattr(fcntl, "flock", meddle)
        assert await made.create("a", b"data")
        monkeypatch.undo()
        assert await made.read("a") == b"data"

    using(store(tmp_path), do)
    assert len(meddled) == 2


# -- refusals of the system -------------------------------------------------------------------------------------------


def test_a_path_through_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert "part of the path is a file" in refusal(store(tmp_path, "file")).hint


def test_a_read_only_disk_is_refused(fixed_disk: Path) -> None:
    error = refusal(store(fixed_disk, "."))
    assert "Read-only file system" in error.what
    assert "writable" in error.hint


def test_a_deleted_folder_is_an_error(tmp_path: Path) -> None:
    async def do(made: Directory) -> None:
        (tmp_path / "state" / "job").rmdir()
        for call in (made.create("a", b""), made.names()):
            with pytest.raises(StoreError, match="No such file") as caught:
                await call
            assert "deleted" in caught.value.hint

    using(store(tmp_path), do)


def test_a_folder_in_the_place_of_a_blob_is_an_error(tmp_path: Path) -> None:
    async def do(made: Directory) -> None:
        (tmp_path / "state" / "job" / "a.blob").mkdir()
        for call in (made.read("a"), made.delete(["a"])):
            with pytest.raises(StoreError):
                await call

    using(store(tmp_path), do)


def test_a_store_that_is_not_open_refuses_calls(tmp_path: Path) -> None:
    made = store(tmp_path)
    with pytest.raises(StoreError, match="not open"):
        asyncio.run(made.names())


@pytest.mark.parametrize("size", [1000, 100_000, 3_000_000])
def test_a_full_disk_leaves_whole_blobs_only(small_disk: Path, size: int, fill: Any, holds: Any) -> None:
    (small_disk / "else").write_bytes(bytes(300_000))

    async def do(made: Directory) -> None:
        held, error = await fill(made, size)
        assert "No space left" in error.what
        assert "bytes are free" in error.hint
        assert await made.read(error.blob) is None
        await holds(made, held)
        (small_disk / "else").unlink()
        assert await made.create("later", b"later")
        await holds(made, held | {"later": b"later"})

    using(store(small_disk), do)
    assert not [name for name in files(small_disk) if "/=" in name]


def test_a_file_over_the_limit_leaves_no_blob(tmp_path: Path, holds: Any) -> None:
    async def do(made: Directory) -> None:
        with file_limit(2**20):
            with pytest.raises(StoreError, match=r"File too large.*\n.*ulimit -f"):
                await made.create("a", bytes(2 * 2**20))
            assert await made.create("b", bytes(2**20))
        assert await made.create("a", b"data")
        await holds(made, {"a": b"data", "b": bytes(2**20)})

    using(store(tmp_path), do)
