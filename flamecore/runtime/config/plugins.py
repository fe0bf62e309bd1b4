"""The registry of plugins: lookup by name in entry points.

Only the plugin that is named is imported. The group of a kind is `flamestream.<kind>`; an entry point's target is a
module that implements the one hook of its kind (`flamecore.abc.hooks`). Entry points are read once, on the first
question.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, NoReturn, overload

from flamecore.errors import (
    MissingDependencyError,
    PluginApiError,
    PluginConflictError,
    PluginError,
    PluginLoadError,
    UnknownPluginError,
)
from flamecore.model.failure import GROUP, user_lines
from flamecore.suggest import install_command, nearest, suggestion

if TYPE_CHECKING:
    from importlib.metadata import Distribution, EntryPoint

    import click
    import pluggy

    from flamecore.abc.acker import Acker
    from flamecore.abc.host import NodeHost
    from flamecore.abc.operator import Operator
    from flamecore.abc.registry import JobRegistry
    from flamecore.abc.sink import Sink
    from flamecore.abc.source import Source
    from flamecore.abc.store import Store
    from flamecore.abc.transport import Transport


API_FLOOR: Final = 1
"""The oldest version of the plugin contract that still works."""
API_CURRENT: Final = 1
"""The version of the plugin contract of this flamestream."""

Kind = Literal["transport", "acker", "source", "sink", "store", "registry", "host", "operator", "command", "hooks"]


class PluginKind(NamedTuple):
    """A row of the table of kinds: facts that hold for all plugins of one.

    Attributes:
        plural: For texts.
        driver: Whether a plugin is a class that states its name and the version of its contract.
    """

    plural: str
    driver: bool = True


KINDS: Final[Mapping[Kind, PluginKind]] = {
    "transport": PluginKind("transports"),
    "acker": PluginKind("ackers"),
    "source": PluginKind("sources"),
    "sink": PluginKind("sinks"),
    "store": PluginKind("stores"),
    "registry": PluginKind("registries"),
    "host": PluginKind("hosts"),
    "operator": PluginKind("operators"),
    "command": PluginKind("commands", driver=False),
    "hooks": PluginKind("hooks", driver=False),
}
"""Every kind, in the order in which they are listed. The hook of one is `flamestream_<kind>`."""

_overrides: ContextVar[Mapping[tuple[str, str], object]] = ContextVar("flamestream_overrides", default={})  # noqa: B039 – never changed, only replaced


@contextmanager
def override(kind: Kind, name: str, plugin: object) -> Iterator[None]:
    """Add a driver, command or observer without installing it.

    It takes the place of an installed one of the name. For tests.

    Args:
        kind: Its kind.
        name: The name that configurations use.
        plugin: The class (for commands the command, for hooks the module or object) that is returned for the name.
    """
    token = _overrides.set({**_overrides.get(), (kind, name): plugin})
    try:
        yield
    finally:
        _overrides.reset(token)


@dataclass(frozen=True, slots=True)
class Provider:
    """One entry of the installed plugins, and the distribution that provides it.

    Asking it imports nothing.
    """

    kind: Kind
    point: EntryPoint

    @property
    def name(self) -> str:
        """Return the name that configurations use."""
        return self.point.name

    @property
    def module(self) -> str:
        """Return the module that is imported when the plugin is named."""
        return self.point.module

    @property
    def distribution(self) -> str:
        """Return the name of the distribution that provides it."""
        return _name_and_version(self.point.dist)[0] if self.point.dist else "unknown"

    @property
    def version(self) -> str:
        """Return the version of the distribution."""
        return _name_and_version(self.point.dist)[1] if self.point.dist else "0"

    @property
    def extras(self) -> tuple[str, ...]:
        """Return the extras of the distribution."""
        return tuple(self.point.dist.metadata.get_all("Provides-Extra") or ()) if self.point.dist else ()

    def __str__(self) -> str:
        return f"{self.kind} {self.name!r} ({self.distribution} {self.version})"

    @property
    def facts(self) -> dict[str, Any]:
        """Return the fields that every plugin error has of it."""
        return {"kind": self.kind, "name": self.name, "distribution": self.distribution}


def _scan() -> dict[Kind, list[EntryPoint]]:
    """Return the entry points of all kinds that are installed now."""
    return _scanned(tuple([(place, _changed(place)) for place in sys.path]))


def _changed(place: str) -> int | None:
    """Return when a folder of modules was last changed, in nanoseconds.

    Installing and uninstalling change it. None: it does not exist.
    """
    try:
        return Path(place).stat().st_mtime_ns
    except OSError:
        return None


@lru_cache(maxsize=1)  # a program that runs many flows would spend most of the start of each on it
def _scanned(places: tuple[tuple[str, int | None], ...]) -> dict[Kind, list[EntryPoint]]:
    from importlib.metadata import entry_points  # 25 ms, not needed before the first question

    points = entry_points()
    return {kind: list(points.select(group=GROUP + kind)) for kind in KINDS}


# Entry points and metadata were more than half of the start of a job in a program that runs many.
@lru_cache(maxsize=64)
def _name_and_version(distribution: Distribution) -> tuple[str, str]:
    return distribution.name, distribution.version


class PluginRegistry:
    """The installed plugins, as one process sees them.

    Make one where it is needed; it reads nothing before the first question.

    Plugins installed after the first question are not seen.
    """

    def __init__(self) -> None:
        self._loaded: dict[tuple[Kind, str], object] = {}
        self._managers: dict[Kind, pluggy.PluginManager] = {}

    @cached_property
    def _points(self) -> dict[Kind, list[EntryPoint]]:
        return _scan()

    def names(self, kind: Kind) -> tuple[str, ...]:
        """Return every name of a kind, sorted. Imports nothing."""
        overridden = (name for of, name in _overrides.get() if of == kind)
        return tuple(sorted({*(point.name for point in self._points[kind]), *overridden}))

    def providers(self, kind: Kind) -> list[Provider]:
        """Return the providers of a kind, sorted by name. Imports nothing.

        A name that two distributions provide is there twice.
        """
        found = [Provider(kind, point) for point in self._points[kind]]
        return sorted(found, key=lambda provider: (provider.name, provider.distribution))

    @overload
    def get(self, kind: Literal["transport"], name: str) -> type[Transport]: ...
    @overload
    def get(self, kind: Literal["acker"], name: str) -> type[Acker]: ...
    @overload
    def get(self, kind: Literal["source"], name: str) -> type[Source]: ...
    @overload
    def get(self, kind: Literal["sink"], name: str) -> type[Sink]: ...
    @overload
    def get(self, kind: Literal["store"], name: str) -> type[Store]: ...
    @overload
    def get(self, kind: Literal["registry"], name: str) -> type[JobRegistry]: ...
    @overload
    def get(self, kind: Literal["host"], name: str) -> type[NodeHost]: ...
    @overload
    def get(self, kind: Literal["operator"], name: str) -> type[Operator]: ...
    @overload
    def get(self, kind: Literal["command"], name: str) -> click.Command: ...
    @overload
    def get(self, kind: Kind, name: str) -> Any: ...
    def get(self, kind: Kind, name: str) -> object:
        """Import a plugin and return its object.

        It is a driver's class, a command, or the module of an observer.

        Args:
            kind: Its kind.
            name: Its name, or `distribution:name` where several distributions provide the name.

        Raises:
            UnknownPluginError: No distribution provides it.
            PluginConflictError: Several distributions provide it.
            PluginLoadError: Its module cannot be imported, or lacks the object that its entry point promises.
            MissingDependencyError: Its client library is not installed.
            PluginApiError: It was written for another version of the contract.
        """
        if (kind, name) in (overrides := _overrides.get()):
            return overrides[kind, name]
        if (kind, name) not in self._loaded:
            provider = self._provider(kind, name)
            self._loaded[kind, name] = self._load(provider)
        return self._loaded[kind, name]

    def guarded(self, kind: Kind, name: str, place: str = "") -> Any:
        """Return a plugin as `get` does, held to its contract.

        An error of a broken contract names the plugin.

        Args:
            kind, name: See `get`.
            place: Dotted key of its use, if there may be several: "source.lines".

        Raises:
            PluginLoadError: Also if it is of no class of its contract, or lacks a method of it.
        """
        from flamecore.runtime.config.guard import Origin, guarded  # late: only to list plugins it is not needed

        plugin = self.get(kind, name)
        if (kind, name) in _overrides.get():
            module = getattr(plugin, "__module__", None) or type(plugin).__module__
            return guarded(plugin, Origin(kind, name, None, None, module, place))
        provider = self._provider(kind, name)
        return guarded(
            plugin, Origin(kind, provider.name, provider.distribution, provider.version, provider.module, place)
        )

    def check(self, provider: Provider) -> None:
        """Import one plugin to see whether it works. Raises as `get`."""
        self._load(provider)

    def _provider(self, kind: Kind, name: str) -> Provider:
        distribution, _, short = name.rpartition(":")
        points = [point for point in self._points[kind] if point.name == short]
        found = [Provider(kind, point) for point in points]
        if distribution:
            found = [provider for provider in found if _canonical(provider.distribution) == _canonical(distribution)]
        if not found:
            raise self._unknown(kind, name)
        if len(found) > 1:
            distributions = tuple(sorted(provider.distribution for provider in found))
            raise PluginConflictError(
                f"{kind} {name!r} is provided by {len(found)} distributions: {', '.join(distributions)}",
                hint=f"Write {distributions[0]}:{short} or {distributions[1]}:{short}, or uninstall one of them.",
                kind=kind,
                name=name,
                distribution=None,
                distributions=distributions,
            )
        return found[0]

    def _unknown(self, kind: Kind, name: str) -> UnknownPluginError:
        known = self.names(kind)
        hint = suggestion(name, known)
        driver, _, file = name.rpartition(":")
        if kind in ("source", "sink") and ("." in file or "/" in file):  # where it is, and not what reads it
            driver = next((each for each in (driver, file.rpartition(".")[2]) if each in known), "DRIVER")
            hint = f"For a file: --{kind} NAME={driver} --set {kind}.NAME.path={file}. Known: {', '.join(known)}."
        return UnknownPluginError(
            f"no {kind} named {name!r} is installed",
            hint=hint,
            kind=kind,
            name=name,
            known=known,
            nearest=nearest(name, known),
        )

    def _load(self, provider: Provider) -> object:
        try:
            plugin = self._register(provider, provider.point.load())
        except PluginError:
            raise
        except ModuleNotFoundError as error:
            self._missing(provider, error)
        except Exception as error:
            raise PluginLoadError(
                f"{provider} cannot be imported: {type(error).__name__}: {error}{user_lines(error)}",
                hint=f"Its module is {provider.module}; try: python -c 'import {provider.module}'",
                **provider.facts,
            ) from error
        if KINDS[provider.kind].driver:
            _check_driver(provider, plugin)
        return plugin

    def _missing(self, provider: Provider, error: ModuleNotFoundError) -> NoReturn:
        absent = (error.name or "").partition(".")[0]
        own = provider.module.partition(".")[0]
        if not absent or absent in (own, "flamecore") or absent in sys.stdlib_module_names:
            raise PluginLoadError(
                f"{provider} is broken: {error}",
                hint=f"Install {provider.distribution} again, or report it to its author.",
                **provider.facts,
            ) from error
        extra = next((extra for extra in (provider.name, absent) if extra in provider.extras), None)
        others = [name for name in self.names(provider.kind) if name != provider.name]
        command = install_command(provider.distribution, extra) if extra else install_command(absent)
        raise MissingDependencyError(
            f"{provider} needs module {absent!r}, which is not installed",
            hint=f"Other {KINDS[provider.kind].plural}: {', '.join(others) or 'none'}. Run: {command}",
            module=absent,
            extra=extra,
            **provider.facts,
        ) from error

    def _manager(self, kind: Kind) -> pluggy.PluginManager:
        # One manager a kind: a module may be both a source and a sink, and a manager takes a module once.
        if kind not in self._managers:
            import pluggy

            from flamecore.abc.hooks import PROJECT, DriverSpecs, ObserverSpecs

            manager = self._managers[kind] = pluggy.PluginManager(PROJECT)
            manager.add_hookspecs(ObserverSpecs if kind == "hooks" else DriverSpecs)
        return self._managers[kind]

    def _register(self, provider: Provider, module: object) -> object:
        from pluggy import PluginValidationError

        manager = self._manager(provider.kind)
        name = f"{provider.kind}.{provider.name}"
        if manager.has_plugin(name):
            name = f"{provider.kind}.{provider.distribution}:{provider.name}"
        try:
            if not manager.is_registered(module):
                manager.register(module, name)
            manager.check_pending()
        except PluginValidationError as error:
            if manager.is_registered(module):
                manager.unregister(module)
            raise PluginLoadError(f"{provider} has a wrong hook: {error}", **provider.facts) from error
        if provider.kind == "hooks":
            return module
        hook = f"flamestream_{provider.kind}"
        others = [plugin for plugin in manager.get_plugins() if plugin is not module]
        plugin = manager.subset_hook_caller(hook, others)()
        if plugin is None:
            raise PluginLoadError(
                f"{provider}: module {provider.module} provides nothing by its hook {hook}",
                hint=f"Define {hook}() there, with @hookimpl of flamecore.plugin, and return the {provider.kind}.",
                **provider.facts,
            )
        return plugin


def _canonical(distribution: str) -> str:
    return re.sub(r"[-_.]+", "-", distribution).lower()


def _check_driver(provider: Provider, driver: object) -> None:
    api = getattr(driver, "api", None)
    if not isinstance(api, int) or not API_FLOOR <= api <= API_CURRENT:
        spoken = str(API_CURRENT) if API_FLOOR == API_CURRENT else f"{API_FLOOR} to {API_CURRENT}"
        other = "flamestream" if isinstance(api, int) and api > API_CURRENT else provider.distribution
        raise PluginApiError(
            f"{provider} was written for version {api} of the plugin contract, and {spoken} is supported here",
            hint=f"Upgrade {other}: pip install --upgrade {other}",
            api=api,
            floor=API_FLOOR,
            current=API_CURRENT,
            **provider.facts,
        )
    if getattr(driver, "name", None) != provider.name:
        raise PluginLoadError(
            f"{provider} calls itself {getattr(driver, 'name', None)!r}",
            hint="The class attribute `name` and the entry point must have one name.",
            **provider.facts,
        )
