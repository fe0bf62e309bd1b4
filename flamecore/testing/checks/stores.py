"""The public kit for state stores: `check_store(make)`, or class `StoreTests`.

The class is for pytest: `class TestMine(StoreTests)`. Nothing here needs a test runner. The checks test a store against
the laws of `flamecore.abc.store`, by the names that `LawBroken.law` gives:

* `content`: reading gives the bytes created, whether empty or large;
* `once`: a name is created once, and its blob never changes;
* `race`: of several creators of a name at once exactly one succeeds, and the blob is its own;
* `names`: all names with a prefix, sorted, and no others;
* `deletes`: a deleted blob is gone, deleting nothing is no error, and nothing else is touched;
* `refuses`: a text that cannot be a name is a `StoreError`;
* `jobs`: jobs do not see each other's blobs;
* `durable`: a created blob outlasts its creator, however that ended;
* `whole`: a blob is seen whole or not at all, also when its writer is killed;
* `opens`, `closes`: any number of objects; a second `aclose` does nothing.

A store that claims to be `durable` is also tested in separate processes: they build it from its class, its options and
the context alone, as those of a job do.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from flamecore.abc.store import MAX_NAME, Store, StoreContext
from flamecore.testing.bench.stores import LARGE_BYTES, LIMIT_S, Bench, Elsewhere, MakeStore, Setup, content
from flamecore.testing.laws import LawBroken

__all__ = ["CHECKS", "LawBroken", "MakeStore", "Setup", "StoreTests", "check_store"]

_NAMES: Final = (
    *("a", "A", "aa", "a/b", "a.b", "a-b", "a_b", "a--b", "a/b/c", "a/b.c", "a.b/c", "b", "B"),
    *("0", "9", "10", "00", "-", "_", "...", "a/...", ".a", "a.", "-a", "x" * MAX_NAME, "x" * (MAX_NAME - 1)),
)
_NO_NAMES: Final = (
    *("", "/", "/a", "a/", "a//b", ".", "..", "a/..", "../a", "a/./b", "a b", "a\n", "\n", "a\0b", "a\\b", "ä", "١"),
    *("*", "a*", "a>", "a=b", "a%2Fb", "~", "a:b", "x" * (MAX_NAME + 1)),
)
_JOBS: Final = (
    *(
        ("", behind)
        for behind in ("", "a", "A", "/a", "/b", " a", ".db", "-", "%2Fa", "*", "Работа", "j" * 300, "j" * 301)
    ),
    *((before, "") for before in (".", "../", "/", " ", "%")),
)
"""Prefixes and suffixes of a job's name."""
_MOMENTS: Final = (0.0, 0.3, 0.6, 0.9, 1.0)
"""Moments to kill a writer, as shares of the time that it takes; 1: once it has reported the blob."""


async def check_content(setup: Setup) -> None:
    """Check blobs of all sizes, in turn and at once, read by two objects.

    Raises:
        LawBroken: `content`, or `opens`.
    """
    blobs: dict[str, bytes | None] = {
        "empty": b"",
        "one": b"\0",
        "all": bytes(range(256)) * 4,
        "lines": b"\r\n\n\x1a\xff\xfe",
        "large": content("large", setup.large_bytes),
        "larger": content("larger", setup.large_bytes + 1),
    }
    async with Bench(setup) as bench:
        store, other = await bench.open(), await bench.open()
        for name, data in blobs.items():
            await bench.holds(other, "content", {name: None}, "before it is created")
            await bench.create(store, name, data or b"")
            await bench.holds(other, "content", {name: data})
        await bench.holds(store, "content", blobs | {"l": None, "large/": None, "large/1": None, "LARGE": None})
        many = {f"many/{number}": content(str(number), number * 100) for number in range(30)}
        await asyncio.gather(*(bench.create(store, name, data) for name, data in many.items()))
        reads = (bench.holds(each, "content", {name: data}) for name, data in many.items() for each in (store, other))
        await asyncio.gather(*reads)


async def check_once(setup: Setup) -> None:
    """Check that a taken name is refused, whatever its blob and the new one.

    The blobs are empty, small or large; the new one comes from the same or another object, and may be equal.

    Raises:
        LawBroken: `once`.
    """
    blobs: dict[str, bytes | None] = {"empty": b"", "small": b"first", "large": content("large", setup.large_bytes)}
    async with Bench(setup) as bench:
        store, other = await bench.open(), await bench.open()
        for name, data in blobs.items():
            await bench.create(store, name, data or b"", "once")
            for each in (store, other):
                for again in (data or b"", b"second", b"", content("another", setup.large_bytes)):
                    what = f"create({name!r}), which is there,"
                    await bench.expect("once", each.create(name, again), False, what)
        await bench.holds(other, "once", blobs, "after others tried to create it")
        await bench.expect("once", other.names(), sorted(blobs), "names(), after that,")


async def check_race(setup: Setup) -> None:
    """Check creators of the same names at once: calls, objects, and processes.

    Raises:
        LawBroken: `race`.
    """
    async with Bench(setup) as bench:
        stores = [await bench.open() for _ in range(3)]
        rivals = [(store, f"{number} of object {index}") for index, store in enumerate(stores) for number in range(4)]
        for name in ("near/0", "near/1", "near/2"):
            calls = (store.create(name, mark.encode()) for store, mark in rivals)
            won = await bench.within("race", asyncio.gather(*calls), "creating one name many times")
            await _one_winner(bench, stores[0], name, dict(zip((mark for _, mark in rivals), won, strict=True)))
        if not stores[0].capabilities.durable:
            return
        names = [f"far/{number}" for number in range(40)]
        marks = [f"process {number}" for number in range(3)]
        processes = [await bench.process("race", names=names, mark=mark) for mark in marks]
        for process in processes:
            await process.hear("race")
        for process in processes:
            await process.tell()
        results = [await process.hear("race") for process in processes]
        for process in processes:  # their blobs outlast them
            await process.ended("race")
        for number, name in enumerate(names):
            told = {mark: result[number] for mark, result in zip(marks, results, strict=True)}
            await _one_winner(bench, stores[0], name, told)


async def _one_winner(bench: Bench, store: Store, name: str, told: dict[str, bool]) -> None:
    winners = [mark for mark, won in told.items() if won]
    if len(winners) != 1:
        raise LawBroken("race", f"{len(told)} create {name!r} at once, and {len(winners)} are told that they did")
    await bench.holds(store, "race", {name: winners[0].encode()}, f"created by {winners[0]}")


async def check_names(setup: Setup) -> None:
    """Check names and prefixes that are easily confused.

    Raises:
        LawBroken: `names`.
    """
    async with Bench(setup) as bench:
        store, other = await bench.open(), await bench.open()
        await bench.expect("names", other.names(), [], "names(), when there are none,")
        for name in _NAMES:
            await bench.create(store, name, name.encode(), "names")
        await bench.holds(other, "names", {name: name.encode() for name in _NAMES})
        prefixes = {name[:length] for name in _NAMES for length in range(len(name) + 1)} | {"zz", "a/b/c/d", "%", "*"}
        for prefix in sorted(prefixes)[:60]:
            expected = sorted(name for name in _NAMES if name.startswith(prefix))
            await bench.expect("names", other.names(prefix), expected, f"names({prefix!r})")


async def check_deletes(setup: Setup) -> None:
    """Check deletions of blobs that are there, missing, or deleted by others.

    Raises:
        LawBroken: `deletes`.
    """
    large = content("large", setup.large_bytes)
    blobs: dict[str, bytes | None] = {"a": b"1", "a/b": b"2", "a/b/c": b"3", "b": b"", "large": large}
    async with Bench(setup) as bench:
        store, other = await bench.open(), await bench.open()
        for name, data in blobs.items():
            await bench.create(store, name, data or b"", "deletes")
        for each in (store, other):
            for names in ([], ["a", "large", "none", "a/none"], {"a"}):
                await bench.expect("deletes", each.delete(names), None, f"delete({names})")
        left = blobs | {"a": None, "large": None}
        for each in (store, other):
            await bench.holds(each, "deletes", left, "after a and large were deleted")
            await bench.expect("deletes", each.names(), ["a/b", "a/b/c", "b"], "names(), after that,")
        await bench.create(other, "large", b"new", "deletes")
        await bench.holds(store, "deletes", {"large": b"new"}, "deleted, and created again")
        await bench.expect("deletes", store.delete(await store.names()), None, "delete of all")
        await bench.expect("deletes", other.names(), [], "names(), after that,")


async def check_refuses(setup: Setup) -> None:
    """Check that texts that are no names are refused.

    Raises:
        LawBroken: `refuses`.
    """
    async with Bench(setup) as bench:
        store = await bench.open()
        for name in _NO_NAMES:
            await bench.refused("refuses", store.create(name, b"data"), f"create({name!r})")
        await bench.expect("refuses", store.names(), [], "names(), when all names were refused,")


async def check_jobs(setup: Setup) -> None:
    """Check jobs with names that are easily confused, or look like paths.

    Their blobs have the same names.

    Raises:
        LawBroken: `jobs`.
    """
    jobs = [f"{before}{setup.job}{behind}" for before, behind in _JOBS]
    async with Bench(setup) as bench:
        stores = {job: await bench.open(job) for job in jobs}
        blobs = {job: {name: f"{name} of {job}".encode() for name in ("a", "a/b", "b")} for job in jobs}
        for job, store in stores.items():
            for name, data in blobs[job].items():
                await bench.create(store, name, data, "jobs")
        for job, store in stores.items():
            await bench.expect("jobs", store.names(), sorted(blobs[job]), f"names() of the job {job!r}")
            await bench.holds(store, "jobs", {**blobs[job]}, f"job {job!r}")
            await bench.expect("jobs", store.delete(blobs[job]), None, "delete")


async def check_durable(setup: Setup) -> None:
    """Check blobs after all objects were closed, and while one of them still works.

    Raises:
        LawBroken: `durable` or `closes`.
    """
    blobs: dict[str, bytes | None] = {"a": b"1", "large": content("large", setup.large_bytes)}
    async with Bench(setup) as bench:
        store, other = await bench.open(), await bench.open()
        for name, data in blobs.items():
            await bench.create(store, name, data or b"", "durable")
        for _ in range(2):
            await bench.within("closes", store.aclose(), "aclose")
        await bench.holds(other, "closes", blobs, "when another has closed")
        await bench.create(other, "b", b"2", "closes")
        await bench.within("closes", other.aclose(), "aclose")
        if other.capabilities.durable:
            third = await bench.open()
            await bench.holds(third, "durable", blobs | {"b": b"2"}, "when all have closed")
            await bench.expect("durable", third.names(), ["a", "b", "large"], "names(), when all have closed,")


async def check_whole(setup: Setup) -> None:
    """Check a large blob while its writer works, and after the writer was killed.

    The writer is killed at several moments.

    Raises:
        LawBroken: `whole` or `durable`.
    """
    async with Bench(setup) as bench:
        if (await bench.open()).capabilities.durable:
            for turn, moment in enumerate(_MOMENTS):
                await _kill_writer(bench, f"{turn}/first", f"{turn}/second", moment)


async def _kill_writer(bench: Bench, first: str, second: str, moment: float) -> None:
    """Run a writer of two blobs; kill it at a moment of writing the second."""
    clock = asyncio.get_running_loop().time
    blobs = {name: content(name, bench.setup.large_bytes) for name in (first, second)}
    watching = await bench.open()
    writer = await bench.process("write", names=[first, second], size=bench.setup.large_bytes)
    await _hear(writer, "begun", first)
    begun = clock()
    await _hear(writer, "created", first)
    took_s = clock() - begun
    await _hear(writer, "begun", second)
    until = clock() + moment * took_s
    while clock() < until:
        await _is_whole(bench, watching, second, blobs[second], "while it is written")
    if moment == 1:
        await _hear(writer, "created", second)
    await writer.kill()
    after = await bench.open()
    await bench.holds(after, "durable", {first: blobs[first]}, "its writer was killed")
    there = await _is_whole(bench, after, second, blobs[second], "its writer was killed")
    await bench.expect("whole", after.names(), [first, second][: 1 + there], "names(), when a writer was killed,")
    await bench.expect("whole", after.create(second, blobs[second]), not there, f"create({second!r}), after that,")
    await bench.holds(after, "whole", {**blobs}, "created again")
    await bench.expect("whole", after.delete(blobs), None, "delete, after that,")


async def _hear(writer: Elsewhere, what: str, name: str) -> None:
    if (said := await writer.hear("whole")) != [what, name]:
        raise LawBroken("whole", f"another process creates {name!r}, and says {said} instead of {what}")


async def _is_whole(bench: Bench, store: Store, name: str, whole: bytes, when: str) -> bool:
    """Return whether a blob is there; it must be whole."""
    seen = await bench.within("whole", store.read(name), f"{when}: read({name!r})")
    if seen is not None and seen != whole:
        raise LawBroken("whole", f"{when}: read({name!r}) gives {len(seen)} bytes, not the {len(whole)} of the blob")
    return seen is not None


CHECKS: Final[tuple[Callable[[Setup], Awaitable[None]], ...]] = (
    check_content,
    check_once,
    check_race,
    check_names,
    check_deletes,
    check_refuses,
    check_jobs,
    check_durable,
    check_whole,
)


async def check_store(make: MakeStore, *, large_bytes: int = LARGE_BYTES, limit_s: float = LIMIT_S) -> None:
    """Check a store against every law of its contract.

    Args:
        make: Builds the store for a context.
        large_bytes, limit_s: As for `Setup`.

    Raises:
        LawBroken: With the law, and the event.
    """
    for check in CHECKS:
        with tempfile.TemporaryDirectory(prefix="flame") as folder:
            await check(Setup(make, Path(folder), large_bytes, limit_s))


class StoreTests:
    """The checks as a class for pytest, without any plugin. Must be given: `make`.

    Example:
        class TestMine(StoreTests):
            def make(self, context: StoreContext) -> Store:
                return Mine(Mine.Options(path="state"), context)
    """

    large_bytes: int = LARGE_BYTES
    limit_s: float = LIMIT_S

    def make(self, context: StoreContext) -> Store:
        """Build the store under test; `context.folder` is the test's own."""
        raise NotImplementedError("give `make(self, context)` in your class")

    def hold(self, check: Callable[[Setup], Awaitable[None]], folder: Path) -> None:
        """Run one check."""

        async def run() -> None:
            await check(Setup(self.make, folder, self.large_bytes, self.limit_s))

        asyncio.run(run())

    def test_content(self, tmp_path: Path) -> None:
        self.hold(check_content, tmp_path)

    def test_once(self, tmp_path: Path) -> None:
        self.hold(check_once, tmp_path)

    def test_race(self, tmp_path: Path) -> None:
        self.hold(check_race, tmp_path)

    def test_names(self, tmp_path: Path) -> None:
        self.hold(check_names, tmp_path)

    def test_deletes(self, tmp_path: Path) -> None:
        self.hold(check_deletes, tmp_path)

    def test_refuses(self, tmp_path: Path) -> None:
        self.hold(check_refuses, tmp_path)

    def test_jobs(self, tmp_path: Path) -> None:
        self.hold(check_jobs, tmp_path)

    def test_durable(self, tmp_path: Path) -> None:
        self.hold(check_durable, tmp_path)

    def test_whole(self, tmp_path: Path) -> None:
        self.hold(check_whole, tmp_path)
