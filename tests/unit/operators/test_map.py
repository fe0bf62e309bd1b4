"""Map and broadcast: child ids in the order of outputs, the trace, the flag of tombstones, failing functions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from flamecore.abc.operator import each
from flamecore.model.meta import GlobalTime, Meta
from flamecore.model.vertices import Map, MapShape, ToAll
from flamecore.runtime.operators.exchange import Outbox, routed
from flamecore.runtime.operators.map import broadcast_step, map_step

ITEM = Meta(GlobalTime(3, 1), (4,), 0b1010)
IDENT = 0b0110


class Behind:
    """Takes what a step emits and what fails."""

    def __init__(self) -> None:
        self.emitted: list[tuple[Meta, Any]] = []
        self.failed: list[tuple[Meta, Any, Exception]] = []

    def emit(self, order: bytes, trace: int, alive: bool, payload: Any) -> None:
        self.emitted.append((Meta.decode(order, trace, tombstone=not alive), payload))

    def fail(self, order: bytes, trace: int, alive: bool, payload: Any, error: Exception) -> None:
        self.failed.append((Meta.decode(order, trace, tombstone=not alive), payload, error))


def mapped(shape: MapShape, function: Callable[[Any], Any], payload: Any, item: Meta = ITEM) -> Behind:
    behind = Behind()
    step = map_step(Map("map", function=function, shape=shape), IDENT, behind.emit, behind.fail)
    step(item.order, item.trace, not item.tombstone, payload)
    return behind


def child(number: int, item: Meta = ITEM) -> Meta:
    return item._replace(child_ids=(*item.child_ids, number), trace=item.trace ^ IDENT)


def test_case_18_ten_inputs_of_ten_outputs_keep_their_order() -> None:
    behind = Behind()
    step = map_step(Map("map", function=lambda n: [n] * 10), IDENT, behind.emit, behind.fail)
    for time in range(10):
        step(GlobalTime(time, 1).encode(), 0, True, time)
    assert [payload for _, payload in behind.emitted] == [number // 10 for number in range(100)]
    for number, (item, _) in enumerate(behind.emitted):
        assert item == Meta(GlobalTime(number // 10, 1), (number % 10,), IDENT)


@pytest.mark.parametrize("tombstone", [False, True])
@pytest.mark.parametrize(
    ("shape", "function", "outputs"),
    [
        ("many", lambda n: [n, n + 1, n + 2], [7, 8, 9]),
        ("many", lambda n: (), []),
        ("many", lambda n: (n for _ in range(2)), [7, 7]),
        ("many", lambda n: "ab", ["a", "b"]),
        ("one", lambda n: n + 1, [8]),
        ("one", lambda n: None, [None]),
        ("filter", lambda n: n == 7, [7]),
        ("filter", lambda n: n != 7, []),
        ("filter", lambda n: "truthy", [7]),
        ("inspect", lambda n: 12345, [7]),
        ("inspect_meta", lambda n, meta: 12345, [7]),
        ("timed", lambda n, time: (n, time), [(7, ITEM.global_time.time)]),
    ],
)
def test_every_output_appends_its_number_and_keeps_the_flag(
    shape: MapShape, function: Callable[[Any], Any], outputs: list[Any], tombstone: bool
) -> None:
    item = ITEM._replace(tombstone=tombstone)
    behind = mapped(shape, function, 7, item)
    assert behind.emitted == [(child(number, item), output) for number, output in enumerate(outputs)]
    assert behind.failed == []


@pytest.mark.parametrize("tombstone", [False, True])
def test_an_inspection_may_see_the_meta_that_the_item_came_with(tombstone: bool) -> None:
    item = ITEM._replace(tombstone=tombstone)
    seen: list[tuple[Any, ...]] = []
    mapped("inspect_meta", lambda *arguments: seen.append(arguments), 7, item)
    assert seen == [(7, item)]


def test_many_children_have_increasing_orders() -> None:
    behind = mapped("many", range, 1000)
    orders = [item.order for item, _ in behind.emitted]
    assert [item.child_ids for item, _ in behind.emitted] == [(4, number) for number in range(1000)]
    assert orders == sorted(orders)


def failing(payload: Any) -> Any:
    raise ValueError(f"no {payload}")


def failing_half_way(payload: Any) -> Iterator[Any]:
    yield payload
    raise ValueError(f"no second {payload}")


@pytest.mark.parametrize("tombstone", [False, True])
@pytest.mark.parametrize(
    ("shape", "function", "error"),
    [
        ("many", failing, ValueError),
        ("many", failing_half_way, ValueError),
        ("many", lambda n: n, TypeError),
        ("many", lambda n: None, TypeError),
        ("one", failing, ValueError),
        ("filter", failing, ValueError),
        ("inspect", failing, ValueError),
        ("inspect_meta", lambda n, meta: failing(n), ValueError),
        ("timed", lambda n, time: failing(n), ValueError),
    ],
)
def test_a_failing_function_leaves_no_output_and_the_record_goes_to_the_failures(
    shape: MapShape, function: Callable[[Any], Any], error: type[Exception], tombstone: bool
) -> None:
    item = ITEM._replace(tombstone=tombstone)
    behind = mapped(shape, function, 7, item)
    assert behind.emitted == []
    assert [(at, payload, type(what)) for at, payload, what in behind.failed] == [(item, 7, error)]


@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit])
def test_an_exit_of_the_program_is_no_failed_record(stop: type[BaseException]) -> None:
    def interrupted(_: Any) -> Any:
        raise stop

    with pytest.raises(stop):
        mapped("one", interrupted, 7)


def test_an_error_behind_a_map_is_not_its_own() -> None:
    """Errors of the next operations, such as a broken law, pass through."""

    def broken(*_: Any) -> None:
        raise LookupError("behind")

    for shape, function in (("one", abs), ("many", range), ("filter", bool), ("inspect", abs)):
        behind = Behind()
        step = map_step(Map("map", function=function, shape=shape), IDENT, broken, behind.fail)  # type: ignore[arg-type]
        with pytest.raises(LookupError, match="behind"):
            step(ITEM.order, ITEM.trace, True, 7)
        assert behind.failed == []


@pytest.mark.parametrize("tombstone", [False, True])
def test_a_broadcast_numbers_its_copies_and_leaves_the_trace(tombstone: bool) -> None:
    item = ITEM._replace(tombstone=tombstone)
    behind = Behind()
    broadcast_step([behind.emit] * 3)(item.order, item.trace, not tombstone, "payload")
    assert behind.emitted == [(item._replace(child_ids=(4, number)), "payload") for number in range(3)]


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_a_copy_for_every_worker_bears_its_ordinal(workers: int) -> None:
    """Semantics 1.3, broadcast to all workers: the trace stays, also when there is only one."""
    for here in range(workers):
        behind = Behind()
        outboxes = [Outbox() for _ in range(workers)]
        vertex = Map("map", route=ToAll(), index=5, function=abs)
        step, _ = routed(
            vertex,
            behind.emit,
            each(behind.emit),
            worker=here,
            owners=[0] * 128,
            outboxes=outboxes,
            fail=behind.fail,
        )
        step(ITEM.order, ITEM.trace, True, "payload")
        assert behind.emitted == [(ITEM._replace(child_ids=(4, here)), "payload")]
        for owner, outbox in enumerate(outboxes):
            copy = ITEM._replace(child_ids=(4, owner))
            assert outbox.take() == ([] if owner == here else [(5, copy.trace, True, [copy.order], ["payload"])])
