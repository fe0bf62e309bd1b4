"""The operators of map, broadcast and merge.

Child ids are appended in the order of outputs (paper 000, "Ordering model").
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import compress, islice
from typing import Any, Final, NamedTuple

from flamecore.abc.operator import NEVER_OVER, Fail, Operator, Round, Run, Site, Step
from flamecore.model.batch import AllBut, Orders, children, chosen, extended, many_of, selected, within
from flamecore.model.meta import CHILD, Meta, child_codes, decode_time, encode_child
from flamecore.model.vertices import Broadcast, Map, Merge
from flamecore.runtime.operators.strict import early_run

_ONLY = CHILD[0]

Function = Callable[..., Any]

_LONG: Final = 4096
"""Number of outputs after which they are emitted: memory must not grow with all outputs of a run."""

_SAMPLE: Final = 32
"""Number of values whose results are taken for those of most values of a run."""

_MANY: Final = 4 * _SAMPLE
"""Least number of values of which a sample is looked at first."""

_RARE: Final = 4
"""Values are rare if they are fewer than one in this number."""


class MapOperator(Operator):
    """The operator of a map: its compiled step and run."""

    def __init__(self, vertex: Map, site: Site) -> None:
        strict = site.strict if isinstance(site.strict, Map) else vertex
        early = site.early
        self.step = map_step(vertex, site.ident, site.emit, site.fail, strict.function, early)
        self.run = map_run(vertex, site.ident, site.emit_run, site.fail, site.round)
        if early:
            first = map_run(strict, site.ident, site.emit_run, site.fail, site.round)
            self.run = early_run(first, self.run, early)


class BroadcastOperator(Operator):
    """The operator of a broadcast.

    Copies that may meet again are emitted one by one, so that they meet in order.
    """

    def __init__(self, vertex: Broadcast, site: Site) -> None:
        self.step = broadcast_step([way.step for way in site.ways])
        if site.apart:
            self.run = broadcast_run([way.run for way in site.ways])


class MergeOperator(Operator):
    """The operator of a merge: it changes nothing, so it is that of its successor."""

    def __init__(self, vertex: Merge, site: Site) -> None:
        self.step, self.run = site.emit, site.emit_run


def map_step(
    vertex: Map, ident: int, emit: Step, fail: Fail, strict: Function | None = None, early: Sequence[bytes] = ()
) -> Step:
    """Compile a map.

    Args:
        vertex: The map.
        ident: The random id of this physical instance, folded into the trace.
        emit: Step that takes the outputs.
        fail: Failure handler of items that the function fails on.
        strict: Function called instead for items whose order is below that in `early`.
        early: See `Site.early`. Reading it costs less than a call.
    """
    shapes: Mapping[str, Callable[[Function, Function, Sequence[bytes], int, Step, Fail], Step]] = {
        "many": _many,
        "one": _one,
        "timed": _timed,
        "filter": _filter,
        "inspect": _inspect,
        "inspect_meta": _inspect_meta,
    }
    return shapes[vertex.shape](vertex.function, strict or vertex.function, early, ident, emit, fail)


def _many(function: Function, strict: Function, early: Sequence[bytes], ident: int, emit: Step, fail: Fail) -> Step:
    def step(order: bytes, trace: int, alive: bool, payload: object) -> None:
        # The outputs are complete before the first is emitted: an error half-way emits none of them.
        try:
            outputs = list((strict if early and order < early[0] else function)(payload))
        except Exception as error:  # noqa: BLE001 - errors of user code are shown to the user
            return fail(order, trace, alive, payload, error)
        trace ^= ident
        for child, output in zip(child_codes(len(outputs)), outputs, strict=True):
            emit(order + child, trace, alive, output)
        return None

    return step


def _one(function: Function, strict: Function, early: Sequence[bytes], ident: int, emit: Step, fail: Fail) -> Step:
    def step(order: bytes, trace: int, alive: bool, payload: object) -> None:
        try:
            output = (strict if early and order < early[0] else function)(payload)
        except Exception as error:  # noqa: BLE001 - as above
            return fail(order, trace, alive, payload, error)
        return emit(order + _ONLY, trace ^ ident, alive, output)

    return step


def _timed(function: Function, strict: Function, early: Sequence[bytes], ident: int, emit: Step, fail: Fail) -> Step:
    def step(order: bytes, trace: int, alive: bool, payload: object) -> None:
        try:
            output = (strict if early and order < early[0] else function)(payload, decode_time(order))
        except Exception as error:  # noqa: BLE001 - as above
            return fail(order, trace, alive, payload, error)
        return emit(order + _ONLY, trace ^ ident, alive, output)

    return step


def _filter(function: Function, strict: Function, early: Sequence[bytes], ident: int, emit: Step, fail: Fail) -> Step:
    def step(order: bytes, trace: int, alive: bool, payload: object) -> None:
        try:
            keep = bool((strict if early and order < early[0] else function)(payload))
        except Exception as error:  # noqa: BLE001 - as above
            return fail(order, trace, alive, payload, error)
        return emit(order + _ONLY, trace ^ ident, alive, payload) if keep else None

    return step


def _inspect(function: Function, strict: Function, early: Sequence[bytes], ident: int, emit: Step, fail: Fail) -> Step:
    def step(order: bytes, trace: int, alive: bool, payload: object) -> None:
        try:
            (strict if early and order < early[0] else function)(payload)
        except Exception as error:  # noqa: BLE001 - as above
            return fail(order, trace, alive, payload, error)
        return emit(order + _ONLY, trace ^ ident, alive, payload)

    return step


def _inspect_meta(
    function: Function, strict: Function, early: Sequence[bytes], ident: int, emit: Step, fail: Fail
) -> Step:
    def step(order: bytes, trace: int, alive: bool, payload: object) -> None:
        try:
            (strict if early and order < early[0] else function)(
                payload, Meta.decode(order, trace, tombstone=not alive)
            )
        except Exception as error:  # noqa: BLE001 - as above
            return fail(order, trace, alive, payload, error)
        return emit(order + _ONLY, trace ^ ident, alive, payload)

    return step


def map_run(vertex: Map, ident: int, emit: Run, fail: Fail, turn: Round = NEVER_OVER) -> Run:
    """Compile a map for runs.

    Args:
        vertex, ident, emit, fail: As for `map_step`.
        turn: The rounds with which a run ends.
    """
    shapes: Mapping[str, Callable[[Callable[..., object], int, Run, Fail, Round], Run]] = {
        "many": _run_of_many,
        "one": _run_of_one,
        "timed": _run_of_timed,
        "filter": _run_of_kept,
        "inspect": _run_of_seen,
        "inspect_meta": _run_of_seen_metas,
    }
    return shapes[vertex.shape](vertex.function, ident, emit, fail, turn)


def _run_of_many(function: Callable[[object], Any], ident: int, emit: Run, fail: Fail, turn: Round) -> Run:
    def run(orders: Orders, trace: int, payloads: Sequence[object]) -> None:
        places: list[int] = []
        counts: list[int] = []
        outputs: list[object] = []
        place = -1
        for place, payload in enumerate(turn.iterate(payloads)):
            try:
                found = function(payload)
                if type(found) is not list:
                    found = list(found)
            except Exception as error:  # noqa: BLE001 - as above
                fail(orders[place], trace, True, payload, error)
                continue
            if not found:
                continue
            places.append(place)
            counts.append(len(found))
            outputs += found
            if len(outputs) > _LONG:
                emit(children(selected(orders, places), counts), trace ^ ident, outputs)
                places, counts, outputs = [], [], []
        turn.finish()
        if outputs:
            emit(children(selected(orders, places), counts), trace ^ ident, outputs)
        if place + 1 < len(payloads):
            turn.leave(run, orders[place + 1 :], trace, payloads[place + 1 :])

    return run


def _run_of_one(function: Callable[[object], object], ident: int, emit: Run, fail: Fail, turn: Round) -> Run:
    many = many_of(function)

    def run(orders: Orders, trace: int, payloads: Sequence[object]) -> None:
        if many is not None and not turn.is_over:
            try:
                made = many(payloads)
            except Exception:  # noqa: BLE001 - the function fails on one of them, too
                made = ()
            if len(made) == len(payloads):
                emit(extended(orders, _ONLY), trace ^ ident, made)
                return
        outputs: list[object] = []
        failed: list[int] = []
        values, call, put = within(function, payloads)
        left = turn.iterate(values)
        while True:
            # One `try` for all payloads, not one for each, which costs a cheap function some of its time. Not a
            # comprehension, nor `map`: outputs before an error would have to be made again, or `StopIteration` would
            # end them without a word.
            try:
                for value in left:
                    outputs.append(call(value))  # noqa: PERF401 - see above
                break
            except Exception as error:  # noqa: BLE001 - as above
                # Those before it that failed count, too: `outputs` has no entry for these.
                place = len(outputs) + len(failed)
                failed.append(place)
                fail(orders[place], trace, True, payloads[place], error)
        turn.finish()
        rest = None
        if (done := len(outputs) + len(failed)) < len(orders):
            rest = orders[done:], trace, payloads[done:]
            orders, payloads = orders[:done], payloads[:done]
        if failed:
            gone = set(failed)
            places = [at for at in range(len(orders)) if at not in gone]
            orders = selected(orders, places)
            if put is not None:
                payloads = chosen(payloads, places, [payloads[at] for at in places])
        if outputs:
            emit(extended(orders, _ONLY), trace ^ ident, outputs if put is None else put(payloads, outputs))
        if rest is not None:
            turn.leave(run, *rest)

    return run


def _run_of_timed(function: Callable[[object, int], object], ident: int, emit: Run, fail: Fail, turn: Round) -> Run:
    def run(orders: Orders, trace: int, payloads: Sequence[object]) -> None:
        times = map(decode_time, orders)
        _run_of_one(lambda payload: function(payload, next(times)), ident, emit, fail, turn)(orders, trace, payloads)

    return run


def _run_of_kept(function: Callable[[object], object], ident: int, emit: Run, fail: Fail, turn: Round) -> Run:
    many = many_of(function)

    def run(orders: Orders, trace: int, payloads: Sequence[object]) -> None:
        if many is not None and not turn.is_over and (found := _kept_of(many, payloads)) is not None:
            if found:
                if len(found) < len(payloads):
                    payloads = chosen(payloads, found, [payloads[place] for place in found])
                emit(extended(selected(orders, found), _ONLY), trace ^ ident, payloads)
            return
        values, test, _ = within(function, payloads)
        kept: list[object] = []
        left = turn.iterate(values)
        done, places = _keep(test, left, len(values), kept, _failing(fail, orders, trace, payloads))
        turn.finish()
        rest = None
        if done < len(payloads):
            rest = orders[done:], trace, payloads[done:]
            orders, payloads = orders[:done], payloads[:done]
        if len(kept) < len(payloads):
            if values is not payloads:
                kept = [payloads[at] for at in places]
            payloads = chosen(payloads, places, kept)
        if kept:
            emit(extended(selected(orders, places), _ONLY), trace ^ ident, payloads)
        if rest is not None:
            turn.leave(run, *rest)

    return run


Failed = Callable[[int, Exception], None]
"""Function called with the place of a payload that a function fails on, and the error."""


def _failing(fail: Fail, orders: Orders, trace: int, payloads: Sequence[object]) -> Failed:
    """Return the function for the failed ones of some live payloads."""
    return lambda place, error: fail(orders[place], trace, True, payloads[place], error)


# To note the number of each value that is kept takes as long as a short test. So only those are noted that fare unlike
# most of the first ones.
def _keep(
    test: Callable[[object], object], left: Iterator[object], count: int, kept: list[object], failed: Failed
) -> tuple[int, Sequence[int]]:
    """Append the values that a filter keeps; return how many were tested, and the places of those that are kept.

    Args:
        test: The filter's function.
        left: The values, up to the end of the round.
        count: Their number, if the round does not end.
        kept: The list of those kept.
        failed: Failure handler.
    """
    places: list[int] = []
    done = _keep_some(test, islice(left, _SAMPLE) if count >= _MANY else left, 0, kept, places, failed)
    if done < min(_SAMPLE, count) or count < _MANY:
        return done, places
    if (_SAMPLE - len(places)) * _RARE > _SAMPLE:
        return _keep_some(test, left, done, kept, places, failed), places
    dropped = sorted({*range(_SAMPLE)}.difference(places))
    while True:
        try:
            for done, value in enumerate(left, done + 1):  # noqa: B020 - it goes on from there
                if test(value):
                    kept.append(value)
                else:
                    dropped.append(done - 1)
            return done, AllBut(dropped, done)
        except Exception as error:  # noqa: BLE001 - as above
            dropped.append(done - 1)
            failed(done - 1, error)


def _keep_some(
    test: Callable[[object], object],
    left: Iterator[object],
    done: int,
    kept: list[object],
    places: list[int],
    failed: Failed,
) -> int:
    """Append the values that a filter keeps, and their places; return how many have been tested.

    Args:
        test, left, kept, failed: As for `_keep`.
        done: Number of values tested before.
        places: The list of the places.
    """
    while True:
        try:
            for done, value in enumerate(left, done + 1):  # noqa: B020 - it goes on from there
                if test(value):
                    kept.append(value)
                    places.append(done - 1)
            return done
        except Exception as error:  # noqa: BLE001 - as above
            failed(done - 1, error)


def _kept_of(many: Callable[[Sequence[object]], Sequence[object]], payloads: Sequence[object]) -> list[int] | None:
    """Return the places of the payloads that a filter keeps; None: they have to be looked at one by one."""
    try:
        found = many(payloads)
        return [*compress(range(len(payloads)), found)] if len(found) == len(payloads) else None
    except Exception:  # noqa: BLE001 - the function fails on one of them, too
        return None


def _run_of_seen(function: Callable[[object], object], ident: int, emit: Run, fail: Fail, turn: Round) -> Run:
    def seen(payload: object) -> bool:
        function(payload)
        return True

    return _run_of_kept(seen, ident, emit, fail, turn)


def _run_of_seen_metas(
    function: Callable[[object, Meta], object], ident: int, emit: Run, fail: Fail, turn: Round
) -> Run:
    def run(orders: Orders, trace: int, payloads: Sequence[object]) -> None:
        metas = (Meta.decode(order, trace) for order in orders)

        def seen(payload: object) -> bool:
            function(payload, next(metas))
            return True

        _run_of_kept(seen, ident, emit, fail, turn)(orders, trace, payloads)

    return run


def broadcast_step(successors: Sequence[Step]) -> Step:
    """Return a step that copies items to every successor.

    The i-th copy appends child id i. The trace stays: copies differ by child id.
    """
    ways = [(encode_child(number), emit) for number, emit in enumerate(successors)]

    def step(order: bytes, trace: int, alive: bool, payload: object) -> None:
        for child, emit in ways:
            emit(order + child, trace, alive, payload)

    return step


class Leg(NamedTuple):
    """A way from a broadcast through a filter to its successor.

    Attributes:
        code: Codes that the two append to an order.
        ident: Id of the filter's instance.
        emit: Step that takes the items that the filter passes.
    """

    code: bytes
    ident: int
    emit: Step


def choice_step(
    plain: Step, predicate: Function, strict: Function, early: Sequence[bytes], kept: Leg, left: Leg
) -> Step:
    """Return a step that sends each item through one of two complementary filters.

    It calls the function of the first once, and makes no copy that would be dropped.

    Args:
        plain: Step of the broadcast, for items that the function fails on, so that each filter fails.
        predicate, strict, early: See `map_step`.
        kept, left: The ways through the two.
    """

    def step(order: bytes, trace: int, alive: bool, payload: object) -> None:
        try:
            chosen = kept if (strict if early and order < early[0] else predicate)(payload) else left
        except Exception:  # noqa: BLE001 - the filters fail too, and report it
            return plain(order, trace, alive, payload)
        code, ident, emit = chosen
        return emit(order + code, trace ^ ident, alive, payload)

    return step


def broadcast_run(successors: Sequence[Run]) -> Run:
    """Return a run that copies runs to every successor, one after the other."""
    ways = [(encode_child(number), emit) for number, emit in enumerate(successors)]

    # Copy by copy, not item by item: the compiler gives this run only to broadcasts whose ways
    # never meet again.
    def run(orders: Orders, trace: int, payloads: Sequence[object]) -> None:
        for child, emit in ways:
            emit(extended(orders, child), trace, payloads)

    return run
