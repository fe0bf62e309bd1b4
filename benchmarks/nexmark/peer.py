"""Queries in Bytewax: one worker, from a list to a list, in this process.

Bytewax has no q4 and no q6: its operators have no timers by event time, which say that an auction has expired. Nothing
says that all counts of a window have come, as each key has a watermark of its own: its q5 chooses when the input ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import bytewax.operators as op
import bytewax.operators.windowing as win
from bytewax.dataflow import Dataflow, Stream
from bytewax.testing import TestingSink, TestingSource, run_main

from benchmarks.nexmark import queries
from benchmarks.nexmark.events import BEGIN, DISORDER, Auction, Bid, Event, Person

_BATCH: Final = 100
_BEGIN: Final = datetime.fromtimestamp(BEGIN / 1e6, UTC)
_DISORDER: Final = timedelta(microseconds=DISORDER)


def _clock() -> Any:
    # Its watermark advances with the clock of the machine, too: with one that stands still a slow run loses nothing.
    return win.EventClock(_time, _DISORDER, now_getter=lambda: _BEGIN, to_system_utc=lambda _: None)


def _time(event: Event) -> datetime:
    return datetime.fromtimestamp(event.at / 1e6, UTC)


def _tumbling() -> Any:
    return win.TumblingWindower(length=queries.WINDOW, align_to=_BEGIN)


def _start(number: int, every: timedelta = queries.WINDOW) -> int:
    return BEGIN + number * (every // timedelta(microseconds=1))


def _end(number: int, every: timedelta = queries.WINDOW) -> int:
    return _start(number, every) + queries.WINDOW // timedelta(microseconds=1)


def q0(events: Stream[Any]) -> Stream[Any]:
    """Pass bids on."""
    return op.filter("bids", events, queries.is_bid)


def q1(events: Stream[Any]) -> Stream[Any]:
    """Convert the currency of each bid."""
    return op.map("convert", op.filter("bids", events, queries.is_bid), queries.convert)


def q2(events: Stream[Any]) -> Stream[Any]:
    """Choose the bids on some auctions."""
    return op.map("out_of", op.filter("chosen", events, queries.is_chosen), lambda bid: (bid.auction, bid.price))


def q3(events: Stream[Any]) -> Stream[Any]:
    """Join people of some states with what they sell of a category."""

    def meet(kept: Any, event: Any) -> Any:
        return queries.meet(kept or (None, ()), event)

    some = op.filter("some", events, queries.concerns)
    keyed = op.key_on("owner", some, lambda event: str(queries.owner(event)))
    return op.key_rm("found", op.stateful_flat_map("meet", keyed, meet))


class _Hottest(op.StatefulBatchLogic[Any, Any, Any]):
    """The auctions with most bids in a window, when the input ends."""

    def __init__(self, best: tuple[int, tuple[int, ...]] | None) -> None:
        self.best = best or (0, ())

    def on_batch(self, values: list[tuple[int, int]]) -> tuple[Iterable[Any], bool]:
        for auction, count in values:
            if count > self.best[0]:
                self.best = (count, (auction,))
            elif count == self.best[0]:
                self.best = (count, (*self.best[1], auction))
        return (), False

    def on_eof(self) -> tuple[Iterable[Any], bool]:
        return [(auction, self.best[0]) for auction in sorted(self.best[1])], True

    def snapshot(self) -> Any:
        return self.best


def q5(events: Stream[Any]) -> Stream[Any]:
    """Tell the auctions with most bids in the last ten seconds, every two."""
    windower = win.SlidingWindower(length=queries.WINDOW, offset=queries.SLIDE, align_to=_BEGIN)
    bids = op.filter("bids", events, queries.is_bid)
    counts = win.count_window("count", bids, _clock(), windower, lambda bid: str(bid.auction)).down
    by_window = op.map("by_window", counts, lambda count: (str(count[1][0]), (int(count[0]), count[1][1])))
    hottest = op.stateful_batch("hottest", by_window, _Hottest)
    return op.map("hot_items", hottest, lambda hot: (_end(int(hot[0]), queries.SLIDE), *hot[1]))


def q7(events: Stream[Any]) -> Stream[Any]:
    """Tell the highest bid of every ten seconds."""
    bids = op.key_on("all", op.filter("bids", events, queries.is_bid), lambda _: "all")
    highest = win.max_window("highest", bids, _clock(), _tumbling(), by=queries.rank).down
    return op.map("found", highest, _highest)


def _highest(found: tuple[str, tuple[int, Bid]]) -> tuple[int, int, int, int]:
    number, bid = found[1]
    return (_end(number), bid.auction, bid.price, bid.bidder)


def q8(events: Stream[Any]) -> Stream[Any]:
    """Tell who has signed up and begun to sell within the same ten seconds."""
    people = op.key_on("people", op.filter("person", events, queries.is_person), lambda person: str(person.id))
    sales = op.key_on("sales", op.filter("auction", events, queries.is_auction), lambda auction: str(auction.seller))
    pairs = win.join_window("join", _clock(), _tumbling(), people, sales).down
    return op.flat_map("found", pairs, _met)


def _met(found: tuple[str, tuple[int, tuple[Person | None, Auction | None]]]) -> list[tuple[int, str, int]]:
    _, (number, (person, auction)) = found
    return [] if person is None or auction is None else [(person.id, person.name, _start(number))]


def q11(events: Stream[Any]) -> Stream[Any]:
    """Count the bids in each session of a bidder."""
    bids = op.filter("bids", events, queries.is_bid)
    sessions = win.SessionWindower(gap=queries.GAP)
    counts = win.count_window("count", bids, _clock(), sessions, lambda bid: str(bid.bidder)).down
    return op.map("found", counts, lambda count: (int(count[0]), count[1][1]))


QUERIES: Final[dict[str, Callable[[Stream[Any]], Stream[Any]]]] = {
    query.__name__: query for query in (q0, q1, q2, q3, q5, q7, q8, q11)
}


def run(query: str, events: Sequence[Event]) -> list[Any]:
    """Return the outputs of a query."""
    flow, found = Dataflow(query), list[Any]()
    op.output("out", QUERIES[query](op.input("events", flow, TestingSource(events, _BATCH))), TestingSink(found))
    run_main(flow)  # type: ignore[no-untyped-call]  # Bytewax has no hints there
    return found
