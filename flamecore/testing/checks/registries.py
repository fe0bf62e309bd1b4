"""The public kit for registries: `check_registry(make)`, or class `RegistryTests`.

The class is for pytest: `class TestMine(RegistryTests)`. Nothing here needs a test runner. The checks test a registry
against its contract, `flamecore.abc.registry`, with several clients at once, by the names that `LawBroken.law` gives:

* `content`: reading gives the bytes written, by any client; None for a missing entry;
* `revision`: it is read as the change has returned it, and grows with every change, also after a deletion;
* `create`: an existing entry is not created again, and of several creators one succeeds;
* `update`: a change based on an old revision is refused, whatever happened in between;
* `delete`: like a change; a deleted entry is missing, and can be created again;
* `apart`: entries of different keys do not affect each other;
* `keys`: those of a prefix, all of them, sorted, and none that is deleted;
* `close`: a second close does nothing, and entries stay.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from flamecore.abc.registry import MAX_KEY, MAX_VALUE, Entry, JobRegistry
from flamecore.testing.laws import LawBroken, within

__all__ = ["CHECKS", "LawBroken", "Make", "RegistryTests", "check_registry"]

T = TypeVar("T")

Make = Callable[[], JobRegistry]
"""Function that makes another client, not yet open, of one and the same registry."""

LIMIT_S: Final = 10.0
_CLIENTS: Final = 4


class Bench:
    """Clients of the registry under test, and a unique prefix for their keys.

    An async context manager.
    """

    def __init__(self, make: Make) -> None:
        self.prefix = f"kit-{secrets.token_hex(8)}/"
        self.clients: list[JobRegistry] = []
        self._make = make
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        for _ in range(_CLIENTS):
            client = self._make()
            self.clients.append(client)
            await self.within("content", client.open(), "open")
            self._stack.push_async_callback(self._aclose, client)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    async def _aclose(self, client: JobRegistry) -> None:
        await self.within("close", client.aclose(), "aclose")

    async def within(self, law: str, awaitable: Awaitable[T], what: str) -> T:
        """Return the result of a call that must succeed soon; see `testing.laws.within`."""
        return await within(LIMIT_S, law, awaitable, what)

    async def holds(self, law: str, key: str, value: bytes | None, revision: int | None = None) -> int:
        """Compare the entry that every client reads with the expected one.

        Returns:
            The revision; 0 if there is no entry.
        """
        last = 0
        for client in self.clients:
            got = await self.within("content", client.get(key), f"get {key}")
            if value is None or got is None:
                if value is not None or got is not None:
                    raise LawBroken(law, f"{key} holds {shown(got)}, and should hold {shown(value)}")
                continue
            if got.value != value:
                raise LawBroken(law, f"{key} holds {shown(got)}, and should hold {shown(value)}")
            if revision is not None and got.revision != revision:
                raise LawBroken("revision", f"the change of {key} says revision {revision}, and get {got.revision}")
            last = got.revision
        return last

    async def made(self, key: str, value: bytes, client: int = 0, law: str = "create") -> int:
        """Create an entry, which must not exist; return its revision."""
        revision = await self.within(law, self.clients[client].create(key, value), f"create {key}")
        if revision is None:
            raise LawBroken(law, f"{key} cannot be made: it is there already, says the registry")
        return revision

    async def changed(self, law: str, key: str, value: bytes, revision: int, client: int = 0) -> int:
        """Change an entry, which must have a given revision; return the next revision."""
        after = await self.within(law, self.clients[client].update(key, value, revision), f"update {key}")
        if after is None:
            raise LawBroken(law, f"{key} has revision {revision}, and a change based on it is not made")
        return after


def shown(value: Any) -> str:
    """Return a value as errors show it."""
    text = repr(value.value if isinstance(value, Entry) else value)
    return text if len(text) <= 60 else f"{text[:57]}…"


async def check_content(make: Make) -> None:
    """Check that any bytes under any key are read by all clients.

    Raises:
        LawBroken: `content` or `revision`.
    """
    async with Bench(make) as bench:
        key = f"{bench.prefix}{'k' * (MAX_KEY - len(bench.prefix))}"
        await bench.holds("content", key, None)
        values = [b"one", b"", bytes(range(256)), "ß\0".encode(), b"x" * MAX_VALUE]
        revision = await bench.made(key, values[0])
        await bench.holds("content", key, values[0], revision)
        for number, value in enumerate(values[1:]):
            after = await bench.changed("update", key, value, revision, number % _CLIENTS)
            if after <= revision:
                raise LawBroken("revision", f"a change of revision {revision} has made it {after}")
            revision = after
            await bench.holds("content", key, value, revision)


async def check_create(make: Make) -> None:
    """Check that an entry is created once, by clients in turn and at once.

    Raises:
        LawBroken: `create`.
    """
    async with Bench(make) as bench:
        key = f"{bench.prefix}a"
        revision = await bench.made(key, b"first")
        if (again := await bench.within("create", bench.clients[1].create(key, b"again"), f"create {key}")) is not None:
            raise LawBroken("create", f"{key} is there, and is made again, with revision {again}")
        await bench.holds("create", key, b"first", revision)
        for number in range(10):
            key = f"{bench.prefix}race-{number}"
            told = await bench.within(
                "create",
                asyncio.gather(*(client.create(key, b"%d" % index) for index, client in enumerate(bench.clients))),
                f"create {key}, by {_CLIENTS} at once",
            )
            winners = [index for index, revision in enumerate(told) if revision is not None]
            if len(winners) != 1:
                raise LawBroken("create", f"{_CLIENTS} make {key} at once, and {len(winners)} are told that they have")
            await bench.holds("create", key, b"%d" % winners[0], told[winners[0]])


async def check_update(make: Make) -> None:
    """Check changes based on old revisions, and clients that count at once.

    Raises:
        LawBroken: `update`.
    """
    async with Bench(make) as bench:
        key = f"{bench.prefix}a"
        for revision in (0, 1, 2**31):
            if await bench.within("update", bench.clients[0].update(key, b"x", revision), f"update {key}") is not None:
                raise LawBroken("update", f"{key} is not there, and is changed")
        old = await bench.made(key, b"first")
        new = await bench.changed("update", key, b"second", old, 1)
        for client in bench.clients:
            for revision in (old, new + 1, 0):
                if await bench.within("update", client.update(key, b"late", revision), f"update {key}") is not None:
                    raise LawBroken("update", f"{key} has revision {new}, and is changed for revision {revision}")
        await bench.holds("update", key, b"second", new)
        await bench.within("update", _count(bench, f"{bench.prefix}count"), "counting together")


async def _count(bench: Bench, key: str) -> None:
    each = 10
    await bench.made(key, b"0")

    async def count(client: JobRegistry) -> None:
        for _ in range(each):
            while True:
                entry = await client.get(key)
                if entry is None:
                    raise LawBroken("content", f"{key} was made, and is not there")
                if await client.update(key, b"%d" % (int(entry.value) + 1), entry.revision) is not None:
                    break
                await asyncio.sleep(0)

    async with asyncio.TaskGroup() as group:
        for client in bench.clients:
            group.create_task(count(client))
    await bench.holds("update", key, b"%d" % (each * _CLIENTS))


async def check_delete(make: Make) -> None:
    """Check that a deleted entry is missing, and its revisions do not come again.

    Raises:
        LawBroken: `delete` or `revision`.
    """
    async with Bench(make) as bench:
        key = f"{bench.prefix}a"
        first, second = bench.clients[:2]
        if await bench.within("delete", first.delete(key, 1), f"delete {key}"):
            raise LawBroken("delete", f"{key} is not there, and is deleted")
        old = await bench.made(key, b"one")
        new = await bench.changed("update", key, b"two", old)
        if await bench.within("delete", second.delete(key, old), f"delete {key}"):
            raise LawBroken("delete", f"{key} has revision {new}, and is deleted for revision {old}")
        await bench.holds("delete", key, b"two", new)
        if not await bench.within("delete", second.delete(key, new), f"delete {key}"):
            raise LawBroken("delete", f"{key} has revision {new}, and is not deleted for it")
        await bench.holds("delete", key, None)
        if await bench.within("delete", first.update(key, b"late", new), f"update {key}") is not None:
            raise LawBroken("delete", f"{key} is deleted, and is changed by a client that names its last revision")
        again = await bench.made(key, b"three", 1)
        if again <= new:
            raise LawBroken("revision", f"{key} had revision {new} before it was deleted, and has now {again}")
        await bench.holds("delete", key, b"three", again)


async def check_apart(make: Make) -> None:
    """Check that entries of keys with a common prefix do not affect each other.

    Raises:
        LawBroken: `apart`.
    """
    async with Bench(make) as bench:
        keys = [f"{bench.prefix}{name}" for name in ("a", "a/b", "ab", "A", "a=2F_-")]
        revisions = [await bench.made(key, key.encode(), law="apart") for key in keys]
        for key, revision in zip(keys, revisions, strict=True):
            await bench.changed("apart", key, key.encode() * 2, revision)
        for key in keys:
            revision = await bench.holds("apart", key, key.encode() * 2)
        await bench.within("apart", bench.clients[0].delete(keys[-1], revision), f"delete {keys[-1]}")
        for key in keys[:-1]:
            await bench.holds("apart", key, key.encode() * 2)


async def check_keys(make: Make) -> None:
    """Check that keys are listed by prefix.

    Raises:
        LawBroken: `keys`.
    """
    async with Bench(make) as bench:

        async def listed(prefix: str, wanted: list[str]) -> None:
            for client in bench.clients:
                got = await bench.within("keys", client.keys(bench.prefix + prefix), "keys")
                if got != [bench.prefix + name for name in wanted]:
                    raise LawBroken("keys", f"keys({prefix!r}) gives {shown(got)}, and should give {wanted}")

        await listed("", [])
        revisions = {name: await bench.made(bench.prefix + name, b"x") for name in ("b", "a/1", "a/2", "aa", "c")}
        await listed("", ["a/1", "a/2", "aa", "b", "c"])
        await listed("a/", ["a/1", "a/2"])
        await listed("a/2", ["a/2"])
        await listed("d", [])
        await bench.within("delete", bench.clients[0].delete(f"{bench.prefix}a/1", revisions["a/1"]), "delete")
        await listed("a", ["a/2", "aa"])


async def check_close(make: Make) -> None:
    """Check that entries stay when clients close and open.

    Raises:
        LawBroken: `close`.
    """
    async with Bench(make) as bench:
        key = f"{bench.prefix}a"
        revision = await bench.made(key, b"x")
        for _ in range(2):
            await bench.within("close", bench.clients[0].aclose(), "aclose")
        bench.clients[0] = make()
        await bench.within("close", bench.clients[0].open(), "open")
        try:
            await bench.holds("close", key, b"x", revision)
        finally:
            await bench.clients[0].aclose()


CHECKS: Final[tuple[Callable[[Make], Awaitable[None]], ...]] = (
    check_content,
    check_create,
    check_update,
    check_delete,
    check_apart,
    check_keys,
    check_close,
)


async def check_registry(make: Make) -> None:
    """Check a registry against every law of its contract.

    Args:
        make: Makes another client of one and the same registry. It is called several times; the entries that are made
            are under `kit-…`, and some are left behind.

    Raises:
        LawBroken: With the law, and the event.
    """
    for check in CHECKS:
        await check(make)


class RegistryTests:
    """The checks as a class for pytest, without any plugin. Must be given: `make`.

    Example:
        class TestMine(RegistryTests):
            def make(self) -> JobRegistry:
                return Mine(Mine.Options(path=self.path), RegistryContext())
    """

    def make(self) -> JobRegistry:
        """Make another client of the registry under test."""
        raise NotImplementedError("give `make(self)` in your class")

    def hold(self, check: Callable[[Make], Awaitable[None]]) -> None:
        """Run one check."""

        async def run() -> None:
            await check(self.make)

        asyncio.run(run())

    def test_content(self) -> None:
        self.hold(check_content)

    def test_create(self) -> None:
        self.hold(check_create)

    def test_update(self) -> None:
        self.hold(check_update)

    def test_delete(self) -> None:
        self.hold(check_delete)

    def test_apart(self) -> None:
        self.hold(check_apart)

    def test_keys(self) -> None:
        self.hold(check_keys)

    def test_close(self) -> None:
        self.hold(check_close)
