"""What Spark says when a job of it fails, without the stack of Java around it."""

from __future__ import annotations

import re
from typing import Final

_OURS: Final = re.compile(r"flamestream: (?P<what>.*?)(?:\n\s*\n|\n\tat |\Z)", re.DOTALL)
_SLOTS: Final = ("SPARK-24819", "BARRIER_STAGE")
_CANCELLED: Final = ("cancelled", "CANCELED")


def reason(error: Exception | None) -> tuple[str, tuple[str, ...]]:
    """Why a stage has ended, and the last lines of the node that it ended by.

    >>> reason(None)
    ('has ended', ())
    >>> reason(
    ...     RuntimeError(
    ...         "PythonException: RuntimeError: flamestream: worker-1.7 was killed\\n    bye\\n\\n\\tat org.apache"
    ...     )
    ... )
    ('has ended: worker-1.7 was killed', ('bye',))
    """
    if error is None:
        return "has ended", ()
    text = str(error)
    if found := _OURS.search(text):
        first, *lines = found["what"].strip().splitlines()
        return f"has ended: {first}", tuple(line.strip() for line in lines)
    if any(word in text for word in _SLOTS):
        return "cannot start: there are fewer slots than workers", ()
    if any(word in text for word in _CANCELLED):
        return "was cancelled, as somebody has told Spark", ()
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return f"has ended: {lines[0] if lines else type(error).__name__}", tuple(lines[1:8])
