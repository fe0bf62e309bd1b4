"""The rules of the two metas: what an operation writes, what an arrival replaces, and what breaks a law."""

from __future__ import annotations

import pytest

from flamecore.errors import DuplicateItemError, NoInvalideeError
from flamecore.model.meta import DataItem, GlobalTime, Meta
from flamecore.testing.models.local_times import LocalTime, LocalTimes, LocalTimesMeta
from flamecore.testing.models.ordering import Instance
from flamecore.testing.models.tombstones import Tombstones

TODAY, EARLIER = Tombstones(), LocalTimes()


def later(time: int, *trace: tuple[int, int]) -> LocalTimesMeta:
    return LocalTimesMeta(GlobalTime(time, 1), tuple(LocalTime(*element) for element in trace))


def earlier_item(time: int, *trace: tuple[int, int]) -> DataItem:
    return DataItem(later(time, *trace).order, 0, True, "payload")


def item(time: int, *child_ids: int, trace: int = 0, alive: bool = True, payload: object = "payload") -> DataItem:
    return DataItem(Meta(GlobalTime(time, 1), child_ids).order, trace, alive, payload)


# -- local times -------------------------------------------------------------------------------------------------------


def test_case_20_the_invalidation_relation() -> None:
    assert later(1, (2, 0)).invalidates(later(1, (1, 0)))
    assert not later(1, (1, 0)).invalidates(later(1, (2, 0)))
    assert not later(1, (1, 1)).invalidates(later(1, (1, 0))), "siblings are unrelated"
    assert not later(1, (1, 0), (1, 0)).invalidates(later(1, (1, 0))), "derived from the other: unrelated"
    assert not later(2, (2, 0)).invalidates(later(1, (1, 0))), "another global time: unrelated"


def test_the_relation_is_never_lost_on_the_way() -> None:
    """Traces only grow, so what was invalid stays invalid whatever operations append."""
    old, new = later(1, (1, 0)), later(1, (2, 0))
    for element in (LocalTime(9, 3), LocalTime(1, 0)):
        old = old._replace(trace=(*old.trace, element))
        assert new.invalidates(old)
        new = new._replace(trace=(*new.trace, LocalTime(1, 0)))
        assert new.invalidates(old)


def test_orders_sort_as_the_spelled_out_meta_does() -> None:
    metas = [later(1), later(1, (1, 0)), later(1, (1, 0), (300, 0)), later(1, (1, 1)), later(1, (256, 0)), later(2)]
    assert sorted(metas, key=lambda meta: meta.order) == metas
    assert [LocalTimesMeta.decode(meta.order) for meta in metas] == metas


def test_one_tick_for_each_processed_item() -> None:
    instance = Instance(ident=5)
    first = EARLIER.images(instance, earlier_item(1), ["a", "b"])
    (second,) = EARLIER.copies(instance, earlier_item(1), 1)
    assert [EARLIER.meta(image) for image in (*first, second)] == [later(1, (1, 0)), later(1, (1, 1)), later(1, (2, 0))]
    assert [image.payload for image in first] == ["a", "b"]
    assert EARLIER.meta(EARLIER.merged(instance, earlier_item(1))) == later(1, (3, 0))


def test_an_arrival_drops_all_that_it_invalidates() -> None:
    siblings = [earlier_item(1, (1, 0)), earlier_item(1, (1, 1))]
    others = [earlier_item(2, (1, 0)), earlier_item(1)]
    held = [*siblings, *others]
    newer = earlier_item(1, (2, 0))
    EARLIER.meet(held, newer)
    assert held == [*others, newer]


def test_an_arrival_that_is_invalidated_already_is_dropped() -> None:
    held = [earlier_item(1, (2, 0))]
    EARLIER.meet(held, earlier_item(1, (1, 0)))
    assert held == [earlier_item(1, (2, 0))]


def test_local_times_cannot_say_what_is_gone() -> None:
    a, b, c = (earlier_item(time) for time in (1, 2, 3))
    emitted = EARLIER.windows(Instance(ident=5), gone=[(a, c)], come=[(a, b), (b, c)])
    assert [EARLIER.meta(window) for window in emitted] == [later(2, (1, 0)), later(3, (1, 0))]
    assert EARLIER.windows(Instance(ident=5), gone=[(a, c)], come=[]) == []


# -- tombstones --------------------------------------------------------------------------------------------------------


def test_a_map_appends_child_ids_and_keeps_the_flag() -> None:
    images = TODAY.images(Instance(ident=5), item(1, 7, trace=1, alive=False), ["a", "b"])
    assert images == [
        item(1, 7, 0, trace=4, alive=False, payload="a"),
        item(1, 7, 1, trace=4, alive=False, payload="b"),
    ]
    assert [TODAY.meta(image).child_ids for image in images] == [(7, 0), (7, 1)]


def test_a_broadcast_appends_child_ids_and_leaves_the_trace() -> None:
    assert TODAY.copies(Instance(ident=5), item(1, trace=1), 2) == [item(1, 0, trace=1), item(1, 1, trace=1)]


def test_a_removal_is_cancelled_before_its_successor_comes() -> None:
    a, b, c = (item(time, trace=time, payload=time) for time in (1, 2, 3))
    assert TODAY.windows(Instance(ident=8), gone=[(a, c)], come=[(a, b), (b, c)]) == [
        item(3, trace=11, alive=False, payload=(1, 3)),
        item(2, trace=10, payload=(1, 2)),
        item(3, trace=11, payload=(2, 3)),
    ]


def test_a_tombstone_takes_out_its_victim_and_no_twin() -> None:
    victim, twin = item(1, trace=1, payload="old"), item(1, trace=2, payload="new")
    held = [victim, twin]
    TODAY.meet(held, victim._replace(alive=False))
    assert held == [twin]


def test_case_13_a_tombstone_without_victim_and_a_second_live_item_break_a_law() -> None:
    with pytest.raises(NoInvalideeError, match="is not there"):
        TODAY.meet([item(1, trace=1)], item(1, trace=2, alive=False))
    with pytest.raises(DuplicateItemError, match="second live item"):
        TODAY.meet([item(1, trace=1)], item(1, trace=1, payload="other"))
