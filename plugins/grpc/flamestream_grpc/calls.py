"""Connections of links as streams of one gRPC call."""

from __future__ import annotations

import asyncio
import re
from typing import Any, Final, NoReturn

import grpc
from grpc import aio

from flamecore.toolkit.links.connection import BrokenConnectionError, Greeting, Refusal
from flamestream_grpc.safety import roles_of

METHOD: Final = "/flamestream.Transport/Link"
HELLO: Final = "flamestream-hello-bin"
INSTANCE: Final = "flamestream-instance"
LOCATION: Final = "flamestream-location-bin"
TOKEN: Final = "flamestream-token-bin"

_STATUS: Final = {
    Refusal.TOKEN: grpc.StatusCode.UNAUTHENTICATED,
    Refusal.UNWANTED: grpc.StatusCode.FAILED_PRECONDITION,
    Refusal.DAMAGED: grpc.StatusCode.DATA_LOSS,
    Refusal.REPLACED: grpc.StatusCode.ABORTED,
}
_HOPELESS: Final = frozenset(
    {
        grpc.StatusCode.UNAUTHENTICATED,
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.UNIMPLEMENTED,
    }
)
"""Status codes that another attempt would give again."""

_NOBODY: Final = re.compile(r"Connection refused|No such file")
"""The system's errors where nothing listens, as gRPC passes them on."""


def _broken(error: aio.AioRpcError) -> BrokenConnectionError:
    why = error.details() or str(error.code())
    return BrokenConnectionError(why, hopeless=error.code() in _HOPELESS, absent=bool(_NOBODY.search(why)))


class GrpcConnection:
    """The caller's end of a call.

    Args:
        channel: The channel, which is closed with the connection.
        greeting: The caller's credentials.
    """

    def __init__(self, channel: aio.Channel, greeting: Greeting) -> None:
        self.instance = ""
        self._channel = channel
        shown = ((TOKEN, greeting.token), (HELLO, greeting.hello), (LOCATION, greeting.location.encode()))
        metadata = aio.Metadata(*shown, (INSTANCE, greeting.instance))
        self._call: Any = channel.stream_stream(METHOD)(metadata=metadata)

    async def open(self, deadline: float, answer_s: float) -> None:
        """Connect, and wait until the peer has answered.

        Args:
            deadline: End of the time to connect, of the event loop's clock.
            answer_s: Seconds for the answer after that.

        Raises:
            BrokenConnectionError: The call fails.
        """
        call = self._call
        try:
            async with asyncio.timeout_at(deadline):
                await call.wait_for_connection()
            # The process is there; but its event loop may be busy with a user's function.
            async with asyncio.timeout(answer_s):
                metadata = await call.initial_metadata()
            self.instance = str(dict(iter(metadata or ())).get(INSTANCE, ""))  # a mapping that older ones get wrong
            if not self.instance:
                raise BrokenConnectionError(str(await call.details()), hopeless=await call.code() in _HOPELESS)
        except TimeoutError:
            raise BrokenConnectionError("no answer in time", late=True) from None
        except aio.AioRpcError as error:
            raise _broken(error) from error

    async def read(self) -> bytes | None:
        try:
            data = await self._call.read()
        except aio.AioRpcError as error:
            raise _broken(error) from error
        return None if data is aio.EOF else data

    async def write(self, data: bytes) -> None:
        try:
            await self._call.write(data)
        except aio.AioRpcError as error:
            raise _broken(error) from error
        except asyncio.InvalidStateError as error:  # gRPC raises it when the call has ended already
            raise BrokenConnectionError(str(error)) from error

    async def finish(self) -> None:
        try:
            await self._call.done_writing()
        except aio.AioRpcError as error:
            raise _broken(error) from error
        except asyncio.InvalidStateError as error:
            raise BrokenConnectionError(str(error)) from error

    def abort(self) -> None:
        self._call.cancel()

    async def aclose(self) -> None:
        await self._channel.close()


class GrpcCall:
    """The server's end of a call.

    Args:
        context: The call, as gRPC gives it to its handler.
    """

    def __init__(self, context: Any) -> None:
        self._context = context
        shown = dict(context.invocation_metadata() or ())
        location = shown.get(LOCATION, b"").decode(errors="replace")
        instance = str(shown.get(INSTANCE, ""))
        self.greeting = Greeting(shown.get(TOKEN, b""), shown.get(HELLO, b""), location, instance)
        self.roles = roles_of(context.auth_context())

    async def accept(self, instance: str) -> None:
        await self._context.send_initial_metadata(((INSTANCE, instance),))

    async def refuse(self, refusal: Refusal, why: str) -> NoReturn:
        await self._context.abort(_STATUS[refusal], why)
        raise AssertionError(why)  # abort has raised already

    async def read(self) -> bytes | None:
        data = await self._context.read()
        return None if data is aio.EOF else data

    async def write(self, data: bytes) -> None:
        try:
            await self._context.write(data)
        except aio.BaseError as error:
            raise BrokenConnectionError(str(error)) from error
