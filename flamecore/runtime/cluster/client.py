"""A client of a job that runs elsewhere: asks its control for something, and leaves."""

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
"""How often the control is given a sign while it is waited for."""


class Client:
    """Asks one thing of one job.

    Args:
        bootstrap: How to reach it: see `flamecore.runtime.cluster.session.ControlSession`. Its role is "observer",
            which asks nothing but how the job is, or "operator".
    """

    def __init__(self, bootstrap: Mapping[str, Any]) -> None:
        self._session = ControlSession(bootstrap)

    async def look(self) -> dict[str, Any]:
        """Ask the control how the job is, and leave.

        Raises:
            FlameError: It cannot be reached, or does not answer.
        """
        async with self._session.joined(Codec()) as (_, sender):
            return _facts(await self._receive(sender, _LOOK_TIMEOUT_S))

    async def ask(self, request: Rescale | Upgrade, limit_s: float) -> dict[str, Any]:
        """Ask the control for something, wait until it is done, and leave.

        Args:
            request: For what.
            limit_s: How long it may take.

        Returns:
            What there is to say of it.

        Raises:
            JobError: It is refused, or takes too long.
            FlameError: The control cannot be reached.
        """
        async with self._session.joined(Codec()) as (_, sender):
            sender.send(CONTROL, request)
            return _facts(await self._receive(sender, limit_s))

    async def _receive(self, sender: Sender, limit_s: float) -> Any:
        """What the control says next.

        Raises:
            FlameError: It cannot be reached, or is gone.
            JobError: It says nothing.
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
                try:  # a control that has closed meanwhile is noticed only by who sends to it
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


def _facts(answer: Any) -> dict[str, Any]:
    if isinstance(answer, Refusal):
        raise JobError(answer.text)
    if not isinstance(answer, Status):
        raise JobError(f"the job answered with a {type(answer).__name__}")
    return answer.facts
