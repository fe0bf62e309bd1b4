"""Balancing: hashes that are the same in every process, ranges that cover the space, key groups that have one owner."""

from __future__ import annotations

import enum
import os
import re
import subprocess
import sys
from collections.abc import Hashable
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from fractions import Fraction
from typing import Any, NamedTuple
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flamecore.model.hashing import (
    INT32_MIN,
    KEY_GROUPS,
    canonical,
    canonicals,
    check_key,
    key_group,
    key_groups,
    owned_ranges,
    owners,
    refuse_unhashable,
    stable_hash,
)
from flamecore.model.meta import encode_child
from flamecore.model.ordered import rank_codes, rank_of

INT32_MAX = 2**31 - 1
WIDTH = 2**25
"""Hashes of a key group."""

# -- ranges (semantics 2.8, case 21) ------------------------------------------------------------------------------


def test_case_21_key_groups_cover_the_space_without_gap_or_overlap() -> None:
    assert INT32_MAX - INT32_MIN + 1 == KEY_GROUPS * WIDTH
    for group in range(KEY_GROUPS):
        first = INT32_MIN + group * WIDTH
        assert (key_group(first), key_group(first + WIDTH - 1)) == (group, group)


@pytest.mark.parametrize(("hashed", "group"), [(INT32_MIN, 0), (-1, 63), (0, 64), (INT32_MAX, 127)])
def test_case_21_every_edge_has_a_group(hashed: int, group: int) -> None:
    assert key_group(hashed) == group, "2^31 - 1 has one, too"


@given(st.integers(INT32_MIN, INT32_MAX))
def test_key_groups_are_ranges_of_the_hash_space(hashed: int) -> None:
    group = key_group(hashed)
    assert group in range(KEY_GROUPS)
    assert INT32_MIN + group * WIDTH <= hashed < INT32_MIN + (group + 1) * WIDTH


@pytest.mark.parametrize("workers", [1, 2, 3, 5, 127, 128])
def test_every_key_group_has_an_owner_and_every_worker_its_share(workers: int) -> None:
    found = owners(workers)
    assert len(found) == KEY_GROUPS
    assert list(found) == sorted(found)
    shares = [found.count(worker) for worker in range(workers)]
    assert max(shares) - min(shares) <= 1


@pytest.mark.parametrize(("workers", "owning"), [(1, 1), (2, 1), (3, 2), (5, 1), (128, 64), (2, 7)])
def test_some_workers_own_all_key_groups(workers: int, owning: int) -> None:
    found = owners(workers, owning)
    assert len(found) == KEY_GROUPS
    assert list(found) == sorted(found)
    assert set(found) == set(range(max(workers - owning, 0), workers))
    shares = [found.count(worker) for worker in set(found)]
    assert max(shares) - min(shares) <= 1


def test_only_owners_have_ranges() -> None:
    assert owned_ranges(owners(2)) == {"worker/0": (0, 63), "worker/1": (64, 127)}
    assert owned_ranges(owners(3, 2)) == {"worker/1": (0, 63), "worker/2": (64, 127)}


@pytest.mark.parametrize("workers", [0, -1, KEY_GROUPS + 1])
def test_impossible_numbers_of_workers_are_refused(workers: int) -> None:
    with pytest.raises(ValueError, match="workers"):
        owners(workers)


@pytest.mark.parametrize("owning", [0, -1])
def test_key_groups_must_have_an_owner(owning: int) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        owners(2, owning)


# -- keys -----------------------------------------------------------------------------------------------------------


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


class Weight(float, enum.Enum):
    ONE = 1.0


class Level(enum.IntEnum):
    LOW = 1


class Word(enum.StrEnum):
    A = "a"


class Point(NamedTuple):
    x: int
    y: int


@dataclass(frozen=True)
class Place:
    name: str
    at: tuple[int, int]


@dataclass(frozen=True)
class Other:
    name: str
    at: tuple[int, int]


class Struct(msgspec.Struct, frozen=True):
    name: str


PLUS_ONE = timezone(timedelta(hours=1))


class Berlin(tzinfo):
    """Its clocks show the last hour before winter time twice."""

    def utcoffset(self, at: datetime | None) -> timedelta:
        assert at is not None
        return timedelta(hours=1 if at.fold else 2)

    def dst(self, at: datetime | None) -> timedelta:
        return self.utcoffset(at) - timedelta(hours=1)

    def tzname(self, at: datetime | None) -> str:
        return "Berlin"


BERLIN = Berlin()
KEYS: list[Any] = [
    None,
    True,
    0,
    -1,
    2**100,
    1.5,
    float("inf"),
    "word",
    "",
    "\ud800",
    b"word",
    b"",
    (),
    (1,),
    ((1,), 2),
    ("a", "bc"),
    ("ab", "c"),
    frozenset(),
    frozenset({1, 2}),
    frozenset({"a", "b", "c"}),
    Colour.RED,
    Colour.BLUE,
    Level.LOW,
    Word.A,
    Point(1, 2),
    Place("x", (1, 2)),
    Other("x", (1, 3)),
    Struct("x"),
    date(2020, 1, 2),
    datetime(2020, 1, 2, 3),
    datetime(2020, 1, 2, 3, tzinfo=UTC),
    time(1, 2),
    timedelta(days=1),
    UUID(int=5),
    Decimal("2.5"),
    Fraction(1, 3),
    1 + 2j,
]


def shown(key: object) -> str:
    """Return a text that is the same in every process: no address, no order of a set."""
    return f"frozenset of {len(key)}" if isinstance(key, frozenset) else re.sub(" at 0x[0-9a-f]+", "", repr(key))


@pytest.mark.parametrize("one", KEYS, ids=shown)
def test_equal_keys_have_equal_hashes_and_unequal_keys_unequal_codes(one: Any) -> None:
    assert INT32_MIN <= stable_hash(one) <= INT32_MAX
    for other in KEYS:
        if one == other:
            assert canonical(one) == canonical(other)
        else:
            assert canonical(one) != canonical(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, True),
        (1, 1.0),
        (0.0, -0.0),
        (Decimal("1.50"), Decimal("1.5")),
        (Decimal("0.5"), Fraction(1, 2)),
        (Fraction(4, 2), 2 + 0j),
        (Level.LOW, 1),
        (Word.A, "a"),
        (Weight.ONE, 1),
        (Point(1, 2), (1.0, True + 1)),
        (datetime(2020, 1, 1, 1, tzinfo=PLUS_ONE), datetime(2020, 1, 1, tzinfo=UTC)),
        (time(1, tzinfo=PLUS_ONE), time(0, tzinfo=UTC)),
        (datetime(2020, 1, 1, fold=1), datetime(2020, 1, 1)),
        (time(1, fold=1), time(1)),
        (datetime(2024, 10, 27, 2, 30, tzinfo=BERLIN, fold=1), datetime(2024, 10, 27, 2, 30, tzinfo=BERLIN)),
    ],
    ids=shown,
)
def test_keys_that_python_calls_equal_meet(one: Hashable, other: Hashable) -> None:
    assert one == other
    assert hash(one) == hash(other)
    assert stable_hash(one) == stable_hash(other)


SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    st.text(max_size=3),
    st.binary(max_size=3),
    st.datetimes(),
    st.datetimes(timezones=st.sampled_from([UTC, PLUS_ONE, timezone(timedelta(minutes=-1))])),
    st.times(),
    st.decimals(allow_nan=False),
    st.fractions(),
)
NESTED = st.recursive(
    SCALARS, lambda parts: st.lists(parts, max_size=3).map(tuple) | st.frozensets(parts, max_size=3), max_leaves=5
)


@given(NESTED, NESTED)
def test_codes_are_equal_when_keys_are(one: Any, other: Any) -> None:
    assert canonical(one) == canonical(one)
    if one == other:
        assert canonical(one) == canonical(other)


@given(st.lists(SCALARS.filter(lambda value: value is not None), max_size=5))
def test_a_frozenset_has_one_code_whatever_its_inner_order(parts: list[Any]) -> None:
    assert canonical(frozenset(parts)) == canonical(frozenset(reversed(parts)))


@pytest.mark.parametrize(("edge", "sign"), [(datetime.min, 1), (datetime.max, -1)])
def test_instants_outside_of_the_years_in_utc_have_codes(edge: datetime, sign: int) -> None:
    near, far = timezone(timedelta(hours=sign)), timezone(timedelta(hours=2 * sign))
    one, other = edge.replace(tzinfo=near), (edge + timedelta(hours=sign)).replace(tzinfo=far)
    assert one == other
    assert stable_hash(one) == stable_hash(other)
    assert canonical(one) == canonical(other) != canonical(edge.replace(tzinfo=far))
    assert canonical(one) != canonical(edge.replace(tzinfo=UTC))


def test_scalars_of_numpy_are_numbers() -> None:
    numpy = pytest.importorskip("numpy")
    for one, other in (
        (numpy.int64(-7), -7),
        (numpy.uint8(200), 200.0),
        (numpy.float32(0.1), float(numpy.float32(0.1))),
    ):
        assert one == other
        assert canonical(one) == canonical(other)


def test_nan_is_no_key() -> None:
    for nan in (float("nan"), Decimal("nan"), (1, float("nan"))):
        with pytest.raises(TypeError, match="NaN"):
            stable_hash(nan)
        with pytest.raises(TypeError, match="NaN"):
            check_key(nan)
        with pytest.raises(TypeError, match="NaN"):
            key_groups([("a", 1.0), ("b", nan)])


# -- many at once -----------------------------------------------------------------------------------------------------


def groups_one_by_one(keys: list[Any]) -> list[int]:
    return [key_group(stable_hash(key)) for key in keys]


@given(
    st.one_of(
        st.lists(st.integers(-(2**70), 2**70), min_size=1),
        st.lists(st.one_of(st.integers(-3, 3), st.booleans()), min_size=1),
        st.lists(st.text(), min_size=1),
        st.lists(st.tuples(st.integers(), st.text()), min_size=1),
    )
)
def test_codes_and_ranks_of_many_keys_are_those_of_each(keys: list[Any]) -> None:
    assert [*canonicals(keys)] == [canonical(key) for key in keys]
    assert rank_codes(keys) == [encode_child(rank_of(key)) for key in keys]


def test_a_short_rank_has_a_short_code() -> None:
    """One key in 256 has a rank of fewer than eight bytes."""
    keys = [*range(4000)]
    codes = rank_codes(keys)
    assert codes == [encode_child(rank_of(key)) for key in keys]
    assert {len(code) for code in codes} >= {8, 9}
    assert sorted(keys, key=rank_of) == [key for _, key in sorted(zip(codes, keys, strict=True))]


def test_groups_of_all_kinds_of_keys_are_those_of_each() -> None:
    assert key_groups(KEYS) == groups_one_by_one(KEYS)
    for key in KEYS:
        for keys in ([key], [(key,)] * 2, [(key, "x"), ("x", key)], [("x", key), ("x", key, key)]):
            assert key_groups(keys) == groups_one_by_one(keys)
    assert key_groups([]) == []


@given(st.lists(NESTED), st.lists(st.tuples(SCALARS, NESTED)), st.lists(st.text()))
def test_groups_of_drawn_keys_are_those_of_each(mixed: list[Any], pairs: list[Any], texts: list[Any]) -> None:
    for keys in (mixed, pairs, texts):
        assert key_groups(keys) == groups_one_by_one(keys)


@given(NESTED)
def test_what_has_a_hash_is_a_key(key: Any) -> None:
    check_key(key)


class Plain:
    """Hashable by identity: other in every process."""


@dataclass
class Mutable:
    name: str


@dataclass(frozen=True, eq=False)
class Itself:
    """Two of them are never equal."""

    name: str


class ItselfStruct(msgspec.Struct, frozen=True, eq=False):
    name: str


NO_KEYS = [Plain(), object(), Plain, len, Mutable("x"), Itself("x"), ItselfStruct("x"), [1], {"a": 1}, {1}, (1, [2])]


@pytest.mark.parametrize("key", NO_KEYS, ids=shown)
def test_keys_without_a_hash_that_lasts_are_refused(key: Any) -> None:
    among: list[list[Any]] = [[key], [("a", 1), key], [("a", 1), ("b", key)]]
    for refuses in (lambda: stable_hash(key), lambda: check_key(key), lambda: check_key(("a", key))):
        with pytest.raises(TypeError, match="same in every process"):
            refuses()
    for keys in among:
        with pytest.raises(TypeError):
            key_groups(keys)


@pytest.mark.parametrize("first", [0, 1])
def test_hashes_do_not_depend_on_the_class_seen_first(first: int) -> None:
    @dataclass(frozen=True)
    class Town:
        name: str

    @dataclass(frozen=True)
    class Street(Town):
        number: int

    class Stop(msgspec.Struct, frozen=True):
        name: str

    class Platform(Stop, frozen=True):
        number: int

    for town, street in ((Town("x"), Street("x", 1)), (Stop("x"), Platform("x", 1))):
        codes = {key: canonical(key) for key in ((town, street), (street, town))[first]}
        assert codes[town] == canonical(("x",)).replace(b"t", b"r", 1)
        assert codes[street] == canonical(("x", 1)).replace(b"t", b"r", 1)


def test_a_record_or_an_enum_keeps_its_hash_when_its_class_is_renamed_or_moved() -> None:
    @dataclass(frozen=True)
    class Site:
        name: str
        at: tuple[int, int]

    class Tint(enum.Enum):
        RED = 3

    assert stable_hash(Site("x", (1, 2))) == stable_hash(Place("x", (1, 2)))
    assert stable_hash(Tint.RED) == stable_hash(Colour.RED)


def test_hashes_are_the_same_in_every_process() -> None:
    """Python hashes texts anew in every process; keys must not notice."""
    keys = [key for key in KEYS if not isinstance(key, Struct | Place | Other | Colour | Level | Word | Point)]
    script = (
        "from datetime import *\nfrom decimal import Decimal\nfrom fractions import Fraction\nfrom uuid import UUID\n"
        "import datetime as d\nfrom flamecore.model.hashing import stable_hash\ninf = float('inf')\n"
        "class N: datetime, timezone, date, time, timedelta = d.datetime, d.timezone, d.date, d.time, d.timedelta\n"
        f"datetime = N\nprint([stable_hash(key) for key in {keys!r}])"
    )
    wanted = repr([stable_hash(key) for key in keys])
    for seed in ("0", "1", "12345"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        run = subprocess.run(
            [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
        )
        assert run.stdout.strip() == wanted


def test_hashes_do_not_change_between_versions() -> None:
    """State and output depend on them: a change of these numbers is a breaking change."""
    assert [stable_hash(key) for key in ("", "word", 0, (1, "a"), b"x", None)] == HASHES


HASHES = [-805913069, 1164549012, -644461784, 98493123, 1174182516, -1532065014]


def test_hashes_are_spread_evenly() -> None:
    groups = {key_group(stable_hash(f"key {number}")) for number in range(5000)}
    assert len(groups) == KEY_GROUPS


@pytest.mark.parametrize("hint", [list, dict[str, int], set[int], bytearray, list[int], Mutable])
def test_declared_types_that_cannot_be_keys_are_refused(hint: Any) -> None:
    reason = refuse_unhashable(hint)
    assert reason is not None
    assert "cannot be a key" in reason


@pytest.mark.parametrize("hint", [str, int, object, Any, tuple[int, str], Place, Point, Colour, None, str | int])
def test_declared_types_that_may_be_keys_are_accepted(hint: Any) -> None:
    assert refuse_unhashable(hint) is None
