"""From a configuration and a flow to a job.

`lay_out` notes all that is wrong instead of stopping at the first problem, and starts nothing: it is what
`flamestream check` shows. `prepare` goes on to the job, and `run_embedded` runs it here and now.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from flamecore.config import JobConfig
from flamecore.flow import Flow
from flamecore.layout import Layout
from flamecore.registry import Registry
from flamecore.strict import Problems

if TYPE_CHECKING:
    from flamecore.job import Job


def lay_out(
    config: JobConfig,
    flow: Flow,
    *,
    given: Mapping[str, Any] | None = None,
    registry: Registry | None = None,
    problems: Problems | None = None,
) -> Layout:
    """Find and build every part of a job, and note all that is wrong. Starts nothing, opens nothing.

    Args:
        config: What is configured.
        flow: What is to run.
        given: Values that a program hands over, by name of the source or sink: these use the memory driver.
        registry: Where drivers are found.
        problems: Takes what is wrong, besides what it holds already.
    """
    found = Problems() if problems is None else problems
    return Layout(config, flow, registry or Registry(), given or {}, found).build()


def prepare(
    config: JobConfig, flow: Flow, *, given: Mapping[str, Any] | None = None, registry: Registry | None = None
) -> Job:
    """Build the job. Arguments as for `lay_out`.

    Raises:
        FlameError: Something cannot work; further problems are notes of the error.
    """
    return lay_out(config, flow, given=given, registry=registry).job()
