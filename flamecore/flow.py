"""The flow: the fluent face of a graph.

Types come from hints and from the second argument of `source`; where a flow runs is said elsewhere.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, overload

from flamecore.errors import GraphError
from flamecore.graph import Graph, Ordering
from flamecore.stream import Stream, same
from flamecore.type_codec import TypeCodec, full_name
from flamecore.vertices import Broadcast, Map, Source, Vertex

if TYPE_CHECKING:
    from flamecore.outputs import Outputs

T = TypeVar("T")


class Flow:
    """A named dataflow. Describe it once; where it runs is said elsewhere.

    Args:
        name: Shows in errors, logs and pictures.
        ordering: See `flamecore.graph.Graph`.

    Example:
        >>> flow = Flow("word-count")
        >>> words = flow.source("lines", str).flat_map(str.split)
        >>> words.key_by(lambda word: word).count().sink("counts")
        >>> flow.run({"lines": ["to be or", "not to be"]})["counts"]
        [('to', 1), ('be', 1), ('or', 1), ('not', 1), ('to', 2), ('be', 2)]
    """

    def __init__(self, name: str = "flow", *, ordering: Ordering = "tombstones") -> None:
        self.name = name
        self._graph = Graph(name, ordering=ordering)
        self._uses: dict[Vertex, list[Vertex]] = {}
        caller = sys._getframe(1)
        self.module: str = caller.f_globals.get("__name__", "")
        """The module that made the flow; workers in other processes import it from there."""

    @overload
    def source(self, name: str, type: type[T]) -> Stream[T]: ...
    @overload
    def source(self, name: str) -> Stream[Any]: ...
    def source(self, name: str, type: Any = object) -> Stream[Any]:
        """Where records enter.

        Args:
            name: Configuration and `run` refer to it.
            type: Type of the records; drivers convert to it where they can, and refuse what does not fit.
        """
        return Stream(self, self._graph.add(Source(name, type=type)), type)

    @overload
    def codec(self, type: TypeCodec) -> type: ...
    @overload
    def codec(
        self,
        type: type[T],
        *,
        encode: Callable[[T], Any] | None = None,
        decode: Callable[[Any], T] | None = None,
        name: str | None = None,
        version: int = 1,
        older: Mapping[int, Callable[[Any], T]] | None = None,
        formerly: Iterable[str] = (),
    ) -> type[T]: ...
    def codec(
        self,
        type: Any,
        *,
        encode: Callable[[Any], Any] | None = None,
        decode: Callable[[Any], Any] | None = None,
        name: str | None = None,
        version: int = 1,
        older: Mapping[int, Callable[[Any], Any]] | None = None,
        formerly: Iterable[str] = (),
    ) -> Any:
        """Let values of a type leave their process: between workers, and into snapshots.

        Classes that the hints of the flow's functions name, and that are dataclasses, NamedTuples, enums or structs of
        msgspec, need no word of this.

        Args:
            type: The class; or a `flamecore.TypeCodec`, such as a library may bring for its types.
            encode, decode: How it crosses: `encode` makes of it bytes, text, a tuple or any other value that crosses,
                and `decode` makes it again. Without them, a class with fields crosses field by field.
            name: What it is called in bytes, for as long as there are bytes; by default its module and name.
            version: Of what `encode` makes. Raise it when that changes.
            older: For each earlier version that is still to be read, its `decode`.
            formerly: Names that it had in bytes before.

        Returns:
            The class, so that this may decorate it.

        Raises:
            GraphError: It cannot be what is asked for.

        Example:
            >>> from fractions import Fraction
            >>> flow = Flow("shares")
            >>> flow.codec(Fraction, encode=Fraction.as_integer_ratio, decode=lambda pair: Fraction(*pair))
            <class 'fractions.Fraction'>
        """
        if isinstance(type, TypeCodec):
            made = type
        else:
            called = name or full_name(type)
            made = TypeCodec(type, called, encode, decode, version, older or {}, tuple(formerly))
        if any(known.type is made.type for known in self._graph.codecs):
            raise GraphError(f"flow {self.name!r} has a codec for {made.type.__qualname__} already", vertex=None)
        self._graph.codecs.append(made)
        return made.type

    def graph(self, *, barrier: bool = True) -> Graph:
        """The graph as it will run, checked.

        Raises:
            GraphError: It cannot work; the text names the vertex and says what to do.
        """
        graph = self._linked()
        graph.reference = self.reference
        graph.check(barrier=barrier)
        return graph

    @property
    def reference(self) -> str | None:
        """Where another process can import this flow from, as "module:name"; None if nowhere."""
        module = sys.modules.get(self.module)
        if module is None or self.module == "__main__":
            return None
        return next((f"{self.module}:{name}" for name, value in vars(module).items() if value is self), None)

    def _linked(self) -> Graph:
        """A graph with a broadcast wherever a stream is used more than once."""
        graph = Graph(self._graph.name, ordering=self._graph.ordering)
        graph.codecs = self._graph.codecs
        made = {vertex: graph.add(copy.copy(vertex)) for vertex in self._graph.vertices}
        for start, ends in self._uses.items():
            fork = made[start]
            if len(ends) > 1 and not isinstance(start, Broadcast):
                fork = graph.add(Broadcast(f"{start.name}.fork", segment=start.segment))
                graph.link(made[start], fork)
            for number, end in enumerate(ends):
                if end in ends[:number]:  # a copy merged with another copy: two edges, told apart by a step on one
                    copy_ = Map(f"{start.name}.copy-{number}", function=same, shape="one", segment=start.segment)
                    graph.chain(fork, graph.add(copy_), made[end])
                else:
                    graph.link(fork, made[end])
        return graph

    def _add(self, vertex: Vertex, *inputs: Vertex) -> None:
        self._graph.add(vertex)
        for start in inputs:
            self._use(start, vertex)

    def _use(self, start: Vertex, end: Vertex) -> None:
        self._uses.setdefault(start, []).append(end)

    def _name(self, wish: str | None, kind: str, function: Any = None) -> str:
        """A unique name: the one wished for, or the kind and the name of the user's function, numbered if taken."""
        if wish is not None:
            return wish
        label = getattr(function, "__name__", "")
        base = f"{kind}:{label}" if label and label != "<lambda>" else kind
        # A branch has no vertex of its own; its ways are named after it.
        taken = {vertex.name for vertex in self._graph.vertices}
        taken |= {name.rpartition(".")[0] for name in taken}
        number, name = 1, base
        while name in taken:
            number += 1
            name = f"{base}-{number}"
        return name

    def run(
        self,
        inputs: Mapping[str, Iterable[Any]] | None = None,
        *,
        workers: int = 1,
        acker: str = "centralized",
        transport: str = "inproc",
        state: str | Path | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> Outputs:
        """Run the flow in this process, to the end of its inputs, and return its outputs.

        Args:
            inputs: For each source, its records. Sources that are not named here need a driver in `settings`.
            workers: How many workers share the work. The outputs do not depend on it.
            acker: Name of the acker driver.
            transport: Name of the transport driver.
            state: A folder for snapshots of the flow's state; None: none are taken. A run with the state of an earlier
                one goes on where that stopped.
            settings: More configuration, as dotted keys: {"source.pages.use": "jsonl", "source.pages.path":
                "pages.jsonl"}.

        Returns:
            For each sink, the list of its outputs in order.

        Raises:
            GraphError, ConfigError: The flow or the settings cannot work.
            OperationError: A function of the flow failed; the text shows the record.
        """
        from flamecore.launch import run_embedded

        return run_embedded(
            self,
            inputs or {},
            workers=workers,
            acker=acker,
            transport=transport,
            state=state,
            settings=settings or {},
        )

    def __repr__(self) -> str:
        return f"<Flow {self.name!r}: {len(self._graph.vertices)} operations>"
