"""Shoot at whole jobs until so many processes have died: python tests/soak --kills 100 --transport grpc.

Each round is a job drawn from a seed, which is printed. `--round SEED` plays one again.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path

from rounds import Round, play

KILLS_A_ROUND = 12


def main() -> int:
    parser = argparse.ArgumentParser(prog="python tests/soak", description=__doc__)
    parser.add_argument("--kills", type=int, default=100, help="stop after so many (default: %(default)s)")
    parser.add_argument("--transport", choices=("grpc", "nats"), default="grpc")
    parser.add_argument("--seed", type=int, help="of all that is drawn; another one each time by default")
    parser.add_argument("--round", type=int, metavar="SEED", help="play this one round alone")
    parser.add_argument("--size", type=int, default=900, help="lines of the first file (default: %(default)s)")
    parser.add_argument("--keep", type=Path, help="where to leave the folder of a round that fails")
    options = parser.parse_args()
    seed = options.seed if options.seed is not None else random.randrange(2**32)
    print(f"seed {seed}", flush=True)
    seeds = random.Random(seed)
    killed, recovered, victims, troubles, moments = 0, [], Counter[str](), Counter[str](), Counter[str]()
    with contextlib.ExitStack() as stack:
        server = None
        if options.transport == "nats":
            from flamestream_nats.testing import NatsServer

            server = stack.enter_context(NatsServer(jetstream=True))
        while killed < options.kills:
            shots = min(KILLS_A_ROUND, options.kills - killed)
            drawn = options.round if options.round is not None else seeds.randrange(2**32)
            round_ = Round.draw(drawn, options.transport, shots, options.size)
            print(round_, flush=True)
            folder = Path(tempfile.mkdtemp(prefix="soak-"))
            try:
                result = play(round_, folder, server)
            except AssertionError as error:
                kept = shutil.move(folder, options.keep) if options.keep is not None else folder
                print(f"FAILED: {error}\n{round_}\nits folder: {kept}", file=sys.stderr)
                return 1
            shutil.rmtree(folder)
            killed += result.killed
            victims += result.victims
            troubles += result.troubles
            moments += result.moments
            recovered += result.recovered_ms
            hit, besides = dict(+result.victims), dict(result.troubles)
            print(f"  {result.killed} killed ({killed} in all) in {result.took_s:.1f} s; {hit}, {besides}", flush=True)
            if options.round is not None:
                break
    recovered.sort()
    middle, most = (recovered[len(recovered) // 2], recovered[-1]) if recovered else (0.0, 0.0)
    print(f"killed {killed}: {dict(victims)}, at {dict(moments)}; besides: {dict(troubles)}; lost 0, twice 0")
    print(f"{len(recovered)} recoveries: half within {middle:.0f} ms, all within {most:.0f} ms")
    return 0


if __name__ == "__main__":
    sys.exit(main())
