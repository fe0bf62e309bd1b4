"""Shoot at whole jobs until so many processes have died: python tests/soak --kills 100 --transport grpc.

Each round is a job drawn from a seed, which is printed. `--round SEED` plays one again. With `--on spark` each job has
a cluster of Spark of its own, on this machine. With `--journal FILE` a run that is interrupted goes on where it was,
and the last lines are the tally of all rounds in the journal.
"""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
from functools import partial
from pathlib import Path

import on_spark
import rounds
from campaign import KILLS_A_ROUND, Campaign, Result, WrongJournalError


def main() -> int:
    parser = argparse.ArgumentParser(prog="python tests/soak", description=__doc__)
    parser.add_argument("--kills", type=int, default=100, help="stop after so many in all (default: %(default)s)")
    parser.add_argument("--on", choices=("processes", "spark"), default="processes", help="host (default: %(default)s)")
    parser.add_argument("--transport", choices=("grpc", "nats"), default="grpc", help="of jobs on processes")
    parser.add_argument("--seed", type=int, help="of all that is drawn; by default the journal's, or another each time")
    parser.add_argument("--round", type=int, metavar="SEED", help="play this one round alone, outside of the journal")
    parser.add_argument("--size", type=int, default=900, help="records of the first file (default: %(default)s)")
    parser.add_argument("--journal", type=Path, help="file of the rounds so far, to go on with")
    parser.add_argument("--keep", type=Path, help="where to leave the folder of a round that fails")
    options = parser.parse_args()
    settings = {"on": options.on, "size": options.size}
    if options.on == "processes":
        settings["transport"] = options.transport
    try:
        campaign = Campaign(
            settings, options.seed, None if options.round is not None else options.journal, options.keep
        )
    except WrongJournalError as error:
        parser.error(str(error))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))  # so that the job ends, too
    with contextlib.ExitStack() as stack:
        server = None
        if settings.get("transport") == "nats":
            from flamestream_nats.testing import NatsServer

            server = stack.enter_context(NatsServer(jetstream=True))

        def on_processes(seed: int, kills: int, folder: Path) -> Result:
            round_ = rounds.Round.draw(seed, options.transport, kills, options.size)
            print(round_, flush=True)
            return rounds.play(round_, folder, server)

        play = partial(on_spark.play, size=options.size) if options.on == "spark" else on_processes
        if options.round is not None:
            campaign.play(options.round, min(KILLS_A_ROUND, options.kills), play)
        else:
            campaign.go_on(options.kills, play)
    print(campaign.tally())
    print(campaign.recoveries())
    return 1 if campaign.failed else 0


if __name__ == "__main__":
    sys.exit(main())
