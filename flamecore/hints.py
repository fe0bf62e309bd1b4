"""What the hints of a user's functions and classes say of the payloads."""

from __future__ import annotations

from functools import partial
from types import FunctionType
from typing import Any, get_type_hints


def hints_of(thing: Any) -> dict[str, Any]:
    """The hints of a function by parameter, "return" among them, or those of a class by field.

    What cannot be resolved here (a name that only a type checker imports, say) is left out.
    """
    while isinstance(thing, partial):
        thing = thing.func
    if not isinstance(thing, type | FunctionType):  # perhaps an object that can be called
        call = vars(type(thing)).get("__call__")
        thing = call if isinstance(call, FunctionType) else thing
    try:
        return get_type_hints(thing)
    except (NameError, TypeError, AttributeError):
        return _those_that_can_be(thing)


def _those_that_can_be(thing: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    module = getattr(thing, "__module__", None)
    scope = getattr(thing, "__globals__", None)
    for owner in reversed(getattr(thing, "__mro__", (thing,))):
        for name, hint in (getattr(owner, "__annotations__", None) or {}).items():
            alone = type("alone", (), {"__annotations__": {name: hint}, "__module__": module})
            try:
                found |= get_type_hints(alone, scope)
            except (NameError, TypeError, AttributeError):
                continue
    return found


def returned(function: Any) -> Any:
    """The declared result type of a function, or the class itself; `object` when nothing is declared."""
    return function if isinstance(function, type) else hints_of(function).get("return", object)


def element(hint: Any) -> Any:
    """The element type of a declared iterable; `object` when it is not told."""
    arguments: tuple[Any, ...] = getattr(hint, "__args__", ())
    if hint is str:
        return str
    if len(arguments) == 1 or (len(arguments) == 2 and arguments[1] is Ellipsis):
        return arguments[0]
    return object
