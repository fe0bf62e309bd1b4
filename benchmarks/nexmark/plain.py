"""Queries in plain Python, by loops and sorting: the reference for the flows.

They take all events at once.

There are no watermarks: no event is too late, so a window holds all events of its time.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from benchmarks.nexmark.events import Auction, Bid, Event, Person

_TEN: Final = 10_000_000
_TWO: Final = 2_000_000


def _bids(events: Sequence[Event]) -> list[Bid]:
    return [event for event in events if isinstance(event, Bid)]


def _start(at: int, size: int = _TEN) -> int:
    return at - at % size


def q0(events: Sequence[Event]) -> list[Any]:
    """Return the bids."""
    return list(_bids(events))


def q1(events: Sequence[Event]) -> list[Any]:
    """Return the bids in another currency."""
    return [(bid.auction, bid.bidder, 0.908 * bid.price, bid.at) for bid in _bids(events)]


def q2(events: Sequence[Event]) -> list[Any]:
    """Return the bids on some auctions."""
    return [(bid.auction, bid.price) for bid in _bids(events) if bid.auction % 123 == 0]


def q3(events: Sequence[Event]) -> list[Any]:
    """Return people of some states with what they sell of a category.

    A row comes as soon as both are known.
    """
    people: dict[int, Person] = {}
    sold: defaultdict[int, list[int]] = defaultdict(list)
    found = []
    for event in events:
        if isinstance(event, Person) and event.state in ("CA", "ID", "OR"):
            people[event.id] = event
            found += [(event.name, event.city, event.state, auction) for auction in sold[event.id]]
        elif isinstance(event, Auction) and event.category == 10:
            sold[event.seller].append(event.id)
            if event.seller in people:
                found.append((*people[event.seller][2:], event.id))
    return found


def _won(events: Sequence[Event]) -> Iterator[tuple[Auction, int]]:
    """Yield the auctions that have bids, with the highest one, as they expire."""
    bids: defaultdict[int, list[Bid]] = defaultdict(list)
    for bid in _bids(events):
        bids[bid.auction].append(bid)
    auctions = [event for event in events if isinstance(event, Auction)]
    for auction in sorted(auctions, key=lambda auction: auction.expires):
        prices = [bid.price for bid in bids[auction.id] if auction.at <= bid.at < auction.expires]
        if prices:
            yield auction, max(prices)


def q4(events: Sequence[Event]) -> list[Any]:
    """Return the average of the winning bids of a category, after each of them."""
    prices: defaultdict[int, list[int]] = defaultdict(list)
    found = []
    for auction, price in _won(events):
        prices[auction.category].append(price)
        found.append((auction.category, sum(prices[auction.category]) / len(prices[auction.category])))
    return found


def q5(events: Sequence[Event]) -> list[Any]:
    """Return the auctions with most bids in the last ten seconds, every two."""
    counts: defaultdict[int, Counter[int]] = defaultdict(Counter)
    for bid in _bids(events):
        for slide in range(5):
            counts[_start(bid.at, _TWO) + (slide + 1) * _TWO][bid.auction] += 1
    return [
        (end, auction, most)
        for end in sorted(counts)
        for most in [max(counts[end].values())]
        for auction in sorted(counts[end])
        if counts[end][auction] == most
    ]


def q6(events: Sequence[Event]) -> list[Any]:
    """Return the average winning bid of a seller's last ten auctions, after each one."""
    prices: defaultdict[int, list[int]] = defaultdict(list)
    found = []
    for auction, price in _won(events):
        prices[auction.seller].append(price)
        last = prices[auction.seller][-10:]
        found.append((auction.seller, sum(last) / len(last)))
    return found


def q7(events: Sequence[Event]) -> list[Any]:
    """Return the highest bid of every ten seconds."""
    by_window: defaultdict[int, list[Bid]] = defaultdict(list)
    for bid in _bids(events):
        by_window[_start(bid.at) + _TEN].append(bid)
    best = {end: min(bids, key=lambda bid: (-bid.price, bid.auction, bid.bidder)) for end, bids in by_window.items()}
    return [(end, best[end].auction, best[end].price, best[end].bidder) for end in sorted(best)]


def q8(events: Sequence[Event]) -> list[Any]:
    """Return who has signed up and begun to sell within the same ten seconds."""
    sold = {(event.seller, _start(event.at)) for event in events if isinstance(event, Auction)}
    people = {(event.id, _start(event.at)): event for event in events if isinstance(event, Person)}
    return [(person.id, person.name, _start(person.at)) for key, person in people.items() if key in sold]


def q11(events: Sequence[Event]) -> list[Any]:
    """Return the number of bids in each session of a bidder."""
    times: defaultdict[int, list[int]] = defaultdict(list)
    for bid in _bids(events):
        times[bid.bidder].append(bid.at)
    found = []
    for bidder, each in times.items():
        each.sort()
        first = 0
        for place in range(1, len(each) + 1):
            if place == len(each) or each[place] - each[place - 1] >= _TEN:
                found.append((bidder, place - first, each[first]))
                first = place
    return found


def q12(events: Sequence[Event]) -> list[Any]:
    """Return the number of bids of a bidder in windows of ten thousand events."""
    counts = Counter((number // 10_000, event.bidder) for number, event in enumerate(events) if isinstance(event, Bid))
    return [(bidder, counts[window, bidder]) for window, bidder in counts]


IN_SEQUENCE: Final = ("q0", "q1", "q2", "q3", "q4", "q5", "q6", "q7")
"""The queries whose outputs have one order; that of the others goes by windows, and then by key."""

QUERIES: Final[dict[str, Callable[[Sequence[Event]], list[Any]]]] = {
    query.__name__: query for query in (q0, q1, q2, q3, q4, q5, q6, q7, q8, q11, q12)
}
