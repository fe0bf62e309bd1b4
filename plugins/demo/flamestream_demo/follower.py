"""Comparison of an output that is being written with the expected one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


class Follower:
    """Follower of a file of lines that is written, and cut back after crashes.

    Args:
        path: The file; it need not exist yet.
        expected: All lines that it should have in the end, in order; no two are alike.

    Attributes:
        duplicated: Number of lines that were there a second time.
        wrong: Number of lines that should not be there at all.
    """

    def __init__(self, path: Path, expected: Sequence[bytes]) -> None:
        self.duplicated = 0
        self.wrong = 0
        self._path = path
        self._places = {line: place for place, line in enumerate(expected)}
        self._seen: set[int] = set()
        self._read: list[tuple[int, int | None]] = []  # (end of a line, its place if it is the first of its kind)
        self._furthest = -1

    @property
    def delivered(self) -> int:
        """Return the number of expected lines that are there."""
        return len(self._seen)

    @property
    def lost(self) -> int:
        """Return the number of lines that are missing before the last one there."""
        return max(self._seen, default=-1) + 1 - len(self._seen) if self._furthest >= len(self._seen) else 0

    def look(self) -> None:
        """Read the lines written since the last call."""
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
