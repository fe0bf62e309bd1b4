"""Death of a worker that shares a large state with others.

The time until outputs come again is measured from outside.
"""

from __future__ import annotations

import os
import re
import signal
import tempfile
import time
from datetime import datetime
from pathlib import Path
from random import Random
from typing import Any, Final

from benchmarks.corpora import SEED, WORDS_A_LINE, many_words
from benchmarks.deployed import Run, missing, transport
from benchmarks.processes import RunError, say
from benchmarks.report import Spread, Table

RECOVERY_S: Final = 2.0
NOTICE_S: Final = 0.5
WORKERS: Final = 4

_SETTLED_S: Final = 1.5
_SILENCE_S: Final = 0.1
_AGAIN_S: Final = 0.5
_MORE_LINES: Final = 200_000
_FAULTED: Final = re.compile(r"^timestamp=(\S+) .*event=job\.faulted", re.MULTILINE)


def compare(*, keys: int, rounds: int) -> tuple[Table, dict[str, Any]]:
    """Kill one of four workers that share so many keys."""
    columns = ("workers", "s until it is noticed", "s to the next output")
    table = Table(f"Death of one of {WORKERS} workers, {keys:,} keys", columns)
    if why := missing("socket"):
        table.note(why)
        return table, {"missing": why}
    with tempfile.TemporaryDirectory() as folder, transport("socket") as over:
        path = Path(folder, "lines")
        words, random = many_words(keys), Random(SEED)
        with path.open("w") as file:
            for start in range(0, keys, WORDS_A_LINE):
                file.write(" ".join(words[start : start + WORDS_A_LINE]) + "\n")
            for _ in range(2 * keys // WORDS_A_LINE + _MORE_LINES):
                file.write(" ".join(random.choices(words, k=WORDS_A_LINE)) + "\n")
        took = []
        for number in range(rounds):
            say(f"recovery: {number + 1} of {rounds}")
            took.append(_death(path, keys, over, Path(folder, f"state-{number}")))
    noticed, again = (Spread.of(list(each)) for each in zip(*took, strict=True))
    table.add(WORKERS, noticed, again)
    table.target("4 processes", "s until the death of a worker is noticed", noticed, NOTICE_S, at_most=True)
    table.target("4 processes", "s from the death of a worker to the next output", again, RECOVERY_S, at_most=True)
    return table, {"keys": keys, "seconds": took, "targets": table.targets}


def _death(path: Path, keys: int, over: list[str], state: Path) -> tuple[float, float]:
    """Return the seconds until a worker's death is noticed, and to the end of silence.

    Both count from the death; the silence is the longest one after it.
    """
    edges = ["--source", "lines=lines", "--set", f"source.lines.path={path}", "--sink", "counts=stdout"]
    kept = ["--set", "state.use=sqlite", "--set", f"state.path={state}"]
    run = Run("costly_words", [*edges, "-w", str(WORKERS), *over, *kept], stdout=-1)
    assert run.process.stdout is not None
    out = run.process.stdout.fileno()
    try:
        updates = 0
        while updates < keys:
            updates += _read(run, out).count(b"\n")
        until = time.monotonic() + _SETTLED_S  # a snapshot or two with all of them
        while time.monotonic() < until:
            _read(run, out)
        victims = [pid for pid in run.look() if pid != run.process.pid]
        died = time.time()
        os.kill(victims[1], signal.SIGKILL)
        killed = last = time.monotonic()
        silence, again = 0.0, killed
        while not (silence > _SILENCE_S and last > again + _AGAIN_S):
            _read(run, out)
            now = time.monotonic()
            if now - last > silence:
                silence, again = now - last, now
            last = now
    finally:
        run.process.kill()
        _, said = run.process.communicate()
    faulted = _FAULTED.search(said.decode())
    if faulted is None:
        raise RunError(f"recovery: nobody has noticed that a worker died\n{said.decode()[-3000:]}")
    return datetime.fromisoformat(faulted[1]).timestamp() - died, again - killed


def _read(run: Run, out: int) -> bytes:
    chunk = os.read(out, 1 << 20)
    if not chunk:
        run.finish()
        raise RunError("recovery: the job has ended before it was shot at")
    return chunk
