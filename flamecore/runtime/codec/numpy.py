"""Codecs of numpy arrays and scalars.

Imports numpy only where a payload needs it. Bytes carry the data type with its byte order, the shape, the order of rows
and columns, whether the array is writable, and the elements. Data types that hold Python objects, or would come back as
another type, are refused.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from functools import cache
from math import prod
from typing import Any, Final

from flamecore.errors import CodecError
from flamecore.runtime.codec.stdlib import Standard
from flamecore.runtime.codec.wire import BYTES, STR, TUPLE, unreadable

_MODULE: Final = "numpy"
_NAMES: Final = ("numpy.ndarray", "numpy.str_", "numpy.bytes_")
_KINDS: Final = frozenset("biufcmMSUV")
_ARRAY_UNITS: Final = 256
"""Cost of an array besides its bytes, for the check of its data type."""
_MOST_DIMENSIONS: Final = 64
_MOST_TEXT: Final = 2**16


class Scalars:
    """Scalars of one numpy class, packed as an array of them."""

    name = ""

    def __init__(self, kind: type) -> None:
        self.kind = kind

    def types(self, values: Sequence[Any]) -> list[str]:
        """Return the data type of each value; one for all if the class has only one."""
        if self.kind.__name__ in ("datetime64", "timedelta64", "void"):
            return [describe(value.dtype) for value in values]
        return [describe(values[0].dtype)]


def entry_for(kind: type) -> Scalars | Standard | None:
    """Return the codec of a numpy class; None for unsupported and other classes."""
    # Without an import: a value of numpy can only be here if numpy is.
    if kind.__module__ != _MODULE or _MODULE not in sys.modules:
        return None
    import numpy as np

    name = f"{_MODULE}.{kind.__name__}"
    if name in _NAMES and kind is getattr(np, kind.__name__):
        return _entry(name)
    return Scalars(kind) if issubclass(kind, np.generic) and kind is not np.object_ else None


def entry_named(name: str) -> Standard | None:
    """Return the codec of a numpy class by its name in bytes; None for other names."""
    return _entry(name) if name in _NAMES else None


@cache
def _entry(name: str) -> Standard:
    np = _numpy()
    if name == "numpy.ndarray":
        return Standard(np.ndarray, name, TUPLE, _take_apart, _put_together, units=_ARRAY_UNITS)
    if name == "numpy.str_":  # an array would cut it at its last zero
        return Standard(np.str_, name, STR, str.__str__, np.str_)
    return Standard(np.bytes_, name, BYTES, bytes, np.bytes_)


def pack(values: Sequence[Any]) -> bytes:
    """Return the bytes of scalars of one data type, one after another."""
    return b"".join([value.tobytes() for value in values])


def unpack(data: bytes, description: str, count: int) -> list[object]:
    """Return `count` scalars of the described data type.

    Raises:
        CodecError: The size of the bytes does not match.
    """
    dtype = restore(description)
    if dtype.itemsize * count != len(data) or not dtype.itemsize:
        raise unreadable(f"bytes with {len(data)} bytes for {count} values of the data type {dtype}")
    array = _numpy().frombuffer(data, dtype, count)
    # Without a copy, a scalar with fields would be a view of the whole array.
    return [value.copy() for value in array] if dtype.kind == "V" else list(array)


def _take_apart(array: Any) -> tuple[str, tuple[int, ...], str, bytes]:
    flags = array.flags
    order = "F" if flags.f_contiguous and not flags.c_contiguous else "C"
    return describe(array.dtype), array.shape, order + ("w" if flags.writeable else "r"), array.tobytes(order)


def _put_together(parts: tuple[str, tuple[int, ...], str, bytes]) -> object:
    description, shape, flags, data = parts
    dtype = restore(description)
    if type(shape) is not tuple or len(shape) > _MOST_DIMENSIONS or any(type(n) is not int or n < 0 for n in shape):
        raise unreadable("bytes with an array of an impossible shape")
    if type(data) is not bytes or prod(shape) * dtype.itemsize != len(data):
        raise unreadable(f"bytes with {len(data)} bytes for an array of shape {shape} and data type {dtype}")
    if flags not in ("Cw", "Cr", "Fw", "Fr"):
        raise unreadable("bytes with an array of unknown flags")
    # A writable array gets memory of its own; any other one can use the bytes as they are.
    held = bytearray(data) if flags[1] == "w" else data
    return _numpy().ndarray(shape, dtype, held, order=flags[0])


def describe(dtype: Any) -> str:
    """Return a data type as text: "<f8", or JSON if it has fields.

    Raises:
        CodecError: It holds Python objects, or would come back as another data type.
    """
    if dtype.kind in _KINDS and not dtype.hasobject and dtype.itemsize:
        plan = _plan(dtype)
        text = plan if isinstance(plan, str) else json.dumps(plan, separators=(",", ":"))
        if len(text) <= _MOST_TEXT and _same(_restored(plan), dtype):
            return text
    raise CodecError(
        f"numpy values of data type {dtype} cannot cross a process boundary",
        hint="Use numbers, texts and bytes of fixed length, times, or structures of these; for Python objects a tuple.",
        type_name=f"numpy.{dtype.type.__name__}",
    )


def restore(description: str) -> Any:
    """Return the data type of a text from `describe`.

    Raises:
        CodecError: `describe` does not make such a text.
    """
    _numpy()  # raises here if numpy is not installed
    problem: Exception | None = None
    if type(description) is str and len(description) <= _MOST_TEXT:
        try:
            plan = json.loads(description) if description.startswith("{") else description
            dtype = _restored(plan)
            if dtype.kind in _KINDS and not dtype.hasobject and describe(dtype) == description:
                return dtype
        except Exception as error:  # noqa: BLE001 - a forged text can be wrong in any way
            problem = error
    raise unreadable("bytes with an unknown data type of numpy") from problem


def _plan(dtype: Any) -> object:
    if dtype.subdtype is not None:
        base, shape = dtype.subdtype
        return [_plan(base), list(shape)]
    if dtype.names is None:
        text: str = dtype.str
        # C's long long is an int64, but of a class of its own.
        return text if _numpy().dtype(text).char == dtype.char else text[0] + dtype.char
    fields = [dtype.fields[name] for name in dtype.names]
    return {
        "names": list(dtype.names),
        "formats": [_plan(field[0]) for field in fields],
        "offsets": [field[1] for field in fields],
        "titles": [field[2] if len(field) > 2 else None for field in fields],
        "itemsize": dtype.itemsize,
        "aligned": bool(dtype.isalignedstruct),
    }


def _restored(plan: object) -> Any:
    np = _numpy()
    if isinstance(plan, list):
        return np.dtype((_restored(plan[0]), tuple(plan[1])))
    if isinstance(plan, dict):
        return np.dtype({**plan, "formats": [_restored(each) for each in plan["formats"]]})
    return np.dtype(plan)


def _same(one: Any, other: Any) -> bool:
    return one == other and one.type is other.type and one.char == other.char and one.itemsize == other.itemsize


def _numpy() -> Any:
    try:
        import numpy as np
    except ImportError as error:
        raise unreadable(
            "bytes with values of numpy, which is not installed here", hint="Run: pip install numpy"
        ) from error
    return np
