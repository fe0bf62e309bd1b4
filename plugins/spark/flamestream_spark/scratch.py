"""Temporary folders; those of outputs are removed when no DataFrame reads them any more.

They go with the program at the latest; those of a program that was killed, as soon as another one makes its own.

A DataFrame that is made of another one holds nothing of it in Python, so the JVM is asked whether anything there still
refers to the files: a weak reference to the relation of Spark that reads them says so. Over Spark Connect there is no
such reference, and the folders stay until the program ends.
"""

from __future__ import annotations

import atexit
import threading
import time
import weakref
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from flamecore.toolkit.private_dir import private_folder

_LOOKS_S: Final = (0.2, 1.0, 5.0)
"""Pauses before each look after a DataFrame has gone: Java's collector lets go of the rest in its own time."""

_lock: Final = threading.Lock()
_held: Final[dict[Path, _Held]] = {}
_made: Final[dict[Path, ExitStack]] = {}


class _Held:
    """A folder whose files may still be read.

    Args:
        frames: The DataFrames that were made of it.
    """

    def __init__(self, frames: Sequence[Any]) -> None:
        self._frames = [weakref.ref(frame) for frame in frames]
        self._jvm = frames[0].sparkSession._jvm
        self._relations = [
            self._jvm.java.lang.ref.WeakReference(frame._jdf.queryExecution().analyzed().relation()) for frame in frames
        ]

    def in_python(self) -> bool:
        return any(frame() is not None for frame in self._frames)

    def collect(self) -> None:
        self._jvm.System.gc()

    def in_java(self) -> bool:
        return any(relation.get() is not None for relation in self._relations)


def make_temporary() -> Path:
    """Return a new folder, which is removed when the program ends."""
    with ExitStack() as undo:
        folder = Path(undo.enter_context(private_folder()), "files")
        folder.mkdir()
        _made[folder] = undo.pop_all()
    return folder


def remove_temporary(folder: Path) -> None:
    """Remove a folder by `make_temporary`, if it is there."""
    if (made := _made.pop(folder, None)) is not None:
        made.close()


@atexit.register
def _remove_all() -> None:
    for folder in list(_made):
        remove_temporary(folder)


def remove_with(frames: Iterable[Any], folder: Path) -> None:
    """Remove a temporary folder once no DataFrame reads it any more.

    Args:
        frames: The DataFrames over files in it.
        folder: The folder, by `make_temporary`.
    """
    frames = [frame for frame in frames if _reads_files(frame)]
    if not frames:
        return
    with _lock:
        _held[folder] = _Held(frames)
    for frame in frames:
        weakref.finalize(frame, _look_later).atexit = False


def _reads_files(frame: Any) -> bool:
    java = getattr(frame, "_jdf", None)
    plan = None if java is None else java.queryExecution().analyzed()
    return plan is not None and plan.getClass().getSimpleName() == "LogicalRelation"


def _look_later() -> None:
    threading.Thread(target=_look, name="flamestream scratch", daemon=True).start()


def _look() -> None:
    for pause_s in _LOOKS_S:
        time.sleep(pause_s)
        if not remove_unread():
            return


def remove_unread() -> bool:
    """Remove unread folders; return whether another one may still become unread."""
    with _lock:
        left = {folder: one for folder, one in _held.items() if not one.in_python()}
        try:
            for one in list(left.values())[:1]:
                one.collect()
            unread = [folder for folder, one in left.items() if not one.in_java()]
        except Exception:  # noqa: BLE001 - Spark has ended; the folders go with the program
            return False
        for folder in unread:
            del _held[folder]
    for folder in unread:
        remove_temporary(folder)
    return len(unread) < len(left)
