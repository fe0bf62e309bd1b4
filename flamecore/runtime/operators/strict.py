"""Checks of user functions: declared result types, unchanged arguments.

A strict vertex is a copy whose functions check. In every job, the records of a run's first times go through it; if a
job asks for checks, all records do. The choice of records depends on their times only, so a mistake is found on any
number of workers, and after every fault.
"""

from __future__ import annotations

import copy
import pickle
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from inspect import unwrap
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import Any, Final, NamedTuple

from flamecore.abc.operator import Run
from flamecore.errors import CodecError
from flamecore.model.batch import Orders
from flamecore.model.clock import WALL_CLOCK
from flamecore.model.drift import MISSING, Drift
from flamecore.model.failure import FlowMistake, shorten_repr
from flamecore.model.graph import Graph
from flamecore.model.meta import encode_time
from flamecore.model.ordered import Ordered
from flamecore.model.plan import Plan
from flamecore.model.types import TypeMatcher, element, hint_text, returned
from flamecore.model.vertices import Broadcast, ByKey, Grouping, Map, Merge, Vertex

_FIRST: Final = 100
"""Number of first records of each source, if times are a count; each partition has its part of them, at least one."""
_FIRST_US: Final = 100_000
"""Microseconds from the start of a worker with first records, if times are those of the wall clock."""

_UNFINISHED: Final = (CoroutineType, GeneratorType, AsyncGeneratorType)
_PLAIN: Final = frozenset((str, bytes, int, float, bool, complex, type(None)))
"""Classes whose values cannot be changed."""

_CLASSES: Final = 100
"""Most classes of a function's results that are cached."""

Function = Callable[..., Any]

_MADE: Final = ("one", "many", "timed")
"""Shapes of maps that make payloads; others pass on those they are given."""


# Tried at the first records, because a value without a codec was found only when it was stored or
# sent: late, without its record, and on one worker perhaps never.
class Encodes(NamedTuple):
    """Functions that encode a value or raise `CodecError`.

    None: such values stay as they are.

    Attributes:
        kept: Function for values that a snapshot stores.
        sent: Function for values that go to other processes.
    """

    kept: Function | None = None
    sent: Function | None = None

    def of_payloads(self, graph: Graph, vertex: Vertex) -> Function | None:
        """Return the function for the payloads that a vertex makes.

        It depends on where they go, on any number of workers.
        """
        # Beside the list, which is only iterated: a search in it made long rows of filters cubic.
        ways, seen = [vertex], {vertex}
        for start in ways:
            for end in graph.successors(start):
                if self.sent is not None and end.route is not None:
                    return self.sent
                if self.kept is not None and isinstance(end, Grouping) and end.keeps_state:
                    return self.kept
                passes = not end.stateful and not (isinstance(end, Map) and end.shape in _MADE)
                if passes and end not in seen:
                    seen.add(end)
                    ways.append(end)
        return None

    def of_states(self, vertex: Vertex) -> Function | None:
        """Return the one for the states of a vertex."""
        return self.kept if vertex.keeps_state else None


NOT_ENCODED: Final = Encodes()
"""The functions where all values stay as they are."""


def early_orders(plan: Plan) -> list[bytes]:
    """Return the order below which records are first ones; empty if there are none."""
    if plan.settings.checks:
        return []  # all records meet strict vertices
    # The first of a source, not of each partition: of 200 files with 200 lines each, half of all records would meet
    # strict functions, which cost several times what plain ones do.
    if plan.settings.clock == "sequence":
        end = max(_FIRST * len(plan.graph.sources) // max(len(plan.fronts), 1), 1)
    else:
        end = WALL_CLOCK.get()() + _FIRST_US
    return [encode_time(end)] if plan.start < end else []


def strict_vertex(vertex: Vertex, plan: Plan, encodes: Encodes = NOT_ENCODED) -> Vertex:
    """Return a copy of a vertex whose functions make the checks of the plan.

    By default they check the types of results, without their contents; and that those which have to be encoded can be.
    """
    depth = 1 if plan.settings.check_types else 0
    # A copy beside the vertex: after the first records the plain functions run, at no cost but a
    # look at `early`.
    made: Any = copy.copy(vertex)
    if isinstance(vertex, Map):
        made.function = _map_function(vertex, depth, encodes.of_payloads(plan.graph, vertex))
    elif isinstance(vertex, Drift):
        state = ResultTest(vertex.types.state, depth, "new state", encodes.of_states(vertex))
        output = ResultTest(vertex.types.output, depth, encode=encodes.of_payloads(plan.graph, vertex))
        if vertex.accumulate is not None:
            made.accumulate = _checked(vertex.accumulate, state)
        made.advance = _advancing(vertex.advance, state, output, vertex.accumulate or vertex.advance)
    # Without the setting, too, where another branch has the same object: its outputs would be wrong without a word.
    if plan.settings.check_mutation or (isinstance(vertex, Map) and _is_shared(plan.graph, vertex)):
        for name in vertex.functions:
            if (function := getattr(made, name)) is not None:
                setattr(made, name, unchanging(function, getattr(vertex, name)))
        if isinstance(vertex, Ordered) and plan.settings.check_mutation:
            made = made.wrapped(lambda function: unchanging(function, function))
    if plan.settings.checks and isinstance(vertex.route, ByKey):
        key, place = vertex.route.key, vertex.route.place
        made.route = ByKey(_strict_key(key, "key", plan), None if place is None else _strict_key(place, "place", plan))
    strict: Vertex = made
    return strict


def _is_shared(graph: Graph, vertex: Vertex) -> bool:
    """Return whether another branch has the very objects that come to a vertex."""
    found, waiting = {vertex}, [vertex]
    while waiting:
        for before in graph.predecessors(waiting.pop()):
            if isinstance(before, Broadcast):
                return True
            passes = isinstance(before, Merge) or (isinstance(before, Map) and before.shape not in _MADE)
            if passes and before not in found:
                found.add(before)
                waiting.append(before)
    return False


def _strict_key(function: Function, what: str, plan: Plan) -> Function:
    checked = function
    if plan.settings.check_types:
        checked = _checked(function, ResultTest(returned(function), 1, what))
    return unchanging(checked, function) if plan.settings.check_mutation else checked


# -- results -----------------------------------------------------------------------------------------------------------


class ResultTest:
    """A test that returns why a value is not of a declared type; empty if it is.

    Args:
        hint: The type.
        depth: Depth of the check.
        what: Role of the value, for errors.
        encode: Function that encodes the first value of each class; None: none has to be encoded.

    Attributes:
        passed: Classes whose values all pass, and need no test.
    """

    __slots__ = ("_encode", "_encoded", "_fits", "_hint", "_what", "passed")

    def __init__(self, hint: object, depth: int, what: str = "result", encode: Function | None = None) -> None:
        self._hint, self._what = hint, what
        self._fits = None if hint is object else TypeMatcher(depth).test_of(hint)
        self._encode = encode
        self._encoded: set[type] = set()
        self.passed: set[type] = set()

    def __call__(self, value: object) -> str:
        if isinstance(value, _UNFINISHED):
            kind = type(value).__name__.replace("_", " ")
            if isinstance(value, CoroutineType | GeneratorType):
                value.close()  # otherwise Python warns, much later, that it was never awaited
            return f"its {self._what} is a {kind}, which is never awaited or iterated"
        if self._encode is not None and type(value) not in self._encoded and value is not MISSING:
            if wrong := unencodable(self._encode, value):
                return f"its {self._what} {wrong}"
            if len(self._encoded) < _CLASSES:
                self._encoded.add(type(value))
        if self._fits is None:
            # The class says whether a result is unfinished: in a search that one record sets off, all calls are of
            # first records.
            if len(self.passed) < _CLASSES:
                self.passed.add(type(value))
            return ""
        if self._fits(value) or value is MISSING:
            return ""
        return (
            f"its {self._what} is {shorten_repr(value)}, a {type(value).__qualname__}, declared {hint_text(self._hint)}"
        )


def _checked(function: Function, test: ResultTest) -> Function:
    """Return a function that refuses wrong results."""
    passed = test.passed

    @wraps(function, updated=())
    def strict(*arguments: object) -> object:
        result = function(*arguments)
        if type(result) not in passed and (wrong := test(result)):
            raise FlowMistake(wrong + _place_of(function))
        return result

    return strict


def unencodable(encode: Function, value: object) -> str:
    """Return why a value cannot be encoded, and a remedy; empty if it can be.

    The text is the rest of a sentence.
    """
    try:
        encode(value)
    except CodecError as error:
        return f"has to be encoded: {error.what}. {error.hint}"
    return ""


def _map_function(vertex: Map, depth: int, encode: Function | None) -> Function:
    function = vertex.function
    if vertex.shape == "one":
        return _checked(function, ResultTest(returned(function), depth, encode=encode))
    if vertex.shape != "many":
        return _checked(function, ResultTest(object, depth, encode=encode if vertex.shape in _MADE else None))
    test = ResultTest(element(returned(function)), depth, encode=encode)
    passed = test.passed

    @wraps(function, updated=())
    def strict(payload: object) -> list[object]:
        outputs = list(function(payload))
        if not passed.issuperset(map(type, outputs)):
            for output in outputs:
                if wrong := test(output):
                    raise FlowMistake(wrong + _place_of(function))
        return outputs

    return strict


def _advancing(advance: Function, state: ResultTest, output: ResultTest, named: Function) -> Function:
    states, passed = state.passed, output.passed

    @wraps(advance, updated=())
    def strict(before: object, payload: object) -> tuple[object, Iterable[object]]:
        after, outputs = advance(before, payload)
        found = list(outputs)
        if type(after) not in states and (wrong := state(after)):
            raise FlowMistake(wrong + _place_of(named))
        if not passed.issuperset(map(type, found)) and (wrong := next(filter(None, map(output, found)), "")):
            raise FlowMistake(wrong + _place_of(named))
        return after, found

    return strict


def _place_of(function: Function) -> str:
    """Return the location of a user's function as text; empty for engine and C code."""
    code = getattr(unwrap(function), "__code__", None)
    if code is None or getattr(function, "__module__", "").startswith("flamecore."):
        return ""
    return f" ({function.__qualname__}, {code.co_filename}:{code.co_firstlineno})"


# -- arguments ---------------------------------------------------------------------------------------------------------


def unchanging(function: Function, named: Function) -> Function:
    """Return a function that refuses changes of its arguments.

    Args:
        function: Function to call.
        named: The user's function, for errors.
    """

    @wraps(function, updated=())
    def strict(*arguments: object) -> object:
        # Written out, not copied: a copy can share what is in it, and be equal to it by a class's
        # own rule.
        before = [_image_of(argument) for argument in arguments]
        result = function(*arguments)
        if isinstance(result, GeneratorType):
            result = list(result)  # a generator may change them while it runs
        for argument, image in zip(arguments, before, strict=True):
            if image and image != _image_of(argument):
                raise FlowMistake(
                    f"it has changed its argument, which is {shorten_repr(argument)} now; others share it, and a "
                    f"repair hands it out again{_place_of(named)}"
                )
        return result

    return strict


def _image_of(value: object) -> bytes:
    """Return bytes that differ once a value has changed; empty if unknown.

    They are also empty for values that cannot change.
    """
    if type(value) in _PLAIN:
        return b""
    try:
        return pickle.dumps(value, pickle.HIGHEST_PROTOCOL)  # compared only, and never read
    except Exception:  # noqa: BLE001 - values that cannot be pickled are not checked
        return b""


# -- the first records -------------------------------------------------------------------------------------------------


def early_run(strict: Run, plain: Run, early: Sequence[bytes]) -> Run:
    """Return a run that sends first records to `strict` and all others to `plain`.

    See `Site.early`.
    """

    def run(orders: Orders, trace: int, payloads: Sequence[object]) -> None:
        if not early or orders[0] >= early[0]:
            return plain(orders, trace, payloads)
        count = bisect_left(orders, early[0])
        strict(orders[:count], trace, payloads[:count])
        if count < len(orders):
            plain(orders[count:], trace, payloads[count:])
        return None

    return run
