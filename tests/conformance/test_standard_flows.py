"""The flows that every deployment runs: what they give side by side is what each gives alone, whatever the timing."""

from __future__ import annotations

from collections import Counter
from typing import Any

from flamecore.testing.flows.deterministic import assert_deterministic
from flamecore.testing.flows.reference import interpret
from flamecore.testing.flows.standard import FLOWS, flow, inputs


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


def test_any_interleaving_gives_the_same_outputs() -> None:
    assert_deterministic(flow, inputs(size=20), seeds=range(6))


def test_other_seeds_and_sizes_give_other_inputs() -> None:
    assert inputs(1, 30) == inputs(1, 30)
    assert inputs(1, 30) != inputs(2, 30)
    assert max(map(len, inputs(1, 30).values())) == 30
