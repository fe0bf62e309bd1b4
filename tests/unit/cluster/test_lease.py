"""The right to run a job: one supervisor at a time has it, and who takes over has a higher incarnation."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flamecore.abc.registry import MAX_KEY, Entry, JobRegistry, RegistryContext
from flamecore.errors import ClaimedError, ConfigError, RegistryError
from flamecore.runtime.cluster.job_record import PREFIX, JobRecord, Member, encode, find, key_of, read
from flamecore.runtime.cluster.lease import Lease
from flamecore.testing.progress import patience
from flamecore.testing.simulation.virtual import run_virtually
from flamestream_inproc.registry import Held, SupervisorRegistry

LIMIT_S = 20.0
LONG_S = 60.0
"""A lease that does not lapse while a test runs."""
SHORT_S = 0.2
KEY = f"{PREFIX}words"


class Flaky(SupervisorRegistry):
    """Answers are lost, or nothing is done, as often as told."""

    lost_answers = 0
    away = False
    silent = False

    async def update(self, key: str, value: bytes, revision: int) -> int | None:
        if self.silent:
            await asyncio.get_running_loop().create_future()
        if self.away:
            raise RegistryError("the registry is away", registry=self.name, key=key)
        told = await super().update(key, value, revision)
        if self.lost_answers:
            self.lost_answers -= 1
            raise RegistryError("no answer", registry=self.name, key=key)
        return told


class Counting(SupervisorRegistry):
    """Most updates at once, of which the next one has no end if told so."""

    running = most = 0
    holds = False

    def __init__(self) -> None:
        super().__init__(None, RegistryContext())
        self.begun = asyncio.Event()

    async def update(self, key: str, value: bytes, revision: int) -> int | None:
        holds, self.holds = self.holds, False
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            if holds:
                self.begun.set()
                await asyncio.get_running_loop().create_future()
            return await super().update(key, value, revision)
        finally:
            self.running -= 1


class Told:
    """The record of a lost lease."""

    def __init__(self) -> None:
        self.errors: list[BaseException] = []
        self._told = asyncio.Event()

    def __call__(self, error: BaseException) -> None:
        self.errors.append(error)
        self._told.set()

    async def error(self) -> BaseException:
        await self._told.wait()
        return self.errors[0]


def registry(held: Held | None = None) -> Flaky:
    return Flaky(None, RegistryContext(), held)


async def take(on: JobRegistry, lost: Callable[[BaseException], None] | None = None, **options: Any) -> Lease:
    return await Lease.acquire(on, "words", **{"lease_s": LONG_S, "token": "t", "lost": lost or Told(), **options})


async def written(on: SupervisorRegistry, wanted: Callable[[JobRecord], bool]) -> JobRecord:
    """Wait for the record to be as wanted, and return it."""
    while True:
        entry = await on.get(KEY)
        if entry is not None and wanted(record := read(entry.value, "words")):
            return record
        await asyncio.sleep(0.01)


def die(lease: Lease) -> None:
    """End as a process does that is killed."""
    lease._renewing.cancel()


def run(main: Coroutine[Any, Any, Any]) -> None:
    async def limited() -> None:
        async with patience(LIMIT_S):
            await main

    asyncio.run(limited())


def test_incarnations_grow_with_every_claim() -> None:
    async def main() -> None:
        on = registry()
        for incarnation in (1, 2, 3):
            async with await take(on) as claim:
                assert claim.incarnation == incarnation

    run(main())


def test_records_come_back_as_they_were() -> None:
    record = JobRecord(job="words", incarnation=3, holder="h", claim="c", lease_s=5.0)
    assert read(encode(record, "t"), "words", "t") == record


def test_published_facts_can_be_looked_up() -> None:
    async def main() -> None:
        on = registry()
        member = Member(role="worker", location="h:1", pid=7, parts=("worker/0",))
        async with await take(on) as lease:
            lease.publish(run="words-1a", transport="grpc", control="here:1")
            lease.publish(members={"w1": member}, key_groups={"worker/0": (0, 127)}, fronts=(("a", "0", "worker/0"),))
            await written(on, lambda record: bool(record.members))
            found = await find(on, "words", "t")
            assert (found.job, found.run, found.incarnation) == ("words", "words-1a", 1)
            assert (found.transport, found.control) == ("grpc", "here:1")
            assert found.members == {"w1": member}
            assert found.key_groups == {"worker/0": (0, 127)}
            assert found.fronts == (("a", "0", "worker/0"),)
        with pytest.raises(RegistryError, match=r"the supervisor of job 'words', .* has ended"):
            await find(on, "words", "t")

    run(main())


def test_a_lease_is_given_back_after_the_end_of_its_last_renewal() -> None:
    async def main() -> None:
        on = Counting()
        async with await take(on) as lease:
            on.holds = True
            lease.publish(run="words-1a")
            await on.begun.wait()
        assert on.most == 1, "the renewal could come after it"
        assert (await written(on, lambda record: record.lease_s == 0)).run == "words-1a"

    run(main())


def test_a_second_claim_is_refused_as_soon_as_the_first_is_renewed() -> None:
    async def main() -> None:
        held = Held()
        async with await take(registry(held)) as lease:
            second = asyncio.create_task(take(registry(held)))
            while not second.done():
                await asyncio.sleep(0.01)
                lease.publish()
            with pytest.raises(ClaimedError) as caught:
                await second
        error = caught.value
        assert (error.job, error.holder, error.incarnation) == ("words", lease.record.holder, 1)
        assert f"is run by {error.holder}, since incarnation 1" in error.what

    run(main())


def test_a_claim_is_renewed_by_itself() -> None:
    async def main() -> None:
        on = registry()
        async with await take(on, lease_s=SHORT_S):
            revisions: set[int] = set()
            while len(revisions) < 3:
                entry = await on.get(KEY)
                assert entry is not None
                revisions.add(entry.revision)
                await asyncio.sleep(0.01)

    run(main())


def test_a_registry_that_does_not_answer_does_not_keep_a_job_from_ending() -> None:
    async def main() -> None:
        on, told = registry(), Told()
        async with await take(on, told, lease_s=SHORT_S):
            on.silent = True
        assert told.errors == []

    run(main())


def test_the_successor_of_a_dead_supervisor_has_a_higher_incarnation() -> None:
    async def main() -> None:
        held, told = Held(), Told()
        first = await take(registry(held), told, lease_s=SHORT_S)
        die(first)
        async with await take(registry(held)) as second:
            assert second.incarnation == 2
            # It was not dead, only slow: it hears that it is too late, and stops.
            late = Lease(first._registry, first.record, first._revision, "t", told)
            late.publish()
            error = await told.error()
            assert isinstance(error, ClaimedError)
            assert error.incarnation == 2
            assert error.what.startswith("another run of job 'words' has taken it over: ")
            async with late:
                pass
            assert (await written(second._registry, lambda _: True)).incarnation == 2  # type: ignore[arg-type]

    run(main())


def test_one_of_several_successors_takes_over() -> None:
    async def main() -> None:
        held = Held()
        die(await take(registry(held), lease_s=SHORT_S))
        outcomes = await asyncio.gather(*(take(registry(held)) for _ in range(10)), return_exceptions=True)
        claims = [outcome for outcome in outcomes if isinstance(outcome, Lease)]
        assert [lease.incarnation for lease in claims] == [2]
        assert sum(isinstance(outcome, ClaimedError) for outcome in outcomes) == 9
        async with claims[0]:
            pass

    run(main())


def test_a_lost_answer_loses_no_claim() -> None:
    async def main() -> None:
        on, told = registry(), Told()
        async with await take(on, told) as lease:
            on.lost_answers = 2
            lease.publish(control="here")
            await written(on, lambda record: record.control == "here")
            while on.lost_answers:
                await asyncio.sleep(0.01)
            lease.publish(control="there")
            await written(on, lambda record: record.control == "there")
            assert not told.errors

    run(main())


def test_a_registry_may_be_away_for_less_than_the_lease() -> None:
    async def main() -> None:
        on, told = registry(), Told()
        async with await take(on, told) as lease:
            on.away = True
            lease.publish(control="here")
            await asyncio.sleep(0.3)
            on.away = False
            await written(on, lambda record: record.control == "here")
            assert not told.errors

    run(main())


@pytest.mark.parametrize("trouble", ["away", "silent"])
def test_a_claim_that_cannot_be_renewed_is_lost(trouble: str) -> None:
    async def main() -> None:
        on, told = registry(), Told()
        lease = await take(on, told, lease_s=SHORT_S)
        setattr(on, trouble, True)
        error = await told.error()
        assert isinstance(error, RegistryError)
        assert not isinstance(error, ClaimedError)
        assert "the lease of job 'words' could not be renewed for 0.2 s" in error.what
        setattr(on, trouble, False)
        async with lease:
            pass

    run(main())


class Deaf(SupervisorRegistry):
    """A write that goes on when it is cancelled, until it may end."""

    may_end: asyncio.Event | None = None

    async def update(self, key: str, value: bytes, revision: int) -> int | None:
        while self.may_end is not None and not self.may_end.is_set():
            try:
                await self.may_end.wait()
            except asyncio.CancelledError:
                continue
        return await super().update(key, value, revision)


def test_a_claim_is_lost_though_a_write_does_not_end_when_it_is_cancelled() -> None:
    async def main() -> None:
        told, on = Told(), Deaf(None, RegistryContext())
        await take(on, told, lease_s=SHORT_S)
        on.may_end = asyncio.Event()
        assert "could not be renewed" in str(await told.error())
        on.may_end.set()

    run(main())


class Slow(SupervisorRegistry):
    """Its answer takes a few turns of the loop, in the first of which this process may stand still."""

    def __init__(self, held: Held | None = None) -> None:
        super().__init__(None, RegistryContext(), held)
        self.stands_still_s = 0.0

    async def update(self, key: str, value: bytes, revision: int) -> int | None:
        told = await super().update(key, value, revision)
        asyncio.get_running_loop().call_soon(time.sleep, self.stands_still_s)
        self.stands_still_s = 0.0
        for _ in range(5):
            await asyncio.sleep(0)
        return told


async def renewed(on: SupervisorRegistry, times: int) -> None:
    """Wait until the record has changed so often."""
    revisions = {on.held.entries[KEY].revision}
    while len(revisions) <= times:
        await asyncio.sleep(0.01)
        revisions.add(on.held.entries[KEY].revision)


@pytest.mark.parametrize("when", ["between renewals", "in a renewal"])
def test_a_process_that_stood_still_keeps_a_lease_that_nobody_has_taken(when: str) -> None:
    """It is longer than the lease; other processes have all that time to take it."""

    async def main() -> None:
        on, told = Slow(), Told()
        async with await take(on, told, lease_s=SHORT_S):
            for _ in range(3):
                if when == "in a renewal":
                    on.stands_still_s = 3 * SHORT_S
                else:
                    time.sleep(3 * SHORT_S)
                await renewed(on, 2)
        assert not told.errors

    run(main())


def test_a_process_that_stood_still_is_told_who_has_taken_its_lease() -> None:
    async def main() -> None:
        on, told = Slow(), Told()
        async with await take(on, told, lease_s=SHORT_S):
            other = msgspec.structs.replace(read(on.held.entries[KEY].value, "words"), incarnation=2, claim="another")
            on.held.entries[KEY] = Entry(encode(msgspec.structs.replace(other, holder="north"), "t"), 100)
            time.sleep(3 * SHORT_S)
            error = await told.error()
        assert isinstance(error, ClaimedError)
        assert (error.holder, error.incarnation) == ("north", 2)
        assert error.what.startswith(
            "another run of job 'words' has taken it over, as this run had not renewed its lease"
        )
        assert error.what.endswith(": north, incarnation 2")
        assert "Stop that one" not in error.hint

    run(main())


def test_a_deleted_record_loses_the_claim() -> None:
    async def main() -> None:
        on, told = registry(), Told()
        async with await take(on, told, lease_s=SHORT_S):
            on.held.entries.clear()
            error = await told.error()
            assert "is gone from the registry" in str(error)

    run(main())


# -- in virtual time ---------------------------------------------------------------------------------------------------


class Watched(Flaky):
    """The moments at which it was written, tried in vain, and read."""

    def __init__(self, held: Held | None = None) -> None:
        super().__init__(None, RegistryContext(), held)
        self.writes: list[float] = []
        self.refused: list[float] = []
        self.reads: list[float] = []

    async def update(self, key: str, value: bytes, revision: int) -> int | None:
        now = asyncio.get_running_loop().time()
        if self.away:
            self.refused.append(now)
        told = await super().update(key, value, revision)
        self.writes.append(now)
        return told

    async def get(self, key: str) -> Entry | None:
        self.reads.append(asyncio.get_running_loop().time())
        return await super().get(key)


def test_it_is_renewed_three_times_in_a_lease_and_not_read_for_that() -> None:
    async def main() -> None:
        on = Watched()
        async with await take(on, lease_s=30.0):
            on.reads.clear()
            await asyncio.sleep(95.0)
            assert on.writes == [10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0, 80.0, 90.0]
            assert on.reads == []

    run_virtually(main())


@pytest.mark.parametrize("away_s", [0.0, 8.0])
def test_a_registry_that_is_away_is_tried_again_with_pauses_until_the_lease_is_over(away_s: float) -> None:
    """A renewal that took some of the lease leaves it less than the whole."""

    async def main() -> None:
        on, told = Watched(), Told()
        lease = await take(on, told, lease_s=30.0)
        on.away = True
        await asyncio.sleep(10.0 + away_s)
        on.away = away_s == 0.0
        if away_s:
            await asyncio.sleep(0.5)
            assert 18.0 <= on.writes[-1] <= 18.5
            on.away, on.refused = True, []
        await told.error()
        last = on.writes[-1] if away_s else 0.0
        pauses = [later - earlier for earlier, later in pairwise(on.refused)]
        assert 29.0 <= asyncio.get_running_loop().time() - last <= 30.5
        assert all(0.2 <= pause <= 0.3 for pause in pauses), "neither at once nor seldom"
        async with lease:
            pass

    run_virtually(main())


def test_a_change_that_cannot_be_written_may_wait_for_what_is_left_of_the_lease() -> None:
    async def main() -> None:
        on, told = Watched(), Told()
        async with await take(on, told, lease_s=30.0) as lease:
            on.away = True
            lease.publish(control="here")
            await told.error()
            assert 29.0 <= asyncio.get_running_loop().time() <= 30.5

    run_virtually(main())


def test_a_supervisor_without_a_sign_is_waited_for_as_long_as_its_lease() -> None:
    async def main() -> None:
        held = Held()
        die(await take(registry(held), lease_s=30.0))
        async with await take(registry(held)) as lease:
            assert lease.incarnation == 2
            assert 30.0 <= asyncio.get_running_loop().time() < 30.5
        async with await take(registry(held)):
            assert asyncio.get_running_loop().time() < 31.0, "it was given back"

    run_virtually(main())


@pytest.mark.parametrize("sign", ["renewed", "deleted"])
def test_who_waits_is_refused_at_the_next_sign(sign: str) -> None:
    async def main() -> None:
        held = Held()
        first = await take(registry(held), lease_s=30.0)
        if sign == "deleted":
            die(first)
            asyncio.get_running_loop().call_later(10.0, held.entries.clear)
        with pytest.raises(ClaimedError, match=r"is run by .*, since incarnation 1"):
            await take(registry(held))
        assert 10.0 <= asyncio.get_running_loop().time() < 10.5
        async with first:
            pass

    run_virtually(main())


# -- looking it up -----------------------------------------------------------------------------------------------------


def fails(make: Callable[[Flaky], Awaitable[Any]], token: str = "t", job: str = "words") -> RegistryError:
    async def main() -> None:
        on = registry()
        await make(on)
        with pytest.raises(RegistryError) as caught:
            await find(on, job, token)
        errors.append(caught.value)

    errors: list[RegistryError] = []
    run(main())
    return errors[0]


def test_an_unknown_job_is_an_error() -> None:
    async def other(on: Flaky) -> None:
        await Lease.acquire(on, "Wörter/2", lease_s=LONG_S, token="t", lost=Told())

    error = fails(other)
    assert error.what == "the registry has no entry for job 'words'; it has: Wörter/2"
    assert (error.registry, error.key) == ("supervisor", KEY)
    assert fails(lambda on: on.get(KEY)).what == "the registry has no entry for job 'words'; it has: none"


def test_a_job_that_listens_nowhere_yet_is_an_error() -> None:
    assert "listens nowhere yet" in fails(take).what


def test_a_record_without_the_right_token_is_refused() -> None:
    async def lead_astray(on: Flaky) -> None:
        lease = await take(on, token="guess")
        lease.publish(control="elsewhere")
        await written(on, lambda record: record.control == "elsewhere")

    error = fails(lead_astray)
    assert "by a process without its token" in error.what
    assert "FLAMESTREAM_TOKEN" in error.hint


def test_a_record_of_another_job_is_refused() -> None:
    async def copy(on: Flaky) -> None:
        await take(on)
        on.held.entries[f"{PREFIX}other"] = on.held.entries[KEY]

    assert "without its token" in fails(copy, job="other").what


@pytest.mark.parametrize(
    "value", [b"", b"{}", b"\xff", b'{"proof": "\xff"}', b'{"record": {}, "proof": ""}', b'{"record": 1, "proof": 2}']
)
def test_a_value_that_is_no_record_is_refused(value: bytes) -> None:
    async def spoil(on: Flaky) -> None:
        on.held.entries[KEY] = Entry(value, 1)

    assert "is no record of a job" in fails(spoil).what
    with pytest.raises(RegistryError, match="is no record of a job"):
        run(_claim_of(value))


async def _claim_of(value: bytes) -> None:
    await take(registry(Held({KEY: Entry(value, 1)})))


# -- keys --------------------------------------------------------------------------------------------------------------


def test_names_of_jobs_stay_readable_in_keys() -> None:
    assert key_of("word-count_2") == "jobs/word-count_2"
    assert key_of("a b/ß.") == "jobs/a=20b=2F=C3=9F=2E"


@given(st.text(min_size=1, max_size=20), st.text(min_size=1, max_size=20))
def test_names_of_jobs_have_keys_of_their_own(one: str, other: str) -> None:
    assert (key_of(one) == key_of(other)) == (one == other)


@pytest.mark.parametrize("name", ["", "x" * MAX_KEY, "ß" * 60])
def test_names_too_long_or_empty_for_a_key_are_refused(name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        key_of(name)
    assert caught.value.path == "job.name"


def test_a_claim_that_is_renewed_is_taken_over_if_that_is_asked_for() -> None:
    async def main() -> None:
        on, told = registry(), Told()
        async with await take(on, told, lease_s=SHORT_S) as first, await take(on, take_over=True) as second:
            assert second.incarnation > first.incarnation
            assert isinstance(await told.error(), ClaimedError)

    run(main())


def test_a_takeover_wins_against_renewals_in_between() -> None:
    """The record changes between the look at it and the attempt to change it."""

    class Busy(Flaky):
        changes = 3

        async def get(self, key: str) -> Entry | None:
            entry = await super().get(key)
            if entry is not None and self.changes:
                self.changes -= 1
                self._put(key, entry.value)
            return entry

    async def main() -> None:
        held = Held()
        die(await take(registry(held)))
        on = Busy(None, RegistryContext(), held)
        async with await take(on, take_over=True) as lease:
            assert lease.incarnation == 2
            assert not on.changes

    run(main())
