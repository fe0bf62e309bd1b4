"""Errors of Spark in short, without the stack of Java around them."""

from __future__ import annotations

import re
from typing import Final

_OURS: Final = re.compile(r"flamestream: (?!\{)(?P<what>.*?)(?:\n\s*\n|\n\tat |\n\s*SQLSTATE|\Z)", re.DOTALL)
_CANCELLED: Final = ("cancelled", "CANCELED")
_ENDING: Final = ("exited unexpectedly", "SparkContext", "Py4J", "Connection re", "setCallSite")
"""Words of errors that may come of the end of Spark: a worker killed along, a context that is gone."""
_CODE: Final = re.compile(r"\[([A-Z_.]+)\]")
_AROUND: Final = ("STREAM_FAILED", "FOREACH_BATCH_USER_FUNCTION_ERROR")
"""Codes of errors that only hand on another one."""

_PROGRAM: Final = re.compile(r'Cannot run program "([^"]*)".*?: (?:error=\d+, )?(.*)')
_WORKER: Final = re.compile(r"Error from python worker:\s*(.*)")
_OWN: Final = re.compile(r"flamecore\.errors\.\w+: (.+)(?:\n  (\S.*))?")
_RAISED: Final = re.compile(r"^Traceback \(most recent call last\):\n(?:[ \t].*\n)+(\S.*)", re.MULTILINE)
_HANDED_ON: Final = "An error occurred while calling"

WHICH_PYTHON: Final = (
    "Install flamestream there, or name a Python that has it: PYSPARK_PYTHON, or spark.pyspark.python in the config."
)


def reason(error: Exception | None) -> tuple[str, tuple[str, ...]]:
    r"""Return why a stage has ended, and further lines to show.

    These are the last lines of the node that ended it, or what to do.

    >>> reason(None)
    ('has ended', ())
    >>> reason(
    ...     RuntimeError(
    ...         "PythonException: RuntimeError: flamestream: worker-1.7 was killed\n    bye\n\n\tat org.apache"
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
    if is_cancelled(error):
        return "was cancelled, as somebody has told Spark", ()
    if (why := python_of(text)) is not None:
        return f"cannot start: {why}", (WHICH_PYTHON,)
    return f"has ended: {gist(text) or type(error).__name__}", ()


def is_cancelled(error: BaseException) -> bool:
    """Return whether a job of Spark has ended because it was cancelled.

    >>> is_cancelled(RuntimeError("[SPARK_JOB_CANCELLED] Job 3 cancelled")), is_cancelled(RuntimeError("no file"))
    (True, False)
    """
    return any(word in str(error) for word in _CANCELLED)


def may_be_end(error: BaseException) -> bool:
    """Return whether an error may come of the end of Spark.

    >>> may_be_end(RuntimeError("Python worker exited unexpectedly (crashed)")), may_be_end(RuntimeError("no file"))
    (True, False)
    """
    return any(word in f"{type(error).__name__}: {error}" for word in _ENDING)


def python_of(text: str) -> str | None:
    r"""Return the fault of the Python of executors, if Spark names one, or None.

    >>> python_of('java.io.IOException: Cannot run program "python9": error=2, No such file or directory\n\tat java')
    "executors cannot run 'python9': No such file or directory"
    """
    if found := _PROGRAM.search(text):
        return f"executors cannot run {found[1]!r}: {found[2]}"
    if found := _WORKER.search(text):
        return f"the Python of executors does not work: {found[1]}"
    return None


def own_words(text: str) -> tuple[str, str] | None:
    r"""Return text and hint of an error of this project that Spark hands on, or None.

    An executor or a planner has raised it.

    >>> own_words("[PYTHON_DATA_SOURCE_ERROR]\nflamecore.errors.SourceError: no table\n  Is it there?\n SQLSTATE")
    ('no table', 'Is it there?')
    """
    found = _OWN.search(text)
    return None if found is None else (found[1], found[2] or "")


def gist(text: str) -> str:
    r"""Return the line of an error that says most.

    It is the last line of a Python traceback, one with a code of Spark's, or the first.

    >>> gist("Thrown:\nTraceback (most recent call last):\n  File\nValueError: no\n")
    'ValueError: no'

    >>> gist("An error occurred while calling o1.load.\n: org.SparkError: [NO_TABLE] There is none.\n\tat org")
    '[NO_TABLE] There is none.'
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if (raised := _RAISED.search(text)) is not None:
        return raised[1].strip()
    coded = [line for line in lines if (code := _CODE.search(line)) is not None and code[1] not in _AROUND]
    plain = [line.removeprefix(": ") for line in lines if not line.startswith(_HANDED_ON)]
    said = next(iter(coded or plain or lines), "")
    return re.sub(r"^.*?(\[[A-Z_.]+\])", r"\1", said)
