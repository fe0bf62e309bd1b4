"""Events: of fifty, one is a person, three are auctions, forty-six are bids.

The same size gives the same events everywhere. There are a thousand of them a second of event time, each up to
`DISORDER` late. An auction comes before its bids, and a person before what they sell and bid. Times are whole numbers,
as in the suite: microseconds since 1970.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Final, NamedTuple

SEED: Final = 20270
BEGIN: Final = 1_709_251_200_000_000
"""The first of March 2024."""

GAP: Final = 1_000
"""The time between two events."""

DISORDER: Final = 200_000
CATEGORIES: Final = 5
OPEN: Final = 100
"""Number of the latest auctions among which bids without a popular auction are distributed."""

ACTIVE: Final = 1000
"""Number of the latest people who bid and sell."""

FIRST_ID: Final = 1000
_GROUP: Final = 50
_AUCTIONS: Final = 3
_HOT_AUCTION, _HOT_BIDDER, _HOT_SELLER = 0.5, 0.75, 0.75
_FIRST_NAMES: Final = ("Ada", "Bob", "Cleo", "Dan", "Eve", "Finn", "Gus", "Hana", "Ivo", "June", "Kai")
_LAST_NAMES: Final = ("Abel", "Brook", "Cole", "Drum", "East", "Frost", "Gray", "Holt", "Ives")
_CITIES: Final = (("Phoenix", "AZ"), ("Los Angeles", "CA"), ("Boise", "ID"), ("Portland", "OR"), ("Seattle", "WA"))


class Person(NamedTuple):
    """Somebody who signs up."""

    at: int
    id: int
    name: str
    city: str
    state: str


class Auction(NamedTuple):
    """An auction that begins at its time, and takes bids until it expires."""

    at: int
    id: int
    item: str
    seller: int
    category: int
    expires: int


class Bid(NamedTuple):
    """A bid."""

    at: int
    auction: int
    bidder: int
    price: int


Event = Person | Auction | Bid


def events(count: int, seed: int = SEED) -> list[Event]:
    """Return so many events."""
    return list(_events(count, Random(seed)))


def _events(count: int, random: Random) -> Iterator[Event]:
    # Of the generator only `random()` gives the same numbers in every version of Python.
    draw = random.random
    people = auctions = FIRST_ID

    def recent(last: int, most: int) -> int:
        return last - int(draw() * min(most, last - FIRST_ID))

    def hot(last: int, of: int) -> int:
        return max(last // of * of, FIRST_ID + 1)

    for number in range(count):
        at = BEGIN + number * GAP - int(DISORDER * draw())
        place = number % _GROUP
        if place == 0:
            people += 1
            first, last = _FIRST_NAMES[int(draw() * len(_FIRST_NAMES))], _LAST_NAMES[int(draw() * len(_LAST_NAMES))]
            yield Person(at, people, f"{first} {last}", *_CITIES[int(draw() * len(_CITIES))])
        elif place <= _AUCTIONS:
            auctions += 1
            seller = hot(people, 4) if draw() < _HOT_SELLER else recent(people, ACTIVE)
            # For as long as a hundred auctions take to begin, on average; no two of them expire together.
            length = int(2 * draw() * OPEN / _AUCTIONS * _GROUP)
            expires = (at // GAP + 1 + length) * GAP + auctions % GAP
            yield Auction(at, auctions, f"item {auctions}", seller, 10 + int(draw() * CATEGORIES), expires)
        else:
            auction = hot(auctions, OPEN) if draw() < _HOT_AUCTION else recent(auctions, OPEN)
            bidder = hot(people, OPEN) if draw() < _HOT_BIDDER else recent(people, ACTIVE)
            yield Bid(at, auction, bidder, int(100 * 10 ** (6 * draw())))
