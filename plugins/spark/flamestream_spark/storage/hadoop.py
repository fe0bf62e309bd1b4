"""File systems whose classes a session of Spark has.

Spark reads and writes URLs by these, and not by fsspec.
"""

from __future__ import annotations

from typing import Any

from flamecore.errors import SourceError
from flamecore.toolkit.places import is_url, scheme_of
from flamestream_spark.session.messages import gist

_JARS = {
    "s3a": "org.apache.hadoop:hadoop-aws",
    "gs": "com.google.cloud.bigdataoss:gcs-connector:hadoop3-2.2.22",
    "abfs": "org.apache.hadoop:hadoop-azure",
    "abfss": "org.apache.hadoop:hadoop-azure",
}
"""Packages that bring the file system of a scheme. Those of Hadoop itself have its version."""


def check_reach(spark: Any, url: str, source: str) -> None:
    """Check that a session has the file system of a URL.

    Over Spark Connect that is not known.

    Args:
        spark: The session.
        url: The URL to read.
        source: Name of the source, for errors.

    Raises:
        SourceError: It has not.
    """
    try:
        _look_up(spark, url)
    except Exception as error:
        scheme, jvm = scheme_of(url), spark._jvm
        package = _JARS.get(scheme, "")
        if package.startswith("org.apache.hadoop"):
            package += f":{jvm.org.apache.hadoop.util.VersionInfo.getVersion()}"
        hint = (
            f'Give the session its jar: config = {{ "spark.jars.packages" = "{package}" }}.'
            if package
            else f'Name its class, "spark.hadoop.fs.{scheme}.impl", and its jar in the config of the session'
            + ("; or say s3a://." if scheme == "s3" else ".")
        )
        raise SourceError(
            f"source {source!r}: Spark has no file system for {url}: {gist(str(error)) or repr(error)}",
            hint=hint,
            source=source,
            position=url,
        ) from error


def has_file_system(spark: Any, url: str) -> bool:
    """Return whether a session has the file system of a URL.

    Over Spark Connect, where that is not known, return True.
    """
    try:
        _look_up(spark, url)
    except Exception:  # noqa: BLE001 - whatever Java says of it
        return False
    return True


def _look_up(spark: Any, url: str) -> None:
    jvm = getattr(spark, "_jvm", None)
    if jvm is None or not is_url(url):
        return
    settings = spark._jsparkSession.sessionState().newHadoopConf()
    jvm.org.apache.hadoop.fs.FileSystem.getFileSystemClass(scheme_of(url), settings)
