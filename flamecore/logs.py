"""The log of events.

A program that uses the library configures its log itself; until it does, and in commands, it is on stderr.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import threading
import traceback
from collections.abc import MutableMapping
from datetime import UTC, datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from flamecore import events
from flamecore.escapes import block, line

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

VARIABLE: Final = "FLAMESTREAM_LOG"
"""Name of the environment variable that says how commands, and what they start, log: `json` or `text`."""

_NO_KEY: Final = re.compile(r"[\x00-\x20\x7f-\xa0=\"]")
_to_stderr = _alone = False


def as_json() -> bool:
    """Return whether commands log lines of JSON."""
    return os.environ.get(VARIABLE, "").lower() == "json"


def _with_plain_keys(_: object, __: str, facts: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Return the facts of a line of text; a key may have the name of a sink, say, and so a space or an `=`."""
    return {_NO_KEY.sub("_", key): value for key, value in facts.items()}


def _on_one_line(_: object, __: str, rendered: object) -> str:
    return line(str(rendered))


def json_line(event: str, level: str, **facts: object) -> str:
    """Return a line of the log as JSON, where the structured log cannot be used."""
    now = datetime.now(UTC).isoformat().replace("+00:00", "Z")
    told = {**facts, "event": event, "level": level, "timestamp": now}
    return line(json.dumps(told, default=str, ensure_ascii=False))


class JsonLines(logging.Formatter):
    """A formatter of the logs of libraries, as JSON lines."""

    def format(self, record: logging.LogRecord) -> str:
        """Return a record as one line of JSON."""
        facts: dict[str, object] = {"logger": record.name, "message": record.getMessage()}
        if record.exc_info:
            facts["traceback"] = self.formatException(record.exc_info)
        return json_line(events.LIBRARY_LOGGED, record.levelname.lower(), **facts)


class TextLines(logging.Formatter):
    """A formatter of the logs of libraries, as text."""

    def __init__(self) -> None:
        super().__init__(logging.BASIC_FORMAT)

    def format(self, record: logging.LogRecord) -> str:
        """Return a record as text, in which nothing acts on a terminal."""
        return block(super().format(record))


def to_stderr(*, alone: bool = False) -> None:
    """Send the log of this process, which is a command, to stderr.

    Data stays apart. A log that is configured otherwise stays as it is.

    Args:
        alone: Whether the process is nothing but this command: then warnings, the logs of libraries, and exceptions
            that nobody catches, are lines of the log, too, where it is JSON.
    """
    global _to_stderr, _alone
    _to_stderr, _alone = True, _alone or alone
    if _alone and as_json() and not isinstance(sys.excepthook, _Uncaught):
        handler = logging.StreamHandler()
        handler.setFormatter(JsonLines())
        logging.basicConfig(level=logging.WARNING, handlers=[handler])
        logging.captureWarnings(True)
        sys.excepthook = _Uncaught()
        threading.excepthook = lambda told: sys.excepthook(told.exc_type, told.exc_value, told.exc_traceback)  # type: ignore[arg-type]
        sys.unraisablehook = lambda told: sys.excepthook(told.exc_type, told.exc_value, told.exc_traceback)  # type: ignore[arg-type]


class _Uncaught:
    """A hook for exceptions that nobody catches."""

    def __call__(self, kind: type[BaseException], error: BaseException | None, trace: TracebackType | None) -> None:
        text = "".join(traceback.format_exception(kind, error, trace))
        facts = {"logger": "python", "message": f"{kind.__name__}: {error}", "traceback": text}
        sys.stderr.write(json_line(events.LIBRARY_LOGGED, "error", **facts) + "\n")


def logger() -> FilteringBoundLogger:
    """Return the structured log."""
    import structlog

    if _to_stderr and not structlog.is_configured():
        in_text = structlog.processors.LogfmtRenderer(key_order=["timestamp", "level", "event"])
        in_json = structlog.processors.JSONRenderer(ensure_ascii=False)
        structlog.configure(
            processors=[
                structlog.processors.add_log_level,
                structlog.processors.TimeStamper(fmt="iso", utc=True),
                *([in_json] if as_json() else [_with_plain_keys, in_text]),
                _on_one_line,
            ],
            logger_factory=structlog.WriteLoggerFactory(sys.stderr),
        )
    if structlog.is_configured():
        log: FilteringBoundLogger = structlog.get_logger()
        return log
    apart: FilteringBoundLogger = structlog.wrap_logger(structlog.WriteLogger(sys.stderr))  # data of a program stays so
    return apart
