"""A loop ends, although something in it does not."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import signal
import subprocess
import sys
import threading
import time
from itertools import pairwise
from pathlib import Path
from textwrap import dedent

import pytest

from flamecore.errors import ConfigError
from flamecore.runtime.tasks.event_loop import CHOICE, clock, loop_factory, run
from flamecore.testing.progress import patience

HANGING = """
    import asyncio, sys, time
    from flamecore.runtime.tasks import event_loop as runner

    async def stubborn():
        while True:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                pass

    async def main(what):
        if "task" in what:
            task = asyncio.create_task(stubborn())
        if "thread" in what:
            thread = asyncio.create_task(asyncio.to_thread(time.sleep, 60))
        await asyncio.sleep(0.05)
        if "known" in what:
            runner.give_up()
        raise ValueError("as it should")

    if "known" not in sys.argv[1]:
        runner._LIMIT_S = 0.5
    try:
        runner.run(main(sys.argv[1]))
    except ValueError as error:
        print(error)
    runner.exit_without_waiting(7)
    print("nothing was left behind")
"""


def test_run_behaves_as_that_of_asyncio(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flamecore.runtime.tasks.event_loop._left", False)  # another test may have
    closed = []

    async def ends_late() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.01)
            closed.append("task")

    async def main() -> int:
        background.append(asyncio.create_task(ends_late()))
        await asyncio.sleep(0)
        return await asyncio.to_thread(int, "12")

    background: list[asyncio.Task[None]] = []
    with pytest.warns(ResourceWarning, match=r"task .*\.ends_late$"):
        assert run(main()) == 12
    assert closed == ["task"]

    async def fails() -> None:
        raise ValueError("as it is")

    with pytest.raises(ValueError, match="as it is"):
        run(fails())


@pytest.mark.parametrize("what", ["task", "thread", "task thread", "task known", "thread known"])
def test_tasks_and_threads_that_do_not_end_are_left_behind(what: str) -> None:
    ended = subprocess.run([sys.executable, "-c", dedent(HANGING), what], capture_output=True, text=True)
    assert (ended.returncode, ended.stdout) == (7, "as it should\n"), ended.stderr


@pytest.mark.parametrize("what", ["task", "thread"])
def test_the_log_names_the_tasks_waited_for_and_the_error(what: str) -> None:
    code = dedent(HANGING).replace("runner._LIMIT_S = 0.5", "runner._LIMIT_S, runner._GRACE_S = 0.5, 0.1")
    ended = subprocess.run([sys.executable, "-c", code, what], capture_output=True, text=True)
    assert "rest.waited" in ended.stderr
    assert ("stubborn" if what == "task" else "threads") in ended.stderr
    assert "ValueError: as it should" in ended.stderr


def test_an_unexpected_error_is_shown_before_the_process_exits() -> None:
    code = dedent(HANGING).replace(
        "runner.exit_without_waiting(7)", "runner.exit_without_waiting(ValueError('unforeseen'))"
    )
    ended = subprocess.run([sys.executable, "-c", code, "thread known"], capture_output=True, text=True)
    assert (ended.returncode, ended.stdout) == (1, "as it should\n"), ended.stderr
    assert ended.stderr.endswith("ValueError: unforeseen\n")


def test_nothing_is_left_behind_where_all_tasks_end() -> None:
    ended = subprocess.run([sys.executable, "-c", dedent(HANGING), ""], capture_output=True, text=True)
    assert (ended.returncode, ended.stdout) == (0, "as it should\nnothing was left behind\n"), ended.stderr


def test_a_command_that_is_called_ends_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the one that the process was started for does."""
    from click.testing import CliRunner

    from flamecore.cli import main
    from flamecore.runtime.tasks import event_loop as runner

    def ended(code: object) -> None:
        pytest.fail(f"the process would have ended with {code}")

    monkeypatch.setattr(runner, "exit_without_waiting", ended)
    assert CliRunner().invoke(main, ["--help"]).exit_code == 0


@pytest.mark.skipif(sys.platform == "win32", reason="signals of Windows are other ones")
@pytest.mark.parametrize("name", ["asyncio", "uvloop"])
def test_a_signal_wakes_the_loop_although_its_wait_is_not_interrupted(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes just before the wait, or to another thread, as here."""
    if name == "uvloop":
        pytest.importorskip("uvloop", reason="uvloop is not installed")
    monkeypatch.setenv(CHOICE, name)

    def meet() -> None:
        time.sleep(0.2)
        signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)

    async def main() -> None:
        loop, handled = asyncio.get_running_loop(), asyncio.Event()
        signal.signal(signal.SIGUSR1, lambda *_: loop.call_soon_threadsafe(handled.set))
        threading.Thread(target=meet, daemon=True).start()
        async with patience(5):
            await handled.wait()

    before = signal.getsignal(signal.SIGUSR1)
    try:
        run(main())
    finally:
        signal.signal(signal.SIGUSR1, before)
    descriptor = signal.set_wakeup_fd(-1)
    assert descriptor == -1, "the loop has gone, and a signal would write to a descriptor of another use"


async def loop_module() -> str:
    return type(asyncio.get_running_loop()).__mro__[1].__module__


def test_uvloop_is_used_where_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("uvloop", reason="uvloop is not installed")
    monkeypatch.delenv(CHOICE, raising=False)
    assert run(loop_module()) == "uvloop"
    monkeypatch.setenv(CHOICE, "asyncio")
    assert run(loop_module()).startswith("asyncio")


def test_without_uvloop_the_loop_is_that_of_asyncio(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(CHOICE, raising=False)
    monkeypatch.setattr("flamecore.runtime.tasks.event_loop.find_spec", lambda _: None)
    assert loop_factory() is None
    monkeypatch.setenv(CHOICE, "uvloop")
    with pytest.raises(ConfigError, match="not installed"):
        run(loop_module())


def test_an_unknown_loop_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CHOICE, "trio")
    with pytest.raises(ConfigError, match="'trio'"):
        run(loop_module())


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_the_clock_counts_less_than_a_millisecond(loop: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if importlib.util.find_spec(loop) is None:
        pytest.skip(f"{loop} is not installed")
    monkeypatch.setenv(CHOICE, loop)

    async def main() -> float:
        now = clock()
        before, at, after = time.monotonic(), now(), time.monotonic()
        assert before <= at <= after, "it is the system's clock"
        seen = sorted({now() for _ in range(10_000)})
        return min(later - earlier for earlier, later in pairwise(seen))

    assert run(main()) < 0.0005


def test_a_descriptor_that_is_waited_for_stays_blocking(monkeypatch: pytest.MonkeyPatch) -> None:
    """The standard input may be a terminal that others use, too: uvloop would switch it."""
    pytest.importorskip("uvloop", reason="uvloop is not installed")
    monkeypatch.delenv(CHOICE, raising=False)
    from flamestream_edges.stdio import StreamChunks

    async def main(descriptor: int) -> bytes:
        reading = asyncio.create_task(StreamChunks("a pipe", descriptor).read(10))
        await asyncio.sleep(0.01)
        assert os.get_blocking(descriptor)
        os.write(into, b"line")
        return await reading

    out_of, into = os.pipe()
    try:
        assert run(main(out_of)) == b"line"
    finally:
        os.close(out_of)
        os.close(into)


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
@pytest.mark.parametrize("closed", [(0,), (1,), (0, 1, 2)])
def test_standard_descriptors_that_are_closed_do_no_harm(closed: tuple[int, ...], loop: str, tmp_path: Path) -> None:
    if importlib.util.find_spec(loop) is None:
        pytest.skip(f"{loop} is not installed")
    said = tmp_path / "said"
    program = f"""
        import os
        for descriptor in {closed}:
            os.close(descriptor)
        import asyncio
        from pathlib import Path
        from flamecore.runtime.tasks.event_loop import run

        async def main():
            for descriptor in {closed}:
                os.fstat(descriptor)
            server = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
            server.close()
            await asyncio.sleep(0.01)
            return "done"

        Path({str(said)!r}).write_text(run(main()))
    """
    code = subprocess.run(
        [sys.executable, "-c", dedent(program)], env={**os.environ, CHOICE: loop}, check=False
    ).returncode
    assert code == 0
    assert said.read_text() == "done"


@pytest.mark.parametrize("name", ["asyncio", "uvloop"])
def test_a_signal_just_before_the_loop_stops_is_the_end(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """The stop is still to come when the rest is awaited, and must not end that wait."""
    if name == "uvloop":
        pytest.importorskip("uvloop")
    monkeypatch.setenv(CHOICE, name)

    async def main() -> None:
        asyncio.get_running_loop().call_soon(asyncio.get_running_loop().stop)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(main())


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no limit that could be raised")
@pytest.mark.parametrize(
    ("soft", "hard", "system", "expected"),
    [
        (64, 128, None, (128, 128)),
        (128, 128, None, (128, 128)),
        (256, -1, None, (65_536, -1)),
        (256, -1, 12_288, (10_240, -1)),  # as on macOS
        (256, -1, 1024, (256, -1)),
        (256, 1_000_000, None, (65_536, 1_000_000)),
        (100_000, 1_000_000, None, (100_000, 1_000_000)),
        (-1, -1, None, (-1, -1)),
    ],
)
def test_the_limit_of_open_files_is_raised_as_far_as_the_system_lets_it(
    soft: int, hard: int, system: int | None, expected: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    import resource

    limits = soft, hard

    def set_limits(_: int, wanted: tuple[int, int]) -> None:
        nonlocal limits
        if system is not None and wanted[0] > system:
            raise ValueError("current limit exceeds maximum limit")
        limits = wanted

    monkeypatch.setattr(resource, "RLIM_INFINITY", -1)
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits)
    monkeypatch.setattr(resource, "setrlimit", set_limits)
    run(asyncio.sleep(0))
    assert limits == expected
