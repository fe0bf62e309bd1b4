"""Names of the default drivers, and of the drivers that serve as examples.

The core knows plugins by their promises. It names some only here, because a job without a configuration has to run,
and because a hint with a name that works helps more than one with a gap. All of them are in the wheel.
"""

from __future__ import annotations

from typing import Final

TRANSPORT: Final = "inproc"
TRANSPORT_TO_HOST: Final = "grpc"
ACKER: Final = "centralized"
HOST: Final = "processes"
REGISTRY: Final = "supervisor"
"""The drivers of a job whose configuration does not name one.

Of transports the second is that of jobs on a host that does not choose one itself.
"""

SINK: Final = "stdout"
"""The driver of a sink that the configuration does not mention."""

HANDED_OVER: Final = "memory"
"""The driver of sources and sinks whose records or lists a program hands over."""

STATE_IN_FOLDER: Final = "sqlite"
"""The store of a program that gives a folder for its state, and the example for jobs without a store."""

ACKERS: Final = ("centralized", "local", "sharded")
"""The ackers that the test kit runs flows with by default."""

FILE_OF_RECORDS: Final = "jsonl"
"""The source or sink that keeps records in a file: the example for dead letters, and read by the test kit."""

EXAMPLE_SOURCE: Final = "stdin"
EXAMPLE_TRANSPORT: Final = "grpc"
"""The examples for a source without a driver, and for a transport that is reached from elsewhere."""

REPLAYABLE_SOURCES: Final = ("lines", "jsonl", "csv")
EXACTLY_ONCE_SINKS: Final = ("sqlite", "jsonl")
PARTITIONED_SINKS: Final = ("jsonl", "csv")
"""The examples of sources that can be read again, of sinks that know their contents, and of sinks that write in
partitions."""
