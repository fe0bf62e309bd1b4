"""The leftovers of an event loop: what was opened while it ran, and is still open when it has ended.

They are a fault of whoever has opened them, and a `ResourceWarning` names them. Python ignores such a warning unless it
is told otherwise (`python -W always::ResourceWarning`), and nothing is looked for then. In the tests it is an error.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Self

from flamecore.runtime.tasks.aside import aside
from flamecore.toolkit.closing import closed_by_libraries

_DESCRIPTORS: Final = Path("/dev/fd")
"""A folder with an entry for each open descriptor of the process that looks, where the system has one."""
_OWN: Final = ("flamecore.", "flamestream_")
"""Modules of the engine and its plugins. A daemon thread of another one is a library's, which may use it again."""
_SOON_S: Final = 30.0
"""Most seconds in which threads that were told to end, also those of libraries, close what they have: also on a busy
machine. There is no wait if nothing is left."""


class Leftovers:
    """The leftovers of an event loop that begins and ends in a block, which then warns of them.

    Args:
        shown: Whether anybody wants to know of them; default: whether such warnings are shown.

    Attributes:
        named: What is left, in words.
    """

    def __init__(self, *, shown: bool | None = None) -> None:
        shown = _is_shown() if shown is None else shown
        self.named: list[str] = []
        self._shown = shown
        self._threads = set(threading.enumerate()) if shown else set()
        self._descriptors = _descriptors() if shown else set()

    # Not a generator, whose frames would be shown with an error that passes through.
    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if left := ", ".join(self.named):
            warnings.warn(f"left open at the end of an event loop: {left}", ResourceWarning, stacklevel=3)

    async def look(self, tasks: Iterable[asyncio.Task[Any]]) -> None:
        """Look for what is left, in the loop itself, in which nothing else is to be done any more.

        It is the last moment: a loop that closes may close what is left, or come to harm by it.

        Args:
            tasks: The tasks that were left in it.
        """
        if not self._shown:
            return
        clock = asyncio.get_running_loop().time
        until = clock() + _SOON_S
        while found := [*_threads(self._threads), *(_descriptors() - self._descriptors)]:
            if clock() > until:
                break
            await asyncio.sleep(0.002)
        self.named = sorted([f"task {_named(task)}" for task in tasks] + [f"{kind} {name}" for kind, name, _ in found])

    @contextmanager
    def silent(self) -> Iterator[None]:
        """Silence others who warn of the same in the block, as a loop does that closes: an error hangs uvloop's."""
        with warnings.catch_warnings():
            if self.named:
                warnings.simplefilter("ignore", ResourceWarning)
            yield


def _is_shown() -> bool:
    """Return whether a `ResourceWarning` is more than ignored."""
    for action, message, category, module, _ in warnings.filters:
        if issubclass(ResourceWarning, category) and module is None:
            if action != "ignore":
                return True
            if message is None:
                return False
    return False


def _named(task: asyncio.Task[Any]) -> str:
    return str(getattr(task.get_coro(), "__qualname__", task.get_name()))


def _threads(before: set[threading.Thread]) -> set[tuple[str, str, int]]:
    """Return the threads that are left: their kind, name and number."""
    return {
        ("thread", thread.name, thread.ident or 0)
        for thread in threading.enumerate()
        if thread not in before and thread not in aside and (not thread.daemon or _module_of(thread).startswith(_OWN))
    }


def _module_of(thread: threading.Thread) -> str:
    target = getattr(thread, "_target", None)
    return str(getattr(target, "__module__", None) or type(thread).__module__)


def _descriptors() -> set[tuple[str, str, int]]:
    """Return the open files, pipes and sockets of this process: their kind, name and number.

    Those by which threads wake each other are left out: loops have them to the end, and libraries keep them.
    """
    found: set[tuple[str, str, int]] = set()
    pipes: dict[str, list[int]] = {}
    try:
        entries = list(_DESCRIPTORS.iterdir())
    except OSError:  # this system has none
        return set()
    for entry in entries:
        number = int(entry.name)
        try:
            target = str(entry.readlink())
        except OSError:  # it was closed meanwhile, as that of this very look
            continue
        if target.startswith("socket:"):
            name = _socket_name(number)
            if name is not None:
                found.add(("connection", f"{name} {target}", number))
        elif target.startswith("pipe:"):
            pipes.setdefault(target, []).append(number)
        elif not target.startswith("anon_inode:") and target != os.devnull:
            found.add(("file", target, number))
    # One with both of its ends here wakes a thread; the other end of any other is in another process.
    return found | {("file", target, number) for target, (number, *others) in pipes.items() if not others}


def _socket_name(number: int) -> str | None:
    """Return the addresses of a socket; None for half of a pair, a library's, and one that is closed meanwhile."""
    try:
        with socket.socket(fileno=os.dup(number)) as twin:
            own = twin.getsockname()
            try:
                peer = twin.getpeername()
            except OSError:  # it listens
                return f"listening at {own}"
    except OSError:
        return None
    if not (own or peer) or not closed_by_libraries.keys().isdisjoint((_place(own), _place(peer))):
        return None
    return f"from {own} to {peer}"


def _place(address: object) -> object:
    """Return the port of an address, or its path."""
    return address[1] if isinstance(address, tuple) else address
