"""Fresh processes, one after another.

The effects of one run must not help or hinder the next.
"""

from __future__ import annotations

import json
import subprocess
import sys
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


def say(what: str) -> None:
    """Progress, on stderr."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{what}", end="", file=sys.stderr, flush=True)
