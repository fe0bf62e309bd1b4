"""Forms in which payloads of a stream carry their event time.

Behind `event_time` a payload is the user's own record, and the time is computed of it. An item derived from a record
carries its time: there a payload is a *stamp*, (kind, time, value), of plain data.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import update_wrapper
from itertools import repeat
from operator import itemgetter
from types import GenericAlias
from typing import Any, Final, NamedTuple

from flamecore.model.batch import Beside, Within, column_of, many_of, results
from flamecore.model.types import returned
from flamestream_windows.model.times import Unit, reader, reader_of_many

VALUE: Final = 0
"""Kind of an element or a pane."""

RETRACTION: Final = 1
"""Kind of one that takes back an equal one that came before."""

LATE: Final = 2
"""Kind of an element that was taken late: told beside the panes."""

DROPPED: Final = 3
"""Kind of a `Dropped`, told beside the panes."""


class Form(NamedTuple):
    """A form in which payloads carry their times.

    Attributes:
        at: Returns the time of a payload.
        value: Returns the value of a payload; None: the payload is it.
        kind: Returns the kind of a payload; None: each is a value.
    """

    at: Callable[[Any], int]
    value: Callable[[Any], Any] | None = None
    kind: Callable[[Any], int] | None = None

    def times(self, payloads: Sequence[Any]) -> Sequence[int]:
        """Return the times of several payloads."""
        found: Sequence[int] | None = column_of(payloads, self.at)
        if found is not None:
            return found
        many = getattr(self.at, "many", None)
        return results(self.at, payloads) if many is None else many(payloads)

    def noted(self, payloads: Sequence[Any]) -> Beside:
        """Return payloads with their times as a column beside them."""
        return Beside(payloads, (self.at, self.times(payloads)))

    def shown(self, payload: Any) -> Any:
        """Return the value of a payload."""
        return payload if self.value is None else self.value(payload)

    def stamp(self, payload: Any, value: Any) -> tuple[int, int, Any]:
        """Return the stamp of the output of a payload."""
        return (VALUE if self.kind is None else self.kind(payload), self.at(payload), value)

    def lifted(self, function: Callable[..., Any], result: Any = object, *, more: bool = False) -> Callable[..., Any]:
        """Return a function of values as one of payloads.

        Args:
            function: The user's function.
            result: The declared type of its result.
            more: Whether it takes more arguments than the value.
        """
        value_of = self.value
        if value_of is None:
            return function

        def of_payload(payload: Any) -> Any:
            return function(value_of(payload))

        def of_payload_and_more(payload: Any, *more: Any) -> Any:
            return function(value_of(payload), *more)

        made = named_after(of_payload_and_more if more else of_payload, function, result, value_of)
        if (many := many_of(function)) is not None:
            of_many = many

            def of_payloads(payloads: Sequence[Any]) -> Sequence[Any]:
                return of_many([*map(value_of, payloads)])

            made.many = of_payloads  # type: ignore[attr-defined]  # a function takes any attribute
        elif not more:
            made.within = Within(self.values, function)  # type: ignore[attr-defined]  # as above
        return made

    def values(self, payloads: Sequence[Any]) -> Sequence[Any]:
        """Return the values of several payloads."""
        return payloads if self.value is None else [*map(self.value, payloads)]


STAMPED: Final = Form(itemgetter(1), itemgetter(2), itemgetter(0))
"""The form of stamps."""


def recorded(at: Callable[[Any], Any], unit: Unit | None = None) -> Form:
    """Return the form of records whose time a function of the user's tells.

    Args:
        at: The function.
        unit: Unit of the numbers that it returns; None: as `reader` takes them.
    """
    read, read_all = reader(unit), reader_of_many(unit)

    def time_of(record: Any) -> int:
        return read(at(record))

    def times_of(records: Sequence[Any]) -> Sequence[int]:
        return read_all(results(at, records))

    made = named_after(time_of, at, int)
    made.many = times_of  # type: ignore[attr-defined]  # a function takes any attribute
    return Form(made)


def stamp_type(declared: Any) -> Any:
    """Return the type of stamps of values of a type."""
    return GenericAlias(tuple, (int, int, declared))


def named_after(
    made: Callable[..., Any], function: Callable[..., Any], result: Any, shown: Callable[[Any], Any] | None = None
) -> Callable[..., Any]:
    """Return `made` with the name of a user's function and the type of its result.

    Args:
        made: The function.
        function: The user's.
        result: The type of its result.
        shown: Function that returns the part of an argument that errors show; None: all of it.
    """
    update_wrapper(made, function, assigned=("__module__", "__name__", "__qualname__"), updated=())
    del made.__wrapped__  # type: ignore[attr-defined]  # the hints of `made` are its own
    made.__annotations__ = {} if result is object else {"return": result}
    made.user_function = function  # type: ignore[attr-defined]  # a function takes any attribute
    if shown is not None:
        made.shown = shown  # type: ignore[attr-defined]  # as above
    return made


def mapped(form: Form, function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a function from payloads to stamps of what the user's function returns."""
    value_of, stamp = form.value, form.stamp

    def stamped(payload: Any) -> tuple[int, int, Any]:
        return stamp(payload, function(payload if value_of is None else value_of(payload)))

    def stamped_with(payloads: Sequence[Any], values: Sequence[Any]) -> Beside:
        times = form.times(payloads)
        kinds = repeat(VALUE) if form.kind is None else map(form.kind, payloads)
        return Beside(zip(kinds, times, values, strict=False), (STAMPED.at, times))

    made = named_after(stamped, function, stamp_type(returned(function)), value_of)
    if (many := many_of(function)) is not None:
        of_many = many

        def all_stamped(payloads: Sequence[Any]) -> Beside:
            return stamped_with(payloads, of_many(form.values(payloads)))

        made.many = all_stamped  # type: ignore[attr-defined]  # a function takes any attribute
    elif form is STAMPED:  # whose times are there: the time of a record may have to be computed, and that may fail
        made.within = Within(form.values, function, stamped_with)  # type: ignore[attr-defined]  # as above
    return made


def flat_mapped(form: Form, function: Callable[[Any], Any], of: Any) -> Callable[[Any], Any]:
    """Return a function from a payload to the stamps of all that `function` returns."""
    value_of, stamp = form.value, form.stamp

    def stamped(payload: Any) -> list[tuple[int, int, Any]]:
        return [stamp(payload, value) for value in function(payload if value_of is None else value_of(payload))]

    def stamped_again(payload: tuple[int, int, Any]) -> list[tuple[int, int, Any]]:
        kind, at, own = payload
        return [(kind, at, value) for value in function(own)]

    if form is STAMPED:
        stamped = stamped_again
    return named_after(stamped, function, GenericAlias(list, (stamp_type(of),)), value_of)


def value_of(stamp: tuple[int, int, Any]) -> Any:
    """Return the value of a stamp."""
    return stamp[2]


value_of.many = STAMPED.values  # type: ignore[attr-defined]  # a function takes any attribute


def is_pane(stamp: tuple[int, int, Any]) -> bool:
    """Return whether a stamp is a pane or a retraction of one, and not told beside."""
    return stamp[0] <= RETRACTION


def _are_panes(stamps: Sequence[tuple[int, int, Any]]) -> list[bool]:
    """Return of each stamp whether it is a pane or a retraction of one."""
    return [stamp[0] <= RETRACTION for stamp in stamps]


is_pane.many = _are_panes  # type: ignore[attr-defined]  # a function takes any attribute


def is_late(stamp: tuple[int, int, Any]) -> bool:
    """Return whether a stamp tells of an element that was taken late."""
    return stamp[0] == LATE


def is_dropped(stamp: tuple[int, int, Any]) -> bool:
    """Return whether a stamp tells of an element that was dropped."""
    return stamp[0] == DROPPED
