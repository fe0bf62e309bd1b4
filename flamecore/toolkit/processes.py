"""Processes of this machine: how Python programs are started, and what the system says of them."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from flamecore.abc.host import NodeState

_PROC: Final = Path("/proc")
START: Final = """
import signal
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, signal.SIG_IGN)
import runpy, sys
del sys.argv[0]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""
"""Code that runs a program as `python -m` does. A terminal sends Ctrl-C to all processes of a job, also to one that
takes a second to import its modules, in which it would be a traceback."""


def command_of(program: str, *arguments: str) -> list[str]:
    """Return the command that runs a module of this Python, deaf to Ctrl-C and SIGTERM.

    Its environment is to be that of `environment`.

    Args:
        program: Name of the module.
        arguments: Its arguments.
    """
    # -P: a file in the current folder may shadow a module that Python starts with.
    return [sys.executable, "-P", "-c", START, program, *arguments]


def environment() -> Mapping[str, str]:
    """Return the environment of a process that finds modules where this one finds them."""
    return {**os.environ, "PYTHONPATH": _python_path(), "PYTHONUNBUFFERED": "1"}


def state_of(pid: int) -> NodeState | None:
    """Return what the system says of a process; None: it is gone.

    A zombie is gone. Where the system does not tell (no Linux), a process that is there runs.
    """
    try:
        stat = (_PROC / str(pid) / "stat").read_text()
    except OSError:
        if (_PROC / "self" / "stat").exists():
            return None
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return None
        except OSError:  # it is another user's
            return "running"
        return "running"
    letter = stat.rpartition(")")[2].split()[0]
    return None if letter in "ZX" else "stopped" if letter in "Tt" else "running"


def _python_path() -> str:
    """Return the import path with which a process starts.

    It holds all folders of this process, but the standard library before the folders beside the flow. After its start,
    the process restores the order of this one.
    """
    own = Path(os.__file__).parent
    asked = os.environ.get("PYTHONPATH", "").split(os.pathsep)  # before the standard library in this process, too
    first = [*asked, str(own), str(own / "lib-dynload")]
    paths = [path for path in sys.path if path]
    return os.pathsep.join([*[path for path in first if path in paths], *[path for path in paths if path not in first]])
