"""The cost of encoding and decoding payloads, and whether types survive.

A batch of payloads goes through every codec in turn. Whether what comes back is what was sent, type for type, is part
of the result: most of these codecs are fast because they forget.
"""

from __future__ import annotations

import gc
import pickle
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from importlib.util import find_spec
from random import Random
from typing import Any, Final, NamedTuple

import msgspec

from benchmarks.corpora import SEED, synthetic_pages, zipf_words
from benchmarks.processes import say
from benchmarks.report import Spread, Table
from flamecore.runtime.codec.codec import Codec

OURS: Final = "flamestream"
YARDSTICK: Final = "pickle"
BATCHES: Final = (1, 100, 1000)

TOTAL: Final = 20_000
"""Payloads that each way turns into bytes and back in a round."""


class Reading(NamedTuple):
    """A measurement, as flows of sensors have them."""

    sensor: str
    value: float | None
    at: datetime


@dataclass(frozen=True, slots=True)
class Order:
    """An order, as flows of shops have them."""

    number: int
    customer: str
    price: Decimal
    lines: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Way:
    """One way to bytes and back.

    Attributes:
        name: In the table.
        encode: From a batch to bytes, or to a list of bytes.
        decode: Back.
    """

    name: str
    encode: Callable[[list[Any]], Any]
    decode: Callable[[Any], list[Any]]


def words(count: int) -> list[Any]:
    """Return updates of a word count."""
    seen: dict[str, int] = {}
    updates = []
    for word in (word for chunk in zipf_words(count) for word in chunk):
        seen[word] = seen.get(word, 0) + 1
        updates.append((word, seen[word]))
    return updates


def pages(count: int) -> list[Any]:
    """Return pages of a wiki: NamedTuples with some text."""
    return list(synthetic_pages(count))


def events(count: int) -> list[Any]:
    """Return dictionaries of one shape, as a source of JSON gives them."""
    random = Random(SEED)
    return [
        {"id": n, "user": f"user{random.randrange(500)}", "tags": ["a", "b"][: n % 3], "amount": random.random()}
        for n in range(count)
    ]


def mixed(count: int) -> list[Any]:
    """Payloads of several classes, in any order."""
    random = Random(SEED)
    start = datetime(2024, 1, 1, tzinfo=UTC)
    makers: list[Callable[[int], Any]] = [
        lambda n: Reading(f"sensor{n % 50}", random.choice((None, random.random())), start + timedelta(seconds=n)),
        lambda n: Order(n, f"customer{n % 99}", Decimal(n) / 100, (("item", n % 7), ("other", 1))[: n % 3]),
        lambda n: (f"word{n % 300}", n),
        lambda n: {"id": n, "seen": frozenset((n % 5, n % 3))},
    ]
    return [random.choice(makers)(n) for n in range(count)]


PAYLOADS: Final[dict[str, tuple[Callable[[int], list[Any]], Any]]] = {
    "words": (words, tuple[str, int]),
    "pages": (pages, None),
    "events": (events, dict[str, Any]),
    "mixed": (mixed, Any),
}
"""For each kind of payload: how to make it, and the type that a typed codec is told."""


def ways(payload: Any, hint: Any) -> list[Way]:
    """Return every codec that is installed.

    Args:
        payload: One of the payloads.
        hint: Their type, for typed codecs; None: their class.
    """
    codec = Codec([Reading, Order, type(payload)])
    encode, decode = msgspec.msgpack.Encoder().encode, msgspec.msgpack.Decoder().decode
    typed = msgspec.msgpack.Decoder(list[type(payload) if hint is None else hint])  # type: ignore[misc]  # made here
    found = [
        Way(OURS, codec.encode, codec.decode),
        Way(
            "flamestream, each alone",
            lambda batch: list(map(codec.encode, batch)),
            lambda parts: list(map(codec.decode, parts)),
        ),
        Way("msgspec", encode, decode),
        Way("msgspec, typed", encode, typed.decode),
        Way("msgspec, each alone", lambda batch: list(map(encode, batch)), lambda parts: list(map(decode, parts))),
        Way(YARDSTICK, lambda batch: pickle.dumps(batch, 5), pickle.loads),
    ]
    if find_spec("pyarrow") is not None and hint is not Any:
        found.append(_arrow())
    return found


def _arrow() -> Way:
    """Return the way from rows to an Arrow stream and back to rows.

    Tuples are rows of a table, dictionaries a column of structures.
    """
    import pyarrow as pa

    def encode(batch: list[Any]) -> bytes:
        columns = [batch] if isinstance(batch[0], dict) else zip(*batch, strict=True)
        arrays = [pa.array(column) for column in columns]
        table = pa.table(arrays, [str(number) for number in range(len(arrays))])
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        data: bytes = sink.getvalue().to_pybytes()
        return data

    def decode(data: bytes) -> list[Any]:
        columns = [column.to_pylist() for column in pa.ipc.open_stream(data).read_all().columns]
        return columns[0] if len(columns) == 1 else list(zip(*columns, strict=True))

    return Way("Arrow IPC", encode, decode)


def compare(*, rounds: int, total: int = TOTAL) -> tuple[Table, dict[str, Any]]:
    """Measure every codec on every kind of payload, in turn, several rounds.

    Args:
        rounds: Number of rounds.
        total: Payloads that each codec turns into bytes and back in a round.
    """
    heads = ("payloads", "codec", "bytes each", "encode, M/s", "decode, M/s")
    table = Table(
        "Payloads to bytes and back, in batches of 100 (ratios: round trip, also in batches of 1 and 1,000)",
        (*heads, *(f"x {YARDSTICK}, {size:,}" for size in BATCHES), "comes back as sent"),
    )
    facts: dict[str, Any] = {}
    for kind, (make, hint) in PAYLOADS.items():
        payloads = make(total)
        facts[kind] = _measured(kind, payloads, ways(payloads[0], hint), rounds)
        base = facts[kind][YARDSTICK]["runs"]
        for name, found in facts[kind].items():
            against = [
                Spread.of([sum(b[size]) / sum(a[size]) for a, b in zip(found["runs"], base, strict=True)])
                for size in map(str, BATCHES)
            ]
            encode, decode = (
                Spread.of([total / run["100"][step] / 1e6 for run in found["runs"]]).median for step in (0, 1)
            )
            kept = "yes" if found["same"] else "no"
            table.add(kind, name, f"{found['bytes']:.1f}", f"{encode:.2f}", f"{decode:.2f}", *against, kept)
            if name == OURS and not found["same"]:
                table.failed[f"{kind}: {name}"] = "other payloads came back"
    return table, {"payloads": facts}


def _measured(kind: str, payloads: list[Any], field: Sequence[Way], rounds: int) -> dict[str, Any]:
    """Return bytes a payload, whether types survive, and seconds, for each codec.

    Seconds are of each round.
    """
    facts: dict[str, Any] = {}
    for way in field:
        batch = payloads[:100]
        data = way.encode(batch)
        size = sum(map(len, data)) if isinstance(data, list) else len(data)
        facts[way.name] = {"bytes": size / len(batch), "same": _alike(way.decode(data), batch), "runs": []}
    for _ in range(rounds):
        for way in field:
            say(f"codec: {kind}, {way.name}")
            facts[way.name]["runs"].append({str(size): _seconds(way, payloads, size) for size in BATCHES})
    return facts


def _seconds(way: Way, payloads: list[Any], size: int) -> tuple[float, float]:
    """Return the CPU seconds for all payloads, in batches: to bytes, and back."""
    batches = [payloads[start : start + size] for start in range(0, len(payloads), size)]
    way.decode(way.encode(batches[0]))
    gc.collect()
    gc.disable()  # as good as off while a job runs
    try:
        start = time.process_time()
        encoded = [way.encode(batch) for batch in batches]
        between = time.process_time()
        for data in encoded:
            way.decode(data)
        return between - start, time.process_time() - between
    finally:
        gc.enable()


def _alike(one: Any, other: Any) -> bool:
    """Equal, and of equal types all the way down."""
    if type(one) is not type(other):
        return False
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(_alike, one, other))
    if isinstance(one, dict):
        return _alike(list(one.items()), list(other.items()))
    return bool(one == other)
