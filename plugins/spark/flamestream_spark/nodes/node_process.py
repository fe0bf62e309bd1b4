"""The main program of a node below a task: that of all nodes, with the files that Spark has sent.

python -m flamestream_spark.nodes.node_process BOOTSTRAP.json
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flamecore.runtime.cluster.node_process import run_program


def find_files(bootstrap: Mapping[str, Any]) -> None:
    """Set the folder where `SparkFiles` finds the files of the task, as PySpark does in its own processes alone."""
    if folder := bootstrap.get("files"):
        from pyspark import SparkFiles

        SparkFiles._root_directory, SparkFiles._is_running_on_worker = folder, True


if __name__ == "__main__":
    run_program(find_files)
