"""The flow: the fluent interface of a graph.

Types come from hints and from the second argument of `source`; the configuration says where a flow runs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from inspect import isclass
from typing import TYPE_CHECKING, Any, TypeVar, overload

from flamecore.errors import GraphError
from flamecore.model.builder import GraphBuilder, require_name
from flamecore.model.failure import shown_at_caller
from flamecore.model.graph import Graph
from flamecore.model.stream import Stream, no_method
from flamecore.model.type_codec import TypeCodec, full_name
from flamecore.model.vertices import Source

T = TypeVar("T")


class FlowGraph(GraphBuilder):
    """A named dataflow without the means to run it: `flamecore.flow.Flow` adds those.

    Args:
        name: Name in errors, logs and pictures.
    """

    def __init__(self, name: str = "flow") -> None:
        super().__init__(name)
        caller = sys._getframe(1)
        self.module: str = caller.f_globals.get("__name__", "")
        """The module that made the flow."""
        self.found_as: str | None = None
        """Location of the flow, as "module:name", if it is not a variable of `module`."""

    if not TYPE_CHECKING:  # a type checker must not see further attributes

        def __getattr__(self, name: str) -> Any:
            raise no_method(self, name, (dir(Stream), "Begin with a source: flow.source(name, type).{name}(…)"))

    @overload
    def source(self, name: str, type: type[T]) -> Stream[T]: ...
    @overload
    def source(self, name: str) -> Stream[Any]: ...
    @shown_at_caller
    def source(self, name: str, type: Any = object) -> Stream[Any]:
        """Add a source of records; return its stream.

        Args:
            name: Name of the source, for the configuration and `run`.
            type: Type of the records; drivers convert to it if they can, and refuse records that do not fit.
        """
        if isinstance(type, Collection) and not (isclass(type) or isinstance(type, str)):
            raise GraphError(
                f"source {require_name('source', name)!r}: the type of its records is {type!r:.80}, which is no type",
                hint="Give the type alone: flow.source(name, int). Records are given to run: flow.run({name: …}).",
                vertex=name,
            )
        source = Source(require_name("source", name), type=type)
        self._add(source)
        return Stream(self, source, type)

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
    @shown_at_caller
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
        """Allow values of a type to leave their process, with a codec if needed.

        They leave it for other workers, and for snapshots. Classes named in the hints of the flow's functions do not
        need this if they are dataclasses, NamedTuples, enums or msgspec structs.

        Args:
            type: The class; or a `flamecore.TypeCodec`, such as a library may bring for its types.
            encode, decode: `encode` returns bytes, text, a tuple or any other value that crosses, and `decode` makes
                the original value of it. Without them, a class with fields crosses field by field.
            name: Name of the type in bytes, which must stay as long as they do; by default its module and name.
            version: Version of the output of `encode`. Raise it when that changes.
            older: For each earlier version that must still be read, its `decode`.
            formerly: Earlier names of the type in bytes.

        Returns:
            The class, so that this may decorate it.

        Raises:
            GraphError: The arguments do not fit together, or the type has a codec already.

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
        """Return the checked graph, as it will run.

        Raises:
            GraphError: The graph cannot work; the text names the vertex and says what to do.
        """
        for error in self._unfinished.values():
            raise error
        graph = self._linked()
        graph.reference = self.reference
        graph.check(barrier=barrier)
        return graph

    @property
    def reference(self) -> str | None:
        """Return where other processes find this flow, as "module:name", or None.

        The name is that of the flow, or of a function without arguments that makes it.
        """
        if self.found_as is not None:
            return self.found_as
        module = sys.modules.get(self.module)
        if module is None or self.module == "__main__":
            return None
        return next((f"{self.module}:{name}" for name, value in vars(module).items() if value is self), None)

    def __repr__(self) -> str:
        return f"<Flow {self.name!r}: {len(self._graph.vertices)} operations>"
