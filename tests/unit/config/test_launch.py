"""From a configuration and a flow to a job; and flows that run inside a program."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pytest

import flamecore as fc
from flamecore.abc.acker import AckerPlan
from flamecore.abc.registry import RegistryContext
from flamecore.abc.sink import Guarantee, Sink
from flamecore.abc.source import EdgeContext
from flamecore.abc.transport import TransportCapabilities
from flamecore.errors import (
    ConfigError,
    GraphError,
    PluginLoadError,
    SinkError,
    SourceError,
    UnknownKeyError,
    UnknownPluginError,
)
from flamecore.runtime.cluster.dry_run import dry_run
from flamecore.runtime.config import plugins as registry
from flamecore.runtime.config.job_spec import JobSpec
from flamecore.runtime.config.layers import Layer, from_program
from flamecore.runtime.config.read import make_config
from flamecore.runtime.config.resolve import resolve
from flamecore.runtime.launch import make_job
from flamestream_inproc import InprocTransport
from flamestream_inproc.registry import SupervisorRegistry

pytestmark = pytest.mark.usefixtures("installed")


class Keeper(Sink):
    """A sink that keeps what it is told of its place."""

    name = "keeper"

    class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
        """Options of the driver."""

        size: int = 1

    contexts: ClassVar[list[EdgeContext]] = []
    written: ClassVar[list[Any]] = []

    def __init__(self, options: Any, context: EdgeContext) -> None:
        super().__init__(options, context)
        self.contexts.append(context)

    @property
    def guarantee(self) -> Guarantee:
        return "exactly_once"

    async def write(self, time: int, payloads: Sequence[Any]) -> None:
        self.written.extend(payloads)


@pytest.fixture(autouse=True)
def _empty_keeper() -> None:
    Keeper.contexts.clear()
    Keeper.written.clear()


def words() -> fc.Flow:
    flow = fc.Flow("words")
    flow.source("lines", str).flat_map(str.split).key_by(lambda word: word).count().sink("counts")
    return flow


def layer(**settings: Any) -> Layer:
    return from_program({key.replace("__", "."): value for key, value in settings.items()})


def laid_out(flow: fc.Flow | None = None, given: Any = None, **settings: Any) -> JobSpec:
    return resolve(make_config(layer(**settings), environ={}), flow or words(), given=given)


GIVEN = {"lines": ["to be or", "not to be"]}
COUNTED = [("to", 1), ("be", 1), ("or", 1), ("not", 1), ("to", 2), ("be", 2)]


# -- embedded --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("acker", ["centralized", "local", "sharded"])
def test_a_program_runs_a_flow(workers: int, acker: str) -> None:
    outputs = words().run(GIVEN, workers=workers, acker=acker)
    assert outputs == {"counts": COUNTED}
    assert outputs.stats.items_in == 2
    assert outputs.report.drained is False


def test_a_program_gives_settings(tmp_path: Path) -> None:
    settings = {
        "sink.counts.use": "jsonl",
        "sink.counts.path": str(tmp_path / "o.jsonl"),
        "transport.inproc.serialise": True,
    }
    outputs = words().run(GIVEN, settings=settings)
    assert outputs == {"counts": []}
    assert len((tmp_path / "o.jsonl").read_text("utf-8").splitlines()) == len(COUNTED)


def test_errors_name_the_origin_of_settings(tmp_path: Path) -> None:
    (tmp_path / "book.txt").write_text("to be or\nnot to be\n", "utf-8")
    outputs = words().run(settings={"source.lines.use": "lines", "source.lines.path": str(tmp_path / "book.txt")})
    assert outputs["counts"] == COUNTED


def test_a_program_ignores_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLAMESTREAM__TRANSPORT__USE", "carrier_pigeon")
    assert words().run(GIVEN) == {"counts": COUNTED}


def test_a_flow_runs_beside_a_running_loop() -> None:
    async def cell() -> Any:
        return words().run(GIVEN)

    assert asyncio.run(cell()) == {"counts": COUNTED}


def test_an_error_of_a_run_has_no_context() -> None:
    """Not as one that came up while another was seen to."""
    with pytest.raises(SourceError) as caught:
        words().run({"lines": "to be"})
    assert caught.value.__context__ is None


def test_overrides_reach_a_flow_beside_a_running_loop() -> None:
    async def cell() -> None:
        with registry.override("sink", "keeper", Keeper):
            words().run(GIVEN, settings={"sink.counts.use": "keeper"})

    asyncio.run(cell())
    assert Keeper.written == COUNTED


def test_more_workers_than_key_groups_are_refused() -> None:
    flow = fc.Flow("small")
    flow.source("numbers", int).sink("out")
    with pytest.raises(ConfigError, match=r"job\.workers is 1000, and 128 key groups") as caught:
        flow.run({"numbers": [1]}, workers=1000)
    assert caught.value.hint == "Use 128 at most."


def test_unknown_inputs_are_refused() -> None:
    with pytest.raises(UnknownKeyError) as caught:
        words().run({"lnes": []})
    assert caught.value.nearest == "source.lines"
    with pytest.raises(UnknownKeyError):
        words().run({**GIVEN, "counts": []})


def test_a_source_without_values_or_driver_is_refused() -> None:
    with pytest.raises(ConfigError, match="source 'lines' has no driver"):
        words().run()


def test_unknown_names_in_a_program_are_refused() -> None:
    with pytest.raises(UnknownPluginError) as caught:
        words().run(GIVEN, acker="centralised")
    assert caught.value.nearest == "centralized"
    with pytest.raises(UnknownKeyError):
        words().run(GIVEN, settings={"job.worker": 2})
    with pytest.raises(ConfigError, match="names no table"):
        words().run(GIVEN, settings={"workers": 2})


# -- layout ----------------------------------------------------------------------------------------------------------


def test_parts_get_their_options_and_places() -> None:
    with registry.override("sink", "keeper", Keeper):
        spec = laid_out(given=GIVEN, sink__counts__use="keeper", sink__counts__size=3)
        spec.problems.raise_first()
    sink = spec.sinks["counts"]
    assert isinstance(sink, Keeper)
    assert sink.options == Keeper.Options(size=3)
    assert sink.context.name == "counts"
    assert spec.drivers.names == {
        "transport": "inproc",
        "acker": "centralized",
        "registry": "supervisor",
        "source.lines": "memory",
        "sink.counts": "keeper",
    }


class Ledger(SupervisorRegistry):
    """A registry with options."""

    class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
        """Options of the driver."""

        server: str
        user: str = ""


def test_a_registry_takes_missing_options_from_the_transport_of_its_name() -> None:
    told: Any = {"registry__use": "ledger", "registry__user": "bob", "registry__lease_s": 2.0}
    servers: Any = {
        "transport__ledger__server": "h:1",
        "transport__ledger__user": "ann",
        "transport__ledger__window": 3,
    }
    with registry.override("registry", "ledger", Ledger):
        spec = laid_out(given=GIVEN, **told, **servers)
        assert spec.job_registry(RegistryContext()).options == Ledger.Options(server="h:1", user="bob")
        assert spec.drivers.names["registry"] == "ledger"
        assert spec.config.registry.lease_s == 2.0
        assert spec.described()["registry"] == {"use": "ledger", "options": {"user": "bob"}}
        (problem,) = laid_out(given=GIVEN, **told).problems
        assert isinstance(problem, ConfigError)
        assert problem.path == "registry.server"
        (problem,) = laid_out(given=GIVEN, **told, **servers, registry__sever="h:2").problems
        assert isinstance(problem, UnknownKeyError)
        assert problem.nearest == "registry.server"


def fingerprint(flow: fc.Flow | None = None, **settings: Any) -> str:
    with registry.override("sink", "keeper", Keeper):
        spec = laid_out(flow, sink__counts__use="keeper", **settings)
        spec.problems.raise_first()
    return Keeper.contexts[-1].fingerprint


def test_the_fingerprint_covers_flow_and_inputs(tmp_path: Path) -> None:
    book = tmp_path / "book.txt"
    book.write_text("to be", "utf-8")
    inputs: dict[str, Any] = {"source__lines__use": "lines", "source__lines__path": str(book)}
    first = fingerprint(**inputs)
    assert first
    assert fingerprint(**inputs) == first
    assert fingerprint(**inputs, job__workers=4, acker__use="sharded", job__name="again") == first
    assert fingerprint(**inputs, job__clock="wall") != first
    other = fc.Flow("words")
    other.source("lines", str).map(str.split).sink("counts")
    assert fingerprint(other, **inputs) != first
    book.write_text("not to be", "utf-8")
    assert fingerprint(**inputs) != first


def test_the_fingerprint_covers_the_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from flamecore.runtime.config.flow_loader import load_flow

    monkeypatch.syspath_prepend(tmp_path)
    found = []
    for key in ("word", "word[0]", "word"):
        (tmp_path / "count-app.py").write_text(
            "import flamecore as fc\nflow = fc.Flow('words')\n"
            f"flow.source('lines', str).flat_map(str.split).key_by(lambda word: {key}).count().sink('counts')\n",
            "utf-8",
        )
        found.append(fingerprint(load_flow("count-app.py", tmp_path), source__lines__use="stdin"))
    assert found[0] == found[2] != found[1]


def test_a_wrapped_acker_gets_the_options_of_its_own_table() -> None:
    spec = laid_out(given=GIVEN, acker__use="local", acker__local__inner="sharded", acker__sharded__shards=3)
    spec.problems.raise_first()
    assert spec.acker(AckerPlan(2, (frozenset(),), (1,))).trackers == 3
    spec = laid_out(given=GIVEN, acker__use="local", acker__local__inner="sharded", acker__sharded__shard=3)
    dry_run(spec)
    assert [getattr(problem, "path", "") for problem in spec.problems] == ["acker.sharded.shard"]


def test_a_driver_named_with_its_distribution_gets_its_options() -> None:
    spec = laid_out(given=GIVEN, transport__use="flamestream:inproc", transport__inproc__serialise=True)
    assert spec.problems == []
    spec = laid_out(given=GIVEN, transport__use="flamestream:inproc", transport__inproc__serialize=True)
    assert [problem.nearest for problem in spec.problems] == ["transport.inproc.serialise"]


def test_dead_letters_need_a_place() -> None:
    for settings in ({"job__on_error": "dead_letter"}, {"source__lines__on_error": "dead_letter"}):
        with pytest.raises(ConfigError, match="no sink for dead letters"):
            make_job(make_config(layer(**settings)), words(), given=GIVEN)
    with registry.override("sink", "keeper", Keeper):
        spec = laid_out(given=GIVEN, job__on_error="dead_letter", dead_letter__use="keeper", dead_letter__size=4)
        spec.problems.raise_first()
    assert spec.dead_letter is not None
    assert spec.dead_letter.options == Keeper.Options(size=4)
    assert laid_out(given=GIVEN, dead_letter__use="keeper").dead_letter is None


@pytest.mark.parametrize("use", [{}, {"dead_letter.use": "memory"}], ids=["by default", "by name"])
def test_a_program_gets_its_dead_letters(use: dict[str, Any]) -> None:
    flow = fc.Flow("shares")
    flow.source("numbers", int).map(lambda number: 12 // number).sink("shares")
    settings = {"job.on_error": "dead_letter", "source.numbers.on_error": "dead_letter", **use}
    for workers in (1, 3):
        outputs = flow.run({"numbers": [3, 0, "x", 4, 0]}, workers=workers, settings=settings)
        assert outputs == {"shares": [4, 3]}
        assert [(letter["vertex"], letter["position"], letter["record"]) for letter in outputs.dead_letters] == [
            ("map", "value 2 of numbers", "0"),
            (None, "value 3 of numbers", "'x'"),
            ("map", "value 5 of numbers", "0"),
        ]
    assert flow.run({"numbers": [3]}).dead_letters == []
    with pytest.raises(fc.FlameError) as error:
        flow.run({"numbers": [0, 1, "x"]}, settings={"job.on_error": "dead_letter"})
    assert len(error.value.outputs.dead_letters) == 1  # type: ignore[attr-defined]  # of every error of a run


def test_dead_letters_of_a_program_go_where_it_says(tmp_path: Path) -> None:
    flow = fc.Flow("shares")
    flow.source("dead_letter", int).map(lambda number: 12 // number).sink("shares")
    settings = {"job.on_error": "dead_letter"}
    with pytest.raises(ConfigError, match="no sink for dead letters"):  # records of a source are no place for them
        flow.run({"dead_letter": [0, 6]}, settings=settings)
    file = {"dead_letter.use": "jsonl", "dead_letter.path": str(tmp_path / "dead.jsonl")}
    outputs = flow.run({"dead_letter": [0, 6]}, settings={**settings, **file})
    assert (outputs, outputs.dead_letters) == ({"shares": [2]}, [])
    assert (tmp_path / "dead.jsonl").read_text().count("\n") == 1


def test_a_sink_with_the_name_of_dead_letters_is_refused() -> None:
    flow = fc.Flow("words")
    flow.source("lines", str).sink("dead_letter")
    spec = laid_out(flow, GIVEN, job__on_error="dead_letter", dead_letter__use="stdout")
    assert [problem.path for problem in spec.problems] == ["sink.dead_letter"]


def test_functions_the_deployment_cannot_import_are_refused() -> None:
    class Far(InprocTransport):
        name = "far"
        capabilities = TransportCapabilities(multi_process=True, serialises=True)

    with registry.override("transport", "far", Far):
        spec = laid_out(given=GIVEN, transport__use="far")
        assert spec.problems == []
        dry_run(spec)
    assert [type(problem) for problem in spec.problems] == [GraphError]


def test_all_problems_are_notes_of_the_first() -> None:
    with pytest.raises(UnknownPluginError) as caught:
        make_job(make_config(layer(transport__use="x", acker__use="y")), words())
    notes = "\n".join(caught.value.__notes__)
    assert "no acker named 'y'" in notes
    assert "source 'lines' has no driver" in notes


def test_observers_are_found_and_called_in_order() -> None:
    from flamecore.abc.hooks import hookimpl

    told = []

    class Watch:
        def __init__(self, name: str) -> None:
            self.name = name

        @hookimpl
        def flamestream_job_started(self, job: str) -> None:
            told.append((self.name, job))

    with registry.override("hooks", "a", Watch("a")), registry.override("hooks", "b", Watch("b")):
        job = make_job(make_config(layer(hooks__use=["b", "a"])), words(), given={**GIVEN, "counts": []})
    asyncio.run(job.run())
    assert told == [("b", "words"), ("a", "words")]


def test_a_driver_may_refuse_its_place() -> None:
    class Refusing(Keeper):
        def __init__(self, options: Any, context: EdgeContext) -> None:
            raise SinkError("not here", sink=context.name)

    with registry.override("sink", "keeper", Refusing):
        spec = laid_out(sink__counts__use="keeper")
    assert [type(problem) for problem in spec.problems] == [ConfigError, SinkError]


def test_plugin_errors_are_problems(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: registry.PluginRegistry, kind: str, name: str) -> Any:
        raise PluginLoadError("broken", kind=kind, name=name, distribution="x")

    monkeypatch.setattr(registry.PluginRegistry, "get", broken)
    assert {type(problem) for problem in laid_out(given=GIVEN).problems} == {PluginLoadError}


def test_a_sink_that_settings_put_in_memory_is_returned() -> None:
    flow = fc.Flow("kept")
    flow.source("lines", str).sink("out")
    assert flow.run({"lines": ["a"]}, settings={"sink.out.use": "memory"}) == {"out": ["a"]}
