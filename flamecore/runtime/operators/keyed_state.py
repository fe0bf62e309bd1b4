"""The states of a drifting state by key, in layers, with recent changes on top.

So the changes for a snapshot are at hand when it is due, at no cost per item: an item reads and writes one dictionary,
as it would anyway. Only the first item of a key since a snapshot misses there, and looks below.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any, Final

from flamecore.model.hashing import check_key
from flamecore.model.meta import TIME_BYTES

ABSENT: Final = object()
"""Marks a state that is missing in a layer, and must be looked up below."""

_SHARE: Final = 8
_LEAST, _MOST = 1024, 32_768
"""The last cut is merged below by an eighth at a time, but by at least and at most so many keys."""


# Not a dictionary of changes beside one of states: each item would write twice. Nor a copy at the
# cut: items would wait for it. Here the cut takes off the top layer as it is.
class LayeredState:
    """States by key, in three layers.

    Args:
        initial: The state of a key before its first item.
        snapshots: Whether snapshots are taken.

    Attributes:
        top: States changed since the last cut. `load` finds the state of a key that is not there.
        names: With snapshots, all keys with a state, and perhaps some that have lost theirs.
        key_types: With snapshots, the exact types of all keys in all layers and in `names`.
    """

    def __init__(self, initial: object, *, snapshots: bool) -> None:
        self.top: dict[object, object] = {}
        self.names: list[object] = []
        self.key_types: set[type] = set()
        self._initial = initial
        self._snapshots = snapshots
        self._cut: dict[object, object] = {}  # changes at the last cut, as they were then
        self._old: dict[object, object] = {}  # earlier changes
        self._unmoved = iter(self._cut.items())  # changes still to move from `_cut` to `_old`
        self._moved = 0

    def load(self, key: object) -> object:
        """Return the state of a key that is not in `top`; it may be a new key.

        Raises:
            TypeError: The value cannot be a key.
        """
        if self._snapshots:
            # Of each key that enters the top layer, and not of new keys only: equal keys may be of several types.
            self.key_types.add(type(key))
        state = self._old.get(key, ABSENT)
        if self._cut:
            state = self._cut.get(key, state)
        if state is not ABSENT:
            return state
        check_key(key)
        if self._snapshots:
            self.names.append(key)
        return self._initial

    def get(self, key: object) -> object:
        """Return the state of a key."""
        for layer in (self.top, self._cut, self._old):
            if key in layer:
                return layer[key]
        return self._initial

    def drop(self, key: object) -> None:
        """Reset a key to its initial state, as if it had no items."""
        if key in self._cut or key in self._old:
            self.top[key] = self._initial
        else:
            self.top.pop(key, None)

    def forget(self, before: bytes) -> None:
        """Drop the states that no item from an encoded time on needs.

        There are none, since any later item may have the key.
        """

    def cut(self, since: Mapping[object, object]) -> Mapping[object, object]:
        """Return the changes between the last cut and this one.

        Args:
            since: Keys changed since the time of this cut, with their states at that time.

        Returns:
            The state of each changed key at that time. The mapping stays unchanged until the next cut.
        """
        # States that `trim` has not moved in time are moved now: there is one middle layer only.
        self._old.update(self._unmoved)
        cut, old, initial = self.top, self._old, self._initial
        self.key_types.update(map(type, since))
        self.top = {key: cut[key] for key in since if key in cut}
        for key, state in since.items():
            if state is not initial or key in old:
                cut[key] = state
            else:  # its first item is later
                cut.pop(key, None)
        # The mapping that is returned becomes the middle layer, without a copy: nothing writes to
        # it until the next cut, so it can be encoded while items go on above.
        self._cut, self._old = (cut, old) if old else ({}, cut)
        self._unmoved, self._moved = iter(self._cut.items()), 0
        return cut

    def trim(self) -> None:
        """Merge some of the last cut below, to save work at the next one."""
        if self._cut:
            # In shares: moved at once, a large cut would hold up the items for as long as it takes.
            # `islice` goes on in the iterator, so no entry is gone over twice.
            some = min(max(len(self._cut) // _SHARE, _LEAST), _MOST)
            self._old.update(islice(self._unmoved, some))
            self._moved += some
            if self._moved >= len(self._cut):
                self._cut = {}

    def snapshot_of(self, keys: Sequence[object]) -> Mapping[object, object]:
        """Return the state of each of `keys` at the last cut, if it had one."""
        cut, old, initial = self._cut, self._old, self._initial
        found = {key: cut[key] if key in cut else old.get(key, initial) for key in keys}
        return {key: state for key, state in found.items() if state is not initial}

    def restore(self, states: Mapping[object, object]) -> None:
        """Load the states of a snapshot."""
        self._old.update(states)
        self.names.extend(states)
        self.key_types.update(map(type, states))


class LabelledState(LayeredState):
    """States by label and key, which are dropped with the label; snapshots hold none.

    All that comes of a labelled item has its global time. So no state of a label is needed, here or in a snapshot, once
    nothing of the time is to come.

    Args:
        initial: The state of a key before its first item.
    """

    def __init__(self, initial: object) -> None:
        super().__init__(initial, snapshots=False)
        self._by_time: dict[bytes, list[Any]] = {}  # for each time as in orders, the keys of its labels

    def load(self, key: Any) -> object:
        state = super().load(key)
        self._by_time.setdefault(key[0][:TIME_BYTES], []).append(key)
        return state

    def forget(self, before: bytes) -> None:
        for time in [time for time in self._by_time if time < before]:
            for key in self._by_time.pop(time):
                self.top.pop(key, None)

    def cut(self, since: Mapping[object, object]) -> Mapping[object, object]:
        return {}
