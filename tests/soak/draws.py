"""Tests repeated under other draws, until a time has passed:  python tests/soak/draws.py [options] TESTS...

    python tests/soak/draws.py --first 0 --count 500 tests/conformance/test_drawn_calls.py

Each draw has seeds of its own, and as many as a run of all of them (see `flamecore.testing.draws`): the tests of drawn
calls play 40 flows each, on one to four workers. The last line has the range of draws and the tally; a run that is
interrupted goes on with `--first`.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import time

from flamecore.testing.draws import DRAW, TIER


def main() -> int:
    """Play draw after draw; 1 if any has failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--first", type=int, default=random.randrange(2**19), help="the first draw; default: random")
    parser.add_argument("--count", type=int, default=2**19, help="most draws")
    parser.add_argument("--minutes", type=float, default=10.0, help="time after which no draw begins")
    parser.add_argument("tests", nargs="+", help="tests, and other arguments of pytest")
    options, more = parser.parse_known_args()
    failed: list[int] = []
    draw, end = options.first, time.monotonic() + 60 * options.minutes
    while draw < options.first + options.count and time.monotonic() < end:
        environ = {**os.environ, TIER: "whole", DRAW: str(draw)}
        command = [sys.executable, "-m", "pytest", "-q", *more, *options.tests]
        done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
        print(f"draw {draw}: {done.stdout.strip().splitlines()[-1]}", flush=True)
        if done.returncode:
            failed.append(draw)
            print(done.stdout)
        draw += 1
    passed = draw - options.first - len(failed)
    print(f"draws {options.first} to {draw - 1}: {passed} passed, {len(failed)} failed {failed or ''}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
