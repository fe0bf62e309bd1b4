"""The hooks that a plugin module may implement (pluggy).

Every name starts with `flamestream_`.

A *driver* module implements the one hook of its kind and returns its class: hooks are called when the driver is
named by a configuration, never per item. An *observer* is told of events and can change nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pluggy

if TYPE_CHECKING:
    from flamecore.abc.acker import Acker
    from flamecore.abc.host import NodeHost
    from flamecore.abc.operator import Operator
    from flamecore.abc.registry import JobRegistry
    from flamecore.abc.sink import Sink
    from flamecore.abc.source import Source
    from flamecore.abc.store import Store
    from flamecore.abc.transport import Transport


PROJECT = "flamestream"
hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


class DriverSpecs:
    """One hook for each kind of driver.

    The entry-point group of a kind is `flamestream.<kind>`.
    """

    @hookspec(firstresult=True)
    def flamestream_transport(self) -> type[Transport] | None:
        """Return the transport class of this module."""

    @hookspec(firstresult=True)
    def flamestream_acker(self) -> type[Acker] | None:
        """Return the acker class of this module."""

    @hookspec(firstresult=True)
    def flamestream_source(self) -> type[Source] | None:
        """Return the source class of this module."""

    @hookspec(firstresult=True)
    def flamestream_sink(self) -> type[Sink] | None:
        """Return the sink class of this module."""

    @hookspec(firstresult=True)
    def flamestream_store(self) -> type[Store] | None:
        """Return the state store class of this module."""

    @hookspec(firstresult=True)
    def flamestream_registry(self) -> type[JobRegistry] | None:
        """Return the class of this module's registry of jobs."""

    @hookspec(firstresult=True)
    def flamestream_host(self) -> type[NodeHost] | None:
        """Return the class of the host that this module starts nodes on."""

    @hookspec(firstresult=True)
    def flamestream_operator(self) -> type[Operator] | None:
        """Return the class that computes the vertices of this module."""

    @hookspec(firstresult=True)
    def flamestream_command(self) -> Any:
        """Return a `click.Command` that becomes a sub-command of `flamestream`."""


class ObserverSpecs:
    """The events that a module of the group `flamestream.hooks` may listen to.

    No result may depend on it.
    """

    @hookspec
    def flamestream_job_started(self, job: str, workers: int) -> None:
        """Observe the start of a job."""

    @hookspec
    def flamestream_minimum_time_advanced(self, worker: int, time: int) -> None:
        """Observe that a worker has a new minimum time of the sinks' segment."""

    @hookspec
    def flamestream_batch_released(self, sink: str, time: int, count: int) -> None:
        """Observe that a rear has delivered `count` items.

        Everything below `time` is delivered.
        """

    @hookspec
    def flamestream_job_ended(self, job: str, error: BaseException | None) -> None:
        """Observe the end of a job; `error` is None if it ended well."""


class Observers:
    """All observers of a job, called in the order in which they were given.

    With none a call costs nothing.

    Args:
        observers: Objects or modules that implement hooks of `flamecore.abc.hooks.ObserverSpecs`.
    """

    def __init__(self, observers: Sequence[object]) -> None:
        self._hook = None
        if observers:
            manager = pluggy.PluginManager(PROJECT)
            manager.add_hookspecs(ObserverSpecs)
            for observer in reversed(observers):  # the last registered is called first
                manager.register(observer)
            manager.check_pending()
            self._hook = manager.hook

    def job_started(self, job: str, workers: int) -> None:
        if self._hook is not None:
            self._hook.flamestream_job_started(job=job, workers=workers)

    def minimum_time_advanced(self, worker: int, time: int) -> None:
        if self._hook is not None:
            self._hook.flamestream_minimum_time_advanced(worker=worker, time=time)

    def batch_released(self, sink: str, time: int, count: int) -> None:
        if self._hook is not None:
            self._hook.flamestream_batch_released(sink=sink, time=time, count=count)

    def job_ended(self, job: str, error: BaseException | None) -> None:
        if self._hook is not None:
            self._hook.flamestream_job_ended(job=job, error=error)
