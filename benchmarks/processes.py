"""Fresh processes, one after another.

The effects of one run must not help or hinder the next.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[1]
LIMIT_S: Final = 900.0
"""Longest a run may take."""


class RunError(RuntimeError):
    """A measured process failed."""


def measured(
    kind: str, arguments: dict[str, Any], *, what: str, feed: bool = False, limit_s: float = LIMIT_S
) -> dict[str, Any]:
    """Run `benchmarks.child` on some arguments; return what it measured.

    Args:
        kind: Which measurement.
        arguments: For its function.
        what: Shown on stderr while it runs, and in the error.
        feed: Its input comes from a feeder process; see `benchmarks.latency`.
        limit_s: Longest it may take.

    Raises:
        RunError: It failed, or took too long.
    """
    say(what)
    command = [sys.executable, "-m", "benchmarks.child", kind, json.dumps(arguments)]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=limit_s, check=False)
    except subprocess.TimeoutExpired as error:
        raise RunError(f"{what}: not done after {limit_s:.0f} s") from error
    if done.returncode:
        raise RunError(f"{what}: exit code {done.returncode}\n{done.stderr[-3000:]}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def below(pid: int) -> dict[int, bytes]:
    """Return the commands of all processes below one, by their ids.

    Empty where the system does not tell.
    """
    found: dict[int, bytes] = {}
    todo = [pid]
    while todo:
        for children in Path(f"/proc/{todo.pop()}/task").glob("*/children"):
            try:
                pids = [int(each) for each in children.read_text().split()]
                commands = {each: Path(f"/proc/{each}/cmdline").read_bytes() for each in pids}
            except OSError:  # it is gone
                continue
            todo += commands
            found |= commands
    return found


def cpu_s(pid: int, *, ended: bool = False) -> float:
    """Return the processor time of a process, in seconds.

    Args:
        pid: Which one.
        ended: Whether that of its children which have ended counts too.

    Raises:
        OSError: It is gone, or the system does not tell.
    """
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11 : 15 if ended else 13])) / os.sysconf("SC_CLK_TCK")


def tree_cpu_s(pid: int) -> float:
    """Return the processor time of a process and all below it, in seconds; those that have ended count too."""
    spent = 0.0
    for each in (pid, *below(pid)):
        with suppress(OSError):  # it has ended since, and counts as a child the next time
            spent += cpu_s(each, ended=True)
    return spent


def say(what: str) -> None:
    """Progress, on stderr."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{what}", end="", file=sys.stderr, flush=True)
