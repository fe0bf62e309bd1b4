"""Three skewed loads on two processes over sockets, with parts that stay where they are and with parts that move.

Keys whose frequent ones fall into one half of the key groups; a function that takes long for keys of one half; one file
with most of the records. The limit of a job is its busiest process, so this compares the greatest CPU time of any
process of a run, the supervisor included, from the first record on: what the job spends before it moves, and the moves,
count too. Start and end are left out: the same job over a few lines, run in the same round, is subtracted.
"""

from __future__ import annotations

import hashlib
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from random import Random
from typing import Any, Final

from benchmarks.corpora import SEED, vocabulary
from benchmarks.deployed import Run, missing, transport
from benchmarks.processes import say
from benchmarks.report import Spread, Table
from benchmarks.several import NOTHING, turns_per_us
from flamecore.model.hashing import KEY_GROUPS, key_groups

WORKERS: Final = 2
WANTED: Final = 1.3
FIXED: Final = "fixed"
MOVING: Final = "moving"

_WORDS: Final = 1000
_FREQUENT: Final = 40
_DEAR: Final = 100
_FILES: Final = 2 * WORKERS
_LITTLE: Final = 10
_SHORT_CPU_S: Final = 5.0
_TURNED: Final = re.compile(r"event=job\.turned .*pause_ms=(\S+)")


@dataclass(frozen=True, slots=True)
class Skew:
    """A skewed load.

    Attributes:
        words: The words, as often as `weights` say.
        weights: By word.
        costs: Microseconds of the functions of the flow, by their names.
        sizes: Shares of the files in the lines.
    """

    words: Sequence[str]
    weights: Sequence[float]
    costs: Mapping[str, int]
    sizes: Sequence[float] = (1 / _FILES,) * _FILES

    def write(self, folder: Path, lines: int) -> str:
        """Write files of so many lines in all; return the pattern of their names."""
        folder.mkdir()
        random, weights = Random(SEED), list(accumulate(self.weights))
        for number, share in enumerate(self.sizes):
            found = random.choices(self.words, cum_weights=weights, k=max(round(lines * share), 1))
            (folder / f"{number}.txt").write_text("".join(f"{word}\n" for word in found))
        return f"{folder}/*.txt"


def skews() -> dict[str, Skew]:
    """Return the loads by name."""
    low, high = _halves(vocabulary(4 * _WORDS))
    frequent, rest = low[:_FREQUENT], (_WORDS - _FREQUENT) // 2
    others = [word for both in zip(low[_FREQUENT:][:rest], high[:rest], strict=True) for word in both]
    dear = _halves([f"{word}!" for word in vocabulary(4 * _DEAR)])[0][:_DEAR]
    plain = (_WORDS - _DEAR) // 2
    even = [*low[:plain], *high[:plain]]
    ranked = [*frequent, *others]
    return {
        "frequent keys": Skew(ranked, [1 / rank for rank in range(1, len(ranked) + 1)], {"COUNT": 60}),
        "a dear function": Skew([*dear, *even], [1] * (_DEAR + len(even)), {"COUNT": 10, "SHOW": 400}),
        "a large file": Skew(even, [1] * len(even), {"PARSE": 60, "COUNT": 60}, (0.97, 0.01, 0.01, 0.01)),
    }


def _halves(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the words of the lower and of the upper half of the key groups."""
    halves: tuple[list[str], list[str]] = ([], [])
    for word, group in zip(words, key_groups(words), strict=True):
        halves[group >= KEY_GROUPS // 2].append(word)
    return halves


@dataclass(frozen=True, slots=True)
class Measured:
    """One run.

    Attributes:
        busiest: CPU time of the busiest process, in seconds.
        cpu: That of all processes.
        digest: Digest of the outputs.
        pauses: Lengths of the pauses of its moves, in milliseconds.
    """

    busiest: float
    cpu: float
    digest: str
    pauses: list[float] = field(default_factory=list)


def compare(*, lines: int, rounds: int) -> tuple[Table, dict[str, Any]]:
    """Run each load both ways, in turn.

    Args:
        lines: Number of lines, one word each.
        rounds: Number of rounds.
    """
    columns = ("load", "parts", "busiest, CPU s", "all, CPU s", "moves", "pause of a move, ms", "by the busiest")
    table = Table(f"Skewed loads of {lines:,} words on {WORKERS} processes, by CPU time", columns)
    if why := missing("socket"):
        table.note(why)
        return table, {"missing": why}
    facts: dict[str, Any] = {}
    per_us = turns_per_us()
    with tempfile.TemporaryDirectory() as name, transport("socket") as over:
        folder = Path(name)
        for load, skew in skews().items():
            full, little = (skew.write(folder / f"{load} {count}", count) for count in (lines, _LITTLE))
            runs: dict[str, list[Measured]] = {FIXED: [], MOVING: []}
            for number in range(rounds):
                start = _run(skew, per_us, little, over, folder / f"{load} {number}")
                for way, found in runs.items():
                    say(f"skewed: {load}, {way}")
                    settings = [*over, "--set", f"placement.fixed={str(way == FIXED).lower()}"]
                    run = _run(skew, per_us, full, settings, folder / f"{load} {number} {way}")
                    found.append(Measured(run.busiest - start.busiest, run.cpu - start.cpu, run.digest, run.pauses))
            facts[load] = _judge(table, load, runs)
    return table, {"lines": lines, "runs": facts, "targets": table.targets}


def _run(skew: Skew, per_us: float, lines: str, settings: Sequence[str], state: Path) -> Measured:
    source = ["--source", "lines=lines", "--set", f"source.lines.path={lines}", "--sink", "counts=stdout"]
    kept = ["--set", "state.use=sqlite", "--set", f"state.path={state}"]
    turns = {f"{of}_TURNS": str(round(cost_us * per_us)) for of, cost_us in skew.costs.items()}
    with tempfile.TemporaryFile() as out:
        arguments = [*source, *kept, "-w", str(WORKERS), *settings]
        run = Run("skewed_words", arguments, environment=turns, stdout=out)
        run.finish()
        out.seek(0)
        digest = hashlib.file_digest(out, "sha256").hexdigest()
    spent = run.spent.values()
    return Measured(max(spent, default=0.0), sum(spent), digest, [*map(float, _TURNED.findall(run.log))])


def _judge(table: Table, load: str, runs: dict[str, list[Measured]]) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    if len({run.digest for found in runs.values() for run in found}) != 1:
        table.fail(load, "parts that move give other outputs than parts that stay")
        return facts
    for way, found in runs.items():
        if min(run.busiest for run in found) < _SHORT_CPU_S:  # also where the system does not tell
            table.note(NOTHING)
            return facts
        busiest, cpu = (Spread.of([getattr(run, of) for run in found]) for of in ("busiest", "cpu"))
        ratio = Spread.of([fixed.busiest / run.busiest for fixed, run in zip(runs[FIXED], found, strict=True)])
        moves, pauses = Spread.of([len(run.pauses) for run in found]), [pause for run in found for pause in run.pauses]
        table.add(load, way, busiest, cpu, moves, Spread.of(pauses) if pauses else "-", ratio)
        facts[way] = {
            "busiest_cpu_s": busiest.facts(),
            "all_cpu_s": cpu.facts(),
            "pauses_ms": [run.pauses for run in found],
            "times_fixed_by_busiest": ratio.facts(),
        }
        if way == MOVING:
            table.target("2 processes", f"{load}: busiest process, times that with fixed parts", ratio, WANTED)
    return facts
