"""Sources `spark` of a job whose workers are tasks of Spark.

The driver has the session; tasks read what it writes.

For each such source the driver begins to fill a spool before the workers start; the worker that has its front waits for
parts there. A worker that is started again reads the same parts: Spark does not read again.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from functools import cache
from hashlib import blake2s
from pathlib import Path
from typing import Final

import msgspec

from flamecore.abc.config import Edge, JobConfig, SinkEdge
from flamecore.abc.source import EdgeContext
from flamecore.errors import ConfigError, FlameError
from flamecore.runtime.config.options import options_of
from flamestream_spark.scratch import make_temporary
from flamestream_spark.source import SparkSource, says_what
from flamestream_spark.spool.reader import Feeds

_PREFIX: Final = "flamestream-spool-"


def sources_of(config: JobConfig) -> dict[str, Edge]:
    """Return the sources that Spark reads, by name."""
    found = {name: edge for name, edge in config.source.items() if (edge.use or "").rpartition(":")[2] == "spark"}
    return {name: edge for name, edge in found.items() if says_what(edge.options)}


def sinks_of(config: JobConfig) -> dict[str, SinkEdge]:
    """Return the sinks that write as Spark does, by name."""
    return {name: edge for name, edge in config.sink.items() if (edge.use or "").rpartition(":")[2] == "spark"}


def with_spools(config: JobConfig, *, local: bool) -> JobConfig:
    """Return a configuration in which every such source has a spool.

    The spool is temporary where everything is on this machine.
    """
    sources = dict(config.source)
    for name, edge in sources_of(config).items():
        if local and not edge.options.get("spool"):
            said = f"{config.folder}\0{config.job.name}\0{config.job.flow}\0{name}\0{os.getpid()}"
            folder = _home() / (_PREFIX + blake2s(said.encode(), digest_size=8).hexdigest())
            sources[name] = msgspec.structs.replace(edge, options={**edge.options, "spool": str(folder)})
    return msgspec.structs.replace(config, source=sources)


@cache
def _home() -> Path:
    """Return the folder for all temporary spools of this program."""
    return make_temporary()


def without_spool(config: JobConfig) -> Iterator[ConfigError]:
    """Such sources whose rows would have no place that executors and workers reach."""
    for name, edge in sources_of(config).items():
        if not edge.options.get("spool"):
            yield ConfigError(
                f"source.{name}: executors that read it, and the worker that takes it, may be on different machines",
                hint='Name a folder that all of them reach: spool = "/mnt/shared/spool".',
                path=f"source.{name}.spool",
            )


class Feed:
    """Fills the spools of a job's sources.

    Args:
        config: The job's, with spools.
        job: Name of the job.
    """

    def __init__(self, config: JobConfig, job: str = "") -> None:
        self._config, self._job = config, job
        self._feeding: list[Feeds] = []

    def _sources(self) -> Iterator[SparkSource]:
        for name, edge in sources_of(self._config).items():
            options = options_of(SparkSource, edge.options, f"source.{name}", self._config.origins)
            yield SparkSource(options, EdgeContext(name, job=self._job, folder=self._config.folder))

    def start(self, failed: Callable[[FlameError], None]) -> None:
        """Begin with all of them. Needs a session that is active.

        Args:
            failed: Told in another thread when one has failed.

        Raises:
            SourceError: Something cannot be read at all.
        """
        self._feeding.extend(source.feed(failed) for source in self._sources())

    def stop(self) -> None:
        """End them, and take away what was made here."""
        for feeding in self._feeding:
            feeding.stop()
        self._feeding.clear()
        for edge in sources_of(self._config).values():
            folder = Path(edge.options.get("spool", ""))
            if folder.name.startswith(_PREFIX):
                shutil.rmtree(folder, ignore_errors=True)
