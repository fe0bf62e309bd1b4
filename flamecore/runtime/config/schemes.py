"""The lookup of drivers by the scheme of an address.

Transports and registries declare their schemes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, Literal, NamedTuple

from flamecore.abc.config import JobConfig
from flamecore.abc.registry import JobRegistry
from flamecore.abc.transport import Transport
from flamecore.errors import ConfigError, PluginConflictError, PluginError
from flamecore.runtime.config.plugins import PluginRegistry
from flamecore.suggest import nearest

AddressKind = Literal["registry", "transport"]

_KINDS: Final[tuple[AddressKind, ...]] = ("registry", "transport")


class SchemeDrivers(NamedTuple):
    """The drivers that an address leads to, as (name, class); one of them is there.

    Attributes:
        registry: The registry that may know the job.
        transport: The transport by which the job may be reached without one.
    """

    registry: tuple[str, type[JobRegistry]] | None
    transport: tuple[str, type[Transport]] | None


def schemes_of(driver: type[JobRegistry] | type[Transport]) -> tuple[str, ...]:
    """Return the schemes of a driver, in its own order."""
    return (driver.name,) if driver.schemes is None else driver.schemes


def has_scheme(driver: type[JobRegistry] | type[Transport], address: str) -> bool:
    """Return whether an address, `SCHEME://…`, has one of the schemes of a driver."""
    return address.partition("://")[0] in schemes_of(driver)


def find_drivers(address: str, config: JobConfig, plugins: PluginRegistry) -> SchemeDrivers:
    """Find the drivers whose scheme an address has.

    For each kind the configured driver is asked first, and then the one that is named like the scheme. All others are
    imported and asked only where no driver has that name: most addresses need one client library.

    Args:
        address: The address, `SCHEME://…`.
        config: The configuration; it names the configured drivers.
        plugins: The installed plugins.

    Raises:
        ConfigError: The address is none, or no installed plugin has its scheme.
        PluginConflictError: Several drivers of one kind have it.
        PluginError: The driver of that name cannot be used.
    """
    scheme, separator, _ = address.partition("://")
    if not separator:
        raise ConfigError(
            f"{address!r} is no address of a job",
            hint=f"Write it as flamestream check prints it for the job. {_listing(plugins)}",
            path="--join",
        )
    same = {kind: _named(kind, scheme, address, plugins) for kind in _KINDS}
    configured = {kind: _named(kind, getattr(config, kind).use, address, plugins) for kind in _KINDS}
    found = {kind: configured[kind] or same[kind] for kind in _KINDS}
    if not any(same.values()):
        found = {kind: found[kind] or _only(kind, address, plugins) for kind in _KINDS}
    if not any(found.values()):
        raise ConfigError(
            f"{address!r} is no address of a job: no plugin with the scheme {scheme!r} is installed",
            hint=_listing(plugins, scheme),
            path="--join",
        )
    return SchemeDrivers(**found)


def _named(kind: AddressKind, name: str, address: str, plugins: PluginRegistry) -> tuple[str, Any] | None:
    """Return the driver of a name, if it exists and has the scheme of the address."""
    if name.rpartition(":")[2] in plugins.names(kind) and has_scheme(driver := plugins.get(kind, name), address):
        return name, driver
    return None


def _only(kind: AddressKind, address: str, plugins: PluginRegistry) -> tuple[str, object] | None:
    """Return the only driver of a kind that has the scheme of the address."""
    found = [(name, driver) for name, driver in _usable(kind, plugins) if has_scheme(driver, address)]
    if len(found) > 1:
        scheme, names = address.partition("://")[0], [name for name, _ in found]
        raise PluginConflictError(
            f"{address!r} may be an address of {len(found)} drivers: {kind} {' and '.join(names)}",
            hint=f"Select one: --set {kind}.use={names[0]}",
            kind=kind,
            name=scheme,
            distribution=None,
            distributions=tuple(_origin(kind, name, plugins) for name in names),
        )
    return found[0] if found else None


def _usable(kind: AddressKind, plugins: PluginRegistry) -> Iterator[tuple[str, Any]]:
    """Yield every driver of a kind that can be imported."""
    for name in plugins.names(kind):
        try:
            driver = plugins.get(kind, name)
        except PluginError:
            continue  # the listing for an unknown address names it
        yield name, driver


def _listing(plugins: PluginRegistry, scheme: str = "") -> str:
    """Return the schemes of all installed plugins with their origins.

    The one that is most like `scheme` comes first.
    """
    known: list[str] = []
    lines = []
    for kind in _KINDS:
        for name in plugins.names(kind):
            place = f"{kind} {name} of {_origin(kind, name, plugins)}"
            try:
                driver = plugins.get(kind, name)
            except PluginError as error:
                lines.append(f"{place} may have others, and cannot be used: {error.what}")
                continue
            if schemes := schemes_of(driver):
                known += schemes
                lines.append(f"{' and '.join(f'{own}://' for own in schemes)} ({place})")
    close = nearest(scheme, known) if scheme else None
    meant = f"Did you mean {close}://? " if close else ""
    return f"{meant}Known: {'; '.join(lines) or 'none'}."


def _origin(kind: AddressKind, name: str, plugins: PluginRegistry) -> str:
    """Return the distributions that provide a driver."""
    origins = [f"{of.distribution} {of.version}" for of in plugins.providers(kind) if of.name == name]
    return " and ".join(origins) or "this process"
