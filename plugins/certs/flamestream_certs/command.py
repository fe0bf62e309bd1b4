"""Make certificates for TLS between the processes of a job."""

from __future__ import annotations

from pathlib import Path

import click

from flamecore.abc.hooks import hookimpl
from flamecore.cli.output import json_option, print_json, say, wants_json
from flamestream_certs.folder import ROLES, hosts_of, make, toml


@click.group("certs")
def command() -> None:
    """Make certificates for TLS between the processes of a job."""


@command.command("init", short_help="Make certificates for a test cluster.")
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@click.option(
    "--hosts",
    multiple=True,
    metavar="HOST,…",
    help="Names or addresses at which processes listen, besides this machine. May be given several times.",
)
@click.option(
    "--days", type=click.IntRange(1, 3650), default=90, show_default=True, help="Validity of the certificates, in days."
)
@click.option("--missing", is_flag=True, help="Make only what FOLDER lacks, by the authority in it.")
@json_option
@click.pass_context
def init(ctx: click.Context, folder: Path, hosts: tuple[str, ...], days: int, missing: bool) -> None:
    """Make an authority and certificates for a test cluster in FOLDER.

    Print what to paste into the job file. There is one certificate for each role: supervisor, worker, acker, client
    (for commands that look at a job), operator (for commands that change it), and nats (the server of that transport).
    Nothing is overwritten. Keys can be read by you alone.

    For anything but tests, use the authority that you have: any PEM files will do.
    """
    good_at = hosts_of(hosts)
    files = make(folder, good_at, days, missing=missing)
    if not wants_json(ctx):
        say(*toml(folder, good_at, days).split("\n"))
        return
    roles = {role: {"certificate": str(files[f"{role}.pem"]), "key": str(files[f"{role}.key"])} for role in ROLES}
    print_json({"folder": str(folder), "ca": str(files["ca.pem"]), "roles": roles, "hosts": good_at, "days": days})


@hookimpl
def flamestream_command() -> click.Command:
    return command
