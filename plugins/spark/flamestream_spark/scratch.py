"""Temporary folders; those of outputs are removed when nothing reads them any more.

They go with the program at the latest; those of a program that was killed, as soon as another one makes its own.

A DataFrame or an RDD that is made of another one holds nothing of it in Python, so the JVM is asked whether anything
there still reads the files. A session of Spark of their own is below each DataFrame for that: relations, plans and RDDs
that read files refer to the session of their relation, and a weak reference says whether any is left. Over Spark
Connect there is no such reference, and the folders stay until the program ends.
"""

from __future__ import annotations

import atexit
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from flamecore.toolkit.private_dir import private_folder

_LOOKS_S: Final = (0.2, 1.0, 5.0, 30.0)
"""Pauses before each look after a DataFrame has gone: Java's collector lets go of the rest in its own time."""

_lock: Final = threading.Lock()
_held: Final[dict[Path, _Held]] = {}
_made: Final[dict[Path, ExitStack]] = {}


class _Held:
    """A folder whose files may still be read.

    Args:
        frames: The DataFrames that were made of it, by `_marked`.
    """

    def __init__(self, frames: Sequence[Any]) -> None:
        self._frames = [weakref.ref(frame) for frame in frames]
        self._jvm = frames[0].sparkSession._jvm
        self._readers = [self._jvm.java.lang.ref.WeakReference(_relation_of(frame).sparkSession()) for frame in frames]

    def in_python(self) -> bool:
        return any(frame() is not None for frame in self._frames)

    def collect(self) -> None:
        self._jvm.System.gc()

    def in_java(self) -> bool:
        return any(reader.get() is not None for reader in self._readers)


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


def remove_with(frames: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Remove a temporary folder once nothing reads it any more.

    Args:
        frames: The DataFrames over files in it, by name.
        folder: The folder, by `make_temporary`.

    Returns:
        The DataFrames to use in their place.
    """
    marked = {name: _marked(frame) for name, frame in frames.items() if _reads_files(frame)}
    known = [frame for frame in marked.values() if frame is not None]
    if known and len(known) == len(marked):
        with _lock:
            _held[folder] = _Held(known)
        for frame in known:
            weakref.finalize(frame, _look_later).atexit = False
    return {name: marked.get(name) or frame for name, frame in frames.items()}


def _reads_files(frame: Any) -> bool:
    java = getattr(frame, "_jdf", None)
    plan = None if java is None else java.queryExecution().analyzed()
    return plan is not None and plan.getClass().getSimpleName() == "LogicalRelation"


def _relation_of(frame: Any) -> Any:
    return frame._jdf.queryExecution().analyzed().relation()


def _marked(frame: Any) -> Any | None:
    """Return a DataFrame of the same session, whose relation has one of its own; None: this Spark makes none."""
    spark, relation = frame.sparkSession, _relation_of(frame)
    try:
        own = relation.copy(
            relation.location(),
            relation.partitionSchema(),
            relation.dataSchema(),
            relation.bucketSpec(),
            relation.fileFormat(),
            relation.options(),
            spark._jsparkSession.cloneSession(),  # with the configuration that reading depends on
        )
        return type(frame)(spark._jsparkSession.baseRelationToDataFrame(own), spark)
    except Exception:  # noqa: BLE001 - its classes are others; the folder goes with the program
        return None


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
