"""How a command reaches a job that runs elsewhere: its address, the options of its transport, its token."""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Callable
from typing import Any, TypeVar

import click

from flamecore import layers
from flamecore.config import read_config
from flamecore.errors import ConfigError
from flamecore.placement import TOKEN

F = TypeVar("F", bound=Callable[..., Any])


def join_options(function: F) -> F:
    """The options that say where the job is."""
    for option in reversed(
        (
            click.option("--job", required=True, help="Name of the job, as its supervisor prints it."),
            click.option(
                "--set",
                "settings",
                multiple=True,
                metavar="TABLE.KEY=VALUE",
                help="An option of the transport, such as transport.grpc.tls_ca=ca.pem.",
            ),
        )
    ):
        function = option(function)
    return function


def bootstrap_of(address: str, *, job: str, name: str | None, role: str, settings: tuple[str, ...]) -> dict[str, Any]:
    """What a node must know to join a job.

    Args:
        address: grpc://HOST:PORT, unix:///PATH (gRPC), or nats://HOST:PORT.
        job: Name of the job.
        name: Name of the node; default: host and process.
        role: See `flamecore.messages.Join`.
        settings: Options of the transport, as for `--set`.

    Raises:
        ConfigError: The address is none, or the token is missing.
    """
    scheme, separator, place = address.partition("://")
    transports = {"grpc": "grpc", "unix": "grpc", "nats": "nats"}
    if not separator or scheme not in transports:
        raise ConfigError(
            f"{address!r} is no address of a job",
            hint="Write grpc://HOST:PORT, unix:///PATH or nats://HOST:PORT, as the supervisor prints it.",
            path="--join",
        )
    token = os.environ.get(TOKEN)
    if not token:
        raise ConfigError(
            f"the job's token is missing: ${TOKEN} is not set",
            hint=f"Set {TOKEN} to the same secret for the supervisor and everybody who joins.",
            path=TOKEN,
        )
    use = transports[scheme]
    config = read_config(None, command=layers.from_command(settings, sources=(), sinks=(), workers=None))
    options = dict(config.transport.tables.get(use, {}))
    if use == "nats":
        options.setdefault("servers", [address])
    return {
        "transport": use,
        "options": options,
        "job": job,
        "token": token,
        "folder": tempfile.mkdtemp(prefix="flamestream-"),
        "node": name or f"{role}-{socket.gethostname()}-{os.getpid()}",
        "role": role,
        "control": {"unix": f"unix:{place}", "nats": "supervisor"}.get(scheme, place),
    }
