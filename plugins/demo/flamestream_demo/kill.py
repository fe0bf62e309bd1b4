"""Command `flamestream demo kill`."""

from __future__ import annotations

import random
import signal
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from flamecore.cli.exits import Exit
from flamecore.cli.output import json_option, print_json, say, verbose_option, wants_json
from flamecore.errors import ConfigError

if TYPE_CHECKING:
    from flamestream_demo.shooting import Hunt, Shot

_CLEAR: Final = "\r\x1b[K"


@click.command("kill", short_help="Shoot at a running job: nothing is lost.")
@click.option(
    "--kills", type=click.IntRange(0, 1000), default=6, show_default=True, help="Number of processes to kill."
)
@click.option("--seed", type=int, help="Seed for the choice of processes and times; random by default.")
@click.option(
    "--for",
    "seconds",
    type=click.FloatRange(5, 1800),
    default=20.0,
    show_default=True,
    help="Seconds that the job takes when it is left alone.",
)
@json_option
@verbose_option
@click.pass_context
def command(ctx: click.Context, kills: int, seed: int | None, seconds: float) -> None:
    """Shoot at a running job, and see that nothing is lost and nothing comes twice.

    The job is the inverted index as a cycle, on 4 workers and an acker in processes of their own, with its state in
    SQLite in a temporary folder. Workers, the acker and the supervisor are killed (SIGKILL); the supervisor is started
    again by the same command. In the end the output is compared with that of an undisturbed run.

    The exit code is 1 if anything was lost, came twice, or is different, or if the job was over before all were killed.
    """
    if not hasattr(signal, "SIGKILL"):
        raise ConfigError("this system has no SIGKILL", hint="Run the demo on Linux or macOS.", path="")
    from flamestream_demo.shooting import WORKERS, Hunt, Target

    seed = random.randrange(10**6) if seed is None else seed
    quiet = wants_json(ctx)
    live = sys.stderr.isatty() and not quiet
    if not quiet:
        say(f"an inverted index, as a cycle, on {WORKERS} workers; seed {seed}")
    with (
        tempfile.TemporaryDirectory(prefix="fs-demo-", ignore_cleanup_errors=True) as folder,
        Target(Path(folder), seconds) as target,
    ):
        hunt = Hunt(target, kills, seed)
        told, drawn = 0, ""
        for _ in hunt.run():
            for shot in [] if quiet else hunt.shots[told:]:
                click.echo(f"{_CLEAR if live else ''}{_line(shot)}")
            told = len(hunt.shots)
            if live and (figures := _figures(hunt)) != drawn:
                drawn = figures
                click.echo(f"{_CLEAR}{figures}", err=True, nl=False)
    if live:
        click.echo(_CLEAR, err=True, nl=False)
    if quiet:
        print_json(_facts(hunt, seed))
    else:
        say(*_summary(hunt).split("\n"))
    if len(hunt.shots) < kills:
        say(f"only {len(hunt.shots)} of {kills} processes were killed before the job ended: --for 60", err=True)
    if not _clean(hunt) or len(hunt.shots) < kills:
        ctx.exit(Exit.FAILED)


def _clean(hunt: Hunt) -> bool:
    follower = hunt.follower
    return hunt.same and not (follower.lost or follower.duplicated or follower.wrong)


def _line(shot: Shot) -> str:
    name = "the supervisor" if shot.role == "supervisor" else shot.name
    who = f"{name} (process {shot.pid})"
    return f"{shot.at_s:6.1f} s  SIGKILL {who:<32}  recovered in {shot.recovered_ms:,.0f} ms"


def _figures(hunt: Hunt) -> str:
    last = f"   recovered in {hunt.shots[-1].recovered_ms:,.0f} ms" if hunt.shots else ""
    follower = hunt.follower
    return (
        f"killed {len(hunt.shots)}{last}   lost {follower.lost}   duplicated {follower.duplicated}"
        f"   outputs {follower.delivered:,}"
    )


def _summary(hunt: Hunt) -> str:
    follower, roles = hunt.follower, Counter(shot.role for shot in hunt.shots)
    who = ", ".join(f"{count} {role}{'s' if count > 1 else ''}" for role, count in sorted(roles.items()))
    times = sorted(shot.recovered_ms for shot in hunt.shots)
    took = f", recovered in {times[0]:,.0f} to {times[-1]:,.0f} ms" if times else ""
    verdict = "the output is that of the undisturbed run, byte for byte"
    if not hunt.same:
        verdict = f"THE OUTPUT IS NOT THAT OF THE UNDISTURBED RUN ({follower.wrong} lines are not in that)"
    return (
        f"killed {len(hunt.shots)}{f' ({who})' if who else ''}{took}\n"
        f"outputs {follower.delivered:,}, lost {follower.lost}, duplicated {follower.duplicated}\n{verdict}"
    )


def _facts(hunt: Hunt, seed: int) -> dict[str, Any]:
    follower = hunt.follower
    return {
        "seed": seed,
        "killed": len(hunt.shots),
        "shots": [shot._asdict() for shot in hunt.shots],
        "outputs": follower.delivered,
        "lost": follower.lost,
        "duplicated": follower.duplicated,
        "wrong": follower.wrong,
        "same_as_undisturbed": hunt.same,
    }
