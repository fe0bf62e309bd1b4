"""The vertices: groupings and functions by key."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any, ClassVar, Final

from flamecore.abc.operator import Work
from flamecore.model.clock import moment
from flamecore.model.ordered import Ordered
from flamecore.model.types import returned
from flamestream_windows.engine.functions import FnCell, FnRecord, Function
from flamestream_windows.engine.grouping import Grouping
from flamestream_windows.engine.values import Record
from flamestream_windows.flows.sessions import SessionWork
from flamestream_windows.flows.slim import alike
from flamestream_windows.flows.stamps import Form
from flamestream_windows.flows.work import FunctionWork, GroupingWork
from flamestream_windows.model.aggregates import Aggregate, Named, Top
from flamestream_windows.model.panes import Dropped, Pane
from flamestream_windows.model.windows import GLOBAL, Same, Window

_ADDRESS: Final = re.compile(r" at 0x[0-9A-Fa-f]+")

Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]


@dataclass(eq=False, slots=True, repr=False)
class Grouped(Ordered):
    """A grouping by key and window.

    Attributes:
        grouping: The strategy and the aggregate.
        times: Location of the times in payloads.
        watch: Takes the work, and returns it as it is to be done; None: as it is. For pictures.
    """

    kind: ClassVar[str] = "window"

    grouping: Grouping = field(kw_only=True)
    times: Form = field(kw_only=True)
    watch: Callable[[GroupingWork], Work] | None = field(default=None, kw_only=True)

    @property
    def awaits_end(self) -> bool:
        return self.grouping.strategy.silent

    def shown(self, payload: object) -> object:
        return self.times.shown(payload)

    def state_shown(self, stored: Any) -> Any:
        """Return the open windows of a key, each with its times, its value and its number of items, and closed ones.

        The items are those since the last pane. A value is None where panes discard, and there are none.
        """
        state, timers, _ = stored
        similar, strategy = alike(self.grouping), self.grouping.strategy
        record = state if type(state) is Record or similar is None else similar.spelled(state)
        empty = strategy.panes == "discarding"
        windows = [
            {
                **_times(cell.window),
                "value": None if empty and not cell.fresh else self.grouping.aggregate.result(cell.accumulator),
                "items": cell.fresh,
                "last_pane": None if cell.pane is None else cell.pane[1],
            }
            for cell in record.open
        ]
        closed = {"closed": [*map(_times, record.closed)]} if record.closed else {}
        return {"windows": windows, **closed, **_due(timers)}

    def work(self) -> Work:
        strategy = self.grouping.strategy
        if strategy.is_sessions:
            work: GroupingWork = SessionWork(self.grouping, self.times)
        else:
            work = GroupingWork(self.grouping, self.times, isinstance(strategy.windows, Same))
        return work if self.watch is None else self.watch(work)

    def wrapped(self, wrap: Wrap) -> Grouped:
        made = copy.copy(self)
        made.grouping = replace(self.grouping, aggregate=wrapped_in(self.grouping.aggregate, wrap))
        return made

    @property
    def types(self) -> tuple[Any, ...]:
        return (Record, Pane, Dropped, *types_in(self.grouping.aggregate), *types_in(self.grouping.strategy.windows))

    @property
    def state_facts(self) -> Mapping[str, str | int]:
        # A function in the settings of windows has another address in each process.
        windows = _ADDRESS.sub("", str(self.grouping.strategy))
        settings = ", ".join(counts_in(self.grouping.aggregate))
        return {
            "windows": windows,
            "aggregate": described(self.grouping.aggregate),
            **({"settings": settings} if settings else {}),
        }


@dataclass(eq=False, slots=True, repr=False)
class TickingGrouped(Grouped):
    """A grouping whose trigger looks at processing time."""

    timers: ClassVar[bool] = True
    wall: ClassVar[bool] = True


def grouped(grouping: Grouping) -> type[Grouped]:
    """Return the kind of a grouping."""
    return TickingGrouped if grouping.timed else Grouped


@dataclass(eq=False, slots=True, repr=False)
class Stateful(Ordered):
    """A stateful function by key.

    Attributes:
        function: The function, its windows and lateness.
        times: Location of the times in payloads.
        settings: Further settings on which its state depends, as text.
    """

    kind: ClassVar[str] = "process"

    function: Function = field(kw_only=True)
    times: Form = field(kw_only=True)
    settings: str = field(default="", kw_only=True)

    def shown(self, payload: object) -> object:
        return self.times.shown(payload)

    def state_shown(self, stored: Any) -> Any:
        """Return the cells and timers of a key by name, by window if there are several."""
        state, timers, _ = stored
        windows = [{**_times(cell.window), **self._shown(cell)} for cell in state.open]
        whole = len(windows) == 1 and state.open[0].window == GLOBAL
        return {**(windows[0] if whole else {"windows": windows}), **_due(timers)}

    def _shown(self, cell: FnCell) -> dict[str, Any]:
        cells, micros = self.function.cells, self.function.function.micros
        alarms = [
            # The tags of functions that count in microseconds are times of their own.
            {"name": name, **({} if micros else {"tag": tag}), domain: moment(at)}
            for at, name, tag, domain, *_ in cell.alarms
        ]
        waiting = [{"at": moment(at), "value": value} for at, value in cell.waiting]
        return {
            "cells": {name: cells[name].shown(frozen) for name, frozen in cell.contents},
            **({"timers": alarms} if alarms else {}),
            **({"waiting": waiting} if waiting else {}),
        }

    def work(self) -> Work:
        return FunctionWork(self.function, self.times)

    def wrapped(self, wrap: Wrap) -> Stateful:
        made = copy.copy(self)
        made.function = replace(self.function, wrap=wrap)
        return made

    @property
    def types(self) -> tuple[Any, ...]:
        methods = [getattr(self.function.function, name) for name in dir(self.function.function) if name[:3] == "on_"]
        cells = [kind for cell in self.function.cells.values() for kind in cell.types]
        return (FnRecord, Dropped, *cells, *(hint for method in methods for hint in _hints(method)))

    @property
    def state_facts(self) -> Mapping[str, str | int]:
        return {
            "function": self.function.function.__qualname__,
            "windows": str(self.function.windows),
            "cells": ", ".join(f"{name}: {type(cell).__name__}" for name, cell in sorted(self.function.cells.items())),
            **({"settings": self.settings} if self.settings else {}),
        }


@dataclass(eq=False, slots=True, repr=False)
class TickingStateful(Stateful):
    """A stateful function with timers of processing time."""

    timers: ClassVar[bool] = True
    wall: ClassVar[bool] = True


def stateful(function: Function) -> type[Stateful]:
    """Return the kind of a stateful function."""
    timed = any(timer.domain == "processing" for timer in function.timers.values())
    return TickingStateful if timed else Stateful


def _times(window: Window) -> dict[str, str]:
    return {} if window == GLOBAL else {"start": moment(window.start), "end": moment(window.end)}


def _due(timers: Iterable[tuple[int, int, bool]]) -> dict[str, str]:
    """Return the watermark at which something of a key is due next, if there is one."""
    due = [time for time, _, mark in timers if mark]
    return {"due": moment(min(due))} if due else {}


def described(aggregate: Any) -> str:
    """Return an aggregate as text, without its functions.

    The text has the parts on which stored state depends.
    """
    parts = getattr(aggregate, "parts", None)
    if parts is None:
        return type(aggregate).__name__.lower()
    return ", ".join(f"{name}={described(part)}" for name, part in parts)


def counts_in(aggregate: Any, word: str = "top") -> Iterator[str]:
    """Yield how many elements the parts of an aggregate keep, those that do not keep all."""
    if isinstance(aggregate, Top):
        yield f"{word}={aggregate.count}"
    for name, part in getattr(aggregate, "parts", ()):
        yield from counts_in(part, name)


def wrapped_in(aggregate: Aggregate, wrap: Wrap) -> Aggregate:
    """Return a copy of an aggregate with its functions wrapped.

    An aggregate of the user's own has its methods wrapped.
    """
    if isinstance(aggregate, Named):
        return Named(tuple((name, wrapped_in(part, wrap)) for name, part in aggregate.parts))
    made = copy.copy(aggregate)
    if type(aggregate).__module__ == Aggregate.__module__:
        values: Any = aggregate
        functions = [each.name for each in fields(values) if callable(getattr(aggregate, each.name))]
    else:
        functions = ["add", "remove", "merge", "result"]
    for name in functions:
        object.__setattr__(made, name, wrap(getattr(aggregate, name)))  # also of a frozen dataclass
    return made


def types_in(value: Any) -> Iterator[Any]:
    """Yield the types that an aggregate or a window function names.

    They are those of initial values and of the results of functions.
    """
    if not is_dataclass(value):
        return
    for each in fields(value):
        found = getattr(value, each.name)
        if each.name == "parts":
            for _, part in found:
                yield from types_in(part)
        elif callable(found):
            yield from _hints(found)
        elif each.name == "initial":
            yield type(found)


def _hints(function: Callable[..., Any]) -> Iterator[Any]:
    yield returned(function)
