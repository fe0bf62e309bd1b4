"""A loop whose end finds something open says so; what the loop itself has, or a library keeps, does not count."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import socket
import threading
import warnings
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from flamecore.runtime.tasks.aside import in_daemon_thread
from flamecore.runtime.tasks.event_loop import CHOICE, run
from flamecore.toolkit.closing import closed_by_libraries, leave_to_library

kept: list[Any] = []


@pytest.fixture(params=["asyncio", "uvloop"], autouse=True)
def _loop(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    if importlib.util.find_spec(request.param) is None:
        pytest.skip(f"{request.param} is not installed")
    monkeypatch.setenv(CHOICE, request.param)
    yield
    while kept:
        kept.pop().close()


async def leave_task(folder: Path) -> None:
    asyncio.create_task(asyncio.sleep(60))  # noqa: RUF006 - it is the fault


async def leave_file(folder: Path) -> None:
    kept.append((folder / "left.txt").open("w"))


async def leave_server(folder: Path) -> None:
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    kept.append(await asyncio.start_server(lambda reader, writer: None, sock=listener))
    kept.append(listener)


async def leave_connection(folder: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "listener.sock"))
        listener.listen()
        kept.append(socket.socket(socket.AF_UNIX))
        kept[-1].connect(str(folder / "listener.sock"))
        kept.append(listener.accept()[0])


async def leave_thread(folder: Path) -> None:
    over = threading.Event()
    thread: Any = threading.Thread(target=over.wait, name="left-behind")
    thread.close = over.set
    thread.start()
    kept.append(thread)


@pytest.mark.parametrize(
    ("leave", "named"),
    [
        (leave_task, r"task sleep"),
        (leave_file, r"file .*/left\.txt"),
        (leave_server, r"connection listening at \('127\.0\.0\.1', \d+\)"),
        (leave_connection, r"connection from .*listener\.sock"),
        (leave_thread, r"thread left-behind"),
    ],
)
@pytest.mark.parametrize("fails", [False, True])
def test_what_is_left_open_is_named_however_the_loop_ends(
    leave: Callable[[Path], Coroutine[Any, Any, None]],
    named: str,
    fails: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("flamecore.runtime.tasks.leftovers._SOON_S", 0.0)

    async def main() -> None:
        await leave(tmp_path)
        if fails:
            raise ValueError("as it is")

    with pytest.raises(ResourceWarning, match=f"left open at the end of an event loop: .*{named}") as caught:
        run(main())
    assert isinstance(caught.value.__context__, ValueError) is fails


@pytest.mark.parametrize("family", ["unix", "inet"])
def test_connections_left_to_a_library_hide_no_others(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flamecore.runtime.tasks.leftovers._SOON_S", 0.0)
    monkeypatch.setattr("flamecore.toolkit.closing._MOST_PLACES", 2)

    def connected(name: str) -> int | str:
        """Leave a connection open; return where its other end is."""
        place: Any = str(tmp_path / name) if family == "unix" else ("127.0.0.1", 0)
        with socket.socket(socket.AF_UNIX if family == "unix" else socket.AF_INET) as listener:
            listener.bind(place)
            listener.listen()
            kept.append(socket.socket(listener.family))
            kept[-1].connect(listener.getsockname())
            kept.append(listener.accept()[0])
            return str(place) if family == "unix" else int(listener.getsockname()[1])

    async def main() -> None:
        leave_to_library("another")
        leave_to_library(connected("library"))
        leave_to_library(library := connected("library again"))
        places.extend((library, connected("own")))

    places: list[int | str] = []
    with pytest.raises(ResourceWarning) as caught:
        run(main())
    library, own = (str(place) for place in places)
    assert own in str(caught.value)
    assert library not in str(caught.value)
    assert "another" not in closed_by_libraries, "the earliest are forgotten"


def test_what_is_closed_soon_is_not_left() -> None:
    """A library closes in a thread of its own, and a transport in the next turn of the loop."""

    async def main() -> None:
        server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
        _, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.close()
        server.close()
        await asyncio.to_thread(int, "1")
        late = socket.create_server(("127.0.0.1", 0))
        threading.Timer(0.05, late.close).start()

    run(main())


def test_wakeups_do_not_count() -> None:
    ends: list[int] = []

    async def main() -> None:
        kept.extend(socket.socketpair())
        ends.extend(os.pipe())

    run(main())
    for end in ends:
        os.close(end)


def test_a_call_that_may_never_return_does_not_count() -> None:
    """An import that hangs is such a call: nobody waits for its thread."""
    over = threading.Event()

    async def main() -> None:
        in_daemon_thread(over.wait)

    run(main())
    over.set()


def test_nobody_looks_where_such_warnings_are_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As they are by default: a program may open a file in a function, and keep it."""

    def look() -> None:
        pytest.fail("the descriptors are listed")

    monkeypatch.setattr("flamecore.runtime.tasks.leftovers._descriptors", look)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        run(leave_file(tmp_path))
