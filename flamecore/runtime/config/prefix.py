"""The prefix of a source on its errand: input and result of another process.

The other process imports the flow as nodes do: from its files, or where these do not exist, from a copy of them.
Results are data, and nothing in them is run.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter, thread_time
from typing import Any, Final

from flamecore._version import __version__
from flamecore.abc.source import Prefix
from flamecore.errors import CodecError, ConfigError
from flamecore.model.flow import FlowGraph
from flamecore.model.graph import Graph
from flamecore.model.vertices import Source, user_functions
from flamecore.runtime.codec.codec import Codec
from flamecore.runtime.config.flow_loader import code_of, copy_of, importable, load_flow_anew, locate
from flamecore.runtime.operators.prefix import PrefixRun, records_of

_FORMAT: Final = 1
"""Version of `flamecore.runtime.operators.prefix.Block`."""


_ENOUGH: Final = 3
_WEIGHED: Final = 9
"""Least and largest number of blocks that are weighed."""


class FlowPrefix(Prefix):
    """The prefix of a source of a flow.

    Args:
        flow: The flow, as imported here.
        graph: Its checked graph.
        source: One of its sources, with a prefix.
    """

    def __init__(self, flow: FlowGraph, graph: Graph, source: Source) -> None:
        self.operations = tuple(vertex.name for vertex in graph.prefix_of(source))
        self._flow, self._graph, self._source = flow, graph, source

    @cached_property
    def version(self) -> bytes:
        # Everything that results depend on: those of another version of the flow, or of
        # flamestream, are not used.
        facts = (__version__, _FORMAT, self._source.name, self.operations, self._code)
        return hashlib.sha256(repr(facts).encode()).digest()[:16]

    @cached_property
    def _code(self) -> str:
        return code_of(self._flow, self._functions)

    @property
    def _functions(self) -> list[Any]:
        return [function for vertex in self._graph.vertices for function in user_functions(vertex)]

    @cached_property
    def _codec(self) -> Codec:
        return Codec.of(self._graph)

    def errand(self) -> Mapping[str, object] | None:
        try:
            reference, folder = importable(self._flow)
        except ConfigError:
            return None
        if not self._code:  # whether it is the same elsewhere could not be told
            return None
        return {
            "reference": reference,
            "folder": folder,
            "code": copy_of(self._flow, self._functions),
            "source": self._source.name,
            "version": self.version,
        }

    def read(self, data: bytes) -> list[object]:
        return list(records_of(self._codec.decode(data)))


class Errand:
    """The prefix of a source in another process.

    Args:
        told: The result of `FlowPrefix.errand`.

    Raises:
        ConfigError: The flow cannot be imported, or it is another version here.

    Attributes:
        type: The type of records that the source declares.
        worth: Whether it saves the workers more than reading its results costs them. The first blocks are weighed: a
            function that takes a microsecond is called sooner than its results are read.
    """

    def __init__(self, told: Mapping[str, object]) -> None:
        with TemporaryDirectory(prefix="flamestream-") as spare:
            flow = imported(told, Path(spare))
            graph = flow.graph()
            source = next((one for one in graph.sources if one.name == told["source"]), None)
            if source is None or not graph.prefix_of(source):
                raise ConfigError(f"flow {flow.name!r} has no such source here: {told['source']}", path="job.flow")
            if FlowPrefix(flow, graph, source).version != told["version"]:
                raise ConfigError(
                    f"flow {flow.name!r} is another version here than the one that runs",
                    hint="Install one version everywhere.",
                    path="job.flow",
                )
        self.type: object = source.type
        self._codec = Codec.of(graph)
        self._run = PrefixRun(graph, source)
        self.worth = True
        self._weighed = self._spared = 0

    def block(self, values: Sequence[object], places: Sequence[int], count: int) -> bytes | None:
        """Run the prefix for records and return the block.

        Args:
            values: The records.
            places: The place of each of them in the block, ascending.
            count: Number of places; those without a record are left to the worker.

        Returns:
            The encoded block; None: some results cannot be encoded.
        """
        began = perf_counter()
        made = self._run.block(values, places, count)
        ran_s = perf_counter() - began
        try:
            data = self._codec.encode(made)
        except CodecError:
            return None
        # The first blocks alone: weighing reads what a worker will read again.
        if self._weighed < _WEIGHED:
            self._weigh(data, ran_s)
        return data

    def _weigh(self, data: bytes, ran_s: float) -> None:
        """Note whether a block takes longer to make than to read.

        Making is measured by the clock, as a function may wait; reading by processor time.
        """
        began = thread_time()
        records_of(self._codec.decode(data))
        self._spared += 1 if ran_s > thread_time() - began else -1
        self._weighed += 1
        self.worth = self._weighed < _ENOUGH or self._spared > 0


def imported(told: Mapping[str, Any], spare: Path) -> FlowGraph:
    """Import the flow of an errand, and its modules anew.

    This process may have imported an earlier version of them.

    Args:
        told: Its `reference`, the `folder` that this is relative to, and its `code` by path.
        spare: A folder for the code.
    """
    for path, source in told["code"].items():
        file = spare / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(source)
    try:
        return load_flow_anew(*locate(told["reference"], Path(told["folder"]), spare))[0]
    finally:
        with suppress(ValueError):
            sys.path.remove(str(spare))


def prefix_of(flow: FlowGraph, graph: Graph, source: Source, *, checked: bool) -> FlowPrefix | None:
    """Return the prefix of a source that may run elsewhere; None: there is none.

    Args:
        flow, graph, source: As for `FlowPrefix`.
        checked: Whether the job has all functions checked, which only a worker does.
    """
    return FlowPrefix(flow, graph, source) if graph.prefix_of(source) and not checked else None
