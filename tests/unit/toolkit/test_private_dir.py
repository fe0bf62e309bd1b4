"""Private folders go with their owners; those of owners that were killed go when the next one is made."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from flamecore.toolkit.private_dir import private_folder, remove_left

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there are no such locks")

OWNER = """
import os
from pathlib import Path
from flamecore.toolkit.private_dir import private_folder

with private_folder() as folder:
    Path(folder, "worker-0.json").write_text("secret")
    print(folder, flush=True)
    input()
"""


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def owner() -> tuple[subprocess.Popen[str], Path]:
    """Another process that has a private folder, until it reads a line."""
    process = subprocess.Popen([sys.executable, "-c", OWNER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def killed(count: int = 1) -> list[Path]:
    """Return the folders that killed owners have left."""
    owners = [owner() for _ in range(count)]  # each new one would remove what was left
    for process, folder in owners:
        process.kill()
        process.communicate()
        assert (folder / "worker-0.json").exists()
    return [folder for _, folder in owners]


def test_a_private_folder_is_for_its_owner_and_is_deleted_in_the_end(place: Path) -> None:
    with private_folder() as folder:
        assert Path(folder).parent == place
        assert Path(folder).stat().st_mode & 0o777 == 0o700
    assert list(place.iterdir()) == []


def test_folders_of_killed_owners_are_deleted_and_those_in_use_stay(place: Path) -> None:
    living, in_use = owner()
    (left,) = killed()
    with private_folder() as folder:
        assert not left.exists()
        assert (in_use / "worker-0.json").exists()
        remove_left(str(place))
        assert Path(folder).exists(), "its own is in use, too"
    living.communicate("go\n")
    assert list(place.iterdir()) == []


def test_folders_that_only_look_private_stay(place: Path) -> None:
    plain = place / "flamestream-results"
    plain.mkdir(mode=0o700)
    (plain / "out").write_text("mine")
    elsewhere, open_to_all, linked, empty = killed(4)
    (elsewhere / ".owner").write_text("another." + socket.gethostname())
    (empty / ".owner").write_text("")
    open_to_all.chmod(0o755)
    linked.rename(place / "kept")
    linked.symlink_to(place / "kept")
    before = sorted(place.rglob("*"))
    remove_left(str(place))
    assert sorted(place.rglob("*")) == before


def test_links_in_a_folder_are_not_followed(place: Path) -> None:
    outside = place / "outside"
    outside.mkdir()
    (outside / "precious").write_text("mine")
    left, faked = killed(2)
    (left / "link").symlink_to(outside)
    (faked / ".owner").rename(outside / ".owner")
    (faked / ".owner").symlink_to(outside / ".owner")
    remove_left(str(place))
    assert not left.exists()
    assert faked.exists()
    assert (outside / "precious").read_text() == "mine"


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can give files away")
def test_a_folder_of_another_user_stays(place: Path) -> None:
    theirs, half = killed(2)
    os.chown(theirs, 65_534, -1)
    os.chown(half / ".owner", 65_534, -1)
    remove_left(str(place))
    assert theirs.exists()
    assert half.exists()


def test_folders_on_disks_without_locks_stay(monkeypatch: pytest.MonkeyPatch, place: Path) -> None:
    import fcntl

    def unsupported(*_: object) -> None:
        raise OSError(95, "Operation not supported")

    with monkeypatch.context() as patch:
        patch.setattr(fcntl, "flock", unsupported)
        context = private_folder()
        folder = Path(context.__enter__())
    assert list(folder.iterdir()) == []
    remove_left(str(place))
    assert folder.exists()
    context.__exit__(None, None, None)
    assert not folder.exists()


def test_a_folder_that_is_being_examined_is_not_used(monkeypatch: pytest.MonkeyPatch, place: Path) -> None:
    import fcntl

    lock = fcntl.flock
    looked_at: list[int] = []

    def meddle(descriptor: int, operation: int) -> None:
        if not looked_at:  # whoever removes left ones is faster, once
            (folder,) = place.iterdir()
            looked_at.append(other := os.open(folder / ".owner", os.O_RDONLY))
            lock(other, fcntl.LOCK_EX)
        lock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", meddle)
    with private_folder() as folder:
        assert [str(path) for path in place.iterdir()] == [folder]
    os.close(looked_at[0])
