"""Object stores and HDFS through fsspec.

They are for drivers that create an object only if there is none of its name. fsspec's default is to look first and then
to write. Only those file systems are known here that pass the condition to the server: Amazon S3 and those that speak
its protocol (`If-None-Match: *`), Google Cloud Storage (`ifGenerationMatch=0`), Azure Blob Storage (`If-None-Match:
*`), HDFS (a rename that does not replace).
"""

from __future__ import annotations

import errno
import re
from collections.abc import Mapping
from typing import Any, Final

from flamecore.suggest import install_command
from flamecore.toolkit.hadoop import HadoopFiles

PACKAGES: Final = {
    "s3": "s3fs",
    "s3a": "s3fs",
    "gs": "gcsfs",
    "gcs": "gcsfs",
    "az": "adlfs",
    "abfs": "adlfs",
    "abfss": "adlfs",
    "hdfs": "hdfs-native",
}
"""The distribution that fsspec needs for a protocol."""

_STACK: Final = re.compile(r"(?:\n|\\n)(?:\t|\\t)at .*", re.DOTALL)
"""The stack trace of a Java server, as it is or within quotes."""


def object_store(url: str, options: Mapping[str, object]) -> Any:
    """Return the file system for a URL: fsspec's, or what behaves as one.

    Files of other processes are seen at once: no listing is cached.

    Args:
        url: The URL.
        options: fsspec's, such as credentials; for HDFS, settings of Hadoop.

    Raises:
        ImportError: fsspec, or the client for that protocol, is not installed.
        Exception: The client's own: it cannot be used so.
    """
    protocol = url.partition("://")[0]
    if protocol == "hdfs":
        return HadoopFiles(url, options)
    import fsspec

    return fsspec.filesystem(protocol, skip_instance_cache=True, use_listings_cache=False, **options)


def missing_package(url: str, error: ImportError) -> tuple[str, str]:
    """Return the module that an `object_store` lacks, and the install command."""
    package = "fsspec" if error.name == "fsspec" else PACKAGES.get(url.partition("://")[0], "fsspec")
    if package == "hdfs-native":
        return package, install_command(package)
    return package, install_command("flamestream", "fsspec", more=[package] * (package != "fsspec"))


def create_object(files: Any, path: str, data: bytes) -> bool:
    """Create an object; return whether it was created.

    False: there is one of that name.

    Args:
        files: An `object_store`.
        path: Its path, as fsspec takes it.
        data: Its content.

    Raises:
        Exception: The client's own: the server says no.
    """
    try:
        files.pipe_file(path, data, mode="create")
    except FileExistsError:
        return False
    except OSError as error:
        # An S3 server that does not name the failed condition, of which there is one.
        if error.errno == errno.EINVAL and "condition" in str(error).lower():
            return False
        raise
    return True


def message_of(error: Exception) -> str:
    r"""Return the message of a client's error, without the stack trace of a Java server.

    >>> message_of(OSError("File exists: /a\n\tat org.apache.hadoop.hdfs.server"))
    'File exists: /a'
    """
    return _STACK.sub("", str(error)).strip() or type(error).__name__
