"""The trial of another version of a flow, in a process of its own.

To import a flow is to run its code, which may end the interpreter: by `os.abort`, by a fault in a library in C. In the
process of the supervisor this would end the job.

python -m flamecore.runtime.cluster.versions.trial < TRIAL.json
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections import deque
from collections.abc import Collection, Sequence
from contextlib import suppress
from io import FileIO
from typing import Any, Final

from flamecore.abc.config import JobConfig
from flamecore.errors import ConfigError, FlameError, JobError
from flamecore.model.failure import describe
from flamecore.runtime.cluster.node_process import end_with_parent
from flamecore.runtime.config.flow_loader import load_flow
from flamecore.runtime.config.paths import FLOW, base_of
from flamecore.runtime.config.read import config_of_node, decode_config, encode_config
from flamecore.runtime.config.resolve import resolve
from flamecore.runtime.tasks.event_loop import exit_without_waiting
from flamecore.runtime.tasks.watch import told_of_calls
from flamecore.toolkit.local_processes import ending_of, pass_on
from flamecore.toolkit.processes import command_of, environment

_PROGRAM: Final = "flamecore.runtime.cluster.versions.trial"
_NAME: Final = "upgrade"
"""Name under which the output of a trial is passed on."""
_ANSWER_BYTES: Final = 2**18
_TEXT_LETTERS: Final = 4000
"""Longest answer of a trial, and longest text in it: ten of them, each letter at most six bytes."""
_LINES: Final = 8
"""Most last lines of a process that are told."""
_LAST_WORDS_S: Final = 0.2
"""Seconds for which output of a process may arrive after its end."""


async def try_version(config: JobConfig, limit_s: float) -> None:
    """Import the flow of a configuration in a process of its own, and find its drivers there.

    Args:
        config: The configuration of the version.
        limit_s: Longest time for it.

    Raises:
        ConfigError: The flow cannot be imported, or cannot work; or it has ended that process.
        JobError: It takes too long.
    """
    asked = {"parent": os.getpid(), "path": [*map(str, sys.path)], "config": encode_config(config).decode()}
    told, its = os.pipe()  # a pipe of our own: a process that the flow leaves behind would hide the end of asyncio's
    try:
        process = await asyncio.create_subprocess_exec(
            *command_of(_PROGRAM),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=its,
            limit=_ANSWER_BYTES,
            env=environment(),
        )
    except BaseException:
        os.close(told)
        raise
    finally:
        os.close(its)
    lines: deque[str] = deque(maxlen=_LINES)
    words = asyncio.StreamReader()
    pipe, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(words), os.fdopen(told, "rb", 0)
    )
    passing = asyncio.create_task(pass_on(_NAME, words, lines))
    assert process.stdin is not None
    assert process.stdout is not None
    answer, code = b"", 0
    try:
        async with asyncio.timeout(limit_s):
            with suppress(OSError):  # it has ended already: its code says how
                process.stdin.write(json.dumps(asked).encode() + b"\n")
                await process.stdin.drain()
            answer = await process.stdout.readline()
            if not answer:
                code = await process.wait()
                await asyncio.wait((passing,), timeout=_LAST_WORDS_S)
    except TimeoutError:
        raise JobError(
            f"the flow has not been imported after {limit_s:g} s{_tail(lines)}",
            hint="Does one of its modules wait for something? deploy.start_timeout_s says how long it may take.",
        ) from None
    finally:
        passing.cancel()
        pipe.close()
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    if not answer:
        raise _ended(config, ending_of(code), lines)
    _check(answer)


def _ended(config: JobConfig, how: str, lines: deque[str]) -> ConfigError:
    return ConfigError(
        f"{config.job.flow} cannot be imported: the process that tried it {how}{_tail(lines)}",
        hint="The job goes on with its version. Find the module that ends the interpreter: python -X faulthandler -c "
        "'import …' shows where.",
        path="job.flow",
    )


def _tail(lines: Collection[str]) -> str:
    """Return the last lines of the process, for an error; empty if it has said nothing."""
    return "; its last lines:" + "".join(f"\n    {line}" for line in lines) if lines else ""


def _check(answer: bytes) -> None:
    """Raise the error that a trial has told, if it has."""
    said: dict[str, Any] = json.loads(answer)
    if said:
        error = ConfigError(said["what"], hint=said["hint"], path=said["path"])
        for note in said["notes"]:
            error.add_note(note)
        raise error


def _tried(config: JobConfig) -> dict[str, object]:
    """Import a flow and find its drivers; return the error as plain values, empty if there is none."""
    try:
        # The host starts nodes in the supervisor alone, and is known there.
        with told_of_calls():
            spec = resolve(config_of_node(config), load_flow(config.job.flow, base_of(config, FLOW)))
        spec.problems.raise_first()
    except FlameError as error:
        return _plain(error.what, error.hint, getattr(error, "path", ""), getattr(error, "__notes__", ()))
    except Exception as error:  # noqa: BLE001 - the supervisor raises it
        return _plain(describe(error), "", "job.flow", ())
    return {}


def _plain(what: str, hint: str, path: str, notes: Sequence[str]) -> dict[str, object]:
    """Return an error as plain values, short enough for an answer."""
    short = [note[:_TEXT_LETTERS] for note in notes[:_LINES]]
    return {"what": what[:_TEXT_LETTERS], "hint": hint[:_TEXT_LETTERS], "path": path, "notes": short}


def main() -> None:
    """Try the version that a line of standard input describes, and answer with a line on standard output."""
    answers = FileIO(os.dup(1), "w")
    os.dup2(2, 1)  # a flow that prints has no part in the answer
    asked = json.loads(sys.stdin.buffer.readline())
    end_with_parent(asked["parent"])
    sys.path[:] = asked["path"]
    answer = json.dumps(_tried(decode_config(asked["config"].encode()))).encode() + b"\n"
    with suppress(OSError):  # the supervisor is gone
        answers.write(answer)


if __name__ == "__main__":
    main()
    exit_without_waiting(0)
