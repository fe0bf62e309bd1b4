"""The queries as flows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import datetime, timedelta
from typing import Any, Final

import flamecore as fc
import flamestream_windows as w
from benchmarks.nexmark.events import DISORDER, Auction, Bid, Event, Person
from flamestream_windows import watermarks

STATES: Final = ("CA", "ID", "OR")
CATEGORY: Final = 10
EVERY: Final = 123
RATE: Final = 0.908
LAST: Final = 10
ARRIVALS: Final = 10_000
WINDOW: Final = timedelta(seconds=10)
SLIDE: Final = timedelta(seconds=2)
GAP: Final = timedelta(seconds=10)

Kept = tuple[Person | None, tuple[int, ...]]
Best = tuple[int, tuple[int, ...]]


def is_person(event: Event) -> bool:
    """Return whether an event is a person."""
    return type(event) is Person


def is_auction(event: Event) -> bool:
    """Return whether an event is an auction."""
    return type(event) is Auction


def is_bid(event: Event) -> bool:
    """Return whether an event is a bid."""
    return type(event) is Bid


def timed(events: fc.Stream[Any]) -> w.Timed[Any]:
    """Return a stream with the times of its events."""
    late = watermarks.bounded_disorder(microseconds=DISORDER)
    return w.event_time(events, lambda event: event.at, unit="us", watermark=late)


# -- records by themselves ---------------------------------------------------------------------------------------------


def q0(events: fc.Stream[Any]) -> fc.Stream[Any]:
    """Pass bids on."""
    return events.filter(is_bid)


def convert(bid: Bid) -> tuple[int, int, float, int]:
    """Return a bid with its price in another currency."""
    return (bid.auction, bid.bidder, RATE * bid.price, bid.at)


def q1(events: fc.Stream[Any]) -> fc.Stream[Any]:
    """Convert the currency of each bid."""
    return events.filter(is_bid).map(convert)


def is_chosen(event: Event) -> bool:
    """Return whether an event is a bid on one of some auctions."""
    return type(event) is Bid and event.auction % EVERY == 0


def q2(events: fc.Stream[Any]) -> fc.Stream[Any]:
    """Choose the bids on some auctions."""
    return events.filter(is_chosen).map(lambda bid: (bid.auction, bid.price))


# -- state by key ------------------------------------------------------------------------------------------------------


def concerns(event: Event) -> bool:
    """Return whether an event is a person of the states or an auction of the category."""
    if type(event) is Person:
        return event.state in STATES
    return type(event) is Auction and event.category == CATEGORY


def owner(event: Person | Auction) -> int:
    """Return the person that an event is about."""
    return event.id if type(event) is Person else event.seller  # type: ignore[union-attr]  # a bid has no owner, and is none of the two


def meet(kept: Kept, event: Person | Auction) -> tuple[Kept, list[tuple[str, str, str, int]]]:
    """Return who sells in a state, with the auction, whichever comes first."""
    person, waiting = kept
    if type(event) is Person:
        return (event, ()), [(event.name, event.city, event.state, auction) for auction in waiting]
    if person is None:
        return (None, (*waiting, event.id)), []
    return kept, [(person.name, person.city, person.state, event.id)]


def q3(events: fc.Stream[Any]) -> fc.Stream[Any]:
    """Join people of some states with what they sell of a category."""
    none: Kept = (None, ())
    return events.filter(concerns).key_by(owner).stateful_map(none, meet)


class Winning(w.StatefulFn[int, Any, tuple[int, int, int]]):
    """The highest bid on each auction when it expires: (category, seller, price)."""

    auction = w.Value(Auction)
    price = w.Value(int)
    closes = w.Timer("event")

    def on_element(self, key: int, event: Auction | Bid, at: datetime) -> Iterable[tuple[int, int, int]]:
        """Take an auction, or a bid on it."""
        if type(event) is Auction:
            self.auction.set(event)
            self.closes.set(at + timedelta(microseconds=event.expires - event.at))
            return ()
        auction = self.auction.get()
        if auction is not None and auction.at <= event.at < auction.expires:
            price = self.price.get()
            if price is None or event.price > price:  # type: ignore[union-attr]  # only bids come here
                self.price.set(event.price)  # type: ignore[union-attr]  # as above
        return ()

    def on_closes(self, key: int, at: datetime) -> Iterator[tuple[int, int, int]]:
        """Tell who has won."""
        auction, price = self.auction.get(), self.price.get()
        self.auction.clear()
        self.price.clear()
        if price is not None:
            yield auction.category, auction.seller, price


def winning(events: fc.Stream[Any]) -> fc.Stream[tuple[int, int, int]]:
    """Return the winning bid of each auction."""
    both = timed(events.filter(lambda event: type(event) is not Person))
    return both.key_by(lambda event: event.id if type(event) is Auction else event.auction).process(Winning)


def average(state: tuple[int, int], won: tuple[int, int, int]) -> tuple[tuple[int, int], list[tuple[int, float]]]:
    """Return the average price of a category so far."""
    category, _, price = won
    total, count = state[0] + price, state[1] + 1
    return (total, count), [(category, total / count)]


def q4(events: fc.Stream[Any]) -> fc.Stream[Any]:
    """Average the winning bids of each category."""
    return winning(events).key_by(lambda won: won[0]).stateful_map((0, 0), average)


def average_of_last(
    prices: tuple[int, ...], won: tuple[int, int, int]
) -> tuple[tuple[int, ...], list[tuple[int, float]]]:
    """Return the average price of a seller's last auctions."""
    prices = (*prices[-LAST + 1 :], won[2])
    return prices, [(won[1], sum(prices) / len(prices))]


def q6(events: fc.Stream[Any]) -> fc.Stream[Any]:
    """Average the winning bids of each seller's last ten auctions."""
    none: tuple[int, ...] = ()
    return winning(events).key_by(lambda won: won[1]).stateful_map(none, average_of_last)


# -- windows -----------------------------------------------------------------------------------------------------------


def hottest(best: Best, count: w.Pane[int, int]) -> Best:
    """Return the most bids on one auction, and the auctions that have so many."""
    if count.value < best[0]:
        return best
    return (count.value, (*best[1], count.key) if count.value == best[0] else (count.key,))


def hot_items(pane: w.Pane[Any, Best]) -> list[tuple[int, int, int]]:
    """Return the auctions with most bids in a window."""
    return [(pane.window.end, auction, pane.value[0]) for auction in sorted(pane.value[1])]


def q5(events: fc.Stream[Any]) -> fc.Stream[Any]:
    """Tell the auctions with most bids in the last ten seconds, every two."""
    none: Best = (0, ())
    bids = timed(events.filter(is_bid)).key_by(lambda bid: bid.auction)
    counts = bids.window(w.sliding(seconds=10, every=SLIDE)).count()
    return counts.per_window().fold(none, hottest).flat_map(hot_items)


def rank(bid: Bid) -> tuple[int, int, int]:
    """Return how high a bid is: of equal ones that on the lower auction is higher."""
    return (bid.price, -bid.auction, -bid.bidder)


def q7(events: fc.Stream[Any]) -> fc.Stream[Any]:
    """Tell the highest bid of every ten seconds."""
    bids = timed(events.filter(is_bid)).key_by(lambda bid: None)
    highest = bids.window(w.fixed(seconds=10)).max(rank)
    return highest.map(lambda pane: (pane.window.end, -pane.value[1], pane.value[0], -pane.value[2]))


def signed_up(pane: w.Pane[int, list[tuple[Any, Any]]]) -> list[tuple[int, str, int]]:
    """Return the person who has signed up, if they have begun to sell.

    Each of the pairs has the same person.
    """
    return [(pane.key, person.name, pane.window.start) for person, _ in pane.value[:1]]


def q8(events: fc.Stream[Any]) -> fc.Stream[Any]:
    """Tell who has signed up and begun to sell within the same ten seconds."""
    both = timed(events.filter(lambda event: type(event) is not Bid))
    people = both.filter(is_person).key_by(lambda person: person.id).window(w.fixed(seconds=10))
    sales = both.filter(is_auction).key_by(lambda auction: auction.seller).window(w.fixed(seconds=10))
    return people.join(sales).flat_map(signed_up)


def q11(events: fc.Stream[Any]) -> fc.Stream[Any]:
    """Count the bids in each session of a bidder."""
    bids = timed(events.filter(is_bid)).key_by(lambda bid: bid.bidder)
    counts = bids.window(w.sessions(seconds=10)).count()
    return counts.map(lambda pane: (pane.key, pane.value, pane.window.start))


def q12(events: fc.Stream[Any]) -> fc.Stream[Any]:
    """Count the bids of each bidder in windows of their arrival.

    Where the clock counts bids, a window is a number of bids.
    """
    bids = w.event_time(events.filter(is_bid), watermark=watermarks.arrival()).key_by(lambda bid: bid.bidder)
    return bids.window(w.fixed(microseconds=ARRIVALS)).count().map(lambda pane: (pane.key, pane.value))


QUERIES: Final[dict[str, Callable[[fc.Stream[Any]], fc.Stream[Any]]]] = {
    query.__name__: query for query in (q0, q1, q2, q3, q4, q5, q6, q7, q8, q11, q12)
}


def flow(query: str) -> fc.Flow:
    """Return the flow of a query, from the source `events` to the sink `out`."""
    made = fc.Flow(query)
    QUERIES[query](made.source("events", object)).sink("out")
    return made
