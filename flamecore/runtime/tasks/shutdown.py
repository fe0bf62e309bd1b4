"""The early end of a job: soon, and with the first error.

Once a job is known to end with an error, each call of its sources and sinks may take `job.grace_s` at most. If the end
still takes a while, the error is logged meanwhile, with the pending calls. Further errors become notes of the first.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

from flamecore import events
from flamecore.errors import FlameError
from flamecore.logs import logger
from flamecore.model.failure import describe
from flamecore.runtime.tasks.deadlines import Deadlines
from flamecore.toolkit.closing import ClosingStack

_TELL_S: Final = 1.0
"""Seconds after which a slow end is logged."""


class Shutdown:
    """The end of one job.

    Args:
        job: Name of the job, for the log.
        deadlines: The job's deadlines.
    """

    def __init__(self, job: str, deadlines: Deadlines) -> None:
        self._job, self._deadlines = job, deadlines
        self._expected: BaseException | None = None
        self._met: BaseException | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._over = False

    def expect(self, error: BaseException) -> None:
        """Prepare for an end with this error, if nothing worse comes."""
        self._expected = error
        self._shorten_deadlines()

    def withdraw(self) -> None:
        """Cancel an expected end, and restore all deadlines."""
        self._expected = None
        self._deadlines.restore()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _shorten_deadlines(self) -> None:
        self._deadlines.shorten()
        if self._timer is None and not self._over:
            self._timer = asyncio.get_running_loop().call_later(_TELL_S, self._tell)

    def _tell(self) -> None:
        error, waited = self._met or self._expected, self._deadlines.pending
        assert error is not None
        facts = {"waits_for": waited} if waited else {}
        what = "it was stopped" if isinstance(error, asyncio.CancelledError) else describe(error)
        if isinstance(error, FlameError):
            what = error.what.splitlines()[0]
        logger().warning(events.JOB_DELAYED, job=self._job, error=what, **facts, grace_s=self._deadlines.grace_s)

    @asynccontextmanager
    async def scope(self) -> AsyncIterator[AsyncExitStack]:
        """Run the job within the block, and close its resources behind it, also if it is cancelled again meanwhile.

        Raises:
            BaseException: The block's error, if any, with errors of closing as notes.
        """
        try:
            async with ClosingStack() as stack:
                try:
                    yield stack
                except BaseException as error:
                    self._met = error
                    self._shorten_deadlines()
                    raise
        except BaseException as error:
            first = self._met if self._met is not None and isinstance(error, Exception) else error
            others = [other for other in (self._expected, self._met, error) if other is not None]
            # The first error names the cause; later ones, as resources close, are notes of it.
            for text in dict.fromkeys(map(str, others)):
                if text != str(first):
                    first.add_note(f"also: {text}")
            if first is not error:
                raise first from first.__cause__
            raise
        finally:
            self._over = True
            if self._timer is not None:
                self._timer.cancel()
