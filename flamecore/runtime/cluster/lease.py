"""The lease of a job: one supervisor holds it at a time, and renews it.

The record of a job in the registry names its supervisor, the incarnation, and the places of all processes. A supervisor
renews the record three times in `lease_s`. Another one watches it: if the record stays as it is for `lease_s`, the
supervisor is gone, and the other takes over with a higher incarnation. Clocks of two hosts are never compared, only
changes of the record count; and since every change names the revision it is based on, only one of several takeovers
succeeds. A supervisor that wakes up too late finds the record changed, and stops. Its messages until then carry its old
incarnation, and are refused.

A supervisor that was silent itself, since it stood still or a function kept its interpreter, has lost nothing by that
alone: it asks the registry, and goes on if nobody has taken over. Only a registry that gives no answer ends it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import socket
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

import msgspec

from flamecore.abc.registry import JobRegistry
from flamecore.errors import ClaimedError, RegistryError
from flamecore.runtime.cluster.job_record import JobRecord, encode, key_of, read
from flamecore.runtime.tasks.event_loop import start

_LONGEST_PAUSE_S: Final = 0.25
_TRIES: Final = 100
_RENEWALS: Final = 3
"""Renewals in a lease, so that one or two that fail, or are slow, do not lose it."""


class Lease:
    """The lease of a job, held by this process.

    Made by `Lease.acquire`; as an async context manager it is given back at the end.

    Attributes:
        record: The job's record in the registry.
    """

    def __init__(
        self, registry: JobRegistry, record: JobRecord, revision: int, token: str, lost: Callable[[BaseException], None]
    ) -> None:
        self.record = record
        self._registry = registry
        self._revision = revision
        self._token = token
        self._clock = asyncio.get_running_loop().time
        self._renewed = self._clock()
        self._changed = asyncio.Event()
        self._renewing = start(self._renew(), lost)

    @classmethod
    async def acquire(
        cls,
        registry: JobRegistry,
        job: str,
        *,
        lease_s: float,
        token: str,
        lost: Callable[[BaseException], None],
        take_over: bool = False,
    ) -> Self:
        """Acquire the lease of a job.

        Waits at most as long as the present holder's lease, to see whether it is renewed.

        Args:
            registry: The registry, open.
            job: Name of the job.
            lease_s: Seconds that the lease outlives its last renewal.
            token: Secret of the job, which processes that look it up must know.
            lost: Called once if the lease cannot be kept, with a ClaimedError or RegistryError.
            take_over: Whether to take the job from a supervisor that has it, without waiting.

        Raises:
            ClaimedError: Another supervisor has it.
            RegistryError: The registry cannot be used.
        """
        key = key_of(job)
        entry = await registry.get(key)
        last = None
        if entry is not None:
            last = read(entry.value, job)
            if not take_over:
                await _wait_for_end(registry, key, entry.revision, last)
        # The lease counts from before the write: the answer may take a while, and others count from
        # the write itself.
        began = asyncio.get_running_loop().time()
        record = JobRecord(
            job=job,
            incarnation=(last.incarnation if last else 0) + 1,
            holder=f"{socket.gethostname()} (process {os.getpid()})",
            claim=secrets.token_hex(8),
            lease_s=lease_s,
        )
        value = encode(record, token)
        revision = await (registry.create(key, value) if entry is None else registry.update(key, value, entry.revision))
        for _ in range(_TRIES if take_over else 0):  # the one that has it may renew in between
            if revision is not None or (entry := await registry.get(key)) is None:
                break
            record = msgspec.structs.replace(
                record, incarnation=max(record.incarnation, read(entry.value, job).incarnation + 1)
            )
            value = encode(record, token)
            revision = await registry.update(key, value, entry.revision)
        if revision is None:
            quicker = await registry.get(key)
            raise _claimed(record if quicker is None else read(quicker.value, job))
        lease = cls(registry, record, revision, token, lost)
        lease._renewed = began
        return lease

    @property
    def incarnation(self) -> int:
        """Return the number of this start of the job."""
        return self.record.incarnation

    def publish(self, **changes: object) -> None:
        """Change fields of the record.

        They are written at once, or as soon as the registry can be reached.
        """
        self.record = msgspec.structs.replace(self.record, **changes)
        self._changed.set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Give the lease back; wait for the registry no longer than the lease."""
        self._renewing.cancel()
        await asyncio.wait((self._renewing,))
        lease_s = self.record.lease_s
        # A lease of 0 s says that it was given back: the next start need not wait.
        self.record = msgspec.structs.replace(self.record, lease_s=0.0, control="", members={})
        # If this fails, the lease lapses by itself; and a job that another run has taken is not ours to give back.
        with contextlib.suppress(RegistryError, TimeoutError):
            async with asyncio.timeout(lease_s):
                await self._write()

    async def _renew(self) -> None:
        """Renew the lease, and write changes of the record."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.record.lease_s / _RENEWALS):
                    await self._changed.wait()
            self._changed.clear()
            began = self._clock()
            await self._write_in_time(began)
            self._renewed = began

    async def _write_in_time(self, began: float) -> None:
        """Write the record, again if that fails, for as long as the lease lasts.

        Then the job has to end, whatever the registry does. A wait counts for no longer than it was meant to last: in
        the rest of the time this process stood still, and could not hear an answer.

        Raises:
            ClaimedError: Another supervisor has changed it.
            RegistryError: The registry has failed, or given no answer, for all of this time.
        """
        lease_s = self.record.lease_s
        pause_s = min(_LONGEST_PAUSE_S, lease_s / 10)
        left_s = max(self._renewed + lease_s - began, lease_s - lease_s / _RENEWALS)
        writing: asyncio.Task[None] | None = None
        why = "no answer"
        try:
            while left_s > 0:
                began = self._clock()
                if writing is None:
                    writing = asyncio.create_task(self._write())
                await asyncio.wait((writing,), timeout=pause_s)
                if writing.done():
                    try:
                        return writing.result()
                    except ClaimedError:
                        raise
                    except RegistryError as error:
                        why, writing = error.what, None
                        await asyncio.sleep(max(0.0, began + pause_s - self._clock()))
                left_s -= pause_s
        finally:
            if writing is not None:
                writing.cancel()
                await asyncio.wait((writing,), timeout=pause_s)  # a driver may not hear of it
        raise _not_renewed(self.record, why)

    async def _write(self) -> None:
        """Write the record.

        Raises:
            ClaimedError: Another supervisor has changed it.
            RegistryError: It may have been written, or not.
        """
        key = key_of(self.record.job)
        value = encode(self.record, self._token)
        revision = await self._registry.update(key, value, self._revision)
        if revision is None:
            # Perhaps by this lease, and the answer was lost.
            entry = await self._registry.get(key)
            if entry is not None:
                found = read(entry.value, self.record.job)
                if found.claim != self.record.claim:
                    raise self._taken(found)
                revision = await self._registry.update(key, value, entry.revision)
        if revision is None:
            raise RegistryError(
                f"the record of job {self.record.job!r} is gone from the registry, or changes all the time",
                hint="Does anybody but supervisors change it?",
                registry=self._registry.name,
                key=key,
            )
        self._revision = revision

    def _taken(self, record: JobRecord) -> ClaimedError:
        """Return the error of this run, whose job another one has."""
        lease_s, silent_s = self.record.lease_s, self._clock() - self._renewed
        why = f", as this run had not renewed its lease of {lease_s:g} s for {silent_s:.1f} s" * (silent_s > lease_s)
        return _claimed(
            record,
            f"another run of job {record.job!r} has taken it over{why}: {record.holder}, incarnation "
            f"{record.incarnation}",
            "The other run goes on with the job. If this one should have kept it: was its process stopped or busy? "
            "lease_s under [registry] says how long it may be.",
        )


async def _wait_for_end(registry: JobRegistry, key: str, revision: int, last: JobRecord) -> None:
    """Wait until a lease has lapsed, unless it was given back.

    Raises:
        ClaimedError: It is renewed.
    """
    clock = asyncio.get_running_loop().time
    until = clock() + last.lease_s
    while clock() < until:
        await asyncio.sleep(min(_LONGEST_PAUSE_S, last.lease_s / 10))
        entry = await registry.get(key)
        if entry is None or entry.revision != revision:
            raise _claimed(last if entry is None else read(entry.value, last.job))


def _claimed(record: JobRecord, what: str = "", hint: str = "") -> ClaimedError:
    return ClaimedError(
        what or f"job {record.job!r} is run by {record.holder}, since incarnation {record.incarnation}",
        hint=hint
        or "Stop that one first, or take the job over from it: --take-over, or job.take_over = true; or give this one "
        "another name under [job].",
        registry="",
        key=key_of(record.job),
        job=record.job,
        holder=record.holder,
        incarnation=record.incarnation,
    )


def _not_renewed(record: JobRecord, why: str) -> RegistryError:
    return RegistryError(
        f"the lease of job {record.job!r} could not be renewed for {record.lease_s:g} s: {why}",
        hint="Another supervisor may have taken over. Look after the registry; lease_s under [registry] says how long "
        "it may be away.",
        registry="",
        key=key_of(record.job),
    )
