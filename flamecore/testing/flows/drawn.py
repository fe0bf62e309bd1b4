"""Random flows: cycles with keyed states, states in a row, functions that fail.

A drawn flow is a `Spec`, plain data that a seed or a property test makes, so that every process can make the same flow.
The values of its items decide their keys and how often they go round: an item that changes goes elsewhere.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import reduce, wraps
from itertools import count
from random import Random
from typing import Any, Final, NamedTuple

from flamecore.flow import Flow
from flamecore.model.stream import KeyedStream, Stream
from flamecore.testing.flows.reference import interpret

__all__ = ["Item", "Op", "Spec", "draw", "draw_flow", "draw_records", "draw_spec", "drawing", "simpler", "split"]


class Item(NamedTuple):
    """A payload.

    Attributes:
        value: Decides the key, and the path of the item.
        rounds: The rounds that it may still go, in the innermost cycle first.
    """

    value: int
    rounds: tuple[int, ...] = ()


Op = tuple[Any, ...]
"""(kind, numbers and inner chains)"""


class Spec(NamedTuple):
    """A drawn flow.

    Attributes:
        sources: The number of partitions of each source.
        chain: The operations.
        side: The number of operations after which the stream also goes to a second sink; None: no second sink.
    """

    sources: tuple[int, ...]
    chain: tuple[Op, ...]
    side: int | None = None


# -- the flow of a spec ------------------------------------------------------------------------------------------------


def draw_flow(spec: Spec, calls: Counter[str] | None = None, *, split: bool = False) -> Flow:
    """Return the flow of a spec: sources `a`, `b`, `c`, sinks `out` and maybe `side`.

    Args:
        spec: The flow to draw.
        calls: Counts the calls of state functions that return, by kind of operation.
        split: Whether each partition is a source of its own (`a0`, `a1`), as the reference interpreter wants it.
    """
    flow = Flow("drawn")
    drawing = _Drawing(Counter() if calls is None else calls)
    streams = []
    for name, partitions in zip("abc", spec.sources, strict=False):
        names = [f"{name}{partition}" for partition in range(partitions)] if split else [name]
        streams += [flow.source(each, Item) for each in names]
    stream: Stream[Item] = streams[0].merge(*streams[1:]) if len(streams) > 1 else streams[0]
    for place, op in enumerate(spec.chain):
        if place == spec.side:
            stream.map(lambda item: ("side", item)).sink("side")
        stream = drawing.draw(stream, op)
    stream.sink("out")
    return flow


def drawing(calls: Counter[str]) -> Callable[[Stream[Item], Op], Stream[Item]]:
    """Return a function that draws one operation behind a stream.

    It is for flows that draw other operations between.

    Args:
        calls: Counts the calls of state functions that return, by kind of operation.
    """
    return _Drawing(calls).draw


def _mix(one: Item, other: Item) -> Item:
    return Item((one.value * 31 + other.value + 7) % 1009, other.rounds)


def _mixed(window: Iterable[Item]) -> Item:
    return reduce(_mix, window)


def _spawn(state: int, item: Item) -> tuple[int, list[Item]]:
    state = (state * 13 + item.value) % 101
    return state, [Item((state + place) % 97, item.rounds) for place in range(state % 3)]


def _fussy_mix(state: Item, item: Item) -> Item:
    if (state.value + item.value) % 7 == 3:
        raise ValueError(f"{item.value} after {state.value}")
    return _mix(state, item)


def _fussy(item: Item, remainder: int) -> Item:
    if item.value % 11 == remainder:
        raise ValueError(f"{item.value} is not liked")
    return item


def _enter(rounds: int) -> Callable[[Item], Item]:
    return lambda item: Item(item.value, (rounds, *item.rounds))


def _turn(item: Item) -> Item:
    return Item(item.value, (item.rounds[0] - 1, *item.rounds[1:]))


def _leave(item: Item) -> Item:
    return Item(item.value, item.rounds[1:])


class _Drawing:
    """Operations of a spec; a name does not depend on the number of other kinds.

    Args:
        calls: Counts the calls of state functions.
    """

    def __init__(self, calls: Counter[str]) -> None:
        self._calls = calls
        self._fussy: Counter[str] = Counter()
        self._open: list[str] = []  # the labels whose items are not gathered yet

    def draw(self, stream: Stream[Item], op: Op) -> Stream[Item]:
        """Draw one operation behind a stream of items; return a stream of items again."""
        kind, number, *rest = op
        match kind:
            case "map":
                return stream.map(lambda item: Item((item.value * 7 + number) % 503, item.rounds))
            case "flat":
                return stream.flat_map(
                    lambda item: [item._replace(value=item.value + n) for n in range(item.value % 3)]
                )
            case "filter":
                return stream.filter(lambda item: item.value % (number + 1))
            case "spread":
                return stream.rebalance().map(lambda item: item)
            case "fussy":
                return stream.map(lambda item: _fussy(item, number), name=self._name(kind))
            case "branch":
                left, right = stream.branch(lambda item: item.value % 2)
                return self.chain(left, rest[0]).merge(self.chain(right, rest[1]))
            case "diamond":
                left, right = stream.broadcast(2)
                return self.chain(left, number).merge(self.chain(right, rest[0]))
            case "loop":
                entering = stream.map(_enter(number))
                return entering.loop(lambda inside: self._turned(self.chain(inside, rest[0]))).map(_leave)
            case "overlap":
                return self._overlapping(stream, number, *rest)
            case "by_key":
                return self._by_key(stream, number, *rest)
            case "scatter":
                return self._scattered(stream, number, *rest)
            case "beside":
                return self._scattered(stream, number, rest[0]).merge(stream)
            case "placed":
                return self._placed(stream, number, *rest)
            case "of_label" if self._open:
                keyed = stream.key_by(lambda item: item.value % number, label=self._open[-1])
                return keyed.stateful_map(number, self._counted(kind, _spawn))
            case "count":
                counts = stream.key_by(lambda item: (item.value % number, item.rounds)).count()
                return counts.map(lambda pair: Item(pair[0][0] * 17 + pair[1], pair[0][1]))
        return self._keyed(stream.key_by(lambda item: item.value % number), op)

    def chain(self, stream: Stream[Item], chain: Iterable[Op]) -> Stream[Item]:
        """Draw a chain of operations."""
        return reduce(self.draw, chain, stream)

    def _keyed(self, keyed: KeyedStream[Any, Item], op: Op) -> Stream[Item]:
        kind, number, *rest = op
        match kind:
            case "keyed":
                return keyed.map(lambda item: Item(item.value + number, item.rounds))
            case "group":
                return keyed.group(rest[0]).map(_mixed)
            case "ordered":
                return keyed.group(rest[0], order=lambda item: -(item.value % 5)).map(_mixed)
            case "collected":
                return keyed.group(rest[0], undo_partial=True).map(_mixed)
            case "reduce":
                return keyed.reduce(self._counted(kind, _mix)).map(lambda pair: pair[1])
            case "fold":
                return keyed.fold(Item(1), self._counted(kind, _mix)).map(lambda pair: pair[1])
            case "fussy_fold":
                folded = keyed.fold(Item(0), self._counted(kind, _fussy_mix), name=self._name(kind))
                return folded.map(lambda pair: pair[1])
        assert kind in ("stateful", "of_label"), kind
        return keyed.stateful_map(number, self._counted(kind, _spawn))

    def _overlapping(
        self, stream: Stream[Item], rounds: int, first: Iterable[Op], second: Iterable[Op]
    ) -> Stream[Item]:
        """Draw two cycles, neither in the other.

        Items go from the midst of the second back to the first.
        """
        back: list[Stream[Item]] = []

        def inner(inside: Stream[Item]) -> tuple[Stream[Item], Stream[Item]]:
            out, on = self.chain(inside, first).branch(lambda item: item.rounds[1] > 0 and item.value % 2)
            back.append(out.map(_leave).map(_turn))
            return self._turned(self.chain(on, second))

        def outer(inside: Stream[Item]) -> tuple[Stream[Item], Stream[Item]]:
            left = inside.map(_enter(rounds)).loop(inner).map(_leave)
            return back.pop(), left

        return stream.map(_enter(rounds)).loop(outer).map(_leave)

    def _by_key(self, stream: Stream[Item], number: int, rounds: int, states: int) -> Stream[Item]:
        """Draw a loop by key with states in a row."""

        def key(item: Item) -> int:
            return item.value % number

        def spawn(state: int, item: Item) -> tuple[int, list[Item]]:
            state = (state * 13 + item.value) % 101
            values = [key(item) + number * ((state + place) % 30) for place in range(1 + (state % 3 == 0))]
            return state, [item._replace(value=value) for value in values]

        def body(inside: KeyedStream[int, Item]) -> tuple[Stream[Item], Stream[Item]]:
            once = inside.stateful_map(number, self._counted("by_key", spawn))
            for _ in range(states - 1):
                once = once.key_by(key).stateful_map(number, self._counted("by_key", spawn))
            return self._turned(once)

        return stream.map(_enter(rounds)).key_by(key).loop(body).map(_leave)

    def _placed(self, stream: Stream[Item], number: int, wrong: int, chain: Iterable[Op], op: Op) -> Stream[Item]:
        """Draw a placing, operations on items of its records, and a state by their place.

        The place of a record is the first number of its rounds. A key has another place where `wrong` says so.
        """
        records = stream.map(lambda item: item._replace(rounds=(item.value % number, *item.rounds)))
        parts = self.chain(records.place_by(lambda item: item.rounds[0], name=self._name("place")), chain)

        def key(item: Item) -> tuple[int, int]:
            return item.value % 3, item.rounds[0] + (wrong > 0 and item.value % 11 == wrong)

        return self._keyed(parts.key_by(key, place=lambda key: key[1]), op).map(_leave)

    def _scattered(self, stream: Stream[Item], number: int, chain: Iterable[Op]) -> Stream[Item]:
        """Draw a label, operations on what comes of its items, and what gathers that."""
        name = self._name("scatter")
        self._open.append(name)
        parts = self.chain(
            stream.label(name).flat_map(lambda item: [item._replace(value=item.value + n) for n in range(number)]),
            chain,
        )
        self._open.pop()
        return parts.gather(name).map(lambda gathered: reduce(_mix, gathered.parts, gathered.item))

    def _turned(self, once: Stream[Item]) -> tuple[Stream[Item], Stream[Item]]:
        """Return the stream that goes round again, and the one that leaves.

        Some items leave before they have gone all their rounds.
        """
        more, done = once.map(_turn).branch(lambda item: item.rounds[0] > 0 and item.value % 7 != 3)
        return more, done

    def _counted(self, kind: str, function: Callable[[Any, Item], Any]) -> Callable[[Any, Item], Any]:
        calls = self._calls

        @wraps(function)
        def counted(state: Any, item: Item) -> Any:
            result = function(state, item)
            calls[kind] += 1
            return result

        return counted

    def _name(self, kind: str) -> str:
        self._fussy[kind] += 1
        return f"{kind}{self._fussy[kind] - 1}"


# -- specs and records by chance ---------------------------------------------------------------------------------------

_PLAIN: Final = ("map", "filter", "spread", "keyed", "flat")
_STATES: Final = ("group", "fold", "reduce", "count", "stateful")
_KEYED: Final = ("keyed", *(kind for kind in _STATES if kind != "count"))
_FUSSY: Final = ("fussy", "fussy_fold")
_MOST_STATES: Final = 8
"""Most states in a row."""
_MOST_STEPS: Final = 4000
"""Most steps of the reference interpreter."""
_FEWEST_CALLS: Final = 20


def draw(seed: int) -> tuple[Spec, dict[str, list[list[Item]]]]:
    """Draw a flow of moderate size, and records for each partition of its sources."""
    for attempt in count():
        random = Random(f"{seed} {attempt}")
        spec = draw_spec(random)
        records = draw_records(random, spec)
        calls: Counter[str] = Counter()
        try:
            interpret(
                draw_flow(spec, calls, split=True).graph(), split(records), skip_failing=True, max_steps=_MOST_STEPS
            )
        except RuntimeError:
            continue
        if calls.total() > _FEWEST_CALLS:
            return spec, records
    raise AssertionError("there is always one more")


def draw_spec(random: Random) -> Spec:
    """Draw a flow: one to four fronts, and a row of states or some cycles.

    The cycles are alone or among other operations.
    """
    sources = random.choice(((1,), (2,), (3,), (4,), (1, 1), (2, 1), (1, 1, 1), (2, 2)))
    draw = _Draw(random, fussy=random.random() < 0.4)
    chain = [("spread", 1)] if random.random() < 0.6 else []
    if random.random() < 0.3:
        chain += draw.row(random.randint(3, _MOST_STATES))
    else:
        chain += [draw.op(depth=2) for _ in range(random.randint(0, 2))]
        chain += [draw.cycle(depth=2) for _ in range(random.choice((1, 1, 1, 2)))]
        chain += [draw.op(depth=1) for _ in range(random.randint(0, 2))]
    # With chance of its own: the same seeds otherwise draw the same flows as without it.
    apart = Random(repr(chain))
    if apart.random() < 0.2:
        chain.insert(apart.randint(0, len(chain)), _Draw(apart, fussy=draw.is_fussy).placed())
    beside = Random(f"beside {chain!r}")
    if beside.random() < 0.3:
        chain.insert(beside.randint(0, len(chain)), _Draw(beside, fussy=draw.is_fussy).beside())
    side = random.randrange(len(chain)) if random.random() < 0.3 else None
    return Spec(sources, tuple(chain), side)


def draw_records(random: Random, spec: Spec) -> dict[str, list[list[Item]]]:
    """Draw records for the partitions of each source, of unequal length.

    There are few where they go round and multiply.
    """
    most = 8 if any(op[0] in ("loop", "overlap", "by_key") for op in spec.chain) else 24
    return {
        name: [[Item(random.randrange(13)) for _ in range(random.randint(1, most))] for _ in range(partitions)]
        for name, partitions in zip("abc", spec.sources, strict=False)
    }


def split(records: Mapping[str, Sequence[Sequence[Item]]]) -> dict[str, Sequence[Item]]:
    """Return the records of partitions as those of the sources of a split flow."""
    return {f"{name}{number}": part for name, parts in records.items() for number, part in enumerate(parts)}


class _Draw:
    def __init__(self, random: Random, fussy: bool) -> None:
        self._random = random
        self.is_fussy = fussy
        self._plain = _PLAIN + _FUSSY[:1] * fussy
        self._states = _STATES + _FUSSY[1:] * fussy

    def _simple(self, kinds: Sequence[str]) -> Op:
        kind, number = self._random.choice(kinds), self._random.randint(1, 4)
        return (kind, number, self._random.randint(1, 4)) if kind == "group" else (kind, number)

    def row(self, states: int) -> list[Op]:
        """Draw states in a row, now and then with another operation between them."""
        ops: list[Op] = []
        for _ in range(states):
            ops += [self._simple(self._plain)] if self._random.random() < 0.2 else []
            ops.append(self._simple(self._states))
        return ops

    def op(self, depth: int) -> Op:
        """Draw one operation, with cycles in cycles no deeper than `depth`."""
        kind = self._random.random()
        if kind < 0.45:
            return self._simple(self._states)
        if kind < 0.7:
            return self._simple(self._plain)
        if kind < 0.85 or not depth:
            ways = [tuple(self.op(depth) for _ in range(self._random.randint(0, 2))) for _ in range(2)]
            return ("branch", 1, *ways) if self._random.random() < 0.5 else ("diamond", *ways)
        return self.cycle(depth)

    def placed(self) -> Op:
        """Draw a placing, what makes items of its records, and a state by place."""
        chain = tuple(self._simple(("map", "filter", "flat", "flat")) for _ in range(self._random.randint(1, 2)))
        wrong = self._random.randint(1, 4) if self.is_fussy and self._random.random() < 0.5 else 0
        return ("placed", self._random.randint(2, 5), wrong, chain, self._simple(_KEYED))

    def beside(self) -> Op:
        """Draw a label, what comes of its items, and what gathers that, which meets the items themselves again."""
        chain = tuple(self.op(depth=1) for _ in range(self._random.randint(0, 2)))
        return ("beside", self._random.randint(1, 2), chain)

    def cycle(self, depth: int) -> Op:
        """Draw a cycle with at least one state."""
        rounds = self._random.choice((2, 2, 3))
        if self._random.random() < 0.25:
            return ("by_key", self._random.randint(1, 4), rounds, self._random.choice((1, 1, 2)))
        body = [self.op(depth - 1) for _ in range(self._random.randint(0, 2))]
        body.insert(self._random.randint(0, len(body)), self._simple(self._states))
        if self._random.random() < 0.7:
            return ("loop", rounds, tuple(body))
        return ("overlap", rounds - 1, tuple(body), tuple(self.op(0) for _ in range(self._random.randint(0, 2))))


# -- smaller ones ------------------------------------------------------------------------------------------------------


def simpler(spec: Spec) -> Iterator[Spec]:
    """Yield slightly smaller specs, to search for the smallest that shows a fault."""
    if spec.side is not None:
        yield spec._replace(side=None)
    for chain in _shorter(spec.chain):
        yield spec._replace(chain=chain, side=None)


def _shorter(chain: Sequence[Op]) -> Iterator[tuple[Op, ...]]:
    for place, op in enumerate(chain):
        before, behind = tuple(chain[:place]), tuple(chain[place + 1 :])
        yield before + behind
        for number, part in enumerate(op):
            if isinstance(part, tuple):
                yield (*before, *part, *behind)
                for shorter in _shorter(part):
                    yield (*before, (*op[:number], shorter, *op[number + 1 :]), *behind)
            elif isinstance(part, int) and part > 1:
                yield (*before, (*op[:number], part - 1, *op[number + 1 :]), *behind)
