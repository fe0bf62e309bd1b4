"""The typed face of the observer hooks: what a job tells whoever listens.

Called per batch or life-cycle step, never per item.
"""

from __future__ import annotations

from collections.abc import Sequence


class Observers:
    """Calls the observers in the order they were given. With none it costs nothing.

    Args:
        observers: Objects or modules that implement hooks of `flamecore.hookspecs.ObserverSpecs`.
    """

    def __init__(self, observers: Sequence[object]) -> None:
        self._hook = None
        if observers:
            import pluggy

            from flamecore.hookspecs import PROJECT, ObserverSpecs

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
