"""Flows by value: those of a notebook or main program, which nodes cannot import.

Spark's own pickler writes them, as it does a pandas UDF, and the bytes go to executors in the closure of the task that
Spark runs there, with the rest of what a node must know to join. A node reads them from its private folder. Nothing
that comes over a transport, or out of state, is unpickled.
"""

from __future__ import annotations

import hashlib
import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from io import BytesIO
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, Final, NamedTuple, NoReturn

from flamecore.abc.host import PACKED, PackedFlow
from flamecore.errors import ConfigError, FlameError, GraphError
from flamecore.model.flow import FlowGraph
from flamecore.model.vertices import note_declaration, user_functions, user_name

_MAIN: Final = "__main__"
_LOADER: Final = b'''"""A flow that the driver has sent by value."""

from flamestream_spark.nodes.packing import unpacked

flow = unpacked(__file__)
'''
_WORD: Final = re.compile(r"[^\W\d]\w*")
_DEPTH: Final = 8
"""Depth, in functions, of the search for a value that cannot be pickled."""

_kept: Final[list[ModuleType]] = []
"""Former main modules, whose functions still run."""


def packed(flow: FlowGraph, beside: Mapping[str, bytes]) -> PackedFlow:
    """Pack a flow. Arguments and returns as `flamecore.abc.host.NodeHost.pack`.

    Raises:
        GraphError, ConfigError: Something in it cannot be pickled.
    """
    sources = sorted((path, hashlib.sha256(source).hexdigest()) for path, source in beside.items())
    try:
        data = _pickled((flow, _hinted(flow), sources))
    except Exception as error:
        raise _unsendable(flow, error) from error
    module = PACKED + hashlib.sha256(data).hexdigest()[:32]
    return PackedFlow(module, {**beside, f"{module}.py": _LOADER, f"{module}.pickle": data})


class Shared(NamedTuple):
    """A broadcast variable in a node.

    Attributes:
        value: Its value.
    """

    value: object


def _pickled(value: object) -> bytes:
    """Pickle a value as Spark pickles a UDF, but broadcast variables with their values: nodes are no tasks.

    Raises:
        Exception: It cannot be pickled.
    """
    from pyspark import cloudpickle

    # A class whose module nobody has imported has no objects.
    reduced = {vars(sys.modules[path])[name]: reduce for path, name, reduce in _REDUCED if path in sys.modules}
    table = cloudpickle.Pickler.dispatch_table.new_child(reduced)
    pickler = type("Pickler", (cloudpickle.Pickler,), {"dispatch_table": table})  # it looks for the table in its class
    file = BytesIO()
    pickler(file).dump(value)
    return file.getvalue()


def _with_value(broadcast: Any) -> tuple[type[Shared], tuple[object]]:
    return Shared, (broadcast.value,)


def _refused(accumulator: object) -> NoReturn:
    raise TypeError(
        "workers are no tasks of Spark, so nobody would see what they add to an accumulator; count in the flow"
    )


_REDUCED: Final = (
    ("pyspark", "Broadcast", _with_value),
    ("pyspark", "Accumulator", _refused),
)
"""Classes whose objects are pickled otherwise than by Spark: module, name, function."""


def unpacked(path: str) -> FlowGraph:
    """Make the flow of a module that `packed` has written.

    Args:
        path: The module's file, whose name has the digest.

    Raises:
        ConfigError: The bytes are others.
    """
    from pyspark import cloudpickle

    file = Path(path)
    data = file.with_suffix(".pickle").read_bytes()
    if PACKED + hashlib.sha256(data).hexdigest()[:32] != file.stem:
        raise ConfigError(f"{file.stem} holds another flow than the driver has sent", path="job.flow")
    flow, hinted, _ = cloudpickle.loads(data)
    # Hints are texts, and looked up where a function or class says that it is from.
    main = ModuleType(_MAIN)
    vars(main).update(hinted)
    _kept.append(sys.modules[_MAIN])
    sys.modules[_MAIN] = main
    for function in _functions(flow):
        space = getattr(function, "__globals__", {})
        if space.get("__name__") == _MAIN:
            space.update({name: value for name, value in hinted.items() if name not in space})
    made: FlowGraph = flow
    return made


def _functions(flow: FlowGraph) -> Iterator[Callable[..., Any]]:
    """Return the functions of a flow as the user wrote them."""
    for vertex in flow.graph().vertices:
        for function in user_functions(vertex):
            own: Any = function
            while hasattr(own, "user_function"):
                own = own.user_function
            yield own


def _hinted(flow: FlowGraph) -> dict[str, Any]:
    """Return what hints in the main program name: a pickler does not look at hints."""
    space = vars(sys.modules[_MAIN])
    things = [thing for thing in space.values() if isinstance(thing, type | FunctionType) and thing.__module__ == _MAIN]
    found: dict[str, Any] = {}
    for thing in (*things, *_functions(flow)):
        for hint in getattr(thing, "__annotations__", {}).values():
            text = hint if isinstance(hint, str) else repr(hint)
            found |= {name: space[name] for name in _WORD.findall(text) if name in space}
    for name, value in tuple(found.items()):
        try:
            _pickled(value)
        except Exception:  # noqa: BLE001 - if the flow uses it, that is told; if not, it is not missed
            del found[name]
    return found


def _unsendable(flow: FlowGraph, error: Exception) -> FlameError:
    """Return an error for what cannot be pickled: vertex, function and variable."""
    for vertex in flow.graph().vertices:
        for function in user_functions(vertex):
            own: Any = function
            while hasattr(own, "user_function"):
                own = own.user_function
            if (culprit := _culprit(own, _DEPTH)) is None:
                continue
            held, why = culprit
            uses = f"{vertex!r} uses {user_name(function) or 'a function'}"
            what = f"{uses}{f' with {held}' if held else ''}, which cannot be sent to executors: {why}"
            variable = held.partition(" ")[0] or "it"
            hint = f"Make {variable} inside of the function, or put the flow into a module that executors import."
            return note_declaration(GraphError(what, hint=hint, vertex=vertex.name), vertex)
    return ConfigError(
        f"flow {flow.name!r} cannot be sent to executors: {type(error).__name__}: {error}",
        hint="Put it into a module that executors import.",
        path="job.flow",
    )


def _culprit(value: Any, depth: int) -> tuple[str, str] | None:
    """Return the function's variable that cannot be pickled, and why; None: all can."""
    try:
        _pickled(value)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is told
        why = f"{type(error).__name__}: {error}"
    else:
        return None
    if inspect.isfunction(value) and depth:
        used = inspect.getclosurevars(value)
        for name, held in {**used.globals, **used.nonlocals}.items():
            if (deeper := _culprit(held, depth - 1)) is not None:
                inner, because = deeper
                return inner or f"{name} (a {type(held).__name__})", because
    return "", why
