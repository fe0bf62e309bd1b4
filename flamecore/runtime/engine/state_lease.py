"""The lease of a job's state, held by one run as long as it sends heartbeats.

A heartbeat is a blob, `holder/N`, and the newest names the holder. The holder creates the next one three times in
`lease_s`, and deletes the one before. A blob is created once, so only one of several runs gets the next number: two
runs that start at once cannot both continue. Clocks are never compared.

A new run that finds a holder waits for its next heartbeat. If it comes, the new run is refused. A dead process of this
host is gone at once; a running one is not gone, however silent it is, because a function of the flow may keep it busy.
Any other holder is gone once it has been silent for its lease.

The lease only decides who continues. Correctness does not depend on it: a run that has lost the state unknowingly can
record nothing, since every epoch is created once too (`flamecore.runtime.state.history`).
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
from flamecore.runtime.tasks.event_loop import start

_LONGEST_PAUSE_S: Final = 0.25
_TRIES: Final = 100


class StateLease:
    """The lease of a state, held by this run; an async context manager releases it.

    `StateLease.acquire` makes one.

    Attributes:
        holder: The newest heartbeat.
    """

    def __init__(self, store: Store, holder: Holder, number: int, lost: Callable[[BaseException], None]) -> None:
        self.holder = holder
        self._store = store
        self._number = number
        self._awaited = ""  # the last heartbeat of the former holder, while that ends
        self._renewing = start(self._renew(), lost)

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
        """Take the lease of a job's state; wait for at most the lease of its holder.

        Args:
            store: The open store of the state.
            job: Name of the job.
            lease_s: Seconds without a heartbeat after which others may take the state.
            lost: Function called once with the error if the lease is lost, a `FencedError` if another run took it.
            take_over: Whether to take it even from an active run, which then gets time to end.
            listed: Whether this process holds the lease of the job in a registry that all hosts reach. A holder that
                had the lease has lost it.

        Raises:
            HeldError: Another run holds it.
            StoreError: The store fails.
        """
        for _ in range(_TRIES):
            number, last = await _newest(store)
            held = last is not None and not (listed and last.listed)
            if last is not None and held and not take_over:
                await _wait_for_end(store, number, last)
            holder = _made(job, lease_s=lease_s, listed=listed)
            # A new blob with the next number, not a changed one: a store can only create, and of
            # several runs one creates it.
            if not await store.create(holder_blob(number + 1), msgspec.json.encode(holder)):
                continue  # another run was faster, or the holder has renewed
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
        """Release the lease, within the lease time even if the store does not answer."""
        self._renewing.cancel()
        await asyncio.wait((self._renewing,))
        # On failure, others see a dead process, or silence.
        with suppress(StoreError, TimeoutError):
            async with asyncio.timeout(self.holder.lease_s):
                await self._store.delete([holder_blob(self._number)])

    async def _renew(self) -> None:
        """Send heartbeats until another run has the state."""
        lease_s = self.holder.lease_s
        while True:
            # Three times in a lease, so that one or two that fail, or are slow, do not lose it.
            await asyncio.sleep(lease_s / 3)
            try:
                async with asyncio.timeout(lease_s):
                    await self.renew()
            except FencedError:
                raise
            except (StoreError, TimeoutError):
                continue  # writers to the store get the error; the next heartbeat shows whether the state is lost

    async def renew(self) -> None:
        """Send a heartbeat.

        Raises:
            FencedError: Another run has the state.
            StoreError: The store fails; the heartbeat may have been stored.
        """
        while True:
            names = await self._store.names(PREFIX)
            own = holder_blob(self._number)
            newest = await _read(self._store, names[-1]) if names and names[-1] != own else None
            if newest is not None and newest.claim == self.holder.claim:  # it was stored, and the answer was lost
                self._number, own = _number_of(names[-1]), names[-1]
            if own not in names or own != names[-1]:
                raise self._taken(newest)
            # The number grows with each heartbeat: others see that it changes, so no clocks of two
            # hosts are compared.
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
        """Wait until the former holder has ended; a silent one gets two leases."""
        self._awaited = blob
        clock = asyncio.get_running_loop().time
        until = clock() + 2 * last.lease_s
        while presence(last) != "gone" and clock() < until and blob in await self._store.names(PREFIX):
            await asyncio.sleep(_pause_s(last))
        self._awaited = ""


def _made(job: str, *, lease_s: float, listed: bool) -> Holder:
    """Return the first heartbeat of this run."""
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
    """Return number and contents of the newest heartbeat; 0 and None if there is none."""
    names = await store.names(PREFIX)
    return (_number_of(names[-1]), await _read(store, names[-1])) if names else (0, None)


async def _read(store: Store, blob: str) -> Holder | None:
    """Return a heartbeat; None if it is gone, or cannot be read.

    An unreadable one does not hold up others.
    """
    data = await store.read(blob)
    return decode_holder(data) if data is not None else None


async def _wait_for_end(store: Store, number: int, last: Holder) -> None:
    """Wait until a run has released the state, or is gone.

    A dead process of this host is known by its id and the time of its start, so a restart after a kill does not wait
    for the lease to run out.

    Raises:
        HeldError: It sends another heartbeat; or it is a running process of this host.
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
            # A process that runs and is silent may be busy in a function of the flow. On its own
            # host that is known, so it keeps the state; on another host silence is all there is to
            # see.
            if seen == "running":
                raise last.refusal(store.name, holder_blob(number))
            return
        await asyncio.sleep(_pause_s(last))


def _pause_s(last: Holder) -> float:
    return min(_LONGEST_PAUSE_S, last.lease_s / 10)


def _number_of(blob: str) -> int:
    return int(blob.removeprefix(PREFIX))
