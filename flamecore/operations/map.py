"""Map and broadcast: child ids are appended in the order of outputs (paper 000, "Ordering model")."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from flamecore.graph import Map
from flamecore.meta import CHILD, encode_child
from flamecore.operations import Fail, Step

_ONLY = CHILD[0]


def map_step(vertex: Map, ident: int, emit: Step, fail: Fail) -> Step:
    """Compile a map. `ident` is the random id of this physical instance, folded into the trace."""
    shape = {"many": _many, "one": _one, "filter": _filter, "inspect": _inspect}[vertex.shape]
    return shape(vertex.function, ident, emit, fail)


def _many(function: Callable[[Any], Any], ident: int, emit: Step, fail: Fail) -> Step:
    def step(order: bytes, trace: int, alive: bool, payload: Any) -> None:
        # The outputs are complete before the first goes on: an error half-way leaves none of them behind.
        try:
            outputs = function(payload)
            if type(outputs) is not list:
                outputs = list(outputs)
        except Exception as error:  # noqa: BLE001 - whatever user code raises is shown to the user
            return fail(order, trace, alive, payload, error)
        trace ^= ident
        for child, output in zip(CHILD, outputs, strict=False):
            emit(order + child, trace, alive, output)
        for number in range(len(CHILD), len(outputs)):
            emit(order + encode_child(number), trace, alive, outputs[number])
        return None

    return step


def _one(function: Callable[[Any], Any], ident: int, emit: Step, fail: Fail) -> Step:
    def step(order: bytes, trace: int, alive: bool, payload: Any) -> None:
        try:
            output = function(payload)
        except Exception as error:  # noqa: BLE001
            return fail(order, trace, alive, payload, error)
        return emit(order + _ONLY, trace ^ ident, alive, output)

    return step


def _filter(function: Callable[[Any], Any], ident: int, emit: Step, fail: Fail) -> Step:
    def step(order: bytes, trace: int, alive: bool, payload: Any) -> None:
        try:
            keep = function(payload)
        except Exception as error:  # noqa: BLE001
            return fail(order, trace, alive, payload, error)
        return emit(order + _ONLY, trace ^ ident, alive, payload) if keep else None

    return step


def _inspect(function: Callable[[Any], Any], ident: int, emit: Step, fail: Fail) -> Step:
    def step(order: bytes, trace: int, alive: bool, payload: Any) -> None:
        try:
            function(payload)
        except Exception as error:  # noqa: BLE001
            return fail(order, trace, alive, payload, error)
        return emit(order + _ONLY, trace ^ ident, alive, payload)

    return step


def broadcast_step(successors: Sequence[Step]) -> Step:
    """Copy to every successor; the i-th copy appends child id i. The trace stays: the copies differ by child id."""
    ways = [(encode_child(number), emit) for number, emit in enumerate(successors)]

    def step(order: bytes, trace: int, alive: bool, payload: Any) -> None:
        for child, emit in ways:
            emit(order + child, trace, alive, payload)

    return step
