"""Sinks in partitions as commands find them: by the folder of their files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from flamecore.abc.sink import PartitionedSink


def sink_of_folder(folder: Path, parameter: str) -> PartitionedSink:
    """Make the sink that has written a folder.

    The names of its files begin alike and end with its name.

    Args:
        folder: The folder.
        parameter: The argument of the command that names it, for errors.

    Raises:
        BadParameter: There are no files, or those of several sinks, or it is no folder.
    """
    from flamecore.abc.source import EdgeContext
    from flamecore.runtime.config.options import options_of
    from flamecore.runtime.config.plugins import PluginRegistry

    if not folder.is_dir():
        raise click.BadParameter(f"{folder} is a file; to name a job: --app {folder}", param_hint=parameter)
    plugins = PluginRegistry()
    endings = [path.name.split(".")[1:] for path in folder.glob("part-*.*")]
    known = set(plugins.names("sink"))
    # The files may be lost, and those beside them left.
    kinds = {one[0] for one in endings if len(one) == 1} & known or {one[0] for one in endings} & known
    if len(kinds) != 1:
        found = f"of {' and '.join(sorted(kinds))}" if kinds else "of a sink in partitions"
        raise click.BadParameter(f"{folder} has {'files' if kinds else 'no files'} {found}", param_hint=parameter)
    driver = plugins.get("sink", kinds.pop())
    sink = driver(options_of(driver, {"path": str(folder)}, "sink"), EdgeContext(folder.name)).partitioned()
    if sink is None:
        raise click.BadParameter(f"{folder} is not written in partitions", param_hint=parameter)
    return sink
