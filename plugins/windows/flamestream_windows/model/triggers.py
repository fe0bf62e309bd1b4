"""Triggers: when a window gives a pane.

A tree of values; the state of each node is a plain tuple beside it.

A grouping calls them, for each key and window, in this way: `start` once, `on_element` for each element, then `ready`,
and `fire` where that is true. Where windows join, `merge` makes one state of several. The first member of a state is
whether the trigger has *finished*; the state of one that never finishes may be empty.

They combine: `a | b` fires with the first, `a & b` with the last, `a >> b` first a, then b; `a.repeat()` begins again,
and `a.until(b)` ends with b.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from flamestream_windows.model.times import spell

State = tuple[Any, ...]


class Look(NamedTuple):
    """The moment at which a trigger is looked at.

    Attributes:
        ended: Whether the input watermark is past the last instant of the window.
        clock: Processing time, in microseconds.
        merging: Whether windows of the strategy may join.
    """

    ended: bool
    clock: int
    merging: bool = False


class Trigger(ABC):
    """A trigger, immutable. Equal triggers are equal trees.

    Attributes:
        timed: Whether it looks at processing time, by itself.
    """

    timed: ClassVar[bool] = False

    @property
    def parts(self) -> tuple[Trigger, ...]:
        """Return the triggers right below."""
        return ()

    def start(self) -> State:
        """Return the state before the first element."""
        return ()

    def finished(self, state: State) -> bool:
        """Return whether it will never fire again."""
        return bool(state) and state[0]

    def on_element(self, state: State, look: Look) -> State:
        """Return the state after an element."""
        return state

    @abstractmethod
    def ready(self, state: State, look: Look) -> bool:
        """Return whether to fire now."""

    def fire(self, state: State, look: Look) -> State:
        """Return the state after a firing. Called only when ready."""
        return state

    def merge(self, states: Sequence[State], look: Look) -> State:
        """Return the state of a window that others become. `look` is at the new one."""
        return self.start()

    def clear(self, state: State) -> State:
        """Return the state without the present pane; finished parts stay finished."""
        return state

    def targets(self, state: State) -> Sequence[int]:
        """Return the processing times at which to look at it again."""
        return ()

    def early(self) -> bool:
        """Return whether it can fire before the end of the window."""
        return False

    def silent(self) -> bool:
        """Return whether it can never fire."""
        return False

    def often(self) -> bool:
        """Return whether it can fire more than once, if nothing is late."""
        return True

    def may_lose_data(self, lateness: int) -> bool:
        """Return whether it may finish while data can still come, which is then dropped."""
        return False

    def continuation(self) -> Trigger:
        """Return the trigger of a grouping behind one that has this."""
        return self

    def __or__(self, other: Trigger) -> Trigger:
        if not isinstance(other, Trigger):
            return NotImplemented
        return AfterAny(_flat(AfterAny, self, other))

    def __and__(self, other: Trigger) -> Trigger:
        if not isinstance(other, Trigger):
            return NotImplemented
        return AfterAll(_flat(AfterAll, self, other))

    def __rshift__(self, other: Trigger) -> Trigger:
        if not isinstance(other, Trigger):
            return NotImplemented
        return AfterEach(_flat(AfterEach, self, other))

    def repeat(self) -> Trigger:
        """Return the trigger that starts again each time that this one finishes."""
        return Repeatedly(self)

    def until(self, last: Trigger) -> Trigger:
        """Return the trigger that does as this one until `last` fires, and fires with it.

        Raises:
            TypeError: `last` is no trigger.
        """
        if not isinstance(last, Trigger):
            raise TypeError(f"until: last is a trigger, such as count(1), not {last!r}")
        return OrFinally(self, last)


def walk(trigger: Trigger) -> Iterable[Trigger]:
    """Yield a trigger and all below it."""
    yield trigger
    for part in trigger.parts:
        yield from walk(part)


def _flat(kind: type[AfterAny | AfterAll | AfterEach], *triggers: Trigger) -> tuple[Trigger, ...]:
    return tuple(part for each in triggers for part in (each.triggers if type(each) is kind else (each,)))


def _inner(trigger: Trigger) -> str:
    return f"({trigger})" if isinstance(trigger, AfterAny | AfterAll | AfterEach) else str(trigger)


@dataclass(frozen=True)
class Default(Trigger):
    """Fires when the watermark passes the end, then with each late element."""

    def ready(self, state: State, look: Look) -> bool:
        return look.ended

    def often(self) -> bool:
        return False

    def __str__(self) -> str:
        return "default"


@dataclass(frozen=True)
class Never(Trigger):
    """Never fires: the only pane is that of the window's expiry."""

    def ready(self, state: State, look: Look) -> bool:
        return False

    def silent(self) -> bool:
        return True

    def often(self) -> bool:
        return False

    def __str__(self) -> str:
        return "never"


@dataclass(frozen=True)
class Always(Trigger):
    """Fires whenever it is looked at."""

    def ready(self, state: State, look: Look) -> bool:
        return True

    def early(self) -> bool:
        return True

    def __str__(self) -> str:
        return "always"


@dataclass(frozen=True)
class AfterWatermark(Trigger):
    """Fires when the watermark passes the end of the window.

    Attributes:
        first: Fires before, again and again.
        last: Fires behind, again and again. None: it has finished at the end.
    """

    first: Trigger | None = None
    last: Trigger | None = None

    # State: finished, whether the end has been fired, states of `first` and `last`.

    @property
    def parts(self) -> tuple[Trigger, ...]:
        return tuple(part for part in (self.first, self.last) if part is not None)

    def start(self) -> State:
        return (False, False, self._first, self._last)

    @property
    def _first(self) -> State:
        return () if self.first is None else self.first.start()

    @property
    def _last(self) -> State:
        return () if self.last is None else self.last.start()

    def on_element(self, state: State, look: Look) -> State:
        finished, behind, first, last = state
        if finished:
            return state
        if self.first is not None and (look.merging or not behind):
            first = self.first.on_element(first, look)
        if self.last is not None and (look.merging or behind):
            last = self.last.on_element(last, look)
        return (False, behind, first, last)

    def ready(self, state: State, look: Look) -> bool:
        finished, behind, first, last = state
        if finished:
            return False
        if behind:
            return self.last is not None and self.last.ready(last, look)
        return look.ended or (self.first is not None and self.first.ready(first, look))

    def fire(self, state: State, look: Look) -> State:
        _, behind, first, last = state
        if behind:
            assert self.last is not None
            return (False, True, first, _again(self.last, last, look))
        if look.ended:
            return (self.last is None, True, self._first, self._last)
        assert self.first is not None
        return (False, False, _again(self.first, first, look), last)

    def merge(self, states: Sequence[State], look: Look) -> State:
        if not look.ended or not all(state[1] for state in states):
            first = () if self.first is None else self.first.merge([state[2] for state in states], look)
            return (False, False, first, self._last)
        last = () if self.last is None else self.last.merge([state[3] for state in states], look)
        return (self.last is None, True, self._first, last)

    def clear(self, state: State) -> State:
        finished, behind, first, last = state
        return (
            finished,
            behind,
            first if self.first is None else self.first.clear(first),
            last if self.last is None else self.last.clear(last),
        )

    def targets(self, state: State) -> Sequence[int]:
        finished, behind, first, last = state
        active, part = (last, self.last) if behind else (first, self.first)
        return () if finished or part is None else part.targets(active)

    def early(self) -> bool:
        return self.first is not None and self.first.early()

    def often(self) -> bool:
        return self.last is not None or self.early()

    def may_lose_data(self, lateness: int) -> bool:
        return self.last is None and lateness > 0

    def continuation(self) -> Trigger:
        return AfterWatermark(
            None if self.first is None else self.first.continuation(),
            None if self.last is None else self.last.continuation(),
        )

    def __str__(self) -> str:
        parts = [f"early={self.first}"] * (self.first is not None) + [f"late={self.last}"] * (self.last is not None)
        return f"at_watermark({', '.join(parts)})"


def _again(trigger: Trigger, state: State, look: Look) -> State:
    """Fire a trigger that starts again as a whole when it has finished."""
    state = trigger.fire(state, look)
    return trigger.start() if trigger.finished(state) else state


@dataclass(frozen=True)
class AfterCount(Trigger):
    """Fires once the pane has so many elements."""

    count: int

    # State: finished, elements so far.

    def start(self) -> State:
        return (False, 0)

    def on_element(self, state: State, look: Look) -> State:
        return state if state[0] else (False, state[1] + 1)

    def ready(self, state: State, look: Look) -> bool:
        return not state[0] and state[1] >= self.count

    def fire(self, state: State, look: Look) -> State:
        return (True, 0)

    def merge(self, states: Sequence[State], look: Look) -> State:
        if any(state[0] for state in states):
            return (True, 0)
        return (False, sum(state[1] for state in states))

    def clear(self, state: State) -> State:
        return (state[0], 0)

    def early(self) -> bool:
        return True

    def often(self) -> bool:
        return False

    def may_lose_data(self, lateness: int) -> bool:
        return True

    def continuation(self) -> Trigger:
        return AfterCount(1)

    def __str__(self) -> str:
        return f"count({self.count})"


@dataclass(frozen=True)
class AfterProcessingTime(Trigger):
    """Fires so long after the first element of the pane, perhaps rounded up.

    Attributes:
        delay: Microseconds.
        align_to: Microseconds, to a multiple of which the time is rounded up; None: it is not.
    """

    delay: int
    align_to: int | None = None
    timed: ClassVar[bool] = True

    # State: finished, when to fire or None.

    def start(self) -> State:
        return (False, None)

    def on_element(self, state: State, look: Look) -> State:
        if state[0] or state[1] is not None:
            return state
        due = look.clock + self.delay
        return (False, due if self.align_to is None else -(-due // self.align_to) * self.align_to)

    def ready(self, state: State, look: Look) -> bool:
        return not state[0] and state[1] is not None and look.clock >= state[1]

    def fire(self, state: State, look: Look) -> State:
        return (True, None)

    def merge(self, states: Sequence[State], look: Look) -> State:
        if any(state[0] for state in states):
            return (True, None)
        return (False, min((state[1] for state in states if state[1] is not None), default=None))

    def clear(self, state: State) -> State:
        return (state[0], None)

    def targets(self, state: State) -> Sequence[int]:
        return () if state[1] is None else (state[1],)

    def early(self) -> bool:
        return True

    def often(self) -> bool:
        return False

    def may_lose_data(self, lateness: int) -> bool:
        return True

    def continuation(self) -> Trigger:
        return AfterSynchronizedProcessingTime()

    def __str__(self) -> str:
        aligned = "" if self.align_to is None else f", align_to=({spell(self.align_to)})"
        return f"every({spell(self.delay)}{aligned})"


@dataclass(frozen=True)
class AfterSynchronizedProcessingTime(Trigger):
    """Fires once all that came before the pane's first element is through.

    A grouping only runs behind that moment, so it fires with the element.
    """

    # State: finished, whether the pane has an element.

    def start(self) -> State:
        return (False, False)

    def on_element(self, state: State, look: Look) -> State:
        return state if state[0] else (False, True)

    def ready(self, state: State, look: Look) -> bool:
        return not state[0] and state[1]

    def fire(self, state: State, look: Look) -> State:
        return (True, False)

    def merge(self, states: Sequence[State], look: Look) -> State:
        if any(state[0] for state in states):
            return (True, False)
        return (False, any(state[1] for state in states))

    def clear(self, state: State) -> State:
        return (state[0], False)

    def early(self) -> bool:
        return True

    def often(self) -> bool:
        return False

    def may_lose_data(self, lateness: int) -> bool:
        return True

    def __str__(self) -> str:
        return "synchronized"


@dataclass(frozen=True)
class Repeatedly(Trigger):
    """Fires as another does, which starts again when it has finished."""

    trigger: Trigger

    # State: never finished, the other's.

    @property
    def parts(self) -> tuple[Trigger, ...]:
        return (self.trigger,)

    def start(self) -> State:
        return (False, self.trigger.start())

    def on_element(self, state: State, look: Look) -> State:
        return (False, self.trigger.on_element(state[1], look))

    def ready(self, state: State, look: Look) -> bool:
        return self.trigger.ready(state[1], look)

    def fire(self, state: State, look: Look) -> State:
        return (False, _again(self.trigger, state[1], look))

    def merge(self, states: Sequence[State], look: Look) -> State:
        return (False, self.trigger.merge([state[1] for state in states], look))

    def clear(self, state: State) -> State:
        return (False, self.trigger.clear(state[1]))

    def targets(self, state: State) -> Sequence[int]:
        return self.trigger.targets(state[1])

    def early(self) -> bool:
        return self.trigger.early()

    def silent(self) -> bool:
        return self.trigger.silent()

    def often(self) -> bool:
        return not self.silent()

    def continuation(self) -> Trigger:
        return Repeatedly(self.trigger.continuation())

    def __str__(self) -> str:
        return f"{_inner(self.trigger)}.repeat()"


@dataclass(frozen=True)
class _Several(Trigger):
    """Several triggers. State: finished, then one for each."""

    triggers: tuple[Trigger, ...]
    sign: ClassVar[str]

    @property
    def parts(self) -> tuple[Trigger, ...]:
        return self.triggers

    def start(self) -> State:
        return (False, *(each.start() for each in self.triggers))

    def on_element(self, state: State, look: Look) -> State:
        if state[0]:
            return state
        return (
            False,
            *(
                own if each.finished(own) else each.on_element(own, look)
                for each, own in zip(self.triggers, state[1:], strict=True)
            ),
        )

    def merge(self, states: Sequence[State], look: Look) -> State:
        own = tuple(each.merge([state[at] for state in states], look) for at, each in enumerate(self.triggers, 1))
        return (self._over(own), *own)

    def _over(self, states: Sequence[State]) -> bool:
        return all(each.finished(own) for each, own in zip(self.triggers, states, strict=True))

    def clear(self, state: State) -> State:
        return (state[0], *(each.clear(own) for each, own in zip(self.triggers, state[1:], strict=True)))

    def targets(self, state: State) -> Sequence[int]:
        if state[0]:
            return ()
        pairs = zip(self.triggers, state[1:], strict=True)
        return [due for each, own in pairs if not each.finished(own) for due in each.targets(own)]

    def _met(self, state: State, look: Look) -> list[bool]:
        return [each.finished(own) or each.ready(own, look) for each, own in zip(self.triggers, state[1:], strict=True)]

    def continuation(self) -> Trigger:
        return type(self)(tuple(each.continuation() for each in self.triggers))

    def __str__(self) -> str:
        return f" {self.sign} ".join(
            str(each) if isinstance(each, _Several) and type(each) is type(self) else _inner(each)
            for each in self.triggers
        )


@dataclass(frozen=True)
class AfterAny(_Several):
    """Fires with the first of several, once."""

    sign: ClassVar[str] = "|"

    def _over(self, states: Sequence[State]) -> bool:
        return any(each.finished(own) for each, own in zip(self.triggers, states, strict=True))

    def ready(self, state: State, look: Look) -> bool:
        return not state[0] and any(self._met(state, look))

    def fire(self, state: State, look: Look) -> State:
        return (
            True,
            *(
                each.fire(own, look) if not each.finished(own) and each.ready(own, look) else each.clear(own)
                for each, own in zip(self.triggers, state[1:], strict=True)
            ),
        )

    def early(self) -> bool:
        return any(each.early() for each in self.triggers)

    def often(self) -> bool:
        return False

    def silent(self) -> bool:
        return all(each.silent() for each in self.triggers)

    def may_lose_data(self, lateness: int) -> bool:
        return self.early() or (lateness > 0 and not self.silent())  # it finishes with its first firing


@dataclass(frozen=True)
class AfterAll(_Several):
    """Fires when each of several is ready, once."""

    sign: ClassVar[str] = "&"

    def ready(self, state: State, look: Look) -> bool:
        return not state[0] and all(self._met(state, look))

    def fire(self, state: State, look: Look) -> State:
        return (
            True,
            *(
                own if each.finished(own) else each.fire(own, look)
                for each, own in zip(self.triggers, state[1:], strict=True)
            ),
        )

    def early(self) -> bool:
        return all(each.early() for each in self.triggers)

    def often(self) -> bool:
        return False

    def silent(self) -> bool:
        return any(each.silent() for each in self.triggers)

    def may_lose_data(self, lateness: int) -> bool:
        return self.early() or (lateness > 0 and not self.silent())  # it finishes with its first firing


@dataclass(frozen=True)
class AfterEach(_Several):
    """Fires as the first of several until it has finished, then as the next."""

    sign: ClassVar[str] = ">>"

    def _active(self, state: State) -> int:
        return next(at for at, each in enumerate(self.triggers, 1) if not each.finished(state[at]))

    def on_element(self, state: State, look: Look) -> State:
        if look.merging:  # all run side by side, because a merge may revive one
            return super().on_element(state, look)
        if state[0]:
            return state
        at = self._active(state)
        return (*state[:at], self.triggers[at - 1].on_element(state[at], look), *state[at + 1 :])

    def ready(self, state: State, look: Look) -> bool:
        if state[0]:
            return False
        at = self._active(state)
        return self.triggers[at - 1].ready(state[at], look)

    def fire(self, state: State, look: Look) -> State:
        at = self._active(state)
        own = (*state[1:at], self.triggers[at - 1].fire(state[at], look), *state[at + 1 :])
        if look.merging:
            own = tuple(each.clear(its) for each, its in zip(self.triggers, own, strict=True))
        return (self._over(own), *own)

    def merge(self, states: Sequence[State], look: Look) -> State:
        own: list[State] = []
        finished = True
        for at, each in enumerate(self.triggers, 1):
            own.append(each.merge([state[at] for state in states], look) if finished else each.start())
            finished = finished and each.finished(own[-1])
        return (finished, *own)

    def targets(self, state: State) -> Sequence[int]:
        if state[0]:
            return ()
        at = self._active(state)
        return self.triggers[at - 1].targets(state[at])

    def early(self) -> bool:
        return self.triggers[0].early()

    def silent(self) -> bool:
        return self.triggers[0].silent()

    def often(self) -> bool:
        return len(self.triggers) > 1 or self.triggers[0].often()

    def may_lose_data(self, lateness: int) -> bool:
        return all(each.may_lose_data(lateness) for each in self.triggers)

    def continuation(self) -> Trigger:
        return Repeatedly(AfterAny(tuple(each.continuation() for each in self.triggers)))


@dataclass(frozen=True)
class OrFinally(Trigger):
    """Fires as `main` does until `last` is ready; fires then, and has finished.

    It has also finished once `main` has.
    """

    main: Trigger
    last: Trigger

    # State: finished, those of both.

    @property
    def parts(self) -> tuple[Trigger, ...]:
        return (self.main, self.last)

    def start(self) -> State:
        return (False, self.main.start(), self.last.start())

    def on_element(self, state: State, look: Look) -> State:
        if state[0]:
            return state
        return (False, self.main.on_element(state[1], look), self.last.on_element(state[2], look))

    def ready(self, state: State, look: Look) -> bool:
        return not state[0] and (self.main.ready(state[1], look) or self.last.ready(state[2], look))

    def fire(self, state: State, look: Look) -> State:
        _, main, last = state
        if self.last.ready(last, look):
            return self._of(self.main.clear(main), self.last.fire(last, look))
        return self._of(self.main.fire(main, look), last)

    def _of(self, main: State, last: State) -> State:
        return (self.main.finished(main) or self.last.finished(last), main, last)

    def merge(self, states: Sequence[State], look: Look) -> State:
        return self._of(
            self.main.merge([state[1] for state in states], look),
            self.last.merge([state[2] for state in states], look),
        )

    def clear(self, state: State) -> State:
        return (state[0], self.main.clear(state[1]), self.last.clear(state[2]))

    def targets(self, state: State) -> Sequence[int]:
        return () if state[0] else [*self.main.targets(state[1]), *self.last.targets(state[2])]

    def early(self) -> bool:
        return self.main.early() or self.last.early()

    def silent(self) -> bool:
        return self.main.silent() and self.last.silent()

    def may_lose_data(self, lateness: int) -> bool:
        return self.main.may_lose_data(lateness) or self.last.may_lose_data(lateness)

    def continuation(self) -> Trigger:
        return OrFinally(self.main.continuation(), self.last.continuation())

    def __str__(self) -> str:
        return f"{_inner(self.main)}.until({self.last})"
