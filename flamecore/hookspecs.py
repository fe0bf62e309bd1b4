"""The hooks a plugin module may implement (pluggy). Every name starts with `flamestream_`.

A *driver* module implements the one hook of its kind and returns its class: hooks are called when the driver is
named by a configuration, never per item. An *observer* is told of events and can change nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pluggy

if TYPE_CHECKING:
    from flamecore.acker import Acker
    from flamecore.front import Source
    from flamecore.hosting import Host
    from flamecore.jobregistry import JobRegistry
    from flamecore.rear import Sink
    from flamecore.store import Store
    from flamecore.transport import Transport

PROJECT = "flamestream"
hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


class DriverSpecs:
    """One hook for each kind of driver; the entry-point group of a kind is `flamestream.<kind>`."""

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
    def flamestream_host(self) -> type[Host] | None:
        """Return the class of what this module starts nodes on."""

    @hookspec(firstresult=True)
    def flamestream_command(self) -> Any:
        """Return a `click.Command` that becomes a sub-command of `flamestream`."""


class ObserverSpecs:
    """What a module of the group `flamestream.hooks` may listen to. No result may depend on it."""

    @hookspec
    def flamestream_job_started(self, job: str, workers: int) -> None:
        """A job has started."""

    @hookspec
    def flamestream_minimum_time_advanced(self, worker: int, time: int) -> None:
        """A worker has learnt of a new minimum time of the sinks' segment."""

    @hookspec
    def flamestream_batch_released(self, sink: str, time: int, count: int) -> None:
        """A rear has delivered `count` items; everything below `time` is delivered."""

    @hookspec
    def flamestream_job_ended(self, job: str, error: BaseException | None) -> None:
        """A job has ended; `error` is None if it ended well."""
