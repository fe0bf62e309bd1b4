"""Orders of records and derived ones against the list of the same orders: whoever asks gets the same answers."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flamecore.errors import CodecError
from flamecore.model.batch import (
    AllBut,
    Ascending,
    DerivedOrders,
    Lines,
    Orders,
    RecordOrders,
    RowOrders,
    TailedOrders,
    ascending,
    children,
    extended,
    extremes,
    in_order,
    interleaved,
    joined,
    materialise,
    middle,
    pack,
    selected,
    sorted_together,
    stamped,
    stamped_rows,
    stretches,
    unpack,
    woven,
)
from flamecore.model.messages import Items, Released
from flamecore.model.meta import MAX_TIME, GlobalTime, encode_child, encode_time
from flamecore.runtime.codec.codec import Codec

CODE = encode_child(1) + encode_child(0)


def bases_of(count: int, start: int = 0) -> list[bytes]:
    return [GlobalTime(time, 1).encode() for time in range(start, start + count)]


def stamps(count: int, start: int = 0) -> Orders:
    """Return the orders of `bases_of`, not spelled out."""
    return RecordOrders(start, range(count), bases_of(1)[0][8:])


@st.composite
def derived(draw: st.DrawFn) -> tuple[Orders, list[bytes]]:
    """Orders, and the same ones in a list."""
    counts = draw(st.lists(st.one_of(st.integers(1, 3), st.integers(245, 260)), min_size=1, max_size=20))
    bases = draw(st.sampled_from((bases_of, stamps)))(len(counts))
    first = draw(st.integers(0, 2))
    orders = children(bases, counts, first, CODE[:1])
    wanted = [
        base + encode_child(number) + CODE[:1]
        for base, count in zip(bases, counts, strict=True)
        for number in range(first, first + count)
    ]
    for _ in range(draw(st.integers(0, 2))):
        orders, wanted = extended(orders, CODE), [order + CODE for order in wanted]
    if draw(st.booleans()):
        again = [draw(st.integers(1, 2))] * len(wanted)
        orders = children(orders, again)
        wanted = [order + encode_child(number) for order in wanted for number in range(again[0])]
    return orders, wanted


@st.composite
def of_records(draw: st.DrawFn) -> tuple[Orders, list[bytes]]:
    """Orders of records, some of which may have been selected or changed by maps, and the same ones in a list."""
    first, count = draw(st.integers(-300, 300)), draw(st.integers(1, 600))
    suffix = GlobalTime(0, draw(st.integers(1, 3))).encode()[8:]
    orders: Orders = RecordOrders(first, range(count), suffix)
    wanted = [encode_time(time) + suffix for time in range(first, first + count)]
    if fronts := draw(st.integers(0, 3)):
        suffixes = [GlobalTime(0, front).encode()[8:] for front in range(1, fronts + 1)]
        orders = stamped_rows(first, count, suffixes)
        wanted = [encode_time(time) + suffix for time in range(first, first + count) for suffix in suffixes]
    for step in draw(st.lists(st.sampled_from(("select", "most", "map", "slice", "look")), max_size=4)):
        if step == "map":
            orders, wanted = extended(orders, CODE), [order + CODE for order in wanted]
        elif step == "slice":
            start = draw(st.integers(0, len(wanted) - 1))
            orders, wanted = orders[start:], wanted[start:]
        elif step == "look":
            assert materialise(orders) == wanted
        else:
            every = 7 if step == "select" else 2
            chosen = [at for at in range(len(wanted)) if (at % every == 0) is (step == "select") or at == 0]
            gone = [at for at in range(1, len(wanted)) if at % every == 0]
            indexes = AllBut(gone, len(wanted)) if step == "most" and draw(st.booleans()) else chosen
            orders, wanted = selected(orders, indexes), [wanted[at] for at in chosen]
    return orders, wanted


@given(st.integers(0, 60), st.sets(st.integers(0, 59)))
def test_numbers_without_some_answer_as_a_list_does(size: int, gone: set[int]) -> None:
    wanted = [n for n in range(size) if n not in gone]
    numbers = AllBut(sorted(n for n in gone if n < size), size)
    assert len(numbers) == len(wanted)
    assert [*numbers] == wanted
    assert [numbers[at] for at in range(-len(wanted), len(wanted))] == wanted + wanted
    assert numbers[3:9] == wanted[3:9]
    for at in (len(wanted), -len(wanted) - 1):
        with pytest.raises(IndexError):
            numbers[at]
    assert repr(numbers) == repr(wanted)


anywhere = st.integers(-20_000, 20_000)


@given(
    st.one_of(derived(), of_records()),
    anywhere,
    anywhere,
    st.sampled_from((1, 1, 1, 2, -1)),
    st.integers(0, 20),
    st.booleans(),
)
def test_orders_answer_as_a_list_does(
    both: tuple[Orders, list[bytes]], start: int, stop: int, step: int, time: int, looked_at: bool
) -> None:
    orders, wanted = both
    length = len(wanted)
    assert len(orders) == length
    for at in (0, -1, start % length, start % length - length):
        assert orders[at] == wanted[at]
    for at in (length, -length - 1):
        with pytest.raises(IndexError):
            orders[at]
    start, stop = start % (length + 3), stop % (length + 3)
    for bounds in (slice(start, stop, step), slice(start - length, stop), slice(stop - start, None), slice(None, stop)):
        assert list(orders[bounds]) == wanted[bounds]
    for bound in (wanted[start % length], GlobalTime(time, 0).encode()):
        assert bisect_left(orders, bound) == bisect_left(wanted, bound)
        assert bisect_right(orders, bound) == bisect_right(wanted, bound)
    if looked_at:
        materialise(orders)
        assert orders[start:stop] == wanted[start:stop]
    assert [*orders] == wanted
    assert orders == wanted
    assert orders != wanted[1:]
    assert repr(orders) == repr(wanted)


@given(derived(), st.lists(st.integers(0, 5000), max_size=4))
def test_slices_join_to_the_same_orders(both: tuple[Orders, list[bytes]], cuts: list[int]) -> None:
    orders, wanted = both
    places = sorted({0, len(wanted), *[cut for cut in cuts if cut < len(wanted)]})
    parts = [orders[start:end] for start, end in pairwise(places)]
    assert joined(parts) == wanted


@given(st.one_of(derived(), of_records()), st.randoms(use_true_random=False))
def test_orders_can_be_selected(both: tuple[Orders, list[bytes]], random: Random) -> None:
    orders, wanted = both
    chosen = [at for at in range(len(wanted)) if random.choice((False, True, True))]
    some = [wanted[at] for at in chosen]
    found = selected(orders, chosen)
    assert len(found) == len(some)
    assert bool(found) == bool(some)
    assert extended(found, CODE) == [order + CODE for order in some]
    assert found == some


@pytest.mark.parametrize("code", [b"", CODE])
def test_orders_of_records_stay_so_in_runs_that_follow_one_another(code: bytes) -> None:
    orders = extended(stamps(400, 7), code) if code else stamps(400, 7)
    together = joined([orders[:100], orders[100:101], orders[101:]])
    assert isinstance(orders, (RecordOrders, DerivedOrders))
    assert isinstance(together, type(orders))
    assert orders._materialised is together._materialised is None, "nothing is spelled out"
    assert together == [order + code for order in bases_of(400, 7)]


@pytest.mark.parametrize("code", [b"", CODE])
def test_orders_of_records_that_do_not_follow_one_another_are_joined(code: bytes) -> None:
    other_front = RecordOrders(100, range(50), (2).to_bytes(4, "big"))
    some = RecordOrders(50, [*range(0, 50, 7)], bases_of(1)[0][8:])
    for parts in (
        [stamps(50), stamps(50, 51)],
        [stamps(50), other_front],
        [stamps(50), bases_of(50, 50)],
        [some, some],
    ):
        found = joined([extended(part, code) if code else part for part in parts])
        assert found == [order + code for part in parts for order in part]


@pytest.mark.parametrize("chosen", [1, 7])
def test_rows_of_one_set_of_fronts_stay_packed_when_they_are_joined(chosen: int) -> None:
    suffixes = [GlobalTime(0, front).encode()[8:] for front in (1, 2, 5)]
    parts = [selected(some, range(0, len(some), chosen)) for some in (stamped_rows(at, 20, suffixes) for at in (9, 29))]
    cut = joined([parts[0][2:], parts[1]])
    short = joined([parts[0][2:], parts[1][1:5]])
    found = joined(parts)
    wanted = [order for part in parts for order in [*part]]
    assert type(found) is RowOrders
    assert (type(found.places) is range) is (chosen == 1)
    assert found == wanted
    assert type(cut) is type(short) is RowOrders
    assert cut == wanted[2:]
    assert short == [*wanted[2 : len(parts[0])], *[*parts[1]][1:5]]


def test_rows_of_other_fronts_are_joined() -> None:
    one, other = ([GlobalTime(0, front).encode()[8:] for front in fronts] for fronts in ((1, 2), (1, 3)))
    parts = [stamped_rows(0, 20, one), stamped_rows(20, 20, other)]
    assert joined(parts) == [*parts[0], *parts[1]]


def test_times_beyond_64_bits_are_refused() -> None:
    assert stamped(MAX_TIME - 99, 100, b"")[-1] == GlobalTime(MAX_TIME).encode()[:8]
    for few_or_many in (2, 100):
        with pytest.raises(OverflowError):
            stamped(MAX_TIME, few_or_many, b"")


def test_filtered_orders_stay_packed() -> None:
    orders = extended(bases_of(100), CODE)
    some = extended(selected(orders, range(1, 100, 2)), CODE)
    assert type(orders) is type(some) is DerivedOrders
    assert (some.bases, some.tail) == (bases_of(100)[1::2], CODE * 2)
    assert orders._materialised is some._materialised is None


def test_slices_between_records_stay_packed() -> None:
    orders = children(bases_of(100), [10] * 100)
    parts = [orders[:300], orders[300:310], orders[310:]]
    assert [type(part) for part in parts] == [DerivedOrders] * 3
    together = joined(parts)
    assert type(together) is DerivedOrders
    assert (together.bases, together.counts) == (bases_of(100), [10] * 100)
    for each in (orders, *parts, together):
        assert type(each) is DerivedOrders
        assert each._materialised is None


@pytest.mark.parametrize(
    ("counts", "at"),
    [([10] * 10, 50), ([30] * 4, 60), ([60, 30, 10], 60), ([10, 30, 60], 40), ([90, 10], 90), ([10, 90], 10)],
)
def test_orders_are_parted_near_the_middle_between_records(counts: list[int], at: int) -> None:
    orders = children(bases_of(len(counts)), counts)
    assert middle(orders) == at
    assert isinstance(orders[:at], DerivedOrders)
    assert isinstance(orders[at:], DerivedOrders)


def test_orders_of_one_record_and_single_orders_are_parted_in_the_middle() -> None:
    assert middle(children(bases_of(1), [101])) == 50
    assert middle(extended(bases_of(101), CODE)) == 50
    assert middle(bases_of(3)) == 1


def test_empty_and_whole_slices_stay_packed() -> None:
    for orders in (children(bases_of(100), [10] * 100), extended(bases_of(100), CODE)):
        assert orders[5:5] == []
        assert orders[7:2] == []
        assert orders[:] is orders
        assert type(orders) is DerivedOrders
        assert orders._materialised is None


def test_orders_of_different_forms_are_joined() -> None:
    bases = bases_of(80)
    parts = [bases[:40], children(bases[40:60], [2] * 20), extended(bases[60:], CODE)]
    assert joined(parts) == [order for part in parts for order in part]
    assert joined([]) == []


def test_few_orders_are_a_plain_list() -> None:
    assert type(children(bases_of(2), [1, 2])) is list
    assert type(extended(bases_of(2), CODE)) is list


@given(derived())
def test_packed_orders_are_encoded_as_they_are(both: tuple[Orders, list[bytes]]) -> None:
    orders, wanted = both
    codec = Codec()
    for one in (orders, materialise(orders)):
        payloads = list(range(len(wanted)))
        items = codec.decode(codec.encode(Items([(1, 2, True, one, payloads), (3, 2, True, [b"x"], [1])], ())))
        assert items == Items([(1, 2, True, wanted, payloads), (3, 2, True, [b"x"], [1])], ())
        assert codec.decode(codec.encode(Released(0, 5, one, payloads, ()))) == Released(0, 5, wanted, payloads, [])


def test_ten_words_of_a_line_take_no_more_than_the_line() -> None:
    orders, codec = children(bases_of(100), [10] * 100), Codec()
    items = Items([(1, 2, True, orders, [0] * 1000)], ())
    assert len(codec.encode(items)) < 3000
    assert len(codec.encode(Items([(1, 2, True, materialise(orders), [0] * 1000)], ()))) > 15_000


@pytest.mark.parametrize(
    ("counts", "first"),
    [([], 0), ([1], 0), ([1, 0], 0), ([1, -1], 0), ([2**62, 2**62], 0), ([1, 2**40], 0), ([1, 1], -1), ([1, 1], 2**63)],
)
def test_senseless_packed_orders_are_refused(counts: list[int], first: int) -> None:
    codec = Codec()
    honest = codec.encode(Released(0, 5, children(bases_of(40), [2] * 40), [0] * 80, ()))
    broken = DerivedOrders(bases_of(40), [2] * 40)
    broken.bases, broken.counts, broken.first = bases_of(2), counts, first
    bad = codec.encode(Released(0, 5, broken, [0] * 80, ()))
    assert len(codec.decode(honest).orders) == 80
    with pytest.raises(CodecError):
        codec.decode(bad)


def test_long_orders_are_unpacked() -> None:
    """A few bytes must not stand for many."""
    bases, long = bases_of(40), encode_child(0) * 100
    assert type(extended(bases, long)) is DerivedOrders
    assert type(children([base + long for base in bases], [2] * 40)) is DerivedOrders
    twice = extended(extended(bases, long), long)
    assert twice == [base + long + long for base in bases]
    for orders in (extended(bases, long * 2), children([base + long * 2 for base in bases], [2] * 40)):
        with pytest.raises(ValueError, match="more than 128 bytes"):
            unpack((bases, None, 0, long * 2))
        with pytest.raises(ValueError, match="more than 128 bytes"):
            unpack(([long * 2], [2], 0, b""))
        assert unpack(pack(orders)) == orders


def test_packed_orders_of_any_claimed_length_take_little_room() -> None:
    claimed = unpack((bases_of(2), [2**30, 2**30], 0, b""))
    assert len(claimed) == 2**31
    assert claimed[-1] == bases_of(2)[1] + encode_child(2**30 - 1)
    assert pack(claimed) == (bases_of(2), [2**30, 2**30], 0, b"")


@given(st.lists(st.sets(st.integers(0, 40), min_size=1), min_size=2, max_size=4), st.booleans(), st.randoms())
def test_runs_of_several_fronts_are_merged_line_by_line(times: list[set[int]], counted: bool, random: Random) -> None:
    runs: list[tuple[Orders, list[object]]] = []
    for front, some in enumerate(times, 1):
        bases = [GlobalTime(time, front).encode() for time in sorted(some)]
        counts = [random.choice((1, 2, 3, 250)) for _ in bases] if counted else None
        orders = DerivedOrders(bases, counts, 0, CODE)
        runs.append((orders, [(front, at) for at in range(len(orders))]))
    found = interleaved(runs)
    assert found is not None
    assert type(found[0]) is DerivedOrders, "nothing is spelled out"
    pairs = [pair for run in runs for pair in zip(*run, strict=True)]
    assert list(zip(*found, strict=True)) == sorted(pairs)


@given(
    st.lists(
        st.tuples(
            st.integers(-5, 300), st.sets(st.integers(0, 90), min_size=1), st.sampled_from((b"", CODE, CODE[:1]))
        ),
        min_size=2,
        max_size=4,
    ),
    st.integers(-500, 500),
    st.integers(-500, 500),
)
def test_runs_of_one_front_are_merged_record_by_record(
    given_: list[tuple[int, set[int], bytes]], start: int, stop: int
) -> None:
    """Orders derived from one record by several ways stand together, in the order of the ways."""
    runs: list[tuple[Orders, list[object]]] = []
    for first, places, way in given_:
        orders = DerivedOrders(RecordOrders(first, sorted(places), bases_of(1)[0][8:]), None, 0, way + CODE[1:])
        runs.append((orders, [(way, at) for at in range(len(orders))]))
    pairs = [(order, value) for run in runs for order, value in zip(*run, strict=True)]
    wanted = sorted(order for order, _ in pairs)
    found = interleaved(runs)
    if len(set(wanted)) < len(wanted):
        assert found is None, "two orders are equal"
        return
    assert found is not None
    orders, payloads = found
    assert isinstance(orders, (TailedOrders, DerivedOrders))
    assert [orders[at] for at in range(-len(wanted), len(wanted))] == wanted * 2
    assert orders._materialised is None, "nothing is spelled out"
    assert [*orders[start:stop]] == wanted[start:stop]
    assert [*extended(orders, CODE)] == [order + CODE for order in wanted]
    assert orders == wanted
    assert orders[start:stop] == wanted[start:stop]
    assert (repr(orders), len(orders)) == (repr(wanted), len(wanted))
    assert dict(zip(orders, payloads, strict=True)) == dict(pairs)


def test_runs_of_records_of_two_fronts_are_merged_otherwise() -> None:
    one, other = (
        DerivedOrders(RecordOrders(0, [1, 2], GlobalTime(0, front).encode()[8:]), None, 0, CODE[:front])
        for front in (1, 2)
    )
    assert interleaved([(one, "ab"), (other, "cd")]) is None


def test_runs_are_not_merged_where_what_comes_of_two_orders_may_stand_mixed() -> None:
    (line,) = bases_of(1)
    apart, (later,) = DerivedOrders([line], [3]), bases_of(1, 5)
    within = DerivedOrders([line + encode_child(0)], [2])
    assert sorted([*apart, *within]) != [*apart, *within], "the word of a word is before the second word"
    assert interleaved([(apart, "abc"), (within, "de")]) is None
    assert interleaved([(within, "de"), (apart, "abc")]) is None
    assert interleaved([(apart, "abc"), (apart, "abc")]) is None
    other = DerivedOrders([later], [1])
    for unlike in ([later], DerivedOrders([later], None), DerivedOrders([later], [1], 1), extended(other, CODE)):
        assert interleaved([(apart, "abc"), (unlike, "d")]) is None
    assert interleaved([(apart, "abc"), (other, "d")]) == ([*apart, *other], [*"abcd"])


# -- columns of numbers ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 15, 16, 17, 40])
def test_the_extremes_of_numbers_in_any_order(count: int) -> None:
    values = [number // 2 for number in range(count)]
    assert ascending(values)
    assert extremes(values) == (values[0], values[-1])
    for place in range(count):
        other = [*values]
        other[place] = -1 if place else 99
        assert ascending(other) == (sorted(other) == other)
        assert extremes(other) == (min(other), max(other))


@pytest.mark.parametrize("count", [0, 1, 15, 17, 40])
def test_a_column_that_is_found_to_ascend_is_known_to(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    values = [number // 2 for number in range(count)]
    found = in_order(values)
    assert (type(found), found) == (Ascending, values)
    assert in_order(found) is found
    for other in ([1, 0], [*range(20), 3], (0, 1)):
        assert in_order(other) is other
    monkeypatch.setattr("flamecore.model.batch.sorted", None, raising=False)  # it is not sorted again
    assert ascending(found)


# -- merging by stretches ----------------------------------------------------------------------------------------------


@st.composite
def shared_out(draw: st.DrawFn) -> list[Orders]:
    """Return orders of several runs that are made of items, few or many of one item in a row in one run."""
    workers, long = draw(st.integers(2, 3)), draw(st.sampled_from((1, 20, 40)))
    random = draw(st.randoms(use_true_random=False))
    parts: list[list[bytes]] = [[] for _ in range(workers)]
    for base in bases_of(draw(st.integers(1, 12))):
        mine = random.randrange(workers)
        parts[mine] += [base + encode_child(child) for child in range(random.randint(1, long))]
        if random.random() < 0.05:  # around or among those of another
            parts[(mine + 1) % workers].append(base + random.choice((b"", encode_child(3), encode_child(3) + CODE)))
    runs: list[Orders] = []
    for part in filter(None, parts):
        kind = random.randrange(4)
        counts = [random.randint(1, 2) for _ in part]
        runs.append([part, DerivedOrders(part, None, 0, CODE), DerivedOrders(part, counts, 1, CODE), part][kind])
    return runs


@given(shared_out())
def test_a_merge_by_stretches_is_a_sort(runs: list[Orders]) -> None:
    by = stretches(runs)
    everything = sorted(order for run in runs for order in run)
    if by is None:
        assert len(runs) > 1
        return
    assert len(set(everything)) == len(everything)
    merged = woven([list(run) for run in runs], by)
    assert merged == everything
    texts = [Lines("".join(f"{order.hex()}\n" for order in run)) for run in runs]
    lines = woven(texts, by)
    assert isinstance(lines, Lines)
    assert lines.text == "".join(f"{order.hex()}\n" for order in everything)


def test_runs_of_long_stretches_are_merged_without_a_look_at_each_order() -> None:
    parts: list[list[bytes]] = [[], []]
    for number, base in enumerate(bases_of(40)):
        parts[number % 2] += [base + encode_child(child) for child in range(50)]
    runs = [DerivedOrders(part, [1] * len(part), 1, CODE) for part in parts]
    by = stretches(runs)
    assert by is not None
    assert len(by) == 40
    assert {end - start for _, start, end in by} == {50}
    assert all(run._materialised is None for run in runs)
    short = [bases_of(400)[::2], bases_of(400)[1::2]]
    assert stretches(short) is None, "a sort costs less"
    assert stretches([bases_of(9), bases_of(9, start=5)]) is None, "orders in both runs"


@given(st.lists(st.booleans(), min_size=2, max_size=80))
def test_runs_that_alternate_are_sorted_together(sides: list[bool]) -> None:
    bases = bases_of(len(sides))
    runs = [
        (extended(RecordOrders(0, places, bases[0][8:]), code), places)
        for is_right, code in ((False, CODE), (True, CODE * 2))
        if (places := [place for place, side in enumerate(sides) if side is is_right])
    ]
    wanted = [base + (CODE * 2 if side else CODE) for base, side in zip(bases, sides, strict=True)]
    assert sorted_together(runs) == (wanted, [*range(len(sides))])
    assert sorted_together([*runs, runs[0]]) is None
