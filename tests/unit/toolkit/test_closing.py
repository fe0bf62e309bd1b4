"""A closing goes on to its end, whoever is cancelled meanwhile."""

from __future__ import annotations

import asyncio

import pytest

from flamecore.toolkit.closing import ClosingStack, to_its_end


class Server:
    """A resource whose closing takes a few turns of the event loop."""

    def __init__(self, error: Exception | None = None) -> None:
        self.closed, self._error = False, error

    async def aclose(self) -> None:
        for _ in range(5):
            await asyncio.sleep(0)
        self.closed = True
        if self._error is not None:
            raise self._error


@pytest.mark.parametrize("cancels", range(4))
def test_a_cancelled_closing_is_closed_and_cancelled(cancels: int) -> None:
    async def main() -> None:
        server = Server()
        closing = asyncio.create_task(to_its_end(server.aclose()))
        await asyncio.sleep(0)
        for _ in range(cancels):
            closing.cancel()
            await asyncio.sleep(0)
        await asyncio.wait((closing,))
        assert server.closed
        assert closing.cancelled() is (cancels > 0)

    asyncio.run(main())


def test_a_closing_that_fails_raises_its_error() -> None:
    error = ValueError("the disk is full")
    with pytest.raises(ValueError, match="the disk is full"):
        asyncio.run(to_its_end(Server(error).aclose()))


def test_a_cancelled_closing_that_fails_tells_why() -> None:
    error = ValueError("the disk is full")

    async def main() -> None:
        closing = asyncio.create_task(to_its_end(Server(error).aclose()))
        await asyncio.sleep(0)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError) as caught:
            await closing
        assert caught.value.__cause__ is error

    asyncio.run(main())


def test_a_stack_closes_all_that_is_on_it_although_it_is_cancelled_again_and_again() -> None:
    async def main() -> None:
        servers = [Server() for _ in range(3)]

        async def work() -> None:
            async with ClosingStack() as stack:
                for server in servers:
                    stack.push_async_callback(server.aclose)
                await asyncio.sleep(60)

        working = asyncio.create_task(work())
        await asyncio.sleep(0)
        while not working.done():
            working.cancel()
            await asyncio.sleep(0)
        assert working.cancelled()
        assert all(server.closed for server in servers)

    asyncio.run(main())
