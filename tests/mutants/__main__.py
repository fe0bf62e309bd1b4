"""Measure the power of the tests by mutants:  python tests/mutants --seed 1 --journal mutants.jsonl.

Mutants of the modules that carry the laws of the engine are drawn by a seed, numbered, and tried one by one: first on
the law's own tests, then on all that the environment `quick` of tox runs. One that fails a test, or has no end, is
killed. The journal has a line for each, the last line is the tally. It is a measure, no check: survivors are listed, to
be read. A run that is interrupted goes on where the journal ends, or at `--first`.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import sys
import time
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any, Final

from laws import LAWS, again, definitions, drawn, equivalents, modules_of, own_tests
from trials import OUTCOMES, Trials

ROOT: Final = Path(__file__).resolve().parents[2]


def last(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the last line of each number."""
    return [*{line["number"]: line for line in lines}.values()]


def tally(lines: list[dict[str, Any]]) -> str:
    """Return the range of the numbers, and how often there was each outcome."""
    numbers = [line["number"] for line in lines]
    counts = Counter(line["outcome"] for line in last(lines))
    endless = sum(bool(line.get("endless")) for line in last(lines))
    said = ", ".join(f"{counts[outcome]} {outcome}" for outcome in OUTCOMES)
    return f"mutants {min(numbers, default=0)} to {max(numbers, default=0)}: {said}; {endless} of the killed had no end"


def main() -> int:
    """Try mutant after mutant."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, help="of the mutants; default: random, or that of the journal")
    parser.add_argument("--draw", type=int, default=1, help="of the tests' cases (default: %(default)s)")
    parser.add_argument("--first", type=int, help="number of the first; default: the one after the journal's last")
    parser.add_argument("--count", type=int, default=25 * len(LAWS), help="how many (default: %(default)s)")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="time after which no mutant is begun")
    parser.add_argument("--journal", type=Path, default=Path("mutants.jsonl"), help="default: %(default)s")
    parser.add_argument("--law", choices=LAWS, action="append", help="mutants of this law alone; may be repeated")
    parser.add_argument("--own", action="store_true", help="leave out the tier: own tests only")
    parser.add_argument("--again", action="store_true", help="those that only own tests have tried, and survived")
    options = parser.parse_args()
    end = time.monotonic() + 60 * options.minutes
    text = options.journal.read_text("utf-8") if options.journal.exists() else ""
    lines = [json.loads(line) for line in text.splitlines()]
    seeds = {line["seed"] for line in lines} | ({options.seed} - {None})
    if len(seeds) > 1:
        parser.error(f"{options.journal} is of seed {lines[0]['seed']}; a journal has one")
    seed = seeds.pop() if seeds else random.randrange(2**32)
    first = options.first if options.first is not None else max((line["number"] for line in lines), default=-1) + 1
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))  # so that the copy is deleted
    print(f"seed {seed}", flush=True)
    known = equivalents()
    trials = Trials(ROOT, options.draw)
    try:
        tests = {law: own_tests(law, trials.root, LAWS) for law in LAWS}
        defined = definitions(trials.root)
        for module in {module for law in LAWS for module in modules_of(law, defined, LAWS)}:
            trials.check_origin(module)
        if options.again:
            survivors = [line for line in last(lines) if line["outcome"] == OUTCOMES[2]]
            chosen = again(survivors, trials.root, LAWS)
        else:
            chosen = islice(enumerate(drawn(seed, trials.root, LAWS)), first, first + options.count)
        for number, (law, module, mutation) in chosen:
            if law not in (options.law or LAWS):
                continue
            if time.monotonic() > end:
                break
            if (law, *mutation.key) in known:
                outcome: dict[str, object] = {"outcome": OUTCOMES[4]}
            else:
                outcome = trials.tried(module, mutation.source, tests[law], only_own=options.own)
            place = {"module": str(module.relative_to(trials.root)), "line": mutation.line}
            shown = dict(zip(("function", "original", "mutated"), mutation.key, strict=True))
            lines.append(
                {"number": number, "seed": seed, "draw": options.draw, "law": law, **place, **shown, **outcome}
            )
            with options.journal.open("a", encoding="utf-8") as journal:
                journal.write(json.dumps(lines[-1]) + "\n")
            print(f"{number} {law} {module.name}:{mutation.line} {outcome['outcome']}", flush=True)
    finally:
        trials.close()
    for line in last(lines):
        if line["outcome"] in OUTCOMES[2:4]:
            where = f"{line['number']} {line['law']} {line['module']}:{line['line']} {line['function']}"
            print(f"{line['outcome']}: {where}\n    {line['original']}\n    {line['mutated']}")
    print(tally(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
