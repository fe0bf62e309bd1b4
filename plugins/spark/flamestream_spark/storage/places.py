"""Which place a path means."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flamecore.errors import ConfigError
from flamecore.toolkit.places import is_url
from flamestream_spark.storage.folder import FolderPlace
from flamestream_spark.storage.objects import ObjectPlace, check_url
from flamestream_spark.storage.place import Place, local_path


def place_of(
    path: str | Path,
    where: str,
    options: Mapping[str, Any] | None = None,
    *,
    private: bool = False,
    durable: bool = True,
) -> Place:
    """Return the place that a path means. Nothing is opened.

    Args:
        path: A folder, or a URL.
        where: Path of the option, for errors.
        options: fsspec's, for a URL.
        private: See `FolderPlace`, as `durable`.
        durable: Whether files outlast a loss of power.

    Raises:
        ConfigError: It is a URL of a place where exactly once cannot be kept.
        MissingDependencyError: The client for such URLs is not installed.
    """
    if is_url(str(path)):
        check_url(str(path), where)
        return ObjectPlace(str(path), options)
    return FolderPlace(local_path(str(path)), private=private, durable=durable)


def made(path: str | Path, where: str) -> Place:
    """Return the place that a path means, which is there from now on.

    Args:
        path: A folder, or a URL.
        where: Path of the option, for errors.

    Raises:
        ConfigError: It cannot be reached, or as `place_of`.
        MissingDependencyError: The client for such URLs is not installed.
    """
    place = place_of(path, where)
    try:
        place.folder("")
        place.make()
    except OSError as error:
        raise ConfigError(
            f"{where}: {place.url} cannot be made: {error.strerror or error}",
            hint="Does it exist, and may this user write there? Credentials of an object store are in the environment.",
            path=where,
        ) from error
    return place
