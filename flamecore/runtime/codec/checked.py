"""A type check of decoded messages, before anything acts on them.

Messages with payloads, and the most frequent ones, are decoded with known types (`flamecore.runtime.codec.codec`).
"""

from __future__ import annotations

from typing import Any, Final, TypeVar

import msgspec

from flamecore.model import messages
from flamecore.runtime.codec.types import NAMES
from flamecore.runtime.codec.wire import unreadable

T = TypeVar("T")

MESSAGES: Final = frozenset(kind for kind in NAMES if kind.__module__ == messages.__name__)
"""All messages between the parts of a job."""


def checked(message: T) -> T:
    """Return the message after checking the types of its fields, at every depth.

    Raises:
        CodecError: A field is of another type.
    """
    kind = type(message)
    try:
        found = msgspec.convert(_plain(message), kind, builtin_types=(bytes,))
    except (msgspec.ValidationError, RecursionError) as error:
        raise unreadable(f"bytes with a {kind.__name__} that is none: {error}", type_name=kind.__name__) from error
    if not _alike(found, message):
        raise unreadable(f"bytes with a {kind.__name__} that is none: it holds another one", type_name=kind.__name__)
    return message


def _alike(found: object, value: Any) -> bool:
    """Return whether both have the same named tuples at the same places."""
    if not isinstance(found, tuple):
        return True
    if type(found) is not tuple and type(found) is not type(value):
        return False
    return all(map(_alike, found, value))


def _plain(value: object) -> object:
    """Replace named tuples by plain ones; msgspec would accept a named one as it is."""
    return tuple([_plain(part) for part in value]) if isinstance(value, tuple) else value
