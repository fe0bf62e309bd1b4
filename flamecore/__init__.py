"""Deterministic, exactly-once, low-latency stream processing, with cycles.

    import flamecore as fc

    flow = fc.Flow("word-count")
    flow.source("lines", str).flat_map(str.split).key_by(lambda word: word).count().sink("counts")
    outputs = flow.run({"lines": ["to be or not to be"]})

Importing this package imports no plugin and sets nothing up.
"""

from __future__ import annotations

from flamecore._version import __version__
from flamecore.errors import (
    CodecError,
    ConfigError,
    ConsistencyError,
    FlameError,
    GraphError,
    JobError,
    OperationError,
    PluginError,
    SinkError,
    SourceError,
    TransportError,
)
from flamecore.flow import Flow
from flamecore.model.graph import Graph
from flamecore.model.meta import DataItem, GlobalTime, Meta
from flamecore.model.ordered import Gathered
from flamecore.model.stream import KeyedStream, Stream
from flamecore.model.type_codec import TypeCodec

__all__ = [
    "CodecError",
    "ConfigError",
    "ConsistencyError",
    "DataItem",
    "FlameError",
    "Flow",
    "Gathered",
    "GlobalTime",
    "Graph",
    "GraphError",
    "JobError",
    "KeyedStream",
    "Meta",
    "OperationError",
    "PluginError",
    "SinkError",
    "SourceError",
    "Stream",
    "TransportError",
    "TypeCodec",
    "__version__",
]
