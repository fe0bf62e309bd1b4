"""The exit codes of commands."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from flamecore.errors import ConfigError, FlameError, GraphError, HeldError, PluginError


class Exit(IntEnum):
    """Exit codes. They are part of the interface: scripts rely on them."""

    DONE = 0
    FAILED = 1
    REFUSED = 2
    PLUGIN = 3
    STOPPED = 130


EPILOG: Final = """\b
Exit codes:
  0    done, or drained after Ctrl-C or SIGTERM
  1    the job failed: data, user code, or a source or sink
  2    nothing was read: usage, configuration, a flow that cannot work, an input
       that is missing, another run that is at work, or anything else that was
       found before the start
  3    a plugin is missing something, broken, or provided twice
  130  stopped at once, by a second Ctrl-C
"""


def exit_of(error: FlameError) -> Exit:
    """Return the exit code for an error."""
    if isinstance(error, PluginError):
        return Exit.PLUGIN
    refused = error.before_start or isinstance(error, ConfigError | GraphError | HeldError)
    return Exit.REFUSED if refused else Exit.FAILED
