"""Bytes that have been written are read for ever: snapshots outlive the versions that wrote them.

`golden/codec_1.json` holds what format version 1 has written, in hexadecimal digits. Entries are added and never
changed: a value whose code has changed gets another entry, and the old one is still read. A new format version gets a
file of its own, and this one stays. Messages between the parts of a job are not among them: they live no longer than
the job.
"""

from __future__ import annotations

import enum
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from importlib.util import find_spec
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, NamedTuple
from uuid import UUID
from zoneinfo import ZoneInfo

import msgspec
import pytest

from flamecore.model.drift import MISSING
from flamecore.model.meta import GlobalTime
from flamecore.model.type_codec import TypeCodec
from flamecore.runtime.codec import wire as layout
from flamecore.runtime.codec.codec import Codec

FILES = sorted(Path(__file__).with_name("golden").glob("codec_*.json"))


class Colour(enum.Enum):
    RED = 1
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1


class Right(enum.Flag):
    READ = 1
    WRITE = 2


class Point(NamedTuple):
    x: int
    y: float = 0.5


@dataclass(frozen=True, slots=True)
class Place:
    name: str
    at: Point
    colour: Colour | None = None
    added_later: int = 7


@dataclass
class Plain:
    pass


@dataclass
class Tree:
    value: Any
    children: list[Tree] = field(default_factory=list)


class Struct(msgspec.Struct):
    a: int
    b: str = ""


class Money(NamedTuple):
    cents: int


CODEC = Codec(
    codecs=[
        *(
            TypeCodec(kind, f"golden:{kind.__name__}")
            for kind in (Colour, Level, Right, Point, Place, Plain, Tree, Struct)
        ),
        TypeCodec(Money, "golden:money", lambda money: money.cents, Money, 2, {1: lambda text: Money(int(text))}),
    ]
)

PLACE = Place("p", Point(1), Colour.RED)
VALUES: dict[str, Any] = {
    "none": None,
    "bools": [True, False],
    "integers": [0, -1, 127, 128, -(2**63), 2**64 - 1],
    "large integers": [2**64, -(2**63) - 1, 7**100, 0],
    "floats": [0.0, -0.0, 1.5, math.inf, -math.inf, math.nan, 5e-324],
    "texts": ["", "ascii", "žluť 🐎", "\0", "x" * 300],
    "bytes": [b"", b"\x00\xff", b"x" * 300],
    "bytearray": bytearray(b"abc"),
    "complex": [1 + 2j, complex(-0.0, math.inf)],
    "empty containers": [[], (), {}, set(), frozenset()],
    "pairs": [("word", 1), ("other", 2)],
    "a wide tuple": tuple(range(30)),
    "tuples of several lengths": [(), (1,), (1, "a")],
    "lists": [[1, 2], [], [3]],
    "sets": [{3, 1, 2}, {"b", "a"}, {1, "a", None, (2.5,)}],
    "frozensets": frozenset({frozenset({1}), 2}),
    "dictionaries": [{"a": 1, "b": None}, {2: "x", (1, 2): b"y", None: True}],
    "dictionaries of one shape": [{"a": number, "b": [number]} for number in range(5)],
    "mixed": [1, "a", None, 2.5, b"b", True, (1, "a"), [1], {"k": "v"}, 2**70],
    "datetimes": [
        datetime(2020, 1, 2, 3, 4, 5, 6),
        datetime(2020, 10, 25, 2, 30, fold=1),
        datetime(2020, 1, 2, tzinfo=UTC),
        datetime(2020, 1, 2, tzinfo=timezone(timedelta(hours=-3, seconds=7))),
        datetime(2020, 1, 2, tzinfo=timezone(timedelta(hours=1), "CET")),
        datetime(2020, 10, 25, 2, 30, fold=1, tzinfo=ZoneInfo("Europe/Berlin")),
    ],
    "dates": [date.min, date.max],
    "times": [time(1, 2, 3, 4), time(1, 2, tzinfo=UTC, fold=1), time(1, tzinfo=ZoneInfo("Europe/Berlin"))],
    "timedeltas": [timedelta.min, timedelta.max, timedelta(microseconds=1)],
    "decimals": [Decimal("1.50"), Decimal("-0"), Decimal("NaN"), Decimal("1E+400")],
    "uuid": UUID(int=2**100 + 7),
    "paths": [PurePosixPath("a/b"), PureWindowsPath("c:/d")],
    "enums": [Colour.RED, Colour.BLUE, Colour.RED, Level.LOW],
    "flags": [Right.READ, Right.READ | Right.WRITE, Right(0)],
    "a named tuple": Point(1, 2.5),
    "dataclasses": [PLACE, Place("q", Point(-1, -0.0))],
    "without fields": [Plain(), Plain()],
    "a tree": Tree(1, [Tree("two"), Tree(3.0, [Tree(None)])]),
    "struct": Struct(1, "b"),
    "registered": [Money(5), Money(2**70)],
    "missing": MISSING,
    "global time": GlobalTime(5, 2),
    "section of a snapshot": ("count", False, [1, 5], ["word", "other"], [3, 4], [(1, "gone")]),
}
READ_ONLY: dict[str, Any] = {
    "before a field was added": [PLACE],
    "registered, version 1": [Money(5)],
}
"""Written by earlier forms of these classes; nothing writes them any more."""

if find_spec("numpy"):
    import numpy as np

    VALUES |= {
        "numpy arrays": [
            np.arange(6, dtype=">i4").reshape(2, 3),
            np.asfortranarray(np.ones((2, 2), "<f4")),
            np.array(1.5),
        ],
        "numpy structures": np.array([(1, 2.5)], [("x", "<i2"), ("y", ">f8", (1,))]),
        "numpy scalars": [
            np.float64(1.5),
            np.int8(-1),
            np.str_("a"),
            np.bytes_(b"b"),
            np.datetime64("2020-01-02", "ns"),
        ],
    }


def same(one: Any, other: Any) -> bool:
    if isinstance(one, list):
        return type(other) is list and len(one) == len(other) and all(map(same, one, other))
    if type(one).__module__ == "numpy" and hasattr(one, "dtype"):
        return type(one) is type(other) and one.dtype == other.dtype and repr(one) == repr(other)
    return type(one) is type(other) and (repr(one) == repr(other) or bool(one == other))


def golden() -> Iterator[tuple[str, str, bytes]]:
    for file in FILES:
        for name, digits in json.loads(file.read_text("utf-8")).items():
            yield file.stem, name.partition(" #")[0], bytes.fromhex(digits)


@pytest.mark.parametrize(
    ("file", "name", "data"), [pytest.param(*each, id=f"{each[0]}: {each[1]}") for each in golden()]
)
def test_bytes_of_earlier_versions_are_read(file: str, name: str, data: bytes) -> None:
    if name.startswith("numpy") and name not in VALUES:
        pytest.skip("numpy is not installed")
    assert same(CODEC.decode(data), {**VALUES, **READ_ONLY}[name])


@pytest.mark.parametrize("name", VALUES)
def test_bytes_of_today_are_among_the_golden_ones(name: str) -> None:
    data = CODEC.encode(VALUES[name])
    known = [kept for file, kept_name, kept in golden() if kept_name == name and file == f"codec_{layout.VERSION}"]
    assert data in known, (
        f"the code of {name!r} is new. If that is meant, add to golden/codec_{layout.VERSION}.json, and change nothing "
        f'there:\n "{name}{f" #{len(known) + 1}" if known else ""}": "{data.hex()}"'
    )


def test_no_golden_entry_is_missing() -> None:
    names = {name for _, name, _ in golden()}
    assert names >= {*VALUES, *READ_ONLY}
    assert [file.stem for file in FILES] == [f"codec_{version + 1}" for version in range(layout.VERSION)]


def test_numbers_of_the_format_are_never_changed() -> None:
    """They are in bytes that have been written. Those of messages may change: these live no longer than a job."""
    plain = ("NOTHING", "NONE", "BOOL", "INT", "FLOAT", "STR", "BYTES", "SIMPLE")
    containers = ("TUPLE", "LIST", "TUPLES", "SET", "FROZENSET", "DICT", "SHAPE", "UNION")
    classes = ("RECORD", "ENUM", "FLAGS", "CODED", "PACKED")
    names = (*plain, *containers, *classes)
    assert [getattr(layout, name) for name in names] == list(range(len(names)))
