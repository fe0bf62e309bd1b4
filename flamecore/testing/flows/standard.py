"""The flows that every deployment must run as the reference interpreter does.

Each stresses another part of the model; `FLOWS` has them by name. `flow` draws all of them side by side, so that one
job runs them all: they share its workers, its minimum time and its channels, and nothing else. It is a module-level
variable, as workers in other processes need it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any, ClassVar, Final, Literal, NamedTuple

from flamecore.abc.operator import Work
from flamecore.flow import Flow
from flamecore.model.ordered import Marking, Now, Ordered, Outcome, Timer
from flamecore.model.stream import Stream

__all__ = ["FLOWS", "StandardFlow", "flow", "inputs"]


class Page(NamedTuple):
    """A version of a document."""

    id: int
    text: str


class Occurrence(NamedTuple):
    """Positions of a word in a page: 0-based ordinals, ascending."""

    word: str
    page: int
    positions: tuple[int, ...]


class Change(NamedTuple):
    """A change of the index; `pages` are those that hold the word after it."""

    change: Literal["add", "remove"]
    word: str
    page: int
    positions: tuple[int, ...]
    pages: tuple[int, ...]


class Sum(NamedTuple):
    """The state that drifts round the drawn cycle."""

    value: int


class Reading(NamedTuple):
    """A number, with its source."""

    source: str
    value: int


# -- drawing -----------------------------------------------------------------------------------------------------------


def word_count(flow: Flow) -> None:
    """Draw the word count: lines on any worker, words on the worker of their key."""
    lines = flow.source("word_count_lines", str).rebalance()
    lines.flat_map(str.split).key_by(lambda word: word).count().sink("word_count")


def split_page(page: Page) -> list[Occurrence]:
    """Return an item for each distinct word, in order of first occurrence."""
    places: dict[str, list[int]] = {}
    for place, word in enumerate(page.text.split()):
        places.setdefault(word, []).append(place)
    return [Occurrence(word, page.id, tuple(at)) for word, at in places.items()]


NOTHING_FOUND: Final[tuple[Occurrence, ...]] = ()


def index_word(
    postings: tuple[Occurrence, ...], found: Occurrence
) -> tuple[tuple[Occurrence, ...], tuple[Change, ...]]:
    """Put a posting in the word's index; remove the page's earlier posting first."""
    others = tuple(posting for posting in postings if posting.page != found.page)
    gone = [posting for posting in postings if posting.page == found.page]
    removed = [
        Change("remove", found.word, found.page, posting.positions, tuple(p.page for p in others)) for posting in gone
    ]
    after = tuple(sorted((*others, found)))
    added = Change("add", found.word, found.page, found.positions, tuple(posting.page for posting in after))
    return after, (*removed, added)


def inverted_index(flow: Flow) -> None:
    """Draw the incremental index of paper 004, from versions of pages to changes."""
    pages = flow.source("inverted_index_pages", Page).key_by(lambda page: page.id)
    words = pages.flat_map(split_page).key_by(lambda found: found.word)
    words.stateful_map(NOTHING_FOUND, index_word).sink("inverted_index")


def is_ready(window: tuple[Any, ...]) -> bool:
    """Return whether an item follows its predecessor's state, or is the first of all."""
    return type(window[-1]) is not Sum and (len(window) == 1 or type(window[0]) is Sum)


def add(window: tuple[Any, ...]) -> Sum:
    """Return the next state."""
    return Sum(window[-1] + (window[0].value if len(window) == 2 else 0))


def cycle_sum(flow: Flow) -> None:
    """Draw the paper's drifting state: a grouping of window 2, filter, map, and back."""

    def body(inside: Stream[Any]) -> tuple[Stream[Any], Stream[Any]]:
        sums = inside.key_by(lambda _: 0).group(2).filter(is_ready).map(add)
        return sums, sums

    # By way of all workers first: at the grouping they arrive in another order.
    flow.source("cycle_sum_numbers", int).key_by(lambda number: number).map(int).loop(body).sink("cycle_sum")


def triple_grouping(flow: Flow) -> None:
    """Draw windows of windows of windows, by other keys: a repair causes repairs."""
    numbers = flow.source("triple_grouping_numbers", int).rebalance().map(lambda number: number + 1)
    windows = numbers.key_by(lambda number: number % 3).group(2).key_by(lambda pair: sum(pair) % 4).group(3)
    windows.key_by(lambda pairs: sum(map(sum, pairs)) % 2).group(2).sink("triple_grouping")


def broadcast_and_merge(flow: Flow) -> None:
    """Draw two copies that take different ways, meet again in order, and branch."""
    left, right = flow.source("broadcast_numbers", int).rebalance().map(int).broadcast(2)
    doubled = left.key_by(lambda number: number).map(lambda number: ("double", 2 * number))
    halves = right.filter(lambda number: number % 2 == 0).map(lambda number: ("half", number // 2))
    both = doubled.merge(halves)
    both.key_by(lambda pair: pair[1] % 5).group(3).sink("broadcast_windows")
    both.key_by(lambda pair: pair[0]).fold(0, lambda total, pair: total + pair[1]).sink("broadcast_totals")


NOTHING_READ: Final[tuple[Reading, ...]] = ()


def keep_three(
    seen: tuple[Reading, ...], reading: Reading
) -> tuple[tuple[Reading, ...], tuple[tuple[Reading, ...], ...]]:
    """Return the last three readings, as the state and as the output."""
    after = (*seen, reading)[-3:]
    return after, (after,)


def unequal_fronts(flow: Flow) -> None:
    """Draw three sources of unequal length on different workers.

    No worker sees the items in order.
    """
    x, y, z = (flow.source(f"fronts_{name}", int).map(partial(Reading, name)) for name in ("x", "y", "z"))
    x.merge(y, z).key_by(lambda reading: reading.value % 3).stateful_map(NOTHING_READ, keep_three).sink("fronts")


class Visit(NamedTuple):
    """A visit on its way round the keyed cycle.

    Attributes:
        place: A number below 8, the key.
        depth: How many places further it still goes.
    """

    place: int
    depth: int


def pass_on(state: int, number: int) -> tuple[int, list[int]]:
    """Return the next of the states in a row, and one or two items."""
    return (state * 7 + number) % 101, [(number + state) % 97] * (1 + (state == 3))


def states_in_a_row(flow: Flow) -> None:
    """Draw eight states, by different keys, over two fronts.

    Items that are late at one state make the next one late.
    """
    numbers = flow.source("row_x", int).merge(flow.source("row_y", int))
    stream: Stream[int] = numbers.rebalance().map(lambda number: number % 97)
    for by in range(2, 10):
        stream = stream.key_by(lambda number, by=by: number % by).stateful_map(0, pass_on)  # type: ignore[misc]
    stream.sink("states_in_a_row")


def visit(deepest: int, visit: Visit) -> tuple[int, list[Visit]]:
    """Return the state of a place, and the visit if it goes further than all before."""
    return (visit.depth, [visit]) if visit.depth > deepest else (deepest, [])


def neighbours(visit: Visit) -> list[Visit]:
    """Return the visits derived from a visit."""
    return [Visit((visit.place + step) % 8, visit.depth - 1) for step in (1, 3)] if visit.depth else []


def keyed_cycle(flow: Flow) -> None:
    """Draw a search over two fronts: a keyed state in each round.

    Some items go round again, by other keys. The items derived from a visit leave before the visit itself, as their way
    is drawn first.
    """

    def body(inside: Stream[Visit]) -> tuple[Stream[Visit], Stream[Visit]]:
        seen = inside.key_by(lambda visit: visit.place).stateful_map(-1, visit)
        return seen.flat_map(neighbours), seen

    numbers = flow.source("cycle_x", int).merge(flow.source("cycle_y", int))
    visits = numbers.rebalance().map(lambda number: Visit(number % 8, number % 5))
    visits.loop(body).sink("keyed_cycle")


@dataclass(eq=False, slots=True, repr=False)
class Tens(Ordered):
    """Counts by tens of event time, once the watermark has reached their end.

    For an item that comes later it gives the watermark.
    """

    kind: ClassVar[str] = "tens"

    def work(self) -> Work:
        return TensWork()


class TensWork(Work):
    """The work of `Tens`."""

    def process(self, key: Any, state: Any, payload: tuple[int, int], now: Now) -> Outcome:
        ten, counts = payload[0] // 10, dict(state or ())
        if 10 * ten + 10 <= now.watermark:
            return _outcome(counts, [(now.watermark, -payload[0])])
        return _outcome({**counts, ten: counts.get(ten, 0) + 1}, [])

    def on_time(self, key: Any, state: Any, timer: Timer, now: Now) -> Outcome:
        counts = dict(state)
        count = counts.pop(timer.tag)
        return _outcome(counts, [(timer.time - 1, count)])


def _outcome(counts: dict[int, int], outputs: list[tuple[int, int]]) -> Outcome:
    tens = sorted(counts)
    timers = [Timer(10 * ten + 10, ten, mark=True) for ten in tens]
    return Outcome(tuple(sorted(counts.items())) or None, outputs, timers, 10 * tens[0] + 9 if tens else None)


def event_of(number: int) -> tuple[int, int]:
    """Return the event time that is in a number, and the rest of it."""
    return divmod(number, 10)


def two_watermarks(flow: Flow) -> None:
    """Draw two ordered operations in a row, and a state between.

    Their watermark comes from the source.
    """
    events = flow.source("watermark_events", int).map(event_of)
    marked = events.apply(Marking, function=lambda event: event[0] - 6, step=2, closes=False, name="event_time")
    first = marked.rebalance().map(lambda event: event).key_by(lambda event: event[1]).apply(Tens, name="first_tens")
    summed = first.key_by(lambda count: count[1] % 3).fold(0, lambda total, count: total + count[1], name="tens_total")
    again = first.map(lambda count: (count[0], count[1] % 2)).key_by(lambda event: event[1])
    again.apply(Tens, name="second_tens").merge(summed).sink("two_watermarks")


def gathered(flow: Flow) -> None:
    """Draw lines that go over all workers word by word, and are joined again.

    There is state for each line and for all lines.
    """
    words = flow.source("gathered_lines", str).label("line").rebalance().flat_map(str.split)
    counted = words.key_by(lambda word: word).count(name="words_in_all")
    lengths = words.key_by(len, label="line").count(name="lengths_in_line")
    joined = counted.merge(lengths).gather("line")
    joined.map(lambda gathered: (gathered.item, gathered.parts)).sink("gathered")


# -- inputs ------------------------------------------------------------------------------------------------------------


def _lines(name: str) -> Callable[[Random, int], dict[str, list[Any]]]:
    return lambda random, size: {name: [" ".join(random.choices("abcdef", k=random.randrange(5))) for _ in range(size)]}


def _pages(random: Random, size: int) -> dict[str, list[Any]]:
    words = ["ash", "birch", "cedar", "elm", "fir", "hazel", "larch", "maple", "oak", "pine"]
    texts = [" ".join(random.choices(words, k=random.randrange(1, 6))) for _ in range(size)]
    return {"inverted_index_pages": [Page(random.randrange(size // 4 + 1), text) for text in texts]}


def _numbers(name: str) -> Callable[[Random, int], dict[str, list[Any]]]:
    return lambda random, size: {name: [random.randrange(30) for _ in range(size)]}


def _fronts(random: Random, size: int) -> dict[str, list[Any]]:
    lengths = {"fronts_x": size, "fronts_y": size // 2, "fronts_z": size // 10}
    return {name: [random.randrange(100) for _ in range(length)] for name, length in lengths.items()}


def _two_fronts(name: str) -> Callable[[Random, int], dict[str, list[Any]]]:
    lengths = {f"{name}_x": 2, f"{name}_y": 4}
    return lambda random, size: {
        source: [random.randrange(100) for _ in range(size // share)] for source, share in lengths.items()
    }


def _events(random: Random, size: int) -> dict[str, list[Any]]:
    return {"watermark_events": [10 * max(place + random.randrange(-9, 9), 0) + place % 7 for place in range(size)]}


class StandardFlow(NamedTuple):
    """A standard flow.

    Attributes:
        draw: Adds it to a flow; its sources and sinks have unique names.
        inputs: Records for each source, from a random generator and a size.
    """

    draw: Callable[[Flow], None]
    inputs: Callable[[Random, int], Mapping[str, Sequence[Any]]]

    def alone(self, name: str) -> Flow:
        """Return a flow with this one alone."""
        flow = Flow(name)
        self.draw(flow)
        return flow


FLOWS: Final[Mapping[str, StandardFlow]] = {
    "word_count": StandardFlow(word_count, _lines("word_count_lines")),
    "inverted_index": StandardFlow(inverted_index, _pages),
    "cycle_sum": StandardFlow(cycle_sum, _numbers("cycle_sum_numbers")),
    "triple_grouping": StandardFlow(triple_grouping, _numbers("triple_grouping_numbers")),
    "broadcast_and_merge": StandardFlow(broadcast_and_merge, _numbers("broadcast_numbers")),
    "unequal_fronts": StandardFlow(unequal_fronts, _fronts),
    "states_in_a_row": StandardFlow(states_in_a_row, _two_fronts("row")),
    "keyed_cycle": StandardFlow(keyed_cycle, _two_fronts("cycle")),
    "two_watermarks": StandardFlow(two_watermarks, _events),
    "gathered": StandardFlow(gathered, _lines("gathered_lines")),
}

flow: Final = Flow("standard-flows")
"""All standard flows at once."""

for _each in FLOWS.values():
    _each.draw(flow)


def inputs(seed: int = 1, size: int = 100) -> dict[str, Sequence[Any]]:
    """Return records for all sources of `flow`, `size` for the longest of each flow.

    The same seed gives the same records.
    """
    found: dict[str, Sequence[Any]] = {}
    for name, each in FLOWS.items():
        found.update(each.inputs(Random(f"{seed} {name}"), size))
    return found
