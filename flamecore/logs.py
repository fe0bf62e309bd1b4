"""The log of events.

A program that uses the library configures its log itself; commands write to stderr.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

VARIABLE: Final = "FLAMESTREAM_LOG"
"""Name of the environment variable that says how commands, and what they start, log: `json` or `text`."""

_to_stderr = False


def as_json() -> bool:
    """Return whether commands log lines of JSON."""
    return os.environ.get(VARIABLE, "").lower() == "json"


def to_stderr() -> None:
    """Send the log of this process, which is a command, to stderr.

    Data stays apart. A log that is configured otherwise stays as it is.
    """
    global _to_stderr
    _to_stderr = True


def logger() -> FilteringBoundLogger:
    """Return the structured log."""
    import structlog

    if _to_stderr and not structlog.is_configured():
        text = structlog.processors.LogfmtRenderer(key_order=["timestamp", "level", "event"])
        structlog.configure(
            processors=[
                structlog.processors.add_log_level,
                structlog.processors.TimeStamper(fmt="iso", utc=True),
                structlog.processors.JSONRenderer(ensure_ascii=False) if as_json() else text,
            ],
            logger_factory=structlog.WriteLoggerFactory(sys.stderr),
        )
    log: FilteringBoundLogger = structlog.get_logger()
    return log
