"""What the hints of a user's function say of the payloads it takes and gives."""

from __future__ import annotations

from typing import Any, get_type_hints


def hints_of(function: Any) -> dict[str, Any]:
    """The hints of a function by parameter, "return" among them; none where they cannot be resolved here."""
    try:
        return get_type_hints(function)
    except (NameError, TypeError, AttributeError):
        return {}


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
