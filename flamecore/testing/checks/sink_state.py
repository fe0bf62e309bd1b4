"""Checks of an exactly-once sink in a job that keeps state.

They are used through `flamecore.testing.checks.edges`.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import random
import subprocess
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from flamecore.abc.sink import Sink
from flamecore.errors import SinkError
from flamecore.model.meta import MIN_TIME
from flamecore.testing.checks.sinks import (
    PAYLOADS,
    MakeSink,
    ReadBack,
    batches_of,
    check_sink_delivers,
    check_sink_encodes,
    check_sink_is_atomic,
    check_sink_replaces,
    check_sink_resumes,
    deliver,
)
from flamecore.testing.checks.sources import EdgeBroken, expect_same


def _kept(make: MakeSink, identity: str, *, continued: bool) -> Sink:
    """Make a sink of a job that keeps state, whatever its options say of old output."""
    sink = make(resume=False, fingerprint="kit")
    sink.continues(identity, continued=continued)
    return sink


async def check_sink_continues(make: MakeSink, read_back: ReadBack, payloads: Sequence[Any] = PAYLOADS) -> None:
    """Check that a sink continues its own output, and no other after a delivery.

    The job keeps state.

    Raises:
        EdgeBroken: `continues`, `foreign`.
    """
    if make(resume=False, fingerprint="kit").guarantee != "exactly_once":
        return
    batches = batches_of(payloads)
    for done in range(len(batches) + 1):
        # A new output each time, since the last one would be continued.
        identity = f"continues-{done}"
        earlier = _kept(make, identity, continued=False)
        await deliver(earlier, batches[:done])
        sink = _kept(make, identity, continued=True)
        held = await deliver(sink, batches)
        last = batches[done - 1][0] if done else MIN_TIME
        if held != last:
            raise EdgeBroken(
                "continues", f"after {done} batches it says that it holds what is below {held}, not {last}"
            )
        expect_same("continues", f"gone on with after {done} batches", read_back(), payloads)
        await sink.aclose()
        await earlier.aclose()
    sink = _kept(make, "another", continued=True)
    try:
        await sink.open()
    except SinkError:
        await sink.aclose()
        expect_same("foreign", "after a refused resumption", read_back(), payloads)
        return
    await sink.aclose()
    raise EdgeBroken("foreign", "a job that had delivered has taken the output of another for its own")


async def check_sink_syncs(make: MakeSink, read_back: ReadBack, payloads: Sequence[Any] = PAYLOADS) -> None:
    """Check that `sync` makes its time held, also without and beside batches.

    Raises:
        EdgeBroken: `syncs`.
    """
    if make(resume=False, fingerprint="kit").guarantee != "exactly_once":
        return
    sink = _kept(make, "syncs", continued=False)
    await sink.open()
    await sink.sync(5)
    await sink.write(10, payloads[:1])
    await sink.sync(10)
    for result in await asyncio.gather(sink.sync(15), sink.write(20, payloads[1:2]), return_exceptions=True):
        if result is not None:
            raise EdgeBroken("syncs", f"when a batch came while sync waited, there was {result!r}")
    await sink.sync(30)
    again = _kept(make, "syncs", continued=True)
    if (held := await again.open()) != 30:
        raise EdgeBroken("syncs", f"after sync(30) it says that it holds what is below {held}")
    await again.write(40, payloads[2:])
    expect_same("syncs", "with sync between batches", read_back(), payloads)
    await again.aclose()
    await sink.aclose()


async def check_sink_is_fenced(make: MakeSink, read_back: ReadBack, payloads: Sequence[Any] = PAYLOADS) -> None:
    """Check that only the newest of two runs writes.

    The older run, which was given up and comes back, is refused, and leaves nothing behind.

    Raises:
        EdgeBroken: `fenced`.
    """
    if make(resume=False, fingerprint="kit").guarantee != "exactly_once":
        return
    older, newer = _kept(make, "fenced", continued=False), _kept(make, "fenced", continued=True)
    await older.open()
    await older.write(10, payloads[:1])
    await newer.open()
    await _refused("before the newer one has written", older.write(20, payloads[1:2]))
    await newer.write(20, payloads[1:2])
    await _refused("after the newer one has written", older.write(30, payloads[2:]))
    await _refused("for a snapshot", older.sync(40))
    await older.aclose()
    await newer.write(30, payloads[2:])
    await newer.aclose()
    expect_same("fenced", "with an older run that came back", read_back(), payloads)


async def _refused(when: str, called: Awaitable[None]) -> None:
    try:
        await called
    except SinkError:
        return
    raise EdgeBroken("fenced", f"a run that another has taken over from was let through {when}")


async def check_sink(make: MakeSink, read_back: ReadBack, payloads: Sequence[Any] = PAYLOADS) -> None:
    """Check a sink against every law of its contract that needs no killed process.

    Args:
        make: Makes the sink, anew, in the same place.
        read_back: Reads the payloads in that place.
        payloads: The payloads to write; at least three.

    Raises:
        EdgeBroken: With the law, and the event.
    """
    await check_sink_delivers(make, read_back, payloads)
    await check_sink_is_atomic(make, read_back, payloads)
    await check_sink_replaces(make, read_back, payloads)
    await check_sink_encodes(make, read_back, payloads)
    await check_sink_resumes(make, read_back, payloads)
    await check_sink_continues(make, read_back, payloads)
    await check_sink_syncs(make, read_back, payloads)
    await check_sink_is_fenced(make, read_back, payloads)


def check_sink_survives_kills(tests: Any, folder: Path, kills: int = 4, seed: int = 0) -> None:
    """Check that a writer killed again and again ends with the undisturbed output.

    The process makes the sink by the same class, imported from its file anew: attributes of `tests` with a value in
    JSON are set there too.

    Args:
        tests: A `SinkTests`.
        folder: Folder for its `make` and `read_back`.
        kills: Number of kills.
        seed: Seed of their times.

    Raises:
        EdgeBroken: `killed`.
    """
    if tests.make(folder, resume=False, fingerprint="kit").guarantee != "exactly_once":
        return
    chance = random.Random(seed)
    victim = _Victim(tests, folder)
    for _ in range(kills):
        victim.run(chance.choice((0, 1, 2, 8)), chance.random() / 200)
    victim.run(None, 0.0)
    batches = long_batches(tests.payloads)
    expected = [payload for number in range(1, victim.last + 1) for payload in batches(number)]
    expect_same("killed", f"after {kills} kills", tests.read_back(folder), expected)


def long_batches(payloads: Sequence[Any]) -> Callable[[int], list[Any]]:
    """Return a function from a batch's number, which counts from 1, to its payloads.

    Every eighth batch is large.
    """
    return lambda number: [payloads[(number + place) % len(payloads)] for place in range(3 if number % 8 else 2000)]


class _Victim:
    """The process to kill, and its messages.

    Attributes:
        last: Number of the last batch it has reported as written.
    """

    def __init__(self, tests: Any, folder: Path) -> None:
        self.last = 0
        self._opened = False
        said = {name: value for name, value in vars(tests).items() if isinstance(value, str | int | float | list)}
        kind = type(tests)
        self._facts = {"file": inspect.getfile(kind), "kind": kind.__qualname__, "with": said, "folder": str(folder)}

    def run(self, steps: int | None, then_s: float) -> None:
        """Run the process, and kill it unless `steps` is None.

        Args:
            steps: Number of batches before the kill; None: let it end.
            then_s: Seconds between the last of them and the kill.
        """
        facts = {**self._facts, "continued": self._opened, "until": None if steps is not None else self.last + 3}
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        command = [sys.executable, "-m", "flamecore.testing.checks.victim", json.dumps(facts)]
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            try:
                # `communicate` would miss the data that `readline` has read ahead.
                said = [] if steps is None else [process.stdout.readline() for _ in range(1 + steps)]
                if steps is None:
                    rest, errors = process.communicate(timeout=60)
                else:
                    _wait(process, then_s)
                    process.kill()
                    rest, errors = process.stdout.read(), b""
            finally:
                process.kill()
        self._heard([line for line in (*said, *rest.splitlines(keepends=True)) if line.endswith(b"\n")])
        if steps is None and process.returncode:
            raise EdgeBroken("killed", f"started once more, it does not go on: {errors.decode()[-2000:]}")

    def _heard(self, lines: Sequence[bytes]) -> None:
        for line in lines:
            word, number = line.split()
            if word == b"held":
                self._opened = True
                if int(number) < self.last:
                    raise EdgeBroken(
                        "killed", f"it had written batch {self.last}, and holds no more than {int(number)}"
                    )
            elif word == b"wrote":
                self.last = int(number)


def _wait(process: subprocess.Popen[bytes], seconds: float) -> None:
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return
