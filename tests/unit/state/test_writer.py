"""The parts a worker writes, and what is put together from them again."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from random import Random
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flamecore.abc.operator import GONE
from flamecore.errors import CodecError
from flamecore.model.hashing import KEY_GROUPS, key_group, key_groups, owners, stable_hash
from flamecore.runtime.codec.codec import Codec
from flamecore.runtime.state.format import Binding, FrontState, Manifest, Part, Section, decode_part
from flamecore.runtime.state.restore import StateReader
from flamecore.runtime.state.writer import PartWriter, StateWriter
from flamecore.testing.draws import seeds

VERTICES = ("one", "two")
OPERATIONS = dict.fromkeys(VERTICES, key_groups)
ALL = range(KEY_GROUPS)


def group_of(name: Any) -> int:
    return key_group(stable_hash(name))


class Operation:
    """A state to be read by a writer."""

    def __init__(self, state: Mapping[Any, Any]) -> None:
        self.state = dict(state)
        self.names = list(self.state)
        self.asked = 0
        self.known = False
        self._types = set(map(type, self.names)), set(map(type, self.state.values()))

    @property
    def name_types(self) -> Collection[type] | None:
        return self._types[0] if self.known else None

    @property
    def state_type(self) -> type | None:
        return next(iter(self._types[1])) if self.known and len(self._types[1]) == 1 else None

    def snapshot_of(self, names: Sequence[Any]) -> Mapping[Any, Any]:
        self.asked += len(names)
        return {name: self.state[name] for name in names if name in self.state}

    def compact(self) -> None:
        self.names = list(self.state)

    def change(self, changed: Mapping[Any, Any]) -> None:
        self._types[0].update(map(type, changed))
        self._types[1].update(map(type, changed.values()))
        for name, value in changed.items():
            if value is GONE:
                self.state.pop(name, None)
            else:
                if name not in self.state:
                    self.names.append(name)
                self.state[name] = value


class Story:
    """Workers that take snapshots, and the state as it is.

    Args:
        workers: How many there are.
        before: The story that goes on.
        home: The worker that owns all of "two"; None: they share it as they share "one".
    """

    def __init__(self, workers: int, before: Story | None = None, home: int | None = None) -> None:
        self.codec = Codec()
        self.owners = dict.fromkeys(VERTICES, owners(workers))
        if home is not None:
            self.owners["two"] = (home % workers,) * KEY_GROUPS
        self.workers = workers
        self.blobs: dict[str, bytes] = before.blobs if before else {}
        self.state: dict[str, dict[Any, Any]] = before.state if before else {name: {} for name in VERTICES}
        self.parts: tuple[Part, ...] = before.parts if before else ()
        self.written = 0
        self.number: int = before.number if before else 0
        self.operations: list[dict[str, Operation]] = []
        self.writers: list[list[StateWriter]] = []
        alike = [[name for name in VERTICES if self.owners[name] == each] for each in {*self.owners.values()}]
        for worker in range(workers):
            self.operations.append({})
            self.writers.append([])
            for those in alike:
                own = [group for group, owner in enumerate(self.owners[those[0]]) if owner == worker]
                operations = {name: Operation(self.load(own)[name]) for name in those}
                self.operations[-1] |= operations
                parts, span = self.manifest.parts_of(own, those), (min(own, default=0), max(own, default=-1))
                writer = StateWriter(operations, self.codec, span, parts, alone=len(alike) == 1)
                self.writers[-1].append(writer)

    @property
    def manifest(self) -> Manifest:
        return Manifest("", 1, 1, 0, 0.0, {}, self.workers, (), self.parts)

    def load(self, groups: Collection[int]) -> Mapping[str, Mapping[Any, Any]]:
        reader = StateReader(groups, OPERATIONS, self.manifest.swept(OPERATIONS))
        for part in self.parts:
            if reader.wants(part):
                sections = decode_part(
                    self.codec,
                    self.blobs[part.blob],
                    part.blob,
                    Binding(digest=part.digest),
                    reader.operations_in(part),
                )
                reader.apply(part, sections)
        return reader.states

    def snapshot(self, changes: Mapping[str, Mapping[Any, Any]]) -> None:
        """Take a snapshot in which these names have changed."""
        self.number += 1
        for vertex, changed in changes.items():
            for name, value in changed.items():
                if value is GONE:
                    self.state[vertex].pop(name, None)
                else:
                    self.state[vertex][name] = value
        for worker, writers in enumerate(self.writers):
            own = {
                vertex: {
                    name: value for name, value in changed.items() if self.owners[vertex][group_of(name)] == worker
                }
                for vertex, changed in changes.items()
            }
            for vertex, changed in own.items():
                self.operations[worker][vertex].change(changed)
            # In two pieces, of which the first holds some names that the second holds once more.
            pieces = {vertex: [dict.fromkeys(list(each)[:2], "old"), each] for vertex, each in own.items()}
            for number, writer in enumerate(writers):
                self.write(writer, pieces, f"part/{self.number}/{worker}" + (f"/{number}" if number else ""))
        self.parts = self.manifest.live_parts()
        needed = {part.blob for part in self.parts}
        self.blobs = {blob: data for blob, data in self.blobs.items() if blob in needed}

    def write(self, writer: StateWriter, pieces: Mapping[str, Any], blob: str) -> None:
        sections = writer.prepare(self.number, pieces)
        about = writer.groups, self.number, writer.since, Binding("mine", "run"), writer.covers
        part_writer = PartWriter(blob, self.codec, *about)
        for section, encoded in sections:
            part_writer.add(section, encoded)
        finished = part_writer.finish()
        if finished is not None:
            part, data = finished
            assert part.size == len(data)
            assert part.operations, "a part that nobody would name"
            assert not part.covers or set(part.operations) <= set(part.covers)
            self.blobs[part.blob] = data
            self.written += part.size
            self.parts = (*self.parts, part)

    def check(self) -> None:
        """Check that the parts hold the state, all of it or that of one worker."""
        assert self.load(ALL) == self.state
        own = {group for group, owner in enumerate(owners(3)) if owner == 1}
        assert self.load(own) == {
            vertex: {name: value for name, value in values.items() if group_of(name) in own}
            for vertex, values in self.state.items()
        }


names = st.integers(0, 40)
some_changes = st.dictionaries(
    st.sampled_from(VERTICES), st.dictionaries(names, st.one_of(st.integers(), st.just(GONE)), max_size=8), max_size=2
)


@settings(max_examples=len(seeds(100, least=40)), deadline=None)
@given(st.lists(st.one_of(some_changes, st.tuples(st.integers(1, 5), st.none() | st.integers(0, 4))), max_size=25))
def test_parts_hold_the_state_after_any_changes_for_any_number_of_workers(steps: list[Any]) -> None:
    """A pair among the changes is a crash: so many workers go on, and perhaps one of them is a home."""
    story = Story(2)
    for step in steps:
        if isinstance(step, tuple):
            story = Story(step[0], story, step[1])
        else:
            story.snapshot(step)
        story.check()


def test_a_name_that_has_gone_does_not_come_back_with_a_part_of_other_workers() -> None:
    """The part that says it has gone is dropped before the part that held it: others still need that one."""
    story = Story(2)
    story.snapshot({"two": {30: 0}})
    story = Story(3, story)
    story.snapshot({"two": {30: GONE}})
    assert group_of(0) != group_of(30)
    story.snapshot({"one": {0: GONE}})
    assert [part.blob for part in story.parts] == ["part/1/0", "part/3/1"]
    story.check()
    story.parts = story.manifest.without(["one"]).parts
    assert story.load(ALL)["two"] == {}


def test_a_sweep_of_a_home_says_nothing_of_what_others_share() -> None:
    story = Story(2, home=1)
    story.snapshot({"one": dict.fromkeys(range(20), 0), "two": dict.fromkeys(range(20), 0)})
    assert {(part.groups, part.covers) for part in story.parts} == {
        ((0, 63), ("one",)),
        ((64, 127), ("one",)),
        ((0, 127), ("two",)),
    }
    for number in range(50):
        story.snapshot({"two": {number % 3: number}})
        story.check()
    assert max(part.since for part in story.parts if part.covers == ("two",)) > 1, "the home's sweep is through"
    assert [part.number for part in story.parts if part.covers == ("one",)] == [1, 1]
    story = Story(1, story)
    story.snapshot({"one": {1: 1}})
    assert story.parts[-1].covers == ()
    story.check()


def test_old_parts_are_dropped_little_by_little() -> None:
    story = Story(1)
    everything = {"one": dict.fromkeys(range(20_000), 0), "two": {}}
    story.snapshot(everything)
    first, most = story.parts[0].size, 0
    for number in range(400):
        before = story.written
        story.snapshot({"one": {number % 7: number}})
        most = max(most, len(story.parts))
        assert story.written - before < first / 20, "no snapshot costs more than the changes and a small share"
    story.check()
    assert 60 < most < 200
    assert story.written < 10 * first, "a whole state for each 80 snapshots"
    assert all(part.size < first / 20 for part in story.parts), "what the first part held has been written anew"


def test_the_keys_read_at_once_are_bounded() -> None:
    many = Operation(dict.fromkeys(range(100_000), 0))
    writer = StateWriter({"one": many}, Codec(), (0, 127), parts=500)
    writer.prepare(1, {"one": [{1: 1}]})
    assert many.asked == 32_768
    writer = StateWriter({"one": many}, Codec(), (0, 127), parts=5000)
    writer.prepare(1, {"one": [{1: 1}]})
    assert many.asked == 132_768, "unless there is no end of parts"
    assert writer.since == 1


def test_an_idle_state_costs_nothing() -> None:
    story = Story(1)
    story.snapshot({"one": dict.fromkeys(range(500), 0)})
    story.snapshot({"one": {1: 1}})
    before = story.written
    for _ in range(300):
        story.snapshot({})
    assert story.written == before


@pytest.mark.parametrize("between", [1, 3, 20])
def test_parts_stay_few_over_many_restarts(between: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when it is killed again and again after its first snapshot, so that no sweep comes to its end in time."""
    monkeypatch.setattr("flamecore.runtime.state.writer._PARTS", 64)
    random = Random(between)
    story = Story(1)
    most = 0
    for epoch in range(120 // between):
        story = Story(1 + epoch % 3, story)
        for _ in range(between):
            story.snapshot({"one": {random.randrange(1000): random.random() for _ in range(20)}})
            most = max(most, len(story.parts))
    story.check()
    assert most < 128


def test_deleted_keys_stay_deleted() -> None:
    story = Story(1)
    story.snapshot({"one": {1: GONE, 2: GONE}})
    story.check()
    story.snapshot({"one": {1: "a", 3: "b"}})
    story.snapshot({"one": {1: GONE}})
    story.check()
    assert story.state["one"] == {3: "b"}


def test_names_without_state_are_forgotten_when_a_sweep_has_ended() -> None:
    story, most = Story(1), 0
    for number in range(3000):
        story.snapshot({"one": {("begun", number): 1, ("begun", number - 1): GONE}})
        most = max(most, len(story.operations[0]["one"].names))
    story.check()
    assert most < 1500, "of 3,000 keys, one of which has state at a time"


def test_a_group_moves_with_all_its_parts() -> None:
    """From one worker to five, and back to two: nothing is lost, nothing is in two places."""
    story = Story(1)
    story.snapshot({"one": dict.fromkeys(range(300), "first")})
    for workers in (5, 2, 3):
        story = Story(workers, story)
        for worker, operations in enumerate(story.operations):
            assert {story.owners["one"][group_of(name)] for name in operations["one"].names} == {worker}
        for number in range(120):  # until what the workers of before have written is no longer needed
            story.snapshot({"one": dict.fromkeys(range(0, 300, workers), workers + number)})
        story.check()
        assert len({part.groups for part in story.parts}) == workers


@pytest.mark.parametrize("size", [3, 2000])
def test_a_large_change_is_encoded_in_moments(size: int) -> None:
    operation = Operation({})
    writer = StateWriter({"one": operation}, Codec(), (0, 127))
    sections = list(writer.prepare(1, {"one": [dict.fromkeys(range(20_000), "x" * size)]}))
    assert [name for section, _ in sections for name in section.names] == list(range(20_000))
    assert max(len(encoded) for _, encoded in sections) <= 64 * 1024
    assert len(sections) < 20 + 2 * (20_000 * (size + 3) // 32768), "but not in more than it takes"


def test_the_error_of_unstorable_state_names_its_type() -> None:
    class Mine(NamedTuple):
        n: int

    writer = StateWriter({"one": Operation({})}, Codec(), (0, 127))
    with pytest.raises(CodecError, match="Mine"):
        list(writer.prepare(1, {"one": [{1: Mine(3)}]}))


def test_only_parts_with_wanted_key_groups_are_loaded() -> None:
    reader = StateReader({1, 2}, {"one": key_groups}, {"one": [0] * KEY_GROUPS})
    assert reader.wants(Part("a", 1, ("one",), (2, 9), 1, 0))
    assert not reader.wants(Part("a", 1, ("one",), (3, 9), 1, 0)), "of other key groups"
    assert not reader.wants(Part("a", 1, ("two",), (0, 9), 1, 0)), "of other operations"
    assert reader.operations_in(Part("a", 1, ("two", "one"), (0, 9), 1, 0)) == {"one"}


@pytest.mark.parametrize("wanted", [range(64), range(32)], ids=["all of the part", "some of it"])
def test_keys_with_another_hash_than_stored_are_refused(wanted: range) -> None:
    """Others of them may be where nobody who wants them looks."""
    names = [f"w{number}" for number in range(100)]
    part = Part("a", 1, ("one",), (0, 63), 1, 0)
    section = Section("one", names, names, [])
    unswept = {"one": [0] * KEY_GROUPS}
    low = StateReader(wanted, {"one": lambda some: [hash(name) % 64 for name in some]}, unswept)
    low.apply(part, [section])
    assert len(low.states["one"]) == sum(hash(name) % 64 in wanted for name in names)
    with pytest.raises(CodecError, match=r"'one' has state for 'w0', which is not where a key of that hash is stored"):
        StateReader(wanted, {"one": lambda some: [64 for _ in some]}, unswept).apply(part, [section])


def test_stored_values_that_are_no_longer_keys_are_refused() -> None:
    def groups_of(names: Sequence[Any]) -> Sequence[int]:
        raise TypeError("a key of type Place has no hash")

    reader = StateReader(range(64), {"one": groups_of}, {"one": [0] * KEY_GROUPS})
    with pytest.raises(CodecError, match="'one' has state for what cannot be a key any more: a key of type Place"):
        reader.apply(Part("a", 1, ("one",), (0, 63), 1, 0), [Section("one", ["x"], [1], [])])


def test_parts_are_alive_until_all_of_their_key_groups_are_in_later_ones() -> None:
    def part(name: str, groups: tuple[int, int], number: int, since: int = 0) -> Part:
        return Part(name, 1, ("v",), groups, number, since)

    def live(*parts: Part) -> str:
        manifest = Manifest("", 1, 1, 0, 0.0, {}, 1, (), parts)
        return "".join(each.blob for each in manifest.live_parts())

    a, b, both = (0, 63), (64, 127), (0, 127)
    assert live(part("1", both, 1), part("2", both, 2), part("3", both, 3, since=2)) == "23"
    assert live(part("1", both, 1), part("2", a, 2, since=2)) == "12", "half of it is only there"
    assert live(part("1", both, 1), part("2", a, 2, since=2), part("3", b, 2, since=2)) == "23"
    assert live(part("1", both, 1), part("2", a, 2, since=2), part("3", b, 5, since=4)) == "23"
    assert live(part("1", a, 1), part("2", a, 1), part("3", both, 4, since=3)) == "3"
    assert live(part("1", both, 1)._replace(operations=()), part("2", both, 2)) == "2", "it holds nothing that counts"
    of_others = part("2", both, 2, since=2)._replace(operations=("w",), covers=("w",))
    assert live(part("1", both, 1), of_others) == "12", "it says nothing of the first"
    assert live(part("1", both, 1), of_others._replace(covers=("v", "w"))) == "2"


def test_a_manifest_is_finished_when_all_fronts_have_ended() -> None:
    fronts = [FrontState("s", each, "", each + 1, None, 0, ended) for each, ended in enumerate((True, False))]
    assert not Manifest("", 1, 1, 0, 0.0, {}, 1, tuple(fronts), ()).finished
    assert Manifest("", 1, 1, 0, 0.0, {}, 1, (fronts[0],), ()).finished


_plain = st.one_of(st.integers(-(2**70), 2**70), st.booleans(), st.text(max_size=3), st.binary(max_size=3), st.floats())
_any = st.one_of(_plain, st.tuples(_plain), st.just(GONE))


@settings(max_examples=len(seeds(200)), deadline=None)
@given(st.dictionaries(_any.filter(lambda name: name is not GONE), st.one_of(_any, st.integers(0, 9)), max_size=40))
def test_sections_are_the_same_whether_types_are_known_or_not(changes: dict[Any, Any]) -> None:
    """The error of values that cannot be written is the same."""

    def written(*, known: bool) -> list[bytes] | str:
        operation = Operation({})
        operation.known = known
        operation.change(changes)
        writer = StateWriter({"one": operation}, Codec(), (0, KEY_GROUPS - 1))
        try:
            return [encoded for _, encoded in writer.prepare(1, {"one": [changes]})]
        except CodecError as error:
            return str(error)

    assert written(known=True) == written(known=False)


def test_names_that_have_gone_are_apart_also_in_later_sections() -> None:
    operation = Operation({})
    writer = StateWriter({"one": operation}, Codec(), (0, KEY_GROUPS - 1))
    changes = {number: GONE if number % 7 == 3 else (number,) for number in range(100)}
    operation.change(changes)
    sections = [section for section, _ in writer.prepare(1, {"one": [changes]})]
    kept = [name for section in sections for name in section.names]
    assert len(sections) > 2
    assert set(kept) >= {name for name, state in changes.items() if state is not GONE}
    assert [name for section in sections for name in section.gone] == [*range(3, 100, 7)]
    assert not any(state is GONE for section in sections for state in section.values)
