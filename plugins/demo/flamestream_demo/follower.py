"""Holds an output that is being written against what it should be in the end."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


class Follower:
    """Follows a file of lines while it is written, and while what a crash has left is cut off.

    Args:
        path: The file; it need not be there yet.
        expected: All lines that it should have in the end, in order; no two are alike.

    Attributes:
        duplicated: Lines that are there a second time.
        wrong: Lines that should not be there at all.
    """

    def __init__(self, path: Path, expected: Sequence[bytes]) -> None:
        self.duplicated = 0
        self.wrong = 0
        self._path = path
        self._places = {line: place for place, line in enumerate(expected)}
        self._seen: set[int] = set()
        self._read: list[tuple[int, int | None]] = []  # (where a line ends, its place if it is the first of its kind)
        self._furthest = -1

    @property
    def delivered(self) -> int:
        """How many of the expected lines are there."""
        return len(self._seen)

    @property
    def lost(self) -> int:
        """How many lines are missing before the last one that is there."""
        return max(self._seen, default=-1) + 1 - len(self._seen) if self._furthest >= len(self._seen) else 0

    def look(self) -> None:
        """Read what has come."""
        if not self._path.exists():
            return
        size = self._path.stat().st_size
        while self._read and self._read[-1][0] > size:  # cut off by a run that begins: it will come again
            _, place = self._read.pop()
            if place is not None:
                self._seen.discard(place)
        start = self._read[-1][0] if self._read else 0
        with self._path.open("rb") as file:
            file.seek(start)
            text = file.read()
        for line in text[: text.rfind(b"\n") + 1].splitlines(keepends=True):
            start += len(line)
            place = self._places.get(line)
            first = place is not None and place not in self._seen
            if place is None:
                self.wrong += 1
            elif first:
                self._seen.add(place)
                self._furthest = max(self._furthest, place)
            else:
                self.duplicated += 1
            self._read.append((start, place if first else None))
