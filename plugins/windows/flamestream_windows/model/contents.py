"""Contents of cells: what calls change, and what is kept of it between them.

A few entries are kept as a tuple. Many stay in the list or dictionary that calls change in place, and a *version* of it
is kept: so a call costs what it changes, whatever the number of entries, and so does each version in a log of calls.

A version is a tuple of entries with a number of changes. The latest one has the list or dictionary at hand. One before
it, to which a job goes back where a call fails, makes the changes once more.
"""

from __future__ import annotations

from typing import Any, Final, Protocol

MANY: Final = 64
"""Most entries that are copied with each call that changes them: it costs no more than versions do."""

Change = tuple[Any, ...]


class Kind(Protocol):
    """A kind of contents."""

    def thaw(self, frozen: Any) -> Any:
        """Return a tuple of entries as contents that may be changed."""

    def freeze(self, contents: Any) -> Any:
        """Return contents as a tuple of entries."""

    def change(self, contents: Any, change: Change) -> None:
        """Change contents in place."""


class _Shared:
    """Contents that several versions share.

    Args:
        base: The entries before all changes.
        contents: The entries as the last version has them, to be changed in place; None: others have them now.
    """

    __slots__ = ("base", "changes", "contents")

    def __init__(self, base: tuple[Any, ...], contents: Any) -> None:
        self.base = base
        self.changes: list[Change] = []
        self.contents = contents


class Version:
    """Contents of a cell between calls: they do not change.

    Args:
        kind: The kind of the contents.
        shared: The contents with those of other versions.
        count: Number of entries.
    """

    __slots__ = ("_count", "_kind", "_position", "_shared")

    def __init__(self, kind: Kind, shared: _Shared, count: int) -> None:
        self._kind = kind
        self._shared = shared
        self._position = len(shared.changes)
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __repr__(self) -> str:
        return repr(self.spelled())

    def spelled(self) -> tuple[Any, ...]:
        """Return the entries as a tuple."""
        return self._kind.freeze(self.contents)  # type: ignore[no-any-return]

    @property
    def contents(self) -> Any:
        """Return the contents, to be read at once."""
        shared, kind = self._shared, self._kind
        if self.is_last:
            return shared.contents
        contents = kind.thaw(shared.base)
        for change in shared.changes[: self._position]:
            kind.change(contents, change)
        return contents

    @property
    def is_last(self) -> bool:
        """Return whether the shared contents are those of this version."""
        return self._shared.contents is not None and len(self._shared.changes) == self._position

    def taken(self) -> _Shared:
        """Return shared contents that are those of this version, to be changed."""
        if self.is_last:
            return self._shared
        # A call after this version has failed, so that there is no later one that counts.
        base = self.spelled()
        return _Shared(base, self._kind.thaw(base))


class Held:
    """Contents of a cell during calls.

    Args:
        kind: Their kind.
        frozen: The contents before: a tuple or a version.

    Attributes:
        contents: The contents, to be changed by `change` only.
    """

    __slots__ = ("_frozen", "_is_changed", "_kind", "_shared", "contents")

    def __init__(self, kind: Kind, frozen: tuple[Any, ...] | Version) -> None:
        self._kind = kind
        self._frozen = frozen
        self._is_changed = False
        self._shared = frozen.taken() if isinstance(frozen, Version) else None
        self.contents: Any = kind.thaw(frozen) if self._shared is None else self._shared.contents

    def change(self, *change: Any) -> None:
        """Change the contents."""
        self._kind.change(self.contents, change)
        self._is_changed = True
        if self._shared is not None:  # behind the change: one that raises has changed nothing
            self._shared.changes.append(change)

    def freeze(self) -> tuple[Any, ...] | Version:
        """Return the contents as they are kept until a later call, a tuple or a version."""
        if self._is_changed:
            self._is_changed = False
            self._frozen = self._next()
        return self._frozen

    def _next(self) -> tuple[Any, ...] | Version:
        kind, contents, shared = self._kind, self.contents, self._shared
        if shared is None:
            frozen: tuple[Any, ...] = kind.freeze(contents)
            if not are_many(len(frozen)):
                return frozen
            self._shared = _Shared(frozen, contents)
            return Version(kind, self._shared, len(frozen))
        count = len(contents)
        if count <= MANY // 2:
            self._shared = shared.contents = None
            return kind.freeze(contents)  # type: ignore[no-any-return]
        if len(shared.changes) > count:  # there are never more changes than entries to be kept
            shared.contents = None
            self._shared = shared = _Shared(kind.freeze(contents), contents)
        return Version(kind, shared, count)


def are_many(count: int) -> bool:
    """Return whether so many entries are kept as a version."""
    return count > MANY


def spelled(frozen: tuple[Any, ...] | Version) -> tuple[Any, ...]:
    """Return contents as they are stored: a tuple of entries."""
    return frozen.spelled() if isinstance(frozen, Version) else frozen
