"""The right to write a job's state: one run has it, for as long as it gives signs of life.

A sign of life is a blob, `holder/N`, and the newest says who holds the state. The holder creates the next one three
times in `lease_s`, and deletes the one before. A blob is created once, so of several that want the next number one gets
it: two runs that start at once cannot both go on. No two clocks are compared.

A newcomer that finds a holder waits to see whether that gives another sign. If it does, the newcomer is refused. A
process of this host that is dead is known at once to be gone; one that is there and runs is not gone, however silent it
is, for a function of the flow may keep it busy. Otherwise a holder is gone that has been silent for its lease.

The lease only decides who goes on. Correctness does not rest on it: whoever has lost the state and does not know it
yet can record nothing, since every epoch is created once too (`flamecore.runtime.state.history`).
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Final, Self

import msgspec

from flamecore.abc.store import Store
from flamecore.errors import FencedError, StoreError
from flamecore.runtime.state.holder import PREFIX, Holder, decode_holder, holder_blob, presence, this_process

_LONGEST_PAUSE_S: Final = 0.25
_TRIES: Final = 100


class StateLease:
    """A state that is this run's. Made by `StateLease.acquire`; an async context manager that gives it back.

    Attributes:
        holder: The newest sign of life.
    """

    def __init__(self, store: Store, holder: Holder, number: int, lost: Callable[[BaseException], None]) -> None:
        self.holder = holder
        self._store = store
        self._number = number
        self._lost = lost
        self._awaited = ""  # the last sign of the run that it was taken from, while that ends
        self._renewing = asyncio.create_task(self._renew())
        self._renewing.add_done_callback(self._ended)

    @classmethod
    async def acquire(
        cls,
        store: Store,
        job: str,
        *,
        lease_s: float,
        lost: Callable[[BaseException], None],
        take_over: bool = False,
        listed: bool = False,
    ) -> Self:
        """Take the state of a job. Waits for at most the lease of the run that has it.

        Args:
            store: Where the state is, open.
            job: Name of the job.
            lease_s: After how long without a sign of life others may take the state.
            lost: Told once if another run has taken it: a FencedError.
            take_over: Whether to take it from a run that is at work, too. That one is given time to end.
            listed: Whether this process holds the claim on the job in a registry that all hosts reach. A holder that
                had it there has lost it.

        Raises:
            HeldError: Another run has it.
            StoreError: The store fails.
        """
        for _ in range(_TRIES):
            number, last = await _newest(store)
            held = last is not None and presence(last) != "gone" and not (listed and last.listed)
            if last is not None and held and not take_over:
                await _wait_for_end(store, number, last)
            holder = _made(job, lease_s=lease_s, listed=listed)
            if not await store.create(holder_blob(number + 1), msgspec.json.encode(holder)):
                continue  # another was quicker, or the holder has renewed
            lease = cls(store, holder, number + 1, lost)
            try:
                if last is not None and held and take_over:
                    await lease._see_off(last, holder_blob(number))
                if number:
                    await store.delete([holder_blob(number)])
            except BaseException:
                await lease.__aexit__(None, None, None)
                raise
            return lease
        raise StoreError(
            f"store {store.name!r}: the state changes hands faster than it can be taken",
            hint="Are there several that take it over from each other? Start one of them.",
            store=store.name,
            blob=PREFIX,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Give the state back. A store that does not answer is waited for no longer than the lease."""
        self._renewing.cancel()
        await asyncio.wait((self._renewing,))
        # Others see a process that is gone, or silence.
        with suppress(StoreError, TimeoutError):
            async with asyncio.timeout(self.holder.lease_s):
                await self._store.delete([holder_blob(self._number)])

    async def _renew(self) -> None:
        """Give signs of life until another run has the state."""
        lease_s = self.holder.lease_s
        while True:
            await asyncio.sleep(lease_s / 3)
            try:
                async with asyncio.timeout(lease_s):
                    await self.renew()
            except FencedError:
                raise
            except (StoreError, TimeoutError):
                continue  # those who write to the store hear of it; the next sign tells whether the state is lost

    async def renew(self) -> None:
        """Give a sign of life.

        Raises:
            FencedError: Another run has the state.
            StoreError: The store fails; the sign may have been given.
        """
        while True:
            names = await self._store.names(PREFIX)
            own = holder_blob(self._number)
            newest = await _read(self._store, names[-1]) if names and names[-1] != own else None
            if newest is not None and newest.claim == self.holder.claim:  # it was given, and the answer was lost
                self._number, own = _number_of(names[-1]), names[-1]
            if own not in names or own != names[-1]:
                raise self._taken(newest)
            holder = msgspec.structs.replace(self.holder, seen=time.time())
            if await self._store.create(holder_blob(self._number + 1), msgspec.json.encode(holder)):
                break
        self.holder = holder
        self._number += 1
        await self._store.delete([name for name in names if name != self._awaited])

    def _taken(self, newest: Holder | None) -> FencedError:
        who = newest.words if newest is not None else "it has ended since"
        return FencedError(
            f"another run of job {self.holder.job!r} has taken over its state: {who}",
            hint="One state belongs to one run: end the other, or give this one a state of its own.",
            store=self._store.name,
            blob=holder_blob(self._number),
            epoch=0,
        )

    async def _see_off(self, last: Holder, blob: str) -> None:
        """Wait until the run that the state was taken from has ended; one that says nothing is given two leases."""
        self._awaited = blob
        clock = asyncio.get_running_loop().time
        until = clock() + 2 * last.lease_s
        while presence(last) != "gone" and clock() < until and blob in await self._store.names(PREFIX):
            await asyncio.sleep(_pause_s(last))
        self._awaited = ""

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._lost(error)


def _made(job: str, *, lease_s: float, listed: bool) -> Holder:
    """Return the first sign of life of this run."""
    host, space, pid, born = this_process()
    now, claim = time.time(), secrets.token_hex(8)
    return Holder(
        job=job,
        claim=claim,
        host=host,
        space=space,
        pid=pid,
        born=born,
        since=now,
        seen=now,
        lease_s=lease_s,
        listed=listed,
    )


async def _newest(store: Store) -> tuple[int, Holder | None]:
    """Return number and content of the newest sign of life; 0 and None: there is none."""
    names = await store.names(PREFIX)
    return (_number_of(names[-1]), await _read(store, names[-1])) if names else (0, None)


async def _read(store: Store, blob: str) -> Holder | None:
    """Return a sign of life; None if it is gone, or cannot be read: then it holds nobody up."""
    data = await store.read(blob)
    return decode_holder(data) if data is not None else None


async def _wait_for_end(store: Store, number: int, last: Holder) -> None:
    """Wait until a run has given the state back, or is gone.

    Raises:
        HeldError: It gives another sign of life; or it is a process of this host, and runs.
    """
    clock = asyncio.get_running_loop().time
    until = clock() + last.lease_s
    while (seen := presence(last)) != "gone":
        newest, other = await _newest(store)
        if not newest:
            return
        if newest != number and other is not None:
            raise other.refusal(store.name, holder_blob(newest))
        if clock() >= until:
            if seen == "running":
                raise last.refusal(store.name, holder_blob(number))
            return
        await asyncio.sleep(_pause_s(last))


def _pause_s(last: Holder) -> float:
    return min(_LONGEST_PAUSE_S, last.lease_s / 10)


def _number_of(blob: str) -> int:
    return int(blob.removeprefix(PREFIX))
