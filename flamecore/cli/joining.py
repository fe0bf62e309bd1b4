"""The way of a command to a running job: address, options of transport, token."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import unquote

import click

from flamecore.errors import ConfigError
from flamecore.runtime.cluster.address import find_job
from flamecore.runtime.cluster.placement import TOKEN
from flamecore.runtime.cluster.session import CLIENTS
from flamecore.runtime.config import layers
from flamecore.runtime.config.plugins import PluginRegistry
from flamecore.runtime.config.read import read_config
from flamecore.runtime.config.schemes import find_drivers
from flamecore.toolkit.private_dir import private_folder

F = TypeVar("F", bound=Callable[..., object])


def join_options(function: F) -> F:
    """Add the options that lead to a running job to a command."""
    for option in reversed(
        (
            click.option(
                "--job",
                help="Name of the job: job.name, or else that of its flow. Not needed if the address has it, as "
                "ADDRESS#NAME, or leads to a registry with one job.",
            ),
            click.option(
                "--set",
                "settings",
                multiple=True,
                metavar="TABLE.KEY=VALUE",
                help="An option of the transport or registry: transport.NAME.KEY=VALUE or registry.KEY=VALUE.",
            ),
            click.option(
                "--config",
                "config_file",
                type=click.Path(exists=True, dir_okay=False, path_type=Path),
                help="A file with such options, in the form of a job file.",
            ),
        )
    ):
        function = option(function)
    return function


@contextmanager
def joining(
    address: str, *, job: str | None, name: str | None, role: str, settings: tuple[str, ...], config_file: Path | None
) -> Iterator[dict[str, Any]]:
    """Yield the values that a node needs to join a job, with a private folder.

    Args:
        address: The address, `SCHEME://…`: it leads to the supervisor over the transport whose scheme it is, or to a
            registry that knows the job.
        job: Name of the job; None: it is behind the address, after `#`, or the only one that a registry has there.
        name: Name of the node; default: host and process.
        role: See `flamecore.model.messages.Join`.
        settings: Options of the transport and the registry, as for `--set`.
        config_file: A file with such options.

    Raises:
        ConfigError: The token is missing, or the address is none.
        FlameError: As `flamecore.runtime.cluster.address.find_job`.
    """
    if not job:
        address, _, quoted = address.partition("#")
        job = unquote(quoted)
    config = read_config(config_file, command=layers.from_command(settings, sources=(), sinks=(), workers=None))
    token = os.environ.get(TOKEN)
    if not token:
        find_drivers(address, config, PluginRegistry())  # an address that leads nowhere needs no token
        raise ConfigError(
            f"the job's token is missing: ${TOKEN} is not set",
            hint=f"Set {TOKEN} to the same secret for the supervisor and every process that joins.",
            path=TOKEN,
        )
    place = find_job(address, job, config, token, waits=role not in CLIENTS)
    with private_folder() as folder:
        yield {
            **place._asdict(),
            "options": dict(place.options),
            "token": token,
            "folder": folder,
            "node": name or f"{role}-{socket.gethostname()}-{os.getpid()}",
            "role": role,
            "watcher": role not in CLIENTS,
        }
