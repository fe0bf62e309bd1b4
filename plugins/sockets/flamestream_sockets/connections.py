"""Connections of links over a socket."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final, NoReturn

import msgspec

from flamecore.toolkit.links.connection import BrokenConnectionError, Greeting, Refusal, Role
from flamestream_sockets.peer import is_stopped
from flamestream_sockets.pipe import Kind, Pipe

_AGAIN: Final = frozenset({Refusal.DAMAGED, Refusal.REPLACED})
_LAST_WORDS_S: Final = 1.0
"""Seconds in which a process that is refused, or has said goodbye, may read the rest."""
_greeting: Final = msgspec.msgpack.Decoder(tuple[bytes, bytes, str, str])
_refusal: Final = msgspec.msgpack.Decoder(tuple[bool, str])


class RefusedError(Exception):
    """The end of a call that the server has refused, with the reason."""


class Watch:
    """A look at the process behind a connection from time to time; a stopped one breaks the connection.

    The system reports a process that ends, but none that is stopped. It is looked at twice: a user who stops all
    processes of a job together, and continues them, must not lose one that wakes up later than another.

    Args:
        pipe: The connection.
        interval_s: Seconds between two looks.
    """

    def __init__(self, pipe: Pipe, interval_s: float) -> None:
        self._pipe, self._interval_s = pipe, interval_s
        self._seen = False
        self._timer = asyncio.get_running_loop().call_later(interval_s, self._look)

    def _look(self) -> None:
        stopped = is_stopped(self._pipe.socket)
        if stopped and self._seen:
            self._pipe.abort()
            return
        self._seen = stopped
        self._timer = asyncio.get_running_loop().call_later(self._interval_s, self._look)

    def end(self) -> None:
        """Look no more."""
        self._timer.cancel()


class SocketConnection:
    """The caller's end of a connection.

    Args:
        pipe: The connected socket.
        watch_s: Seconds between two looks at the process behind it.
    """

    def __init__(self, pipe: Pipe, watch_s: float) -> None:
        self.instance = ""
        self._pipe = pipe
        self._watch = Watch(pipe, watch_s)
        self._finished = False

    async def greet(self, greeting: Greeting, answer_s: float) -> None:
        """Show the greeting, and wait for the answer.

        Raises:
            BrokenConnectionError: There is no answer within so many seconds, or it is no admission.
        """
        await self._pipe.write(Kind.GREETING, msgspec.msgpack.encode(greeting))
        try:
            # The process is there; but its event loop may be busy with a user's function.
            async with asyncio.timeout(answer_s):
                self.instance = (await self._next(Kind.ACCEPTED)).decode(errors="replace")
        except TimeoutError:
            raise BrokenConnectionError("no answer in time", late=True) from None
        self._pipe.admit()

    async def read(self) -> bytes | None:
        try:
            return await self._next(Kind.DATA)
        except BrokenConnectionError as error:
            if self._finished and not error.hopeless:  # both sides have said that they write no more
                return None
            raise

    async def _next(self, kind: Kind) -> bytes:
        """Return the next message, which must be of a kind.

        Raises:
            BrokenConnectionError: It is a refusal or of another kind, or the connection has broken.
        """
        message = await self._pipe.read()
        if message.kind == kind:
            return message.body
        if message.kind != Kind.REFUSED:
            raise BrokenConnectionError(f"a message of kind {message.kind} came in place of kind {kind}")
        try:
            again, why = _refusal.decode(message.body)
        except ValueError as error:
            raise BrokenConnectionError(f"a refusal that cannot be read: {error}") from error
        raise BrokenConnectionError(why, hopeless=not again)

    async def write(self, data: bytes) -> None:
        await self._pipe.write(Kind.DATA, data)

    async def finish(self) -> None:
        self._finished = True
        await self._pipe.write(Kind.END)

    def abort(self) -> None:
        self._pipe.abort()

    async def aclose(self) -> None:
        self._watch.end()
        await self._pipe.aclose()


class SocketCall:
    """The server's end of a connection, after its greeting.

    Args:
        pipe: The connected socket.
        greeting: The caller's credentials.
    """

    def __init__(self, pipe: Pipe, greeting: Greeting) -> None:
        self.greeting = greeting
        self.roles: tuple[Role, ...] = (Role(),)
        self._pipe = pipe

    @classmethod
    async def taken(cls, pipe: Pipe) -> SocketCall:
        """Return the call of a caller, who has to greet first.

        Raises:
            BrokenConnectionError: The greeting does not come, or is none.
        """
        message = await pipe.read()
        if message.kind != Kind.GREETING:
            raise BrokenConnectionError("it does not greet")
        try:
            return cls(pipe, Greeting(*_greeting.decode(message.body)))
        except ValueError as error:
            raise BrokenConnectionError(f"it does not greet: {error}") from error

    async def accept(self, instance: str) -> None:
        self._pipe.admit()
        await self._pipe.write(Kind.ACCEPTED, instance.encode())

    async def refuse(self, refusal: Refusal, why: str) -> NoReturn:
        try:
            await self._pipe.write(Kind.REFUSED, msgspec.msgpack.encode((refusal in _AGAIN, why)))
        except BrokenConnectionError as error:
            raise RefusedError(why) from error
        raise RefusedError(why)

    async def read(self) -> bytes | None:
        try:
            message = await self._pipe.read()
        except BrokenConnectionError:
            return None
        return message.body if message.kind == Kind.DATA else None

    async def write(self, data: bytes) -> None:
        await self._pipe.write(Kind.DATA, data)


class Reception:
    """The calls that a process has accepted.

    Args:
        serve: Coroutine function that serves a call to its end.
        limit_s: Seconds in which a caller must greet.
        watch_s: Seconds between two looks at the process behind a call.
        broken: Function called for a caller that does not greet.
        most: Most calls at a time.
    """

    def __init__(
        self,
        serve: Callable[[SocketCall], Awaitable[None]],
        *,
        limit_s: float,
        watch_s: float,
        broken: Callable[[], None],
        most: int,
    ) -> None:
        self._serve, self._limit_s, self._watch_s, self._broken, self._most = serve, limit_s, watch_s, broken, most
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    def receive(self, pipe: Pipe) -> None:
        """Serve a connection that was just made, in a task of its own."""
        if self._closed or len(self._tasks) >= self._most:
            pipe.abort()
            return
        task = asyncio.get_running_loop().create_task(self._run(pipe))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, pipe: Pipe) -> None:
        watch = Watch(pipe, self._watch_s)
        last_words_s = 0.0
        try:
            async with asyncio.timeout(self._limit_s):
                call = await SocketCall.taken(pipe)
        except (BrokenConnectionError, TimeoutError):
            self._broken()
        else:
            last_words_s = _LAST_WORDS_S  # not for ever: they may be for a process that reads nothing
            with suppress(RefusedError, BrokenConnectionError):
                await self._serve(call)
        finally:
            watch.end()
            await pipe.aclose(last_words_s)

    async def aclose(self) -> None:
        """End all calls, and return when their connections are closed."""
        self._closed = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
