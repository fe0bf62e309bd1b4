"""How a command reaches a job that runs elsewhere: its address, the options of its transport, its token."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

import click
from msgspec import structs

from flamecore import layers
from flamecore.config import JobConfig, read_config
from flamecore.errors import ConfigError, RegistryError
from flamecore.placement import TOKEN
from flamecore.private import private_folder

F = TypeVar("F", bound=Callable[..., Any])

WAIT_S: Final = 10.0
"""How long a job is waited for that is not there yet. Who starts a cluster does not start one host after another."""
_AGAIN_S: Final = 0.25


def join_options(function: F) -> F:
    """The options that say where the job is."""
    for option in reversed(
        (
            click.option("--job", required=True, help="Name of the job: job.name, or else that of its flow."),
            click.option(
                "--set",
                "settings",
                multiple=True,
                metavar="TABLE.KEY=VALUE",
                help="An option of the transport or registry, such as transport.grpc.tls_ca=ca.pem.",
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
    address: str, *, job: str, name: str | None, role: str, settings: tuple[str, ...], config_file: Path | None
) -> Iterator[dict[str, Any]]:
    """What a node must know to join a job, a private folder included.

    Args:
        address: grpc://HOST:PORT or unix:///PATH (gRPC): where the supervisor listens. nats://HOST:PORT: a server whose
            registry knows the job, or through which its processes talk.
        job: Name of the job.
        name: Name of the node; default: host and process.
        role: See `flamecore.messages.Join`.
        settings: Options of the transport and the registry, as for `--set`.
        config_file: A file with such options.

    Raises:
        ConfigError: The address is none, or the token is missing.
        RegistryError: The registry does not know the job.
    """
    scheme, separator, place = address.partition("://")
    if not separator or scheme not in ("grpc", "unix", "nats", "tls"):
        raise ConfigError(
            f"{address!r} is no address of a job",
            hint="Write grpc://HOST:PORT, unix:///PATH or nats://HOST:PORT, as flamestream check says it of the job.",
            path="--join",
        )
    token = os.environ.get(TOKEN)
    if not token:
        raise ConfigError(
            f"the job's token is missing: ${TOKEN} is not set",
            hint=f"Set {TOKEN} to the same secret for the supervisor and everybody who joins.",
            path=TOKEN,
        )
    config = read_config(config_file, command=layers.from_command(settings, sources=(), sinks=(), workers=None))
    # Without a registry outside of its supervisor a job has been claimed once: its epoch is 1.
    where: dict[str, Any] = {
        "transport": "grpc",
        "job": job,
        "epoch": 1,
        "control": f"unix:{place}" if scheme == "unix" else place,
    }
    if scheme in ("nats", "tls"):
        tables = {**config.transport.tables}
        tables["nats"] = {"servers": [address], **tables.get("nats", {})}
        config = structs.replace(config, transport=structs.replace(config.transport, tables=tables))
        # Its processes are wherever they have connected to the server: no location is needed.
        where |= _looked_up(config, job, token) or {"transport": "nats", "control": ""}
    with private_folder() as folder:
        yield {
            **where,
            "options": dict(config.transport.tables.get(where["transport"], {})),
            "token": token,
            "folder": folder,
            "node": name or f"{role}-{socket.gethostname()}-{os.getpid()}",
            "role": role,
        }


def _looked_up(config: JobConfig, job: str, token: str) -> dict[str, Any] | None:
    """Where a job is, by the server's registry. None if that knows nothing of it, and was not asked for by name."""
    from flamecore.jobrecord import find, key_of, read
    from flamecore.jobregistry import RegistryContext
    from flamecore.options import registry_of
    from flamecore.registry import Registry

    asked_for = config.registry.use != "supervisor"
    if not asked_for:
        config = structs.replace(config, registry=structs.replace(config.registry, use="nats"))
    driver, options = registry_of(config, Registry())

    async def look() -> dict[str, Any] | None:
        registry = driver(options, RegistryContext(node=f"{socket.gethostname()}-{os.getpid()}"))
        try:
            try:
                await registry.open()
                entry = await registry.get(key_of(job))
                # One that has ended may have left its record behind, and this one have another registry.
                known = entry is not None and read(entry.value, job).lease_s > 0
            except RegistryError:
                if asked_for:
                    raise
                known = False
            if not known and not asked_for:
                return None
            record = await find(registry, job, token)
            return {
                "transport": record.transport, "job": record.run, "epoch": record.epoch, "control": record.control
            }  # fmt: skip
        finally:
            await registry.aclose()

    async def look_until_there() -> dict[str, Any] | None:
        end = time.monotonic() + WAIT_S
        while True:
            try:
                return await look()
            except RegistryError:
                if not asked_for or time.monotonic() > end:
                    raise
            await asyncio.sleep(_AGAIN_S)

    return asyncio.run(look_until_there())
