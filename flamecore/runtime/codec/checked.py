"""Messages whose fields are of the types that they are declared with: anything else is refused before it is acted on.

Messages with payloads, and the most frequent ones, are of known types from the first (`flamecore.runtime.codec.codec`).
"""

from __future__ import annotations

from typing import Any, Final, TypeVar

import msgspec

from flamecore.model import messages
from flamecore.runtime.codec.types import NAMES
from flamecore.runtime.codec.wire import unreadable

T = TypeVar("T")

MESSAGES: Final = frozenset(kind for kind in NAMES if kind.__module__ == messages.__name__)
"""All that parts of a job say to each other."""


def checked(message: T) -> T:
    """Return a message whose fields are of their types, also those of what it holds.

    Raises:
        CodecError: One is not.
    """
    kind = type(message)
    try:
        found = msgspec.convert(_plain(message), kind, builtin_types=(bytes,))
    except (msgspec.ValidationError, RecursionError) as error:
        raise unreadable(f"bytes with a {kind.__name__} that is none: {error}", type_name=kind.__name__) from error
    if not _alike(found, message):
        raise unreadable(f"bytes with a {kind.__name__} that is none: it holds another one", type_name=kind.__name__)
    return message


def _alike(found: Any, value: Any) -> bool:
    """Return whether a value is named wherever that is what was found in its place."""
    if not isinstance(found, tuple):
        return True
    if type(found) is not tuple and type(found) is not type(value):
        return False
    return all(map(_alike, found, value))


def _plain(value: Any) -> Any:
    """Return tuples in the place of named ones, which would pass for what they are called."""
    return tuple([_plain(part) for part in value]) if isinstance(value, tuple) else value
