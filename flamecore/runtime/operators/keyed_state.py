"""The states of a drifting state by key, in layers, with recent changes on top.

So the changes for a snapshot are at hand when it is due, at no cost per item: an item reads and writes one dictionary,
as it would anyway. Only the first item of a key that has not come for a while misses there, and looks below.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, is_dataclass
from itertools import chain, compress, count, islice, repeat
from math import isnan
from operator import eq, is_, is_not, itemgetter, ne
from typing import Any, Final

from flamecore.abc.operator import GONE
from flamecore.errors import CodecError
from flamecore.model.hashing import can_differ, check_key
from flamecore.model.meta import TIME_BYTES

_SAME_BYTES: Final = frozenset({int, str, bytes})
"""Types of which equal states have the same bytes."""

ABSENT: Final = object()
"""Marks a state that is missing in a layer, and must be looked up below."""

_SHARE: Final = 8
_LEAST, _MOST = 1024, 32_768
"""States that leave the top layer are merged below by an eighth at a time, but by at least and at most so many."""

_PLAIN: Final = frozenset({int, float, str, bytes, bool, type(None)})
"""Types of states that cannot be changed in place, and neither can a tuple of them."""

_MOST_KEPT: Final = 400_000
"""Most states that stay in the top layer at a cut: items wait while they are listed, up to 0.1 us each."""

_FEW: Final = 8
"""All states leave the top when fewer than an eighth of them have changed since the last cut: to compare eight takes as
long as to look below for one, and to merge it there."""

MOST_ENDED: Final = 1024
"""Keys that have ended are forgotten at twice as many keys as were left the last time, and at no fewer than this: so a
look at all of them takes no longer than it took to add them."""

_AT_ONCE: Final = 8192
"""States compared at once, without a break for items."""


class Initial:
    """The state with which a key begins, and at which it ends: any state of the same bytes.

    Equal ones of other bytes are states: 0.0, -0.0 and False, if a key begins with 0.

    Args:
        state: The state.
        stored: Returns the bytes of a state, as `flamecore.abc.operator.Site.stored`; None: the state is told by itself
            only.
    """

    def __init__(self, state: object, stored: Callable[[Any], bytes] | None = None) -> None:
        self.state = state
        self._kind = type(state)
        self._stored = stored
        self._bytes = b""
        # Most states are told apart by a comparison, which costs less than their bytes.
        self._is_plain = self._kind in _SAME_BYTES
        self._compares = _compares(state)
        if stored is not None:
            with suppress(CodecError):  # a state that cannot be stored has no bytes
                self._bytes = stored(state)

    def others(self, states: Iterable[Any]) -> Iterator[bool]:
        """Yield for each state whether a key with it has one, for a key that does not end."""
        return map(ne if self._kind is int else is_not, states, repeat(self.state))

    def gone(self, states: Iterable[Any]) -> Iterator[Any]:
        """Yield the states, and `GONE` in the place of those at which a key ends."""
        if self._is_plain:  # without a call for each
            kind, initial = self._kind, self.state
            return (GONE if type(state) is kind and state == initial else state for state in states)
        return (GONE if self.is_(state) else state for state in states)

    def is_(self, state: Any) -> bool:
        """Return whether a key with this state has none."""
        if state is self.state:
            return True
        if type(state) is not self._kind or (self._compares and state != self.state):
            return False
        return self._is_plain or self._has_its_bytes(state)

    def _has_its_bytes(self, state: Any) -> bool:
        with suppress(CodecError):
            return self._stored is not None and self._bytes != b"" and self._stored(state) == self._bytes
        return False


def _compares(state: Any) -> bool:
    """Return whether all states with the bytes of this one are equal to it, as one with NaN is not."""
    kind = type(state)
    if kind in _SAME_BYTES or kind in (bool, type(None)):
        return True
    if kind is float:
        return not isnan(state)
    if isinstance(state, tuple):
        return _equal_of(kind) is tuple.__eq__ and all(map(_compares, state))
    if is_dataclass(state):
        parts = [getattr(state, each.name, None) for each in fields(state)]
        return _equal_of(kind) is not object.__eq__ and all(map(_compares, parts))
    return False


def _equal_of(kind: type) -> Any:
    return kind.__eq__


class Ended(Mapping[object, object]):
    """Changed states without those at which keys end, made as they are asked for.

    Args:
        states: The states.
        initial: The state at which a key ends.
        ends: Whether `GONE` stands for it: a key that ends may have had a state. Otherwise the key is left out.
    """

    def __init__(self, states: Mapping[object, object], initial: Initial, *, ends: bool) -> None:
        self._states, self._initial, self._ends = states, initial, ends

    def __bool__(self) -> bool:
        return any(True for _ in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __iter__(self) -> Iterator[object]:
        if self._ends:
            return iter(self._states)
        return compress(self._states, self._initial.others(self._states.values()))

    def __getitem__(self, key: object) -> object:
        return dict(self.items())[key]

    def items(self) -> Any:
        return zip(self, self.values(), strict=True)

    def values(self) -> Any:
        states = self._states.values()
        if not self._ends:
            return compress(states, self._initial.others(self._states.values()))
        return self._initial.gone(states)


# One rule for all that keeps state by key: which of several equal keys is shown, and stored, follows from the order of
# the items alone. As long as no keys can differ, this costs a look at the types of some, and no memory.
class FirstKeys:
    """Keys as their first items have them, where equal keys can differ.

    A key begins with the first item that finds no state. It stays the key until the state ends.

    Args:
        known: Returns all keys that may have state. It is called once, when keys can differ for the first time.
    """

    def __init__(self, known: Callable[[], Iterable[Any]]) -> None:
        self._known = known
        self._first: dict[Any, Any] | None = None

    def __len__(self) -> int:
        """Return the number of keys that it holds."""
        return len(self._first or ())

    @property
    def is_on(self) -> bool:
        """Return whether keys can differ."""
        return self._first is not None

    def watch(self, keys: Collection[Any]) -> bool:
        """Return whether keys can differ, these or earlier ones.

        Raises:
            TypeError: One cannot be a key.
        """
        if self._first is None and can_differ(keys):
            self._first = {key: key for key in self._known()}
        return self._first is not None

    def begin(self, key: Any) -> Any:
        """Note the key of an item that has found no state; return the one before, or None."""
        assert self._first is not None
        before = self._first.get(key)
        self._first[key] = key
        return before

    def of(self, key: Any) -> Any:
        """Return a key as its first item has it."""
        return key if self._first is None else self._first.get(key, key)

    def forget(self, kept: Iterable[Any]) -> None:
        """Forget all keys but some, which have state or are in the last snapshot."""
        if self._first is not None:
            first = self._first
            self._first = {key: first.get(key, key) for key in kept}

    def named(self, states: Mapping[Any, Any]) -> Mapping[Any, Any]:
        """Return states by their first keys."""
        return states if self._first is None else {self._first.get(key, key): state for key, state in states.items()}


class _Changed(Mapping[object, object]):
    """The changed ones of some states, which are picked out as they are asked for.

    Args:
        keys: Keys of the states, and perhaps further ones.
        states: All states.
        before: The states before, as many.
        differ: Function that tells whether two of these differ.
        new: Number of the last ones that all differ.
    """

    def __init__(
        self,
        keys: Sequence[object],
        states: Sequence[object],
        before: Sequence[object],
        differ: Callable[[object, object], bool],
        new: int = 0,
    ) -> None:
        self._keys, self._states, self._before, self._differ = keys, states, before, differ
        self._new = range(len(states) - new, len(states))
        self._chunks = range(0, len(states) - new, _AT_ONCE)
        self._counts: dict[int, int] = {}  # for each chunk that was asked for, the number of changed ones
        # Keys and states are asked for side by side, and the places of all would be something to look at for the
        # garbage collector.
        self._recent = deque[tuple[int, list[int]]](maxlen=2)

    # Places, and not flags: what has not changed is in no cache of the processor, and stays untouched.
    def _places(self, start: int) -> list[int]:
        for known, places in self._recent:
            if known == start:
                return places
        stop = min(start + _AT_ONCE, self._new.start)
        compared = map(self._differ, self._states[start:stop], self._before[start:stop])
        places = [*compress(range(start, stop), compared)]
        self._recent.append((start, places))
        self._counts[start] = len(places)
        return places

    def _pick(self, column: Sequence[object]) -> Iterator[object]:
        changed = (map(column.__getitem__, self._places(start)) for start in self._chunks)
        new = (column[start : min(start + _AT_ONCE, self._new.stop)] for start in self._new[::_AT_ONCE])
        return chain.from_iterable(chain(changed, new))

    def __bool__(self) -> bool:
        return bool(self._new) or any(map(self._differ, self._states, self._before))

    def __len__(self) -> int:
        for start in self._chunks:
            if start not in self._counts:
                self._places(start)
        return sum(self._counts.values(), len(self._new))

    def __iter__(self) -> Iterator[object]:
        return self._pick(self._keys)

    def __getitem__(self, key: object) -> object:
        return dict(self.items())[key]

    def items(self) -> Any:
        return zip(self, self.values(), strict=True)

    def values(self) -> Any:
        return self._pick(self._states)


class _Left(Mapping[object, object]):
    """The changed ones of states that leave the top, and are not changed any more, picked out as they are asked for.

    Args:
        states: All states; `ABSENT` where there is none.
        before: The states before of the first ones, in their sequence.
        differ: Function that tells whether two of these differ.
    """

    def __init__(
        self,
        states: Mapping[object, object],
        before: Iterable[object],
        differ: Callable[[object, object], bool],
    ) -> None:
        self._states, self._before, self._differ = states, before, differ

    def items(self) -> Any:
        differ = map(self._differ, self._states.values(), chain(self._before, repeat(ABSENT)))
        return (item for item in compress(self._states.items(), differ) if item[1] is not ABSENT)

    def __bool__(self) -> bool:
        return any(True for _ in self.items())

    def __len__(self) -> int:
        return sum(1 for _ in self.items())

    def __iter__(self) -> Iterator[object]:
        return map(itemgetter(0), self.items())

    def __getitem__(self, key: object) -> object:
        return dict(self.items())[key]

    def values(self) -> Any:
        return map(itemgetter(1), self.items())


# Not a dictionary of changes beside one of states: each item would write twice. A list of the states on top stays
# beneath at a cut, and what has changed at the next one is found by comparing the two: a tenth of what it costs to look
# below for a key that comes again, and to merge its state there. Not a copy of the top: items would go on in memory
# that no cache of the processor holds. States that a function could change in place are not compared: all of them leave
# the top, and what is there at the next cut has changed.
class LayeredState:
    """States by key, in layers.

    A state `ABSENT` below the top says that there is none.

    Args:
        initial: The state of a key before its first item, and behind its last.
        snapshots: Whether snapshots are taken.
        integers: Whether all states are integers.

    Attributes:
        top: All states changed since the last cut, and some others. `load` finds the state of a key that is not there.
        names: With snapshots, all keys with a state, and perhaps some that have lost theirs.
        entered: With snapshots, keys that have entered the top layer; whoever looks at them clears the list.
        key_types: With snapshots, the exact types of all keys in all layers and in `names`.
        integers: As the argument, unless there are states of other types, or some that take more than 64 bits.
    """

    def __init__(self, initial: object, *, snapshots: bool, integers: bool = False) -> None:
        self.top: dict[object, object] = {}
        self.names: list[object] = []
        self.key_types: set[type] = set()
        self.entered: list[object] = []
        self.integers = integers
        self._initial = initial
        self._snapshots = snapshots
        # Of the last cut: keys and states of the top, some of which it did not have then, and the first of which it has
        # still, if it has stayed.
        self._keys: list[object] = []
        self._kept: Sequence[object] = []
        self._absent: list[int] = []  # places in these of the keys that had no state
        self._since: Mapping[object, object] = {}
        self._changed: Mapping[object, object] = {}
        self._may_stay = True  # whether nobody could change the states of the last cut in place
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
            self.entered.append(key)
        state = self._old.get(key, ABSENT)  # as `_below`, without a call
        if self._left:
            state = self._left.get(key, state)
        if state is not ABSENT:
            return state
        check_key(key)
        if self._snapshots:
            self.names.append(key)
        return self._initial

    def _below(self, key: object) -> object:
        """Return the state of a key that has left the top; `ABSENT` if there is none."""
        state = self._old.get(key, ABSENT)
        return self._left.get(key, state) if self._left else state

    def get(self, key: object) -> object:
        """Return the state of a key."""
        state = self.top.get(key, ABSENT)
        if state is ABSENT:
            state = self._below(key)
        return self._initial if state is ABSENT else state

    def drop(self, key: object) -> None:
        """Reset a key to its initial state, as if it had no items."""
        if not self._snapshots:
            self.top.pop(key, None)
        elif key in self.top or key in self._left or key in self._old:
            self.top[key] = self._initial  # it keeps its place: the states of the last cut are told apart by it

    def forget(self, before: bytes) -> None:
        """Drop the states that no item from an encoded time on needs.

        There are none, since any later item may have the key.
        """

    def compact(self, is_initial: Callable[[Any], bool]) -> None:
        """Forget keys that have ended.

        Call it right after a cut; if no snapshots are taken, at any time.

        Args:
            is_initial: Function that tells whether a key with a state has none.
        """
        top = self.top
        if not self._snapshots:
            for key in [key for key, state in top.items() if is_initial(state)]:
                del top[key]
            return
        # Those on top stay: the states of the last cut are told apart by their places. Copied: the changes of the last
        # cut are still to be read.
        below = {**self._old, **self._left}
        old = {key: state for key, state in below.items() if key in top or not (state is ABSENT or is_initial(state))}
        self._old, self._left, self._unmoved = old, {}, iter(())
        self.names[:] = [key for key in dict.fromkeys(self.names) if key in top or key in old]

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
        top = self.top
        now = dict(zip(since, map(top.get, since, repeat(self._initial)), strict=True))
        stays = self._stays()
        changed = self._list(since) if stays else self._leave(since)
        may_stay = self.integers or (len(top) <= _MOST_KEPT and _unchangeable(changed))
        if stays and may_stay:
            top.update(now)
            self._since, self._left = since, {}
        else:
            top.update((self._keys[at], ABSENT) for at in self._absent)
            self._left, self._old = (top, self._old) if self._old else ({}, top)
            self.top, self._keys, self._kept, self._absent, self._since = now, [], [], [], {}
        self._may_stay, self._changed = may_stay, changed
        self._unmoved, self._moved = iter(self._left.items()), 0
        return changed

    def _stays(self) -> bool:
        """Return whether the top stays at this cut, if it can."""
        if not self._may_stay or len(self.top) > _MOST_KEPT:
            return False
        return not self._kept or len(self._kept) <= _FEW * len(self._changed)

    def _leave(self, since: Mapping[object, object]) -> Mapping[object, object]:
        """Return the changes among states that leave the top, without a look at all of them."""
        top, initial, differ = self.top, self._initial, ne if self.integers else is_not
        first = {key for key, state in since.items() if not differ(state, initial)}
        if first and self._kept:
            known = compress(zip(self._keys, self._kept, strict=True), map(first.__contains__, self._keys))
            first -= {key for key, state in known if state is not ABSENT and differ(state, initial)}
        top.update(since)
        first |= {self._keys[at] for at in self._absent if top[self._keys[at]] is initial}
        begun = [key for key in first if self._below(key) is ABSENT]
        top.update(dict.fromkeys(begun, ABSENT))
        kept, self._absent = self._kept, []
        return _Left(top, kept, differ) if kept or begun else top

    def _list(self, since: Mapping[object, object]) -> _Changed:
        """Return the changes among states that stay on top, and keep a list of these."""
        top = self.top
        # For a moment, so that they are listed in their places.
        top.update(since)
        states = [*top.values()]
        # None of the keys that are kept is ever removed from the top, so it begins with them.
        new = [*islice(reversed(top), len(top) - len(self._keys))]
        new.reverse()
        self._keys += new
        return self._numbers_changed(states) if self.integers else self._changed_since(states)

    def _changed_since(self, states: list[object]) -> _Changed:
        """Compare the states of this cut with those of the last one, and keep them for the next."""
        before, initial = self._kept if type(self._kept) is list else [*self._kept], self._initial
        # The first item of these is later, or has been taken back.
        begun = compress(count(len(before)), map(is_, states[len(before) :], repeat(initial)))
        places = [*self._absent, *begun]
        self._absent = [at for at in places if states[at] is initial and self._below(self._keys[at]) is ABSENT]
        for at in self._absent:
            states[at] = ABSENT
        before.extend(repeat(ABSENT, len(states) - len(before)))
        self._kept = states
        return _Changed(self._keys, states, before, is_not)

    # A list would keep alive what has long changed, and the garbage collector would look at all of it.
    def _numbers_changed(self, states: list[Any]) -> _Changed:
        """Do the same with integers."""
        try:
            numbers = array("q", states)
        except OverflowError:
            self.integers = False
            return self._changed_since(states)
        kept: Any = self._kept
        initial: Any = self._initial
        before = array("q", kept)
        new = numbers[len(before) :]
        # A state that is the initial one is none.
        before += array("q", [initial]) * len(new)
        none = new.count(initial)
        for at in compress(count(len(numbers) - len(new)), map(eq, new, repeat(initial))) if none else ():
            if self._below(self._keys[at]) not in (ABSENT, initial):
                before[at] = initial - 1
        self._absent, self._kept = [], numbers
        return _Changed(self._keys, numbers, before, ne, 0 if none else len(new))

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
        """Return the state of each of `keys` at the last cut, if it had one.

        Call it before the next item.
        """
        found: dict[object, object] = {}
        for layer in (self._old, self._left, self.top if self._kept else {}, self._since):
            if layer:
                found.update(_some(layer, keys))
        initial = self._initial
        return {key: state for key, state in found.items() if state is not ABSENT and state is not initial}

    def restore(self, states: Mapping[object, object]) -> None:
        """Load the states of a snapshot."""
        self._old.update(states)
        self.names.extend(states)
        self.entered.extend(states)
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
