"""The flows that every deployment runs: what they give side by side is what each gives alone, whatever the timing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import Any

from flamecore.testing.draws import seeds
from flamecore.testing.flows.deterministic import assert_deterministic
from flamecore.testing.flows.reference import interpret
from flamecore.testing.flows.standard import FLOWS, Visit, flow, inputs, neighbours, pass_on, visit


def outputs(graph: Any, records: Any) -> dict[str, list[Any]]:
    return {name: [output.payload for output in each] for name, each in interpret(graph, records).items()}


def test_flows_side_by_side_give_the_outputs_of_each_alone() -> None:
    records = inputs()
    together = outputs(flow.graph(), records)
    for name, each in FLOWS.items():
        graph = each.alone(name).graph()
        alone = outputs(graph, {source.name: records[source.name] for source in graph.sources})
        assert alone == {sink: together.pop(sink) for sink in alone}
    assert not together


def test_flows_give_the_outputs_of_a_plain_loop() -> None:
    """The reference interpreter is held against something that knows nothing of graphs."""
    records, got = inputs(), outputs(flow.graph(), inputs())
    counts: Counter[str] = Counter()
    wanted = []
    for line in records["word_count_lines"]:
        for word in line.split():
            counts[word] += 1
            wanted.append((word, counts[word]))
    assert got["word_count"] == wanted
    numbers = records["cycle_sum_numbers"]
    assert [total.value for total in got["cycle_sum"]] == [sum(numbers[: at + 1]) for at in range(len(numbers))]
    holding: dict[str, set[int]] = {}
    for page in records["inverted_index_pages"]:
        for word in page.text.split():
            holding.setdefault(word, set()).add(page.id)
    last = {change.word: set(change.pages) for change in got["inverted_index"]}
    assert last == holding
    assert {change.change for change in got["inverted_index"]} == {"add", "remove"}


def test_a_row_and_a_cycle_give_the_outputs_of_plain_loops() -> None:
    """All that comes of an item goes on, or round, before what follows it."""
    records, got = inputs(), outputs(flow.graph(), inputs())
    states: Counter[tuple[int, int]] = Counter()

    def row(by: int, number: int) -> Iterator[int]:
        if by == 10:
            yield number
            return
        key = by, number % by
        states[key], passed = pass_on(states[key], number)
        for each in passed:
            yield from row(by + 1, each)

    deepest: dict[int, int] = {}

    def search(at: Visit) -> Iterator[Visit]:
        deepest[at.place], seen = visit(deepest.get(at.place, -1), at)
        for each in seen:
            for further in neighbours(each):
                yield from search(further)
            yield each

    numbers = together(records["row_x"], records["row_y"])
    assert got["states_in_a_row"] == [passed for number in numbers for passed in row(2, number % 97)]
    numbers = together(records["cycle_x"], records["cycle_y"])
    assert got["keyed_cycle"] == [each for number in numbers for each in search(Visit(number % 8, number % 5))]


def together(*fronts: Sequence[int]) -> list[int]:
    """Return records in the order of their times, which every front counts from 0."""
    return [number for row in zip_longest(*fronts) for number in row if number is not None]


def test_any_interleaving_gives_the_same_outputs() -> None:
    assert_deterministic(flow, inputs(size=20), seeds=seeds(10))


def test_other_seeds_and_sizes_give_other_inputs() -> None:
    assert inputs(1, 30) == inputs(1, 30)
    assert inputs(1, 30) != inputs(2, 30)
    assert max(map(len, inputs(1, 30).values())) == 30
