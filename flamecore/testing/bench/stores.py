"""The bench of state stores: objects of this process, and processes to kill."""

from __future__ import annotations

import asyncio
import inspect
import json
import random
import secrets
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeVar

import msgspec

from flamecore.abc.store import Store, StoreContext
from flamecore.errors import FlameError, StoreError
from flamecore.testing.laws import LawBroken, within
from flamecore.testing.progress import patience

T = TypeVar("T")
S = TypeVar("S", bound=Store)

MakeStore = Callable[[StoreContext], Store]
"""Function that builds the store under test. All stores that it builds for one job must see the same blobs."""

LIMIT_S: Final = 30.0
LARGE_BYTES: Final = 16 * 2**20


def content(seed: str, size: int) -> bytes:
    """Return bytes that differ for each seed, the same in every process."""
    return random.Random(seed).randbytes(size)


def using(store: S, do: Callable[[S], Awaitable[T]]) -> T:
    """Open a store, use it and close it, in a new event loop.

    Args:
        store: A store that is not open.
        do: Function of the store; its result is returned.

    Raises:
        TimeoutError: All this took longer than `LIMIT_S`.
    """

    async def run() -> T:
        async with patience(LIMIT_S):
            await store.open()
            try:
                return await do(store)
            finally:
                await store.aclose()

    return asyncio.run(run())


async def _names(store: Store) -> Any:
    return await store.names()


def refusal(store: S, do: Callable[[S], Awaitable[Any]] = _names) -> StoreError:
    """Return the error that a store ends with when it is opened, used and closed.

    Args:
        store: A store that is not open.
        do: The use, if the store can be opened; by default its blobs are listed.

    Raises:
        LawBroken: There is no error, or it does not name the store, or gives no hint.
    """
    try:
        found = using(store, do)
    except StoreError as error:
        if error.store != store.name or not error.hint:
            raise LawBroken(
                "refuses", f"an error of {store.name} is to name it and to give a hint: {error!r}"
            ) from error
        return error
    raise LawBroken("refuses", f"{store.name} gives {_shown(found)}, not a StoreError")


@dataclass(frozen=True, slots=True)
class Setup:
    """A store to check, and the circumstances.

    Attributes:
        make: Builds the store.
        folder: Folder of the test, for stores that need one.
        large_bytes: Size of a large blob.
        limit_s: How long anything that must happen may take.
        job: A name that no other job has.
    """

    make: MakeStore
    folder: Path
    large_bytes: int = LARGE_BYTES
    limit_s: float = LIMIT_S
    job: str = field(default_factory=lambda: f"kit {secrets.token_hex(8)}")


class Bench:
    """The store under test, an async context manager that closes all objects it opens."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    async def open(self, job: str | None = None) -> Store:
        """Open one more object, as another process of the job would."""
        name = self.setup.job if job is None else job
        store = self.setup.make(StoreContext(job=name, folder=self.setup.folder))
        self._stack.push_async_callback(self._aclose, store)
        await self.within("opens", store.open(), "open")
        return store

    async def _aclose(self, store: Store) -> None:
        await self.within("closes", store.aclose(), "aclose")

    async def within(self, law: str, awaitable: Awaitable[T], what: str) -> T:
        """Return the result of a call that must succeed soon; see `testing.laws.within`."""
        return await within(self.setup.limit_s, law, awaitable, what)

    async def create(self, store: Store, name: str, data: bytes, law: str = "content") -> None:
        """Create a blob that must not be there yet."""
        await self.expect(law, store.create(name, data), True, f"create({name!r}), {len(data)} bytes")

    async def holds(self, store: Store, law: str, blobs: dict[str, bytes | None], when: str = "") -> None:
        """Read blobs and compare them with the expected ones; None: must not be there."""
        for name, data in blobs.items():
            await self.expect(law, store.read(name), data, f"{when}{when and ': '}read({name!r})")

    async def expect(self, law: str, awaitable: Awaitable[T], expected: T, what: str) -> None:
        """Compare the result of a call with the expected one.

        Raises:
            LawBroken: It is something else.
        """
        found = await self.within(law, awaitable, what)
        if found != expected or type(found) is not type(expected):
            raise LawBroken(law, f"{what} gives {_shown(found)}, not {_shown(expected)}")

    async def refused(self, law: str, awaitable: Awaitable[Any], what: str) -> None:
        """Check that a call ends with StoreError."""
        try:
            async with patience(self.setup.limit_s):
                found = await awaitable
        except StoreError:
            return
        except TimeoutError:
            raise LawBroken(law, f"{what}: nothing happened for {self.setup.limit_s} s") from None
        except Exception as error:
            raise LawBroken(law, f"{what} raises {error!r}, not a StoreError") from error
        raise LawBroken(law, f"{what} gives {_shown(found)}, not a StoreError")

    async def process(self, task: str, **arguments: Any) -> Elsewhere:
        """Start another process of the job, which does a task below with its own store."""
        context = StoreContext(job=self.setup.job, folder=self.setup.folder)
        told = _Told.of(self.setup.make(context), task, arguments)
        process = await asyncio.create_subprocess_exec(sys.executable, "-m", __name__, stdin=PIPE, stdout=PIPE)
        elsewhere = Elsewhere(self, process)
        self._stack.push_async_callback(elsewhere.kill)
        await elsewhere.tell(msgspec.json.encode(told))  # not by its command line, which everybody can read
        return elsewhere


class Elsewhere:
    """Another process, with an open store of the same job."""

    def __init__(self, bench: Bench, process: Process) -> None:
        self._bench = bench
        self._process = process

    async def hear(self, law: str) -> Any:
        """Return the process's next message."""
        assert self._process.stdout is not None, "it was started with a pipe"
        line = await self._bench.within(law, self._process.stdout.readline(), "another process")
        if not line:
            raise LawBroken(law, "another process has ended; its error is on standard error")
        said = json.loads(line)
        if isinstance(said, dict):
            raise LawBroken(law, f"in another process: {said['error']}")
        return said

    async def tell(self, line: bytes = b"") -> None:
        """Send the process a line; it waits for one before it goes on."""
        assert self._process.stdin is not None, "it was started with a pipe"
        self._process.stdin.write(line + b"\n")
        await self._process.stdin.drain()

    async def ended(self, law: str) -> None:
        """Wait until the process has closed its store, and ended."""
        await self._bench.within(law, self._process.wait(), "another process, which is to end,")

    async def kill(self) -> None:
        """Kill the process with SIGKILL, and wait until it is dead."""
        if self._process.returncode is None:
            self._process.kill()
        await self._process.communicate()


class _Told(msgspec.Struct):
    """Instructions for another process: the store to build, and the task."""

    module: str
    file: str
    cls: str
    options: Any
    job: str
    folder: str
    task: str
    arguments: dict[str, Any]

    @classmethod
    def of(cls, store: Store, task: str, arguments: dict[str, Any]) -> _Told:
        kind = type(store)
        return cls(
            module=kind.__module__,
            file=inspect.getfile(kind),
            cls=kind.__qualname__,
            options=msgspec.to_builtins(store.options),
            job=store.context.job,
            folder=str(store.context.folder.absolute()),
            task=task,
            arguments=arguments,
        )

    def build(self) -> Store:
        """Build the store, in the other process."""
        kind = _imported(self.module, self.file)
        for name in self.cls.split("."):
            kind = getattr(kind, name)
        options = self.options if kind.Options is None else msgspec.convert(self.options, kind.Options)
        store: Store = kind(options, StoreContext(job=self.job, folder=Path(self.folder)))
        return store


def _imported(module: str, file: str) -> Any:
    """Import a module by its name or, as tests often need, by its file."""
    from importlib import import_module
    from importlib.util import module_from_spec, spec_from_file_location

    try:
        return import_module(module)
    except ModuleNotFoundError:
        spec = spec_from_file_location(module, file)
        if spec is None or spec.loader is None:
            raise
        made = sys.modules[module] = module_from_spec(spec)
        spec.loader.exec_module(made)
        return made


async def race(store: Store, names: list[str], mark: str) -> None:
    """Create blobs that other processes create too, and report which succeeded."""
    _say("ready")
    sys.stdin.readline()
    _say([await store.create(name, mark.encode()) for name in names])


async def write(store: Store, names: list[str], size: int) -> None:
    """Create large blobs, then wait to be killed.

    The name of each is reported before it is written, and again once it is.
    """
    for name in names:
        data = content(name, size)
        _say(["begun", name])
        created = await store.create(name, data)
        _say(["created" if created else "refused", name])
    sys.stdin.readline()


def _say(what: Any) -> None:
    print(json.dumps(what), flush=True)


async def _do(told: _Told) -> None:
    store = told.build()
    await store.open()
    try:
        await (race if told.task == "race" else write)(store, **told.arguments)
    finally:
        await store.aclose()


def _shown(what: Any) -> str:
    if isinstance(what, bytes) and len(what) > 40:
        return f"{len(what)} bytes, {what[:20]!r}…{what[-20:]!r}"
    return repr(what)


def _main() -> None:
    told = msgspec.json.decode(sys.stdin.readline(), type=_Told)
    try:
        asyncio.run(_do(told))
    except FlameError as error:
        _say({"error": repr(error)})


if __name__ == "__main__":
    _main()
