"""The states of a drifting state by key, in layers, with recent changes on top.

So the changes for a snapshot are at hand when it is due, at no cost per item: an item reads and writes one dictionary,
as it would anyway. Only the first item of a key that has not come for a while misses there, and looks below.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, compress, islice, repeat
from operator import is_not
from typing import Any, Final

from flamecore.model.hashing import check_key
from flamecore.model.meta import TIME_BYTES

ABSENT: Final = object()
"""Marks a state that is missing in a layer, and must be looked up below."""

_SHARE: Final = 8
_LEAST, _MOST = 1024, 32_768
"""States that leave the top layer are merged below by an eighth at a time, but by at least and at most so many."""

_PLAIN: Final = frozenset({int, float, str, bytes, bool, type(None)})
"""Types of states that cannot be changed in place, and neither can a tuple of them."""

_MOST_KEPT: Final = 400_000
"""Most states that stay in the top layer at a cut: items wait while they are copied and compared, 0.1 us each."""

_FEW: Final = 4
"""All states leave the top when fewer than a fourth of them have changed since the last cut."""


class _Changed(Mapping[object, object]):
    """The changed ones of some states, which are picked out as they are asked for.

    Args:
        states: All of them.
        flags: For each of them, whether it has changed.
        count: Number of those that have.
    """

    def __init__(self, states: Mapping[object, object], flags: Sequence[bool], count: int) -> None:
        self._states, self._flags, self._count = states, flags, count

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[object]:
        return compress(self._states, self._flags)

    def __getitem__(self, key: object) -> object:
        return dict(self.items())[key]

    def items(self) -> Any:
        return compress(self._states.items(), self._flags)

    def values(self) -> Any:
        return compress(self._states.values(), self._flags)


# Not a dictionary of changes beside one of states: each item would write twice. A copy of the top stays beneath at a
# cut, and what has changed at the next one is found by comparing the two: a tenth of what it costs to look below for a
# key that comes again, and to merge its state there. States that a function could change in place are not compared: all
# of them leave the top, and what is there at the next cut has changed.
class LayeredState:
    """States by key, in layers.

    A state `ABSENT` below the top says that there is none.

    Args:
        initial: The state of a key before its first item.
        snapshots: Whether snapshots are taken.

    Attributes:
        top: All states changed since the last cut, and some others. `load` finds the state of a key that is not there.
        names: With snapshots, all keys with a state, and perhaps some that have lost theirs.
        key_types: With snapshots, the exact types of all keys in all layers and in `names`.
    """

    def __init__(self, initial: object, *, snapshots: bool) -> None:
        self.top: dict[object, object] = {}
        self.names: list[object] = []
        self.key_types: set[type] = set()
        self._initial = initial
        self._snapshots = snapshots
        self._stays = True  # whether the top stays at the next cut
        self._kept: dict[object, object] = {}  # states at the last cut, of the keys that the top begins with
        self._left: dict[object, object] = {}  # states that left the top at the last cut
        self._old: dict[object, object] = {}  # those that left it earlier
        self._unmoved = iter(self._left.items())  # states still to move from `_left` to `_old`
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
        if self._left:
            state = self._left.get(key, state)
        if state is not ABSENT:
            return state
        check_key(key)
        if self._snapshots:
            self.names.append(key)
        return self._initial

    def get(self, key: object) -> object:
        """Return the state of a key."""
        state = self._found(key, self.top)
        return self._initial if state is ABSENT else state

    def _found(self, key: object, first: Mapping[object, object]) -> object:
        """Return the state of a key in a layer, or else in those that have left the top; `ABSENT` if there is none."""
        for layer in (first, self._left, self._old):
            state = layer.get(key, ABSENT)
            if state is not ABSENT:
                break
        return state

    def drop(self, key: object) -> None:
        """Reset a key to its initial state, as if it had no items."""
        if key in self._kept or key in self._left or key in self._old:
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
        # States that `trim` has not moved in time are moved now: there is one such layer only.
        self._old.update(self._unmoved)
        self.key_types.update(map(type, since))
        cut, kept, old = self.top, self._kept, self._old
        stays = self._stays and len(cut) <= _MOST_KEPT
        top = cut.copy() if stays else _some(cut, since)
        cut.update(since)
        # The first item of these is later.
        begun = [key for key, state in since.items() if state is self._initial and self._found(key, kept) is ABSENT]
        cut.update(dict.fromkeys(begun, ABSENT))
        changed: Mapping[object, object] = cut
        if kept or begun:
            # None of the keys that are kept is ever removed from the top, so both begin with the same ones.
            flags = [*map(is_not, cut.values(), chain(kept.values(), repeat(ABSENT)))]
            changed = _Changed(cut, flags, sum(flags))
        may_stay = len(changed) <= _MOST_KEPT and _unchangeable(changed)
        # Without a copy of what leaves, stays beneath, or is returned: nothing writes to it until the next cut, so
        # changes can be encoded while items go on above.
        if stays and may_stay:
            for key in islice(cut, len(top), None):
                top[key] = self._initial
            self._kept, self.top, self._left = cut, top, {}
            self._stays = len(cut) <= _FEW * len(changed)
        else:
            self._kept, self.top, self._stays = {}, _some(top, since), may_stay
            self._left, self._old = (cut, old) if old else ({}, cut)
        self._unmoved, self._moved = iter(self._left.items()), 0
        return changed

    def trim(self) -> None:
        """Merge some of the states that left the top below, to save work at the next cut."""
        if self._left:
            # In shares: moved at once, they would hold up the items for as long as it takes.
            # `islice` goes on in the iterator, so no entry is gone over twice.
            some = min(max(len(self._left) // _SHARE, _LEAST), _MOST)
            self._old.update(islice(self._unmoved, some))
            self._moved += some
            if self._moved >= len(self._left):
                self._left = {}

    def snapshot_of(self, keys: Sequence[object]) -> Mapping[object, object]:
        """Return the state of each of `keys` at the last cut, if it had one."""
        found: dict[object, object] = {}
        for layer in (self._old, self._left, self._kept):
            if layer:
                found.update(_some(layer, keys))
        initial = self._initial
        return {key: state for key, state in found.items() if state is not ABSENT and state is not initial}

    def restore(self, states: Mapping[object, object]) -> None:
        """Load the states of a snapshot."""
        self._old.update(states)
        self.names.extend(states)
        self.key_types.update(map(type, states))


def _unchangeable(states: Mapping[object, object]) -> bool:
    """Return whether nobody can change one of some states in place, not even in part."""
    kinds = set(map(type, states.values()))
    if tuple in kinds:
        parts: Any = states.values()
        if len(kinds) > 1:
            parts = [state for state in parts if type(state) is tuple]
        kinds = kinds - {tuple} | set(map(type, chain.from_iterable(parts)))
    return kinds <= _PLAIN


def _some(states: Mapping[object, object], keys: Iterable[object]) -> dict[object, object]:
    return {key: states[key] for key in keys if key in states}


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
