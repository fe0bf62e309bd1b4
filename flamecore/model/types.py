"""Declared types: hints of functions, their text, and tests of values.

Stored state outlives the flow that made it. A changed flow may declare other types than the stored ones, and a function
that gets a wrong value fails late, or not at all.
"""

from __future__ import annotations

import sys
import types
import typing
from collections.abc import Callable, Collection, Mapping
from functools import partial
from types import FunctionType
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin, get_type_hints

Fits = Callable[[object], bool]

_UNIONS: Final = (Union, types.UnionType)
_ALSO: Final[Mapping[type, tuple[type, ...]]] = {float: (float, int), complex: (complex, float, int)}
"""Types that a type checker accepts for a type as well."""


def _anything(_: object) -> bool:
    return True


class TypeMatcher:
    """A maker of tests of hints, one for each hint, which may contain itself.

    A scalar of numpy counts as the Python class that `item()` makes of it: an `int64` is an int.

    Args:
        depth: Depth of the test in containers and records: 0: only the value itself; None: unlimited.
    """

    def __init__(self, depth: int | None = None) -> None:
        self._depth = depth
        self._made: dict[tuple[int, int | None], tuple[object, Fits]] = {}

    def test_of(self, hint: object) -> Fits:
        """Return a function that tests whether a value fits a hint.

        If a hint says nothing, every value fits.
        """
        key = id(hint), self._depth
        known = self._made.get(key)
        if known is not None:
            return known[1]

        def later(value: object) -> bool:
            return self._made[key][1](value)

        # Before it is made: a hint may contain itself, as a tree does, and then finds this.
        self._made[key] = hint, later
        made = self._make(hint)
        self._made[key] = hint, made
        return made

    def _inner(self, hint: object) -> Fits:
        """Return the test of a hint one level deeper."""
        if self._depth is None:
            return self.test_of(hint)
        self._depth -= 1
        try:
            return self.test_of(hint)
        finally:
            self._depth += 1

    def _make(self, hint: object) -> Fits:
        origin, arguments = get_origin(hint), get_args(hint)
        if hint is None or hint is type(None):
            return lambda value: value is None
        if origin is Annotated:
            return self.test_of(arguments[0])
        if origin is Literal:
            return lambda value: any(type(value) is type(one) and value == one for one in arguments)
        if origin in _UNIONS:
            tests = [self.test_of(one) for one in arguments]
            return lambda value: any(test(value) for test in tests)
        behind = getattr(hint, "__supertype__", None) or getattr(hint, "__value__", None)  # NewType, type alias
        if behind is not None:
            return self.test_of(behind)
        kind = origin or hint
        if not isinstance(kind, type) or kind in (object, Any) or typing.is_typeddict(kind):
            return _anything
        if getattr(kind, "_is_protocol", False) and not issubclass(kind, Collection):
            return _anything
        return self._of_class(kind, arguments)

    def _of_class(self, kind: type, arguments: tuple[object, ...]) -> Fits:
        kinds = _ALSO.get(kind, (kind,))
        if self._depth == 0:
            return lambda value: isinstance(value, kinds) or isinstance(_of_python(value), kinds)
        if issubclass(kind, tuple) and arguments and Ellipsis not in arguments:
            each = [self._inner(one) for one in arguments]
            return lambda value: (
                isinstance(value, kind) and len(value) == len(each) and all(t(v) for t, v in zip(each, value))  # noqa: B905 - are as long
            )
        if issubclass(kind, Mapping) and len(arguments) == 2:
            key, of = map(self._inner, arguments)
            return lambda value: isinstance(value, kind) and all(key(k) and of(v) for k, v in value.items())
        if issubclass(kind, Collection) and (len(arguments) == 1 or Ellipsis in arguments):
            item = self._inner(arguments[0])
            return lambda value: isinstance(value, kind) and all(map(item, value))
        fields = _fields_of(kind)
        if fields:
            tests = [(name, self._inner(hint)) for name, hint in fields.items()]
            return lambda value: (
                isinstance(value, kind) and all(test(getattr(value, name, None)) for name, test in tests)
            )
        return lambda value: isinstance(value, kinds) or isinstance(_of_python(value), kinds)


def classes_of(hint: object) -> frozenset[type]:
    """Return the classes whose values fit a hint, as far as the value itself goes.

    Values of other classes may fit, too; whether they do, `TypeMatcher` knows.

    >>> sorted(kind.__name__ for kind in classes_of(tuple[str, int] | None))
    ['NoneType', 'tuple']
    """
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in _UNIONS:
        return frozenset().union(*map(classes_of, arguments))
    if origin is Annotated:
        return classes_of(arguments[0])
    kind = type(None) if hint is None else origin or hint
    return frozenset((kind,)) if isinstance(kind, type) else frozenset()


def _of_python(value: object) -> object:
    """Return the Python value of a scalar of numpy; other values unchanged."""
    numpy = sys.modules.get("numpy")  # without the module there are no such values
    return value.item() if numpy is not None and isinstance(value, numpy.generic) else value


def _fields_of(kind: object) -> dict[str, object]:
    """Return the hints of the fields of a class that crosses field by field."""
    names = getattr(kind, "_fields", None) or getattr(kind, "__dataclass_fields__", None)
    names = names or getattr(kind, "__struct_fields__", None)
    if not names:
        return {}
    hints = hints_of(kind)
    return {name: hints[name] for name in names if name in hints}


def hint_text(hint: object) -> str:
    """Return a declared type as it is written.

    >>> hint_text(int), hint_text(list[int])
    ('int', 'list[int]')
    """
    return hint.__qualname__ if isinstance(hint, type) and not hasattr(hint, "__args__") else str(hint)


def type_text(hint: object, _inside: tuple[object, ...] = ()) -> str:
    """Return a declared type as text, classes with their fields.

    The text changes when a class changes its form.

    >>> type_text(tuple[str, int] | None), type_text(object)
    ('tuple[str, int] | None', '')
    """
    if hint is object or hint is Any:
        return ""
    if hint is None or hint is type(None):
        return "None"
    if hint is Ellipsis:
        return "..."
    inside = (*_inside, hint)
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return type_text(arguments[0], _inside)
    if origin is Literal:
        return f"Literal[{', '.join(map(repr, arguments))}]"
    if origin in _UNIONS:
        return " | ".join(type_text(one, inside) or "object" for one in arguments)
    if isinstance(hint, list):
        return f"[{', '.join(type_text(one, inside) or 'object' for one in hint)}]"
    kind = origin or hint
    if not isinstance(kind, type):
        return str(getattr(hint, "__name__", hint))
    if arguments:
        return f"{kind.__qualname__}[{', '.join(type_text(one, inside) or 'object' for one in arguments)}]"
    fields = {} if any(hint is outer for outer in _inside) else _fields_of(kind)
    if fields:
        told = ", ".join(f"{name}: {type_text(of, inside) or 'object'}" for name, of in fields.items())
        return f"{kind.__qualname__}({told})"
    return kind.__qualname__


def hints_of(thing: object) -> dict[str, object]:
    """Return the hints of a function by parameter, or of a class by field.

    The result of a function is under "return". Hints that cannot be resolved here, such as names that only a type
    checker imports, are left out.
    """
    while isinstance(thing, partial):
        thing = thing.func
    if not isinstance(thing, type | FunctionType):  # perhaps a callable object
        call = vars(type(thing)).get("__call__")
        thing = call if isinstance(call, FunctionType) else thing
    try:
        return get_type_hints(thing)
    except (NameError, TypeError, AttributeError):
        return _those_that_can_be(thing)


def _those_that_can_be(thing: object) -> dict[str, object]:
    found: dict[str, object] = {}
    module = getattr(thing, "__module__", None)
    scope = getattr(thing, "__globals__", None)
    for owner in reversed(getattr(thing, "__mro__", (thing,))):
        for name, hint in (getattr(owner, "__annotations__", None) or {}).items():
            # Each by itself: one name that only a type checker imports fails the whole call.
            alone = type("alone", (), {"__annotations__": {name: hint}, "__module__": module})
            try:
                found |= get_type_hints(alone, scope)
            except (NameError, TypeError, AttributeError):
                continue
    return found


def returned(function: object) -> object:
    """Return the declared result type of a function, or a class itself.

    Returns `object` if nothing is declared.
    """
    return function if isinstance(function, type) else hints_of(function).get("return", object)


def element(hint: object) -> object:
    """Return the element type of a declared iterable; `object` if unknown."""
    arguments: tuple[object, ...] = getattr(hint, "__args__", ())
    if hint is str:
        return str
    if len(arguments) == 1 or (len(arguments) == 2 and arguments[1] is Ellipsis):
        return arguments[0]
    return object
