"""The file systems that a session of Spark has the classes of: it reads and writes URLs by these, and not by fsspec."""

from __future__ import annotations

from typing import Any

from flamecore.errors import SourceError
from flamestream_spark.session.messages import gist
from flamestream_spark.storage.place import is_url

_JARS = {
    "s3a": "org.apache.hadoop:hadoop-aws",
    "gs": "com.google.cloud.bigdataoss:gcs-connector",
    "abfs": "org.apache.hadoop:hadoop-azure",
    "abfss": "org.apache.hadoop:hadoop-azure",
}
"""Packages that bring the file system of a scheme. Those of Hadoop itself have its version."""


def check_reach(spark: Any, url: str, source: str) -> None:
    """Make sure that a session has the file system of a URL. Over Spark Connect that is not known.

    Args:
        spark: The session.
        url: What it is to read.
        source: Name of the source, for errors.

    Raises:
        SourceError: It has not.
    """
    jvm = getattr(spark, "_jvm", None)
    if jvm is None or not is_url(url):
        return
    scheme = url.partition("://")[0]
    try:
        settings = spark._jsparkSession.sessionState().newHadoopConf()
        jvm.org.apache.hadoop.fs.FileSystem.getFileSystemClass(scheme, settings)
    except Exception as error:
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
