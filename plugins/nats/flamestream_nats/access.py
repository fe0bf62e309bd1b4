"""Server as a driver sees it: one connection, and errors in the driver's words."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from nats import errors
from nats.js.errors import APIError, ServiceUnavailableError

from flamecore.errors import ConnectError, FlameError
from flamestream_nats.connection import Connection
from flamestream_nats.explain import reason
from flamestream_nats.jetstream.stream import NoJetStream, Refused
from flamestream_nats.options import ServerOptions, exposed, warn

Failed = Callable[[str, str], FlameError]
"""Function that makes the driver's error from a description and a hint."""


async def connect(connection: Connection, options: ServerOptions, failed: Failed) -> None:
    """Open a connection that carries no secret of a job.

    Raises:
        FlameError: The driver's error: no server lets this process in.
    """
    if missing := exposed(options, None):
        warn(options, missing)
    try:
        await connection.open()
    except ConnectError as error:
        raise failed(error.what, error.hint) from error


def needs(options: ServerOptions) -> str:
    """Return the hint for a server that refuses what a driver begins with."""
    return f"Does it run with JetStream (nats-server -js)? May this user {options.permissions}?"


class Access:
    """The connection of one driver.

    Args:
        options: Options of the driver, checked.
        name: Name of the driver in the server's own lists.
        limit_s: Seconds that the server may take to answer a request.
        who: Description of the server, for errors.
        keeps: Plural noun for the things that the driver keeps there.
        up: Function called when a broken connection is mended.
        broken: Function called when it is broken for good.
        waits: Whether to wait for a server that is just starting.
    """

    def __init__(
        self,
        options: ServerOptions,
        name: str,
        limit_s: float,
        *,
        who: str,
        keeps: str,
        up: Callable[[], None] = lambda: None,
        broken: Callable[[], None] = lambda: None,
        waits: bool = True,
    ) -> None:
        self.connection = Connection(options, name[:200], up=up, failed=self._given_up, waits=waits)
        self._options, self._limit_s, self._who, self._keeps, self._broken = options, limit_s, who, keeps, broken
        self._is_open = False
        self._error: FlameError | None = None

    async def open(self, failed: Failed) -> None:
        """Connect.

        Raises:
            FlameError: The driver's error: no server lets this process in.
        """
        await connect(self.connection, self._options, failed)
        self._is_open = True

    async def aclose(self) -> None:
        """Disconnect, if connected."""
        if self._is_open:
            self._is_open = False
            await self.connection.aclose()

    @contextmanager
    def answers(self, failed: Failed, hint: str = "Look into the server's log.", place: str = "") -> Iterator[None]:
        """Raise every error of a request in the block as the driver's.

        Args:
            failed: See `Failed`.
            hint: Hint for a request that the server does not answer as it should.
            place: Description of the place on the server that refuses, if it is not the server.
        """
        if not self._is_open:
            raise failed(f"the connection to {self._options.shown} is not open", "Call open() first.")
        try:
            yield
        except (Refused, errors.Error, OSError, TimeoutError) as error:
            if self._error is not None:
                raise failed(self._error.what, self._error.hint) from error
            raise failed(self.explained(error, place), hint) from error

    def explained(self, error: Exception, place: str = "") -> str:
        """Return the description of a request's error; see `answers`."""
        if isinstance(error, ServiceUnavailableError) and not self.connection.has_jetstream:
            error = NoJetStream()
        if isinstance(error, Refused | APIError):
            return f"{place or self._who} refuses: {reason(error)}"
        if isinstance(error, NoJetStream):
            return f"{self._who} cannot keep {self._keeps}: {reason(error)}"
        return f"{self._who} gives no answer within {self._limit_s:g} s: {reason(error)}"

    def _given_up(self, error: FlameError) -> None:
        self._error = error
        self._broken()
