"""The right to write a state: one run has it, as long as it gives signs of life."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Coroutine, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from flamecore.abc.store import StoreContext
from flamecore.errors import FencedError, HeldError, StoreError
from flamecore.runtime.engine import state_lease
from flamecore.runtime.engine.state_lease import StateLease
from flamecore.runtime.state.holder import PREFIX, Holder, holder_blob, presence, this_process
from flamecore.testing.progress import patience
from flamestream_stores.memory import Memory

LIMIT_S = 20.0
LONG_S = 60.0
"""A lease that does not lapse while a test runs."""
SHORT_S = 0.3

needs_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are looked up in /proc")


class Flaky(Memory):
    """Answers are lost, or nothing is done."""

    lost_answers = 0
    asked_twice = 0
    refused = 0
    away = False
    silent = False

    async def create(self, name: str, data: bytes) -> bool:
        if self.silent:
            await asyncio.get_running_loop().create_future()
        if self.away:
            self.refused += 1
            raise StoreError("the store is away", store=self.name, blob=name)
        created = await super().create(name, data)
        if self.asked_twice:  # as a client does that has got no answer
            self.asked_twice -= 1
            created = await super().create(name, data)
        if self.lost_answers:
            self.lost_answers -= 1
            raise StoreError("no answer", store=self.name, blob=name)
        return created

    async def delete(self, names: Collection[str]) -> None:
        if self.silent:
            await asyncio.get_running_loop().create_future()
        await super().delete(names)


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


def store(blobs: dict[str, bytes] | None = None) -> Flaky:
    return Flaky(None, StoreContext("words"), {} if blobs is None else blobs)


async def take(on: Memory, lost: Callable[[BaseException], None] | None = None, **options: Any) -> StateLease:
    return await StateLease.acquire(on, "words", **{"lease_s": LONG_S, "lost": lost or Told(), **options})


def die(lease: StateLease) -> None:
    """End as a process does that is killed, or fall silent."""
    lease._renewing.cancel()


def run(main: Coroutine[Any, Any, Any]) -> None:
    async def limited() -> None:
        async with patience(LIMIT_S):
            await main

    asyncio.run(limited())


def sign(process: subprocess.Popen[bytes] | None = None, **changes: Any) -> dict[str, bytes]:
    """Return the blobs of a run that is this process, or another one of this host."""
    host, space, pid, born = this_process()
    if process is not None:
        pid = process.pid
        born = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    facts = {"host": host, "space": space, "pid": pid, "born": born, "lease_s": LONG_S, **changes}
    holder = Holder(job="words", claim="another", since=1e9, seen=1e9 + 60, **facts)
    return {holder_blob(7): msgspec.json.encode(holder)}


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    """Another process of this host, which waits."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        yield child
        child.kill()


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """From now on leases are taken by a process of another host."""
    return lambda host: monkeypatch.setattr(state_lease, "this_process", lambda: (host, f"boot of {host}", 1, 17))


def test_a_state_that_is_given_back_can_be_taken_at_once() -> None:
    async def main() -> None:
        on = store()
        for _ in range(3):
            async with await take(on):
                assert len(on.blobs) == 1
            assert not on.blobs

    run(main())


def test_a_second_run_is_refused_and_told_of_the_first(elsewhere: Callable[[str], None]) -> None:
    async def main() -> None:
        on = store()
        elsewhere("north")
        async with await take(on, lease_s=SHORT_S) as first:
            elsewhere("south")
            with pytest.raises(HeldError, match=r"process 1 on north holds its state since .* UTC") as caught:
                await take(on)
            error = caught.value
            assert (error.host, error.pid, error.job, error.since) == ("north", 1, "words", first.holder.since)
            assert error.since < error.seen
            assert "--take-over" in error.hint

    run(main())


def test_of_several_heartbeats_the_newest_counts() -> None:
    """The one before it is deleted only after it."""

    async def main() -> None:
        blobs = sign(host="south", space="boot of south")
        blobs[holder_blob(6)] = sign(host="north", space="boot of north", lease_s=SHORT_S)[holder_blob(7)]
        taking = asyncio.create_task(take(on := store(blobs)))
        await asyncio.sleep(0)
        await on.create(holder_blob(8), blobs[holder_blob(7)])
        with pytest.raises(HeldError, match="on south"):
            await taking

    run(main())


def test_of_several_that_start_at_once_one_goes_on(elsewhere: Callable[[str], None]) -> None:
    async def main() -> None:
        blobs: dict[str, bytes] = {}
        elsewhere("north")
        die(await take(store(blobs), lease_s=SHORT_S))
        attempts = [take(store(blobs), lease_s=SHORT_S) for _ in range(5)]
        results = await asyncio.gather(*attempts, return_exceptions=True)
        (winner,) = [each for each in results if isinstance(each, StateLease)]
        assert [type(each) for each in results if each is not winner] == [HeldError] * 4
        async with winner:
            pass
        assert not blobs

    run(main())


def test_a_run_elsewhere_that_is_silent_for_its_lease_has_lost_the_state(elsewhere: Callable[[str], None]) -> None:
    async def main() -> None:
        blobs: dict[str, bytes] = {}
        elsewhere("north")
        told = Told()
        first = await take(store(blobs), told, lease_s=SHORT_S)
        die(first)
        elsewhere("south")
        async with await take(store(blobs)) as second:
            assert second.holder.host == "south"
            with pytest.raises(FencedError, match="another run of job 'words' has taken over its state"):
                await first.renew()
            (blob,) = [name for name in blobs if name > holder_blob(1)]
            assert second.holder == msgspec.json.decode(blobs[blob], type=Holder), "the first has changed nothing"

    run(main())


def test_a_run_that_lost_the_state_is_told_and_leaves_it_to_the_other(elsewhere: Callable[[str], None]) -> None:
    async def main() -> None:
        blobs: dict[str, bytes] = {}
        told = Told()
        elsewhere("north")
        first = await take(store(blobs), told, lease_s=SHORT_S)
        elsewhere("south")
        taking = asyncio.create_task(take(store(blobs), take_over=True, lease_s=SHORT_S))
        assert isinstance(await told.error(), FencedError)
        async with first:
            pass
        async with await taking as second:
            await asyncio.sleep(0)
            await second.renew()
            assert len(blobs) == 1
        assert not blobs

    run(main())


def test_a_run_that_stood_still_keeps_a_state_that_nobody_has_taken() -> None:
    async def main() -> None:
        on, told = store(), Told()
        async with await take(on, told, lease_s=SHORT_S) as lease:
            for _ in range(3):
                seen = lease.holder.seen
                time.sleep(3 * SHORT_S)
                while lease.holder.seen == seen:
                    await asyncio.sleep(0.01)
        assert not told.errors

    run(main())


def test_a_run_that_stood_still_is_told_who_has_taken_its_state() -> None:
    async def main() -> None:
        on, told = store(), Told()
        async with await take(on, told, lease_s=SHORT_S):
            on.blobs.clear()
            on.blobs.update(sign(host="north"))
            time.sleep(3 * SHORT_S)
            error = await told.error()
        assert isinstance(error, FencedError)
        assert f"has taken over its state: process {os.getpid()} on north" in error.what

    run(main())


def test_a_run_whose_sign_is_gone_has_lost_the_state() -> None:
    """As when another one has taken the state over, and given it back, since the last heartbeat."""

    async def main() -> None:
        async with await take(on := store()) as lease:
            on.blobs.clear()
            with pytest.raises(FencedError, match="has taken over its state: it has ended since"):
                await lease.renew()

    run(main())


def test_a_takeover_waits_until_the_other_has_left(elsewhere: Callable[[str], None]) -> None:
    async def main() -> None:
        blobs: dict[str, bytes] = {}
        told = Told()
        elsewhere("north")
        first = await take(store(blobs), told, lease_s=LONG_S)
        taking = asyncio.create_task(take(store(blobs), take_over=True))
        while holder_blob(2) not in blobs:
            await asyncio.sleep(0)
        for _ in range(100):
            await asyncio.sleep(0)
        assert not taking.done()
        await first.__aexit__(None, None, None)
        async with await taking:
            pass

    run(main())


@needs_proc
def test_a_dead_process_of_this_host_is_known_at_once(process: subprocess.Popen[bytes]) -> None:
    async def main() -> None:
        blobs = sign(process)
        process.kill()
        while Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
            await asyncio.sleep(0.01)
        async with await take(store(blobs)):  # nobody has waited for it yet: a zombie
            pass
        blobs, known = sign(process), sign(process)
        process.wait()
        async with await take(store(blobs)):
            pass
        async with await take(store(known), take_over=True):  # nobody is there to be given time to end
            pass

    run(main())


@needs_proc
def test_a_process_id_that_is_used_again_is_no_run(process: subprocess.Popen[bytes]) -> None:
    async def main() -> None:
        async with await take(store(sign(process, born=1))):
            pass

    run(main())


@needs_proc
def test_a_process_of_this_host_that_runs_is_never_taken_for_gone(process: subprocess.Popen[bytes]) -> None:
    """A function that takes long may keep it from giving signs."""

    async def main() -> None:
        with pytest.raises(HeldError, match=f"process {process.pid} "):
            await take(store(sign(process, lease_s=SHORT_S)))

    run(main())


@needs_proc
def test_a_process_of_this_host_that_is_stopped_loses_the_state_with_its_lease(
    process: subprocess.Popen[bytes],
) -> None:
    async def main() -> None:
        os.kill(process.pid, signal.SIGSTOP)
        blobs = sign(process, lease_s=SHORT_S)
        while presence(msgspec.json.decode(blobs[holder_blob(7)], type=Holder)) != "stopped":
            await asyncio.sleep(0.01)
        async with await take(store(blobs)) as lease:
            assert lease.holder.pid == os.getpid()

    run(main())


def test_a_claim_in_a_registry_says_that_the_holder_which_had_it_is_gone(elsewhere: Callable[[str], None]) -> None:
    async def main() -> None:
        on = store()
        elsewhere("north")
        die(await take(on, listed=True))
        elsewhere("south")
        async with await take(on, listed=True):
            pass
        die(await take(on, lease_s=SHORT_S))
        async with await take(on, listed=True):  # the other knew nothing of a registry, and is waited for
            pass
        async with await take(on, lease_s=SHORT_S):
            elsewhere("north")
            with pytest.raises(HeldError):
                await take(on, listed=True)

    run(main())


def test_a_state_that_is_given_back_while_another_run_waits_is_taken_at_once(elsewhere: Callable[[str], None]) -> None:
    async def main() -> None:
        on = store()
        elsewhere("north")
        first = await take(on)
        elsewhere("south")
        taking = asyncio.create_task(take(on))
        await asyncio.sleep(0.05)
        async with first:
            assert not taking.done()
        async with await taking as second:
            assert second.holder.host == "south"

    run(main())


def test_an_older_sign_that_was_left_says_nothing_of_the_run_at_work(elsewhere: Callable[[str], None]) -> None:
    async def main() -> None:
        on = store({holder_blob(0): b"?"})
        elsewhere("north")
        async with await take(on, lease_s=SHORT_S):
            on.blobs[holder_blob(0)] = b"?"
            elsewhere("south")
            with pytest.raises(HeldError):
                await take(on)

    run(main())


def test_a_run_that_cannot_delete_the_sign_before_its_own_leaves_none() -> None:
    class Stubborn(Flaky):
        times = 1

        async def delete(self, names: Collection[str]) -> None:
            if self.times:
                self.times -= 1
                raise StoreError("not now", store=self.name, blob="")
            await super().delete(names)

    async def main() -> None:
        blobs = sign(host="north", lease_s=0.0)
        before = dict(blobs)
        with pytest.raises(StoreError, match="not now"):
            await take(Stubborn(None, StoreContext("words"), blobs))
        assert blobs == before
        assert asyncio.all_tasks() == {asyncio.current_task()}

    run(main())


def test_a_state_that_others_always_take_first_is_an_error() -> None:
    class Taken(Flaky):
        asked = 0

        async def create(self, name: str, data: bytes) -> bool:
            self.asked += 1
            return False

    async def main() -> None:
        on = Taken(None, StoreContext("words"), {})
        with pytest.raises(StoreError, match="changes hands faster than it can be taken"):
            await take(on)
        assert on.asked > 1

    run(main())


def test_lost_answers_and_a_store_that_is_away_cost_nothing() -> None:
    async def main() -> None:
        on, told = store(), Told()
        async with await take(on, told) as lease:
            on.lost_answers = 1
            with pytest.raises(StoreError, match="no answer"):
                await lease.renew()
            await lease.renew()
            on.asked_twice = 1
            await lease.renew()
            on.away = True
            with pytest.raises(StoreError, match="away"):
                await lease.renew()
            on.away = False
            await lease.renew()
            assert list(on.blobs) == [holder_blob(6)]
        assert not told.errors
        assert not on.blobs

    run(main())


def test_a_store_that_fails_does_not_end_the_run() -> None:
    async def main() -> None:
        on, told = store(), Told()
        async with await take(on, told, lease_s=0.1) as lease:
            on.away = True
            while on.refused < 2:
                await asyncio.sleep(0.01)
            on.away = False
            seen = lease.holder.seen
            while lease.holder.seen == seen:
                await asyncio.sleep(0.01)
        assert not told.errors

    run(main())


def test_a_store_that_hangs_is_not_waited_for_at_the_end() -> None:
    async def main() -> None:
        on = store()
        async with await take(on, lease_s=0.1):
            on.silent = True

    run(main())


@pytest.mark.parametrize("data", [b"", b"{}", b"\xff", b'{"job": 7}'])
def test_a_sign_that_cannot_be_read_holds_nobody_up(data: bytes) -> None:
    async def main() -> None:
        async with await take(store({holder_blob(3): data})) as lease:
            await lease.renew()

    run(main())


def test_signs_are_no_part_of_the_state() -> None:
    from flamecore.runtime.state.scan import garbage, scan

    async def main() -> None:
        on = store()
        async with await take(on):
            found = await scan(on)
            assert not found.damaged
            assert not found.epochs
            assert not garbage(await on.names(), 5, (), ())
            assert [name.startswith(PREFIX) for name in on.blobs] == [True]

    run(main())
