"""What a worker has committed, the parts it writes, and what is put together from them again."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flamecore.codec import Codec
from flamecore.errors import CodecError
from flamecore.hashing import KEY_GROUPS, key_group, owners, stable_hash
from flamecore.keeper import Changes, Keeper, PartWriter, Restored
from flamecore.operations import GONE
from flamecore.snapshot import FrontState, Manifest, Part, decode_sections

VERTICES = ("one", "two")


def group_of(name: Any) -> int:
    return key_group(stable_hash(name))


class Story:
    """Workers that take snapshots, and the state as it is."""

    def __init__(self, workers: int, before: Story | None = None) -> None:
        self.codec = Codec()
        self.owners = owners(workers)
        self.workers = workers
        self.blobs: dict[str, bytes] = before.blobs if before else {}
        self.state: dict[str, dict[Any, Any]] = before.state if before else {name: {} for name in VERTICES}
        self.parts: tuple[Part, ...] = before.parts if before else ()
        self.written = 0
        self.number: int = before.number if before else 0
        groups = dict.fromkeys(VERTICES, group_of)
        self.keepers = []
        for worker in range(workers):
            own = frozenset(group for group, owner in enumerate(self.owners) if owner == worker)
            waiting = [each for each in self.manifest.waiting() if each[1] in own]
            self.keepers.append(Keeper(groups, self.codec, self.load(own), waiting))

    @property
    def manifest(self) -> Manifest:
        return Manifest("", 1, 1, 0, 0.0, {}, self.workers, (), self.parts)

    def load(self, groups: frozenset[int]) -> Mapping[str, Mapping[int, Mapping[Any, Any]]]:
        restored = Restored(groups, frozenset(VERTICES))
        for part in self.parts:
            if restored.wants(part):
                restored.apply(decode_sections(self.codec, self.blobs[part.blob], part.blob))
        return restored.held

    def snapshot(self, changes: Mapping[str, Mapping[Any, Any]]) -> None:
        """Take a snapshot in which these names have changed."""
        for vertex, changed in changes.items():
            for name, value in changed.items():
                if value is GONE:
                    self.state[vertex].pop(name, None)
                else:
                    self.state[vertex][name] = value
        for worker, keeper in enumerate(self.keepers):
            own: Changes = {
                vertex: {name: value for name, value in changed.items() if self.owners[group_of(name)] == worker}
                for vertex, changed in changes.items()
            }
            self.number += 1
            writer = PartWriter(f"part/{self.number}/{worker}", self.codec)
            for section, encoded in keeper.sections(own):
                writer.add(section, encoded)
            finished = writer.finish()
            if finished is not None:
                part, data = finished
                assert part.size == len(data)
                assert part.full or part.changed, "a part that nobody would name"
                self.blobs[part.blob] = data
                self.written += part.size
                self.parts = (*self.parts, part)
        self.parts = self.manifest.live_parts()
        needed = {part.blob for part in self.parts}
        self.blobs = {blob: data for blob, data in self.blobs.items() if blob in needed}

    def check(self) -> None:
        """What the parts hold is the state, and every name is in its key group."""
        found: dict[str, dict[Any, Any]] = {name: {} for name in VERTICES}
        for vertex, groups in self.load(frozenset(range(KEY_GROUPS))).items():
            for group, values in groups.items():
                assert all(group_of(name) == group for name in values)
                found[vertex].update(values)
        assert found == self.state


names = st.integers(0, 40)
some_changes = st.dictionaries(
    st.sampled_from(VERTICES), st.dictionaries(names, st.one_of(st.integers(), st.just(GONE)), max_size=8), max_size=2
)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.one_of(some_changes, st.integers(1, 5)), max_size=25))
def test_whatever_changes_the_parts_hold_the_state_for_any_number_of_workers(steps: list[Any]) -> None:
    """A number among the changes is a crash: so many workers go on."""
    story = Story(2)
    for step in steps:
        if isinstance(step, int):
            story = Story(step, story)
        else:
            story.snapshot(step)
        story.check()


def test_old_parts_are_dropped_one_group_at_a_time() -> None:
    story = Story(1)
    everything = {"one": dict.fromkeys(range(2000), 0), "two": {}}
    story.snapshot(everything)
    first = story.parts[0].size
    for number in range(KEY_GROUPS + 5):
        before = story.written
        story.snapshot({"one": {number % 7: number}})
        assert story.written - before < first / 20, "no snapshot costs more than the changes and one group"
    story.check()
    assert len(story.parts) <= KEY_GROUPS
    assert story.parts[0].size < first / 20, "what the first part held has been written anew, little by little"


def test_a_state_that_rests_costs_nothing_in_the_end() -> None:
    story = Story(1)
    story.snapshot({"one": dict.fromkeys(range(500), 0)})
    for _ in range(KEY_GROUPS):
        story.snapshot({})
    before = story.written
    story.snapshot({})
    assert story.written == before, "everything has been written in full, nothing is left to do"


@pytest.mark.parametrize("between", [1, 3, 20])
def test_parts_stay_few_however_often_the_job_starts_anew(between: int) -> None:
    """After each start the key groups that have waited longest have their turn first."""
    random = Random(between)
    story = Story(1)
    most = 0
    for epoch in range(600 // between):
        story = Story(1 + epoch % 3, story)
        for _ in range(between):
            story.snapshot({"one": {random.randrange(1000): random.random() for _ in range(20)}})
            most = max(most, len(story.parts))
    story.check()
    assert most < 4 * KEY_GROUPS


def test_what_comes_to_nothing_makes_no_part() -> None:
    story = Story(1)
    story.snapshot({"one": {1: GONE, 2: GONE}})
    assert story.parts == ()
    story.snapshot({"one": {1: "a"}})
    story.snapshot({"one": {1: GONE}})
    story.check()
    assert story.state["one"] == {}


def test_a_group_moves_with_all_its_parts() -> None:
    """From one worker to five, and back to two: nothing is lost, nothing is in two places."""
    story = Story(1)
    story.snapshot({"one": dict.fromkeys(range(300), "first")})
    for workers in (5, 2, 3):
        story = Story(workers, story)
        for worker, keeper in enumerate(story.keepers):
            own = {group for group, owner in enumerate(story.owners) if owner == worker}
            assert set(keeper._kept["one"]._names) <= own
        story.snapshot({"one": dict.fromkeys(range(0, 300, workers), workers)})
        story.check()


def test_a_large_change_is_encoded_in_moments() -> None:
    story = Story(1)
    changed = {"one": dict.fromkeys(range(10_000), 0)}
    sections = list(story.keepers[0].sections(changed))
    assert len(sections) > 4
    assert max(len(section.names) for section, _ in sections if not section.full) <= 2048


def test_state_that_cannot_be_stored_is_told_by_its_type() -> None:
    class Mine(NamedTuple):
        n: int

    keeper = Keeper({"one": group_of}, Codec())
    with pytest.raises(CodecError, match="Mine"):
        list(keeper.sections({"one": {1: Mine(3)}}))


def test_only_parts_that_hold_something_wanted_are_wanted() -> None:
    restored = Restored(frozenset({1, 2}), frozenset({"one"}))
    assert restored.wants(Part("a", 1, (("one", 2),), ()))
    assert restored.wants(Part("a", 1, (), (("one", 1), ("two", 5))))
    assert not restored.wants(Part("a", 1, (("one", 3),), (("two", 1),)))


def test_parts_are_alive_while_they_hold_what_no_later_one_holds_in_full() -> None:
    def part(name: str, full: str = "", changed: str = "") -> Part:
        return Part(name, 1, tuple(("v", ord(each)) for each in full), tuple(("v", ord(each)) for each in changed))

    def live(*parts: Part) -> str:
        manifest = Manifest("", 1, 1, 0, 0.0, {}, 1, (), parts)
        return "".join(each.blob for each in manifest.live_parts())

    assert live(part("1", changed="ab"), part("2", full="a"), part("3", full="b")) == "23"
    assert live(part("1", changed="ab"), part("2", full="a")) == "12"
    assert live(part("1", full="a"), part("2", changed="a")) == "12"
    assert live(part("1", full="a", changed="ab"), part("2", full="a"), part("3", full="b", changed="a")) == "23"
    assert live(part("1", full="a"), part("2", changed="a"), part("3", full="a", changed="a")) == "3"


def test_the_groups_that_wait_longest_come_first() -> None:
    parts = (
        Part("1", 1, (), (("v", 1), ("v", 2), ("w", 7))),
        Part("2", 1, (("v", 1),), (("v", 3),)),
        Part("3", 1, (), (("v", 1), ("v", 2))),
    )
    assert Manifest("", 1, 1, 0, 0.0, {}, 1, (), parts).waiting() == (("v", 2), ("w", 7), ("v", 3), ("v", 1))


def test_a_manifest_is_finished_when_all_fronts_have_ended() -> None:
    fronts = [FrontState("s", each, "", each + 1, None, 0, ended) for each, ended in enumerate((True, False))]
    assert not Manifest("", 1, 1, 0, 0.0, {}, 1, tuple(fronts), ()).finished
    assert Manifest("", 1, 1, 0, 0.0, {}, 1, (fronts[0],), ()).finished
