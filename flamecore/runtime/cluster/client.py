"""The client of a running job: it sends its control one request, and leaves."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any, Final

from flamecore.errors import JobError, PeerGoneError
from flamecore.model.messages import CONTROL, NodeReport, Refusal, Rescale, Status, Upgrade
from flamecore.runtime.cluster.session import ControlSession
from flamecore.runtime.codec.codec import Codec
from flamecore.runtime.tasks.sender import Sender

_LOOK_TIMEOUT_S: Final = 5.0
_SIGN_S: Final = 0.5
"""Time between two signs to the control during a wait."""


class Client:
    """A client that sends one request to one job.

    Args:
        bootstrap: Values to reach it: see `flamecore.runtime.cluster.session.ControlSession`. Its role is "observer",
            which only asks for the status, or "operator".
    """

    def __init__(self, bootstrap: Mapping[str, object]) -> None:
        self._session = ControlSession(bootstrap)

    async def look(self) -> dict[str, Any]:
        """Ask the control for the job's status, and leave.

        Raises:
            FlameError: It cannot be reached, or does not answer.
        """
        async with self._session.joined(Codec()) as (_, sender):
            return _facts(await self._receive(sender, _LOOK_TIMEOUT_S))

    async def ask(self, request: Rescale | Upgrade, limit_s: float) -> dict[str, Any]:
        """Send the control a request, wait until it is done, and leave.

        Args:
            request: The request.
            limit_s: Longest time for it.

        Returns:
            Facts about its result.

        Raises:
            JobError: It is refused, or takes too long.
            FlameError: The control cannot be reached.
        """
        async with self._session.joined(Codec()) as (_, sender):
            sender.send(CONTROL, request)
            return _facts(await self._receive(sender, limit_s))

    async def _receive(self, sender: Sender, limit_s: float) -> object:
        """Return the control's next message.

        Raises:
            FlameError: It cannot be reached, or is gone.
            JobError: It does not answer.
        """
        name, job, over = self._session.name, self._session.job, self._session.over
        receiving = asyncio.create_task(sender.endpoint.receive())
        until = time.monotonic() + limit_s
        try:
            while (left_s := until - time.monotonic()) > 0:
                pause_s = min(left_s, _SIGN_S)
                await asyncio.wait((receiving, over), timeout=pause_s, return_when=asyncio.FIRST_COMPLETED)
                if receiving.done():
                    return receiving.result().message
                if over.done():
                    await over
                try:  # only a sender notices a control that has closed meanwhile
                    sender.send(CONTROL, NodeReport(name, {}))
                except PeerGoneError as error:
                    raise JobError(f"job {job!r} is not there: {error.what}") from error
        finally:
            receiving.cancel()
            await asyncio.wait((receiving,))
        raise JobError(
            f"job {job!r} has not answered {name} within {limit_s:g} s",
            hint="Does its supervisor run, and wait for nodes still?",
        )


def _facts(answer: object) -> dict[str, object]:
    if isinstance(answer, Refusal):
        raise JobError(answer.text)
    if not isinstance(answer, Status):
        raise JobError(f"the job answered with a {type(answer).__name__}")
    return answer.facts
