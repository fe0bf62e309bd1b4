"""Options of drivers: what a configuration says of each, in the driver's own terms."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flamecore.config import Choice, JobConfig
from flamecore.errors import ConfigError
from flamecore.jobregistry import JobRegistry
from flamecore.registry import Registry
from flamecore.store import Store
from flamecore.strict import convert, expand, unknown_key


def options_of(driver: Any, table: Mapping[str, Any], path: str, origins: Mapping[str, str] | None = None) -> Any:
    """Build the `Options` of a driver of a table, with references to the environment replaced.

    Args:
        driver: The driver's class.
        table: As configured.
        path: Dotted key of the table, for errors.
        origins: Where values came from, for errors.

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


def registry_of(config: JobConfig, registry: Registry) -> tuple[type[JobRegistry], Any]:
    """Driver and options of the registry of jobs; what its table does not say is taken from the transport of its name.

    Raises as `Registry.get` and `options_of`.
    """
    use = config.registry.use
    driver = registry.get("registry", use)
    return driver, options_of(
        driver, shared(config, use, driver) | dict(config.registry.options), "registry", config.origins
    )


def store_of(config: JobConfig, registry: Registry) -> tuple[type[Store], Any]:
    """Driver and options of the store of state; what its table does not say is taken from the transport of its name.

    Raises as `Registry.get` and `options_of`; and `ConfigError` where no state is kept.
    """
    use = config.state.use
    if use is None:
        hint = 'For example: [state] use = "sqlite", path = "state/"; or --set state.use=sqlite --set state.path=state'
        raise ConfigError("no state is kept: nothing says where", hint=hint, path="state.use")
    driver = registry.get("store", use)
    table = shared(config, use, driver) | dict(config.state.options)
    return driver, options_of(driver, table, "state", config.origins)


def shared(config: JobConfig, use: str, driver: Any) -> dict[str, Any]:
    """What the tables of the transport and the host of that name say and the driver knows too: servers, credentials."""
    known = () if driver.Options is None else driver.Options.__struct_fields__
    name = use.rpartition(":")[2]
    table = {**config.hosts.get(name, {}), **config.transport.tables.get(name, {})}
    return {key: value for key, value in table.items() if key in known}


def options_table(choice: Choice) -> Mapping[str, Any]:
    """The table with the options of the driver that is used, also if that is named with its distribution."""
    return choice.tables.get(choice.use, choice.tables.get(choice.use.rpartition(":")[2], {}))
