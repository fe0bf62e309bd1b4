"""The options of drivers: tables of a configuration, checked by the driver."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flamecore.abc.config import Choice, JobConfig
from flamecore.abc.registry import JobRegistry
from flamecore.abc.store import Store
from flamecore.errors import ConfigError
from flamecore.runtime.config import defaults
from flamecore.runtime.config.plugins import PluginRegistry
from flamecore.runtime.config.validate import convert, expand, unknown_key


def options_of(driver: Any, table: Mapping[str, object], path: str, origins: Mapping[str, str] | None = None) -> Any:
    """Build the `Options` of a driver from a table.

    References to the environment are replaced.

    Args:
        driver: The driver's class.
        table: The table, as configured.
        path: Dotted key of the table, for errors.
        origins: Origins of values, for errors.

    Returns:
        The options; None if the driver takes none.

    Raises:
        UnknownKeyError: The driver has no such option.
        ConfigError: An option is missing, of a wrong type, or refers to a variable that is not set.
    """
    if driver.Options is None:
        for key in table:
            raise unknown_key(f"{path}.{key}", ())
        return None
    return convert(expand(table, path), driver.Options, path, raw=table, origins=origins)


def registry_of(config: JobConfig, plugins: PluginRegistry) -> tuple[type[JobRegistry], object]:
    """Return the driver and the options of the registry of jobs.

    Missing options are taken from the transport of its name.

    Raises as `PluginRegistry.get` and `options_of`.
    """
    driver = plugins.guarded("registry", config.registry.use)
    return driver, registry_options(config, driver)


def registry_options(
    config: JobConfig, driver: type[JobRegistry], default: Mapping[str, object] | None = None
) -> object:
    """Build the options of the configured registry.

    Args:
        config: The configuration.
        driver: Class of the registry.
        default: Options where neither the registry nor the transport of its name is configured.

    Raises as `options_of`.
    """
    table = {**(default or {}), **shared(config, config.registry.use, driver), **config.registry.options}
    return options_of(driver, table, "registry", config.origins)


def store_of(config: JobConfig, plugins: PluginRegistry) -> tuple[type[Store], object]:
    """Return the driver and the options of the store of state.

    Missing options are taken from the transport of its name.

    Raises as `PluginRegistry.get` and `options_of`; and `ConfigError` where no state is kept.
    """
    use = config.state.use
    if use is None:
        store = defaults.STATE_IN_FOLDER
        hint = (
            f'For example: [state] use = "{store}", path = "state/"; or --set state.use={store} --set state.path=state'
        )
        raise ConfigError("no state is kept: no store is configured", hint=hint, path="state.use")
    driver = plugins.guarded("store", use)
    table = shared(config, use, driver) | dict(config.state.options)
    return driver, options_of(driver, table, "state", config.origins)


def shared(config: JobConfig, use: str, driver: Any) -> dict[str, object]:
    """Return the options that a driver takes from the transport or host of its name.

    They are servers and credentials, for example.
    """
    known = () if driver.Options is None else driver.Options.__struct_fields__
    name = use.rpartition(":")[2]
    # So that servers and credentials are written once for a transport, a registry and a store of
    # one name.
    table = {**config.hosts.get(name, {}), **config.transport.tables.get(name, {})}
    return {key: value for key, value in table.items() if key in known}


def workers_on(table: Mapping[str, object] | None, origins: Mapping[str, str]) -> object:
    """Return the number of workers in the table of a host.

    A number that is set elsewhere than in a file has precedence.

    Args:
        table: The table, as configured.
        origins: Origins of values.

    Returns:
        The value as written, which need not be a number; None: there is none.
    """
    return table.get("workers") if isinstance(table, Mapping) and "job.workers" not in origins else None


def options_table(choice: Choice) -> Mapping[str, object]:
    """Return the table with the options of the driver in use.

    The driver may be named with its distribution.
    """
    return choice.tables.get(choice.use, choice.tables.get(choice.use.rpartition(":")[2], {}))


def node_options(options: Mapping[str, object]) -> dict[str, object]:
    """Return options of the transport for another process of the same machine.

    A given port is that of the process which has these options; the others take any free one.
    """
    others = dict(options)
    for key, free in (("listen", ":0"), ("advertise", "")):
        host, _, port = str(options.get(key, "")).rpartition(":")
        if port.isdigit():
            others[key] = f"{host}{free}"
    return others
