"""A flow that is cut before the last operations of some sinks.

In their place items pass unchanged. So orders, names and shape of the graph are those of the whole flow, and a sink is
given items as they are before these operations.
"""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from inspect import signature
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

import msgspec

from flamecore.abc.host import PACKED, PackedFlow
from flamecore.errors import ConfigError
from flamecore.model.flow import FlowGraph
from flamecore.model.graph import Graph
from flamecore.model.meta import CHILD
from flamecore.model.types import hints_of
from flamecore.model.vertices import Map, user_functions
from flamecore.runtime.codec.stdlib import STANDARD
from flamecore.runtime.config.flow_loader import code_of, importable, load_flow_anew, locate
from flamestream_spark.nodes.packing import packed

_LOADER: Final = b'''"""A flow that the driver has cut."""

from flamestream_spark.drain.cut import cut_of

flow = cut_of(__file__)
'''
_SCALARS: Final = frozenset({NoneType, bool, int, float, str, bytes, *(each.type for each in STANDARD)})
_CONTAINERS: Final = (tuple, list, set, frozenset, dict)


class CutFlow(FlowGraph):
    """A flow that is cut before the suffixes of some sinks.

    Args:
        whole: The flow.
        sinks: Names of the sinks.
    """

    def __init__(self, whole: FlowGraph, sinks: Sequence[str]) -> None:
        super().__init__(whole.name)
        self.module = whole.module
        self.whole, self.sinks = whole, tuple(sinks)

    @property
    def reference(self) -> str | None:
        return self.found_as

    def graph(self, *, barrier: bool = True) -> Graph:
        graph = self.whole.graph(barrier=barrier)
        graph.reference = self.reference
        for sink in graph.sinks:
            for vertex in graph.suffix_of(sink) if sink.name in self.sinks else ():
                vertex.function, vertex.shape = _passing(vertex.function), "one"
        return graph


def _passing(function: Callable[..., Any]) -> Callable[[Any], Any]:
    """Return a function that returns its argument, and whose hints tell the codec of the same types."""

    def passing(payload: Any) -> Any:
        return payload

    hints = hints_of(function)
    passing.__annotations__ = {"made" if name == "return" else name: hint for name, hint in hints.items()}
    passing.__module__ = getattr(function, "__module__", None) or __name__
    passing.user_function = function  # type: ignore[attr-defined]  # its name and its source are this one's
    return passing


def uncut(orders: Sequence[bytes], operations: int) -> list[bytes]:
    """Return orders as they are before operations that items have passed unchanged.

    Args:
        orders: The orders behind them.
        operations: Number of the operations.
    """
    # Each has appended the first child id.
    return [order[: -operations * len(CHILD[0])] for order in orders]


def crosses(graph: Graph, first: Map) -> bool:
    """Return whether all items that an operation declares to take can be written.

    Args:
        graph: The graph, with the codecs of the flow.
        first: The operation.
    """
    try:
        name = next(iter(signature(first.function).parameters))
    except (StopIteration, TypeError, ValueError):  # of some built-in functions nothing is known
        return False
    return _crosses(hints_of(first.function).get(name, object), {codec.type for codec in graph.codecs}, set())


def _crosses(hint: Any, known: set[Any], seen: set[Any]) -> bool:
    if isinstance(hint, type) and (hint in _SCALARS or hint in known or hint in seen or issubclass(hint, enum.Enum)):
        return True
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Literal:
        return True
    if origin is Annotated:
        return _crosses(arguments[0], known, seen)
    if origin in (Union, UnionType, *_CONTAINERS):
        return all(one is Ellipsis or _crosses(one, known, seen) for one in arguments)
    if not isinstance(hint, type):
        return False
    if dataclasses.is_dataclass(hint) or hasattr(hint, "_fields") or issubclass(hint, msgspec.Struct):
        seen.add(hint)
        return all(_crosses(one, known, seen) for one in hints_of(hint).values())
    return False


def packed_cut(flow: CutFlow, beside: Mapping[str, bytes]) -> PackedFlow:
    """Pack a cut flow. Arguments and returns as `flamecore.abc.host.NodeHost.pack`.

    A flow that other processes import is imported there, and cut; any other one goes by value.

    Raises:
        GraphError, ConfigError: It goes by value, and something in it cannot be pickled.
    """
    if flow.whole.reference is None:
        return packed(flow, beside)
    reference, folder = importable(flow.whole)
    told = {"reference": reference, "folder": folder, "sinks": flow.sinks, "code": _code(flow.whole)}
    data = json.dumps(told).encode()
    sources = sorted((path, hashlib.sha256(source).hexdigest()) for path, source in beside.items())
    module = PACKED + hashlib.sha256(data + repr(sources).encode()).hexdigest()[:32]
    return PackedFlow(module, {**beside, f"{module}.py": _LOADER, f"{module}.json": data})


def cut_of(path: str) -> CutFlow:
    """Make the flow of a module that `packed_cut` has written.

    Args:
        path: The module's file.

    Raises:
        ConfigError: The flow cannot be imported, or it is another version here.
    """
    file = Path(path)
    told = json.loads(file.with_suffix(".json").read_bytes())
    whole = load_flow_anew(*locate(told["reference"], Path(told["folder"]), file.parent))[0]
    if _code(whole) != told["code"]:
        raise ConfigError(
            f"flow {whole.name!r} is another version here than the one that runs",
            hint="Install one version everywhere.",
            path="job.flow",
        )
    return CutFlow(whole, told["sinks"])


def _code(flow: FlowGraph) -> str:
    return code_of(flow, [function for vertex in flow.graph().vertices for function in user_functions(vertex)])
