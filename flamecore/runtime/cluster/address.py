"""The place of a job, found by an address of its control or of a registry."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Mapping
from typing import Final, NamedTuple

from msgspec import structs

from flamecore.abc.config import JobConfig
from flamecore.abc.registry import JobRegistry, RegistryContext
from flamecore.errors import ConfigError, RegistryError
from flamecore.runtime.cluster.job_record import JobRecord, find, key_of, only_job, read
from flamecore.runtime.config.options import options_table, registry_options
from flamecore.runtime.config.paths import whole_paths
from flamecore.runtime.config.plugins import PluginRegistry
from flamecore.runtime.config.schemes import find_drivers, has_scheme

WAIT_S: Final = 10.0
"""Longest wait for a job that is not there yet: the hosts of a cluster are not started one after another."""
_AGAIN_S: Final = 0.25


class JobPlace(NamedTuple):
    """The place of a job, and the options to reach it.

    Attributes:
        transport: Name of the transport's driver.
        options: Options of the transport, as configured.
        job: The transport's name for the job (`TransportContext.job`).
        job_name: The name of the job.
        incarnation: Number of the start of the job.
        control: Location of its control, in the transport's words.
    """

    transport: str
    options: Mapping[str, object]
    job: str
    job_name: str
    incarnation: int
    control: str


def find_job(address: str, job: str, config: JobConfig, token: str, *, waits: bool = True) -> JobPlace:
    """Find the place of a job.

    Waits for a configured registry, `WAIT_S` at most.

    A registry that has the scheme of the address is asked for the job. If it is not the configured one, and cannot be
    asked or does not know the job, the address is the transport's.

    Args:
        address: The address, `SCHEME://…`.
        job: Name of the job; empty: the only one that a registry lists there.
        config: Options of the transport and the registry; they go before those that the address stands for.
        token: Secret of the job.
        waits: Whether to wait for a registry, and for a job in it, that are not there yet.

    Raises:
        ConfigError: The address cannot be used, or leads to no job, or to several, where none is named.
        PluginError: No driver has its scheme, or the driver cannot be used.
        RegistryError: The registry does not know the job, or cannot be asked.
    """
    plugins = PluginRegistry()
    registry, transport = find_drivers(address, config, plugins)
    if registry is not None:
        name, driver = registry
        needed = transport is None or name == config.registry.use
        config = whole_paths(structs.replace(config, registry=structs.replace(config.registry, use=name)), plugins)
        options = registry_options(config, driver, driver.address_of(address))
        guarded = plugins.guarded("registry", name)
        record = asyncio.run(_look_until_there(guarded, options, job, token, needed=needed, waits=waits))
        if record is not None:
            reached = plugins.get("transport", record.transport)
            stands_for = reached.address_of(address).options if has_scheme(reached, address) else {}
            options = {**stands_for, **_configured(config, record.transport, plugins)}
            return JobPlace(record.transport, options, record.run, record.job, record.incarnation, record.control)
    assert transport is not None
    if not job:
        hint = f"Name it behind the address: {address}#NAME; or as --job NAME."
        raise ConfigError(f"{address} does not say which job is meant", hint=hint, path="--job")
    name, reached = transport
    said = reached.address_of(address)
    # Without a registry outside of its supervisor a job has one lease: its incarnation is 1.
    return JobPlace(name, {**said.options, **_configured(config, name, plugins)}, job, job, 1, said.control)


def _configured(config: JobConfig, transport: str, plugins: PluginRegistry) -> Mapping[str, object]:
    used = structs.replace(config, transport=structs.replace(config.transport, use=transport))
    return options_table(whole_paths(used, plugins).transport)


async def _look_until_there(
    driver: type[JobRegistry], options: object, job: str, token: str, *, needed: bool, waits: bool
) -> JobRecord | None:
    end = time.monotonic() + (WAIT_S if waits else 0.0)
    context = RegistryContext(node=f"{socket.gethostname()}-{os.getpid()}", waits=waits)
    while True:
        try:
            return await _look(driver(options, context), job, token, needed=needed)
        except RegistryError:
            if not needed or time.monotonic() > end:
                raise
        await asyncio.sleep(_AGAIN_S)


async def _look(registry: JobRegistry, job: str, token: str, *, needed: bool) -> JobRecord | None:
    """Return the record of a job.

    Returns:
        None if the record is not `needed`, and is missing or cannot be read.
    """
    try:
        try:
            await registry.open()
            job = job or await only_job(registry)
            entry = await registry.get(key_of(job))
            # A job that has ended may have left its record behind, and this one may be in another registry.
            known = entry is not None and read(entry.value, job).lease_s > 0
        except RegistryError:
            if needed:
                raise
            return None
        return await find(registry, job, token) if known or needed else None
    finally:
        await registry.aclose()
