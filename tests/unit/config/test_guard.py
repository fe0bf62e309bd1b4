"""Plugins that break their contracts are named, with their distribution and what they did."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

import flamecore as fc
from flamecore.abc.hooks import hookimpl
from flamecore.abc.operator import Operator, Site
from flamecore.abc.registry import RegistryContext
from flamecore.abc.sink import Guarantee, Sink
from flamecore.abc.source import Batch, EdgeContext, Reader, Rejected, Source, SourceCapabilities
from flamecore.abc.store import StoreContext
from flamecore.abc.transport import Endpoint
from flamecore.errors import FlameError, PluginContractError, PluginLoadError, SourceError
from flamecore.model.vertices import Vertex
from flamecore.runtime.config.guard import Origin, check_batch, guarded
from flamecore.runtime.config.plugins import Kind, PluginRegistry, override
from flamestream_ackers.centralized import Centralized
from flamestream_ackers.tracker import XorTracker
from flamestream_inproc import InprocTransport
from flamestream_inproc.registry import SupervisorRegistry
from flamestream_stores.memory import Memory

pytestmark = pytest.mark.usefixtures("installed")


class OnceReader(Reader):
    """A reader whose first answer is that of a function."""

    __slots__ = ("answer", "asked")

    def __init__(self, answer: Callable[[int], Any]) -> None:
        self.answer, self.asked = answer, 0

    async def read(self, limit: int) -> Any:
        self.asked += 1
        return self.answer(limit) if self.asked == 1 else None


def source_of(answer: Callable[[int], Any]) -> type[Source]:
    class Odd(Source):
        name = "odd"

        @property
        def capabilities(self) -> SourceCapabilities:
            return SourceCapabilities(replayable=True, bounded=True)

        async def open(self, partition: str, position: Any = None) -> Any:
            return OnceReader(answer)

    return Odd


def run(kind: Kind, driver: Any, **settings: Any) -> fc.Outputs:
    """Run a small flow with a driver named `odd`."""
    flow = fc.Flow("small")
    flow.source("numbers").map(lambda number: number).sink("out")
    given = {} if kind == "source" else {"numbers": [1, 2, 3]}
    table = {"source": "source.numbers.use", "sink": "sink.out.use"}.get(kind, f"{kind}.use")
    with override(kind, "odd", driver):
        value = ["odd"] if kind == "hooks" else "odd"
        return flow.run(given, settings={table: value, "job.guarantee": "at_least_once", **settings})


def wrong(kind: Kind, driver: Any, **settings: Any) -> PluginContractError:
    with pytest.raises(PluginContractError) as caught:
        run(kind, driver, **settings)
    assert (caught.value.kind, caught.value.name) == (kind, "odd")
    assert f"{kind} 'odd' (" in str(caught.value)
    return caught.value


def fails(*_: Any, **__: Any) -> Any:
    raise KeyError("a")


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (lambda _: Batch([1, 2], [0]), "a batch of 2 values and 1 positions"),
        (lambda _: Batch([1], [0, 1]), "a batch of 1 values and 2 positions"),
        (lambda _: [1, 2], "returned [1, 2], a list, where Batch or None is asked for"),
        (lambda _: ([1], [0]), "a tuple, where Batch"),
        (lambda _: Batch(iter([1]), [0]), "no sequence"),
        (lambda _: Batch([], []), "an empty batch"),
        (lambda _: Batch([1], [None]), "the position None, from which it would read all of it again"),
        (lambda _: Batch([1], [[0]]), "the position [0], a list, which may change"),
        (lambda _: Batch([1], [(0, [])]), "the position (0, []), a tuple, which may change"),
        (lambda _: Batch([], [], [Rejected(None, "bad", b"")]), "the position None"),
        (lambda _: Batch([], [], [(0, "bad", b"")]), "not a Rejected"),
        (fails, "raised KeyError in read: 'a'"),
    ],
)
def test_a_wrong_batch_names_the_source_before_a_record_is_lost(answer: Callable[[int], Any], words: str) -> None:
    error = wrong("source", source_of(answer))
    assert words in str(error)
    assert "for source.numbers" in str(error)
    assert error.call == "read"


def test_a_reader_does_not_pass_an_end_that_is_written_down() -> None:
    reader = OnceReader(fails)
    check_batch(reader, Batch([1, 2], [0, 1]), 2)
    with pytest.raises(PluginContractError, match="3 records, where at most 2 were asked for"):
        check_batch(reader, Batch([1, 2, 3], [0, 1, 2]), 2)


def test_batches_that_are_right_pass() -> None:
    rejecting = source_of(lambda _: Batch([1, 2], (0, 2), [Rejected(1, "bad", b"x")]))
    assert run("source", rejecting, **{"source.numbers.on_error": "skip"})["out"] == [1, 2]
    assert run("source", source_of(lambda _: Batch(range(3), range(3))))["out"] == [0, 1, 2]


def test_an_error_that_the_contract_knows_passes_as_it_is() -> None:
    def refuses(_: int) -> Any:
        raise SourceError("no more paper", source="numbers", position=None)

    with pytest.raises(SourceError, match="no more paper"):
        run("source", source_of(refuses))


@pytest.mark.parametrize(
    ("method", "function", "words"),
    [
        ("open", lambda *_: None, "raised TypeError in open"),  # forgotten: async
        ("partitions", lambda _: "ab", "where a sequence of str"),
        ("partitions", lambda _: [1], "where str is asked for"),
        ("partitions", lambda _: ("a", "b", "a"), "the name 'a' for several partitions"),
        ("fingerprint", lambda _: None, "returned None, where str"),
        ("capabilities", property(lambda _: None), "where SourceCapabilities"),
        ("capabilities", property(fails), "raised KeyError in capabilities"),
        ("__init__", fails, "raised KeyError in __init__"),
    ],
)
def test_every_call_of_a_source_is_checked(method: str, function: Any, words: str) -> None:
    odd = type("Odd", (source_of(lambda _: None),), {method: function})
    asked = {"job.guarantee": "exactly_once"} if method == "capabilities" else {}
    assert words in str(wrong("source", odd, **asked))


def test_a_source_that_opens_nothing_is_named() -> None:
    async def nothing(*_: Any) -> None:
        return None

    assert "returned None, where Reader" in str(wrong("source", type("Odd", (source_of(fails),), {"open": nothing})))


@pytest.mark.parametrize(
    ("method", "function", "words"),
    [
        ("find_end", 1.5, "returned 1.5, a float, where an int, a str, or a tuple of these is asked for (find_end)"),
        ("find_end", (1, ["x"]), "returned ['x'], a list among others, where an int, a str"),
        ("open_until", None, "returned None, where Reader"),
        ("open_until", KeyError("x"), "raised KeyError in open_until"),
        ("", None, "raised NotImplementedError in open_until"),
    ],
)
def test_the_ends_that_a_source_finds_are_checked(method: str, function: Any, words: str) -> None:
    async def answers(*_: Any) -> Any:
        if isinstance(function, Exception):
            raise function
        return function

    async def finds(*_: Any) -> Any:
        return 7

    methods = {"find_end": finds, **({method: answers} if method else {})}
    odd = type("Odd", (source_of(lambda _: None),), methods)
    assert words in str(wrong("source", odd, **{"state.use": "memory"}))


class Plain(Sink):
    name = "odd"

    @property
    def guarantee(self) -> Guarantee:
        return "at_least_once"

    async def write(self, time: int, payloads: Sequence[Any]) -> None:
        return


@pytest.mark.parametrize(
    ("method", "function", "words"),
    [
        ("write", fails, "raised KeyError in write"),
        ("write", lambda *_: None, "raised TypeError in write"),
        ("aclose", fails, "raised KeyError in aclose"),
        ("guarantee", property(lambda _: "always"), "promises 'always'"),
        ("open", fails, "raised KeyError in open"),
    ],
)
def test_every_call_of_a_sink_is_checked(method: str, function: Any, words: str) -> None:
    odd = type("Odd", (Plain,), {method: function})
    error = wrong("sink", odd, **{"job.guarantee": "exactly_once"} if method == "guarantee" else {})
    assert words in str(error)
    assert "for sink.out" in str(error)


def test_what_a_sink_holds_is_a_time() -> None:
    async def nothing(_: Any) -> None:
        return None

    assert "returned None, where int" in str(wrong("sink", type("Odd", (Plain,), {"open": nothing})))


def test_a_hook_that_fails_is_named() -> None:
    class Loud:
        @hookimpl
        def flamestream_batch_released(self, sink: str, count: int) -> None:
            raise KeyError(sink)

    assert "raised KeyError in flamestream_batch_released: 'out'" in str(wrong("hooks", Loud()))


def test_hooks_take_the_arguments_they_ask_for() -> None:
    heard: list[Any] = []

    class Quiet:
        @hookimpl
        def flamestream_batch_released(self, count: int) -> None:
            heard.append(count)

        @hookimpl
        def flamestream_job_ended(self, error: BaseException | None) -> None:
            heard.append(error)

    run("hooks", Quiet())
    assert heard.pop() is None
    assert sum(heard) == 3


def test_a_tracker_that_fails_is_named() -> None:
    class Tracker(XorTracker):
        def receive(self, report: Any) -> Any:
            raise KeyError(report)

    class Odd(Centralized):
        name = "odd"

        def tracker(self, index: int) -> Any:
            return Tracker(self.plan)

    assert "raised KeyError in receive" in str(wrong("acker", Odd))
    nobody = type("Odd", (Centralized,), {"name": "odd", "tracker": lambda *_: None})
    assert "returned None, where Tracker" in str(wrong("acker", nobody))


@dataclass(eq=False, slots=True, repr=False)
class Odd(Vertex):
    """A vertex of a plugin."""

    kind: ClassVar[str] = "odd"


class OddOperator(Operator):
    """Its operator, which fails on an item."""

    name = "odd"
    vertex = Odd

    def __init__(self, vertex: Odd, site: Site) -> None:
        self.emit = site.emit

    def step(self, order: bytes, trace: int, alive: bool, payload: Any) -> None:
        if payload == 2:
            raise KeyError(payload)
        self.emit(order, trace, alive, payload)


@pytest.mark.parametrize("workers", [1, 2])
def test_an_operator_that_fails_on_an_item_is_named(workers: int) -> None:
    flow = fc.Flow("small")
    flow.source("numbers").apply(Odd).sink("out")
    with override("operator", "odd", OddOperator):
        assert flow.run({"numbers": [1, 3]}, workers=workers)["out"] == [1, 3]
        with pytest.raises(PluginContractError, match=r"operator 'odd' \(.*\) raised KeyError in step: 2"):
            flow.run({"numbers": [1, 2, 3]}, workers=workers)


def test_what_fails_behind_an_operator_is_not_its_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise KeyError("engine")

    monkeypatch.setattr("flamecore.runtime.operators.map.child_codes", broken)
    flow = fc.Flow("small")
    flow.source("numbers").apply(Odd).flat_map(range).sink("out")
    with override("operator", "odd", OddOperator), pytest.raises(KeyError, match="engine"):
        flow.run({"numbers": [1]})


def made(kind: Kind, driver: Any, context: Any, options: Any = None) -> Any:
    """Make a guarded driver by itself."""
    return guarded(driver, Origin(kind, "odd", "flamestream-odd", "1.0", "odd"))(options, context)


@pytest.mark.parametrize(
    ("method", "answer", "arguments"),
    [("read", "text", ("a",)), ("create", None, ("a", b"")), ("names", ("a", 1), ("",)), ("delete", fails, (["a"],))],
)
def test_every_answer_of_a_store_is_checked(method: str, answer: Any, arguments: tuple[Any, ...]) -> None:
    async def told(*_: Any) -> Any:
        return answer() if callable(answer) else answer

    store = made("store", type("Odd", (Memory,), {method: told}), StoreContext("job"))
    with pytest.raises(PluginContractError, match=r"store 'odd' \(flamestream-odd 1\.0\)") as caught:
        asyncio.run(getattr(store, method)(*arguments))
    assert (caught.value.distribution, caught.value.version, caught.value.call) == ("flamestream-odd", "1.0", method)


@pytest.mark.parametrize(
    ("method", "answer", "arguments"),
    [
        ("get", b"value", ("a",)),
        ("get", fails, ("a",)),
        ("create", "1", ("a", b"")),
        ("update", b"", ("a", b"", 1)),
        ("delete", None, ("a", 1)),
        ("keys", None, ("",)),
    ],
)
def test_every_answer_of_a_registry_is_checked(method: str, answer: Any, arguments: tuple[Any, ...]) -> None:
    async def told(*_: Any) -> Any:
        return answer() if callable(answer) else answer

    registry = made("registry", type("Odd", (SupervisorRegistry,), {method: told}), RegistryContext())
    with pytest.raises(PluginContractError, match=r"registry 'odd' \(flamestream-odd 1\.0\)"):
        asyncio.run(getattr(registry, method)(*arguments))


def test_a_send_that_does_not_say_whether_it_sent_is_refused() -> None:
    class Mute(Endpoint):
        def __init__(self, inner: Endpoint) -> None:
            self.inner, self.address = inner, inner.address

        def send_nowait(self, to: str, message: Any) -> Any:
            self.inner.send_nowait(to, message)  # and says nothing: it would be sent again

        async def send(self, to: str, message: Any) -> None:
            raise KeyError(to)

        async def receive(self) -> Any:
            return await self.inner.receive()

        def receive_nowait(self) -> Any:
            return self.inner.receive_nowait()

        async def aclose(self) -> None:
            await self.inner.aclose()

    class Odd(InprocTransport):
        name = "odd"

        async def bind(self, address: str) -> Endpoint:
            return Mute(await super().bind(address))

    error = wrong("transport", Odd)
    assert error.call == "send_nowait"
    assert "returned None, where bool is asked for" in str(error)


def test_user_code_that_a_plugin_calls_is_not_taken_for_the_plugin() -> None:
    def numbers() -> Any:
        yield 1
        raise KeyError("mine")

    flow = fc.Flow("small")
    flow.source("numbers").sink("out")
    with pytest.raises(SourceError, match="the iterable raised KeyError"):
        flow.run({"numbers": numbers()})


def test_a_part_stays_as_its_driver_made_it() -> None:
    kept: list[Reader] = []

    class Keeping(source_of(lambda _: None)):  # type: ignore[misc]
        async def open(self, partition: str, position: Any = None) -> Reader:
            kept.append(await super().open(partition, position))
            return kept[0]

    source = made("source", Keeping, EdgeContext("numbers"))
    assert isinstance(source, Keeping)
    reader = asyncio.run(source.open(""))
    assert reader is kept[0]
    assert type(reader) is OnceReader


def test_a_driver_that_is_none_is_refused_when_it_is_loaded() -> None:
    origin = Origin("sink", "odd", "flamestream-odd", "1.0", "odd")
    with pytest.raises(PluginLoadError, match=r"is no subclass of flamecore\.abc\.sink\.Sink"):
        guarded(type("Odd", (), {"name": "odd", "api": 1}), origin)
    with pytest.raises(PluginLoadError, match="does not define guarantee, write"):
        guarded(type("Odd", (Sink,), {"name": "odd"}), origin)


def test_the_distribution_and_its_version_are_told(distributions: Any) -> None:
    module = """
        from flamecore.abc.hooks import hookimpl
        from flamecore.abc.sink import Sink

        class Odd(Sink):
            name = "odd"
            guarantee = "exactly_once"

            async def write(self, time, payloads):
                raise OSError("no room")

        @hookimpl
        def flamestream_sink():
            return Odd
    """
    distributions.add(
        "flamestream-odd", "2.5", modules={"plug_odd": module}, entry_points={"flamestream.sink": {"odd": "plug_odd"}}
    )
    flow = fc.Flow("small")
    flow.source("numbers").sink("out")
    with pytest.raises(FlameError, match=r"sink 'odd' \(flamestream-odd 2\.5\) for sink\.out raised OSError") as caught:
        flow.run({"numbers": [1]}, settings={"sink.out.use": "odd"})
    assert isinstance(caught.value.cause, OSError)
    assert 'in write: raise OSError("no room")' in str(caught.value)
    assert caught.value.version == "2.5"


def test_drivers_of_the_project_are_guarded_alike() -> None:
    plugins = PluginRegistry()
    for kind in ("transport", "acker", "store", "registry", "host"):
        for name in plugins.names(kind):
            if name in ("inproc", "centralized", "local", "sharded", "memory", "directory", "supervisor", "processes"):
                made_class = plugins.guarded(kind, name)
                assert issubclass(made_class, plugins.get(kind, name))
                assert made_class is not plugins.get(kind, name)


def test_a_method_that_a_test_puts_in_its_place_is_called_while_it_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    class Kept(Memory):
        async def names(self, prefix: str) -> Sequence[str]:
            return ["a"]

    async def two(self: Kept, prefix: str) -> Sequence[str]:
        return ["a", "b"]

    def count() -> int:
        return len(asyncio.run(made("store", Kept, StoreContext("job")).names("")))

    with monkeypatch.context() as patch:
        patch.setattr(Kept, "names", two)
        assert count() == 2
    assert count() == 1
