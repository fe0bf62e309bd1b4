"""Consequences of where a session runs: how tasks are reached, what they reach."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import msgspec

from flamecore.abc.config import Choice, JobConfig
from flamecore.abc.host import HostContext
from flamecore.errors import ConfigError, FlameError, MissingDependencyError
from flamecore.runtime.config.validate import expand
from flamestream_spark.nodes.feed import sinks_of, sources_of, with_spools, without_spool
from flamestream_spark.nodes.slots import check_speculation
from flamestream_spark.nodes.task import address_towards
from flamestream_spark.session.master import driver_address, is_below_task, master_of
from flamestream_spark.session.session import check_installed
from flamestream_spark.tables.delta import delta_rs

if TYPE_CHECKING:
    from flamestream_spark.host import Options

_LOOPBACK: Final = ("localhost", "127.0.0.1", "[::1]", "::1")
_MASTER: Final = re.compile(r"local(\[[\d*, ]+\])?|local-cluster\[.*\]|[a-z0-9]+://.+|yarn")
_SOMEWHERE: Final = ("192.0.2.1", 9)
"""An address for documentation: nothing is sent there, it is only asked which way it would go."""


def is_local(master: str) -> bool:
    """Return whether all that Spark starts is on this machine.

    >>> [is_local(master) for master in ("local[4]", "local-cluster[2,1,1024]", "spark://127.0.0.1:7077", "yarn")]
    [True, True, True, False]
    """
    return master.startswith("local") or urlsplit(master.removeprefix("k8s://")).hostname in _LOOPBACK


def check_master(master: str) -> None:
    """Make sure that Spark could know what is meant.

    Raises:
        ConfigError: It could not.
    """
    if _MASTER.fullmatch(master) is None:
        raise ConfigError(
            f"spark.master = {master!r}: there is no such master",
            hint='Say "local[4]" (cores of this machine), "spark://HOST:7077", "yarn" or "k8s://https://HOST:443".',
            path="spark.master",
        )


def advised(options: Options, config: JobConfig) -> JobConfig:
    """Return a configuration that says how tasks are reached.

    The transport is gRPC if none is configured.

    Raises:
        ConfigError: The master is none, or it is not known where executors reach this machine.
    """
    if is_below_task():  # the driver has said it all
        return config
    config, options = _with_session(config, options)
    if options.master:  # a mistake, also where another master comes before it
        check_master(options.master)
    master = master_of(options.master)
    transport = config.transport
    use = transport.use or "grpc"
    tables = dict(transport.tables)
    if use == "grpc" and not is_local(master):
        table: Mapping[str, Any] = tables.get(use, {})
        tables[use] = table if "listen" in table else {**_listening(options, master), **table}
    settled = msgspec.structs.replace(config, transport=Choice(use=use, tables=tables))
    return with_spools(settled, local=is_local(master))


def _with_session(config: JobConfig, options: Options) -> tuple[JobConfig, Options]:
    """Return configuration and options with one session for host and sources.

    Settings of the sources that the host's table leaves open are the host's.
    """
    said = dict(config.hosts.get("spark", {}))
    own = dict(said)
    for name, edge in sources_of(config).items():
        for key in ("master", "config"):
            value = edge.options.get(key)
            if value is None or own.setdefault(key, value) == value:
                continue
            raise ConfigError(
                f"source.{name}.{key} is {value!r}, and workers and sources of this job share a session of Spark, "
                f"whose {key} is {own[key]!r}",
                hint=f'Say it once, for all: [spark] {key} = …; or run the job in this process: deploy.on = "here".',
                path=f"source.{name}.{key}",
            )
    if own == said:
        return config, options
    found = {key: expand(own[key], f"spark.{key}") for key in ("master", "config") if key in own}
    hosts = {**config.hosts, "spark": own}
    return msgspec.structs.replace(config, hosts=hosts), msgspec.structs.replace(options, **found)


def _listening(options: Options, master: str) -> dict[str, str]:
    """Return where this process listens, for executors on other machines, as options of gRPC.

    It is where Spark's own driver does, if that is told; else the address of the way to the master.
    """
    host, bind = driver_address(options.config)
    if host and bind and bind != host:
        return {"listen": _at(bind), "advertise": host}
    if host:
        return {"listen": _at(host)}
    place = urlsplit(master.removeprefix("k8s://"))
    towards = (place.hostname, place.port or 9) if place.hostname else _SOMEWHERE
    try:
        return {"listen": _at(address_towards(*towards))}
    except OSError as error:
        raise ConfigError(
            f"nobody can say where executors reach this machine: no way leads to {master} ({error.strerror})",
            hint='Name it: [spark] config = { "spark.driver.host" = "…" }, or [transport.grpc] listen = "HOST".',
            path="spark.master",
        ) from error


def _at(host: str) -> str:
    """Return a host with any free port.

    >>> _at("10.0.0.1"), _at("fd00::1")
    ('10.0.0.1:0', '[fd00::1]:0')
    """
    return f"[{host}]:0" if ":" in host else f"{host}:0"


def problems(options: Options, context: HostContext) -> Iterator[FlameError]:
    """Yield the problems of a job on Spark.

    These are missing libraries, and work that no executor can do.

    Args:
        options: Options of the host.
        context: Context of the job.
    """
    try:
        check_installed()
    except MissingDependencyError as error:
        hint = f'{error.hint.rstrip(".")}; or run the job in this process: deploy.on = "here".'
        facts = {name: getattr(error, name) for name in ("kind", "name", "distribution", "module", "extra")}
        yield MissingDependencyError(error.what, hint=hint, **facts)
    if any(edge.options.get("format") == "delta" for edge in sinks_of(context.config).values()):
        try:
            delta_rs("sink")
        except MissingDependencyError as error:
            yield error
    for part, use in context.drivers.items():
        if part.startswith("source.") and use.rpartition(":")[2] == "stdin":
            yield ConfigError(
                f"{part} reads standard input, which a task of Spark does not have",
                hint="Write it to a file or a stream, and read that.",
                path=f"{part}.use",
            )
    if context.config.deploy.start == "join":
        yield ConfigError(
            'deploy.on = "spark", and deploy.start = "join": who starts the workers?',
            hint='Leave out one of the two. With deploy.start = "join" workers are started by hand.',
            path="deploy.start",
        )
    try:
        check_speculation(options.config.get)
    except ConfigError as error:
        yield error
    master = master_of(options.master)
    if not is_local(master):
        yield from without_spool(context.config)
        yield from _unreachable_state(master, context)


def _unreachable_state(master: str, context: HostContext) -> Iterator[ConfigError]:
    store = context.store
    if store is None or store.capabilities.shared or store.capabilities.mountable:
        return
    path = str(context.config.state.options.get("path", ""))
    yield ConfigError(
        f"state is kept by {store.name!r}{f' in {path}' if path else ''}, which executors of {master} do not reach",
        hint='Use [state] use = "directory" with the path of a folder that is mounted everywhere, or the '
        'URL of an object store; or [state] use = "nats".',
        path="state.path" if path else "state.use",
    )
