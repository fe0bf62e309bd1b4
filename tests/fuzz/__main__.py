"""Long fuzzing, guided by coverage.

Usage: python -m tests.fuzz TARGET [--seconds N] [--corpus FOLDER] [libFuzzer's own]

Needs `pip install atheris`, and the clients of the transports that are fuzzed. Begins with the inputs in `seeds`.
Inputs that it finds are left in the folder it was started in; move them to `seeds/TARGET`, where the tests run them
from then on, and repair the fault.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import atheris  # type: ignore[import-untyped, import-not-found, unused-ignore]

from tests.fuzz.targets import TARGETS, examples

SEEDS = Path(__file__).with_name("seeds")


def main() -> None:
    """Fuzz one target."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("target", choices=TARGETS)
    parser.add_argument("--seconds", type=int, default=300, help="how long; 0: until something is found")
    parser.add_argument("--corpus", type=Path, help="keep what was interesting here, to go on with it another time")
    chosen, others = parser.parse_known_args()
    with atheris.instrument_imports(include=["flamecore", "flamestream_grpc", "flamestream_nats"]):
        target = TARGETS[chosen.target]()
    with tempfile.TemporaryDirectory(prefix="fuzz-") as temporary:
        folder = Path(temporary)
        corpus = chosen.corpus or folder / "corpus"
        corpus.mkdir(parents=True, exist_ok=True)
        (folder / "examples").mkdir()
        for number, example in enumerate(examples()):
            (folder / "examples" / str(number)).write_bytes(example)
        limits = ["-timeout=10", "-rss_limit_mb=1024", "-max_len=16384", f"-max_total_time={chosen.seconds}"]
        known = [str(path) for path in (folder / "examples", SEEDS / chosen.target) if path.exists()]
        atheris.Setup([sys.argv[0], *limits, *others, str(corpus), *known], target)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
