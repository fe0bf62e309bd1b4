"""The place of a job that names none: the host where its data is at home, or one process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, ClassVar

import msgspec
import pytest
from msgspec.structs import replace

import flamecore as fc
from flamecore.abc.config import Choice, JobConfig
from flamecore.abc.host import NodeHost, NodeSlot
from flamecore.abc.sink import Guarantee, Sink
from flamecore.abc.source import Reader, Source, SourceCapabilities
from flamecore.abc.transport import TransportCapabilities
from flamecore.errors import ConfigError, UnknownPluginError
from flamecore.runtime.config.job_spec import JobSpec
from flamecore.runtime.config.layers import from_program
from flamecore.runtime.config.plugins import override
from flamecore.runtime.config.read import make_config
from flamecore.runtime.config.resolve import resolve
from flamecore.runtime.launch import job_of
from flamestream_inproc import InprocTransport

pytestmark = pytest.mark.usefixtures("installed")


class Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Options of the drivers below."""

    home: str = "afar"
    spool: str = ""


class Rows(Source):
    """A source whose data is on a host."""

    name: ClassVar[str] = "rows"
    Options: ClassVar[Any] = Table

    @property
    def capabilities(self) -> SourceCapabilities:
        return SourceCapabilities(replayable=True, bounded=True, host=self.options.home)

    async def open(self, partition: str, position: Any = None) -> Reader:
        raise NotImplementedError


class Files(Sink):
    """A sink whose data is on a host."""

    name: ClassVar[str] = "files"
    Options: ClassVar[Any] = Table

    @property
    def host(self) -> str:
        return str(self.options.home)

    @property
    def guarantee(self) -> Guarantee:
        return "exactly_once"

    async def write(self, time: int, payloads: Sequence[Any]) -> None:
        raise NotImplementedError


class Wire(InprocTransport):
    """A transport that says it reaches other processes."""

    name: ClassVar[str] = "wire"

    @property
    def capabilities(self) -> TransportCapabilities:
        return TransportCapabilities(multi_process=True, serialises=True)


class Afar(NodeHost):
    """A host that has a place for what sources read, and a wish for the transport."""

    name: ClassVar[str] = "afar"

    class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
        """Options of the host."""

        workers: int | None = None
        transport: str = ""

    @classmethod
    def complete(cls, options: Any, config: JobConfig) -> JobConfig:
        sources = {
            name: replace(edge, options={**edge.options, "spool": "there"}) if edge.use == "rows" else edge
            for name, edge in config.source.items()
        }
        transport = Choice(use=config.transport.use or options.transport, tables=config.transport.tables)
        return replace(config, source=sources, transport=transport)

    async def start(self, slots: Sequence[NodeSlot], bootstrap: Mapping[str, Any]) -> None:
        raise NotImplementedError

    def running(self) -> list[str]:
        return []

    def kill(self, name: str) -> None:
        return

    async def stop(self, timeout_s: float) -> None:
        return


@pytest.fixture(autouse=True)
def _drivers() -> Iterator[None]:
    with ExitStack() as stack:
        stack.enter_context(override("source", "rows", Rows))
        stack.enter_context(override("sink", "files", Files))
        stack.enter_context(override("host", "afar", Afar))
        stack.enter_context(override("transport", "wire", Wire))
        yield


def word_of(line: str) -> str:
    return line


flow = fc.Flow("placed")
flow.source("lines", str).key_by(word_of).count().sink("counts")

HOME = {"source.lines.use": "rows"}
PLAIN = {"source.lines.use": "lines", "source.lines.path": __file__}


def spec_of(*settings: Mapping[str, Any], given: Any = None) -> JobSpec:
    merged = {key: value for table in settings for key, value in table.items()}
    return resolve(make_config(from_program(merged), environ={}), flow, given=given)


def place(spec: JobSpec) -> tuple[str, str]:
    spec.problems.raise_first()
    return spec.config.deploy.on, spec.config.transport.use


@pytest.mark.parametrize(
    ("settings", "expected", "because"),
    [
        (HOME, ("afar", "grpc"), ["source lines"]),
        (PLAIN | {"sink.counts.use": "files"}, ("afar", "grpc"), ["sink counts"]),
        (HOME | {"sink.counts.use": "files"}, ("afar", "grpc"), ["source lines", "sink counts"]),
        (HOME | {"transport.use": "wire"}, ("afar", "wire"), ["source lines"]),
        (HOME | {"afar.transport": "wire"}, ("afar", "wire"), ["source lines"]),
        (HOME | {"transport.use": "inproc"}, ("here", "inproc"), []),
        (HOME | {"source.lines.home": ""}, ("here", "inproc"), []),
        (HOME | {"deploy.on": "here"}, ("here", "inproc"), []),
        (HOME | {"deploy.on": "here", "transport.use": "grpc"}, ("here", "grpc"), []),
        (HOME | {"deploy.on": "processes"}, ("processes", "socket"), []),
        (PLAIN, ("here", "inproc"), []),
        (PLAIN | {"transport.use": "grpc"}, ("processes", "grpc"), []),
        (PLAIN | {"deploy.on": "processes"}, ("processes", "socket"), []),
        (PLAIN | {"deploy.on": "processes", "transport.grpc.listen": "127.0.0.1:0"}, ("processes", "grpc"), []),
        (PLAIN | {"deploy.on": "processes", "deploy.start": "join"}, ("processes", "grpc"), []),
        (PLAIN | {"deploy.start": "join"}, ("processes", "grpc"), []),
        (PLAIN | {"deploy.start": "join", "transport.grpc.listen": "127.0.0.1:0"}, ("processes", "grpc"), []),
        (PLAIN | {"deploy.start": "join", "transport.socket.folder": "here"}, ("processes", "socket"), []),
        (PLAIN | {"deploy.on": "afar"}, ("afar", "grpc"), []),
        (HOME | {"transport.use": "grpc", "deploy.start": "join"}, ("processes", "grpc"), []),
        (
            PLAIN | {"job.on_error": "dead_letter", "dead_letter.use": "files"},
            ("afar", "grpc"),
            ["sink dead_letter"],
        ),
    ],
    ids=str,
)
@pytest.mark.grpc
def test_a_job_runs_where_its_data_is_at_home(
    settings: dict[str, Any], expected: tuple[str, str], because: list[str]
) -> None:
    spec = spec_of(settings)
    assert place(spec) == expected
    assert list(spec.at_home) == because
    assert spec.embedded is (expected[0] == "here")
    assert spec.described()["on"]["use"] == expected[0]


def test_processes_of_this_machine_need_no_client() -> None:
    assert place(spec_of(PLAIN, {"deploy.on": "processes"})) == ("processes", "socket")


@pytest.mark.grpc
def test_the_host_completes_sources_that_were_asked_where_they_are_at_home() -> None:
    assert spec_of(HOME).sources["lines"].options.spool == "there"
    assert spec_of(HOME, {"deploy.on": "here"}).sources["lines"].options.spool == ""


@pytest.mark.grpc
def test_the_table_of_the_host_says_how_many_workers_there_are() -> None:
    assert spec_of(HOME, {"afar.workers": 3}).settings.workers == 3
    assert spec_of(HOME, {"afar.workers": 3, "job.workers": 2}).settings.workers == 2
    assert spec_of(HOME, {"afar.workers": 3, "deploy.on": "here"}).settings.workers == 1
    assert "afar.workers" in str(spec_of(HOME, {"afar.workers": "many"}).problems[0])


@pytest.mark.grpc
def test_a_resolved_configuration_stays_where_it_is() -> None:
    spec = spec_of(HOME)
    again = resolve(spec.config, flow)
    assert place(again) == place(spec)


def test_data_at_home_in_two_places_is_refused() -> None:
    (problem,) = spec_of(HOME, {"sink.counts.use": "files", "sink.counts.home": "yonder"}).problems
    assert isinstance(problem, ConfigError)
    assert str(problem) == (
        "the data of this job is at home in several places: "
        "that of source lines on 'afar', that of sink counts on 'yonder'\n"
        '  Choose where it runs: [deploy] on = "afar", or "here" for this process.'
    )


@pytest.mark.grpc
def test_a_home_that_is_not_installed_is_refused() -> None:
    problems = spec_of(HOME, {"source.lines.home": "yonder"}).problems
    assert any(isinstance(problem, UnknownPluginError) and "yonder" in str(problem) for problem in problems)


def test_a_mistake_in_a_source_is_told_once() -> None:
    problems = spec_of(HOME, {"source.lines.path": "x", "sink.counts.use": "files"}).problems
    assert [str(problem).splitlines()[0] for problem in problems if "source.lines.path" in str(problem)] == [
        "unknown key source.lines.path (settings of the program)"
    ]


def test_a_program_that_hands_over_values_stays_in_its_process() -> None:
    spec = spec_of({"sink.counts.use": "files"}, given={"lines": ["a"]})
    assert place(spec) == ("here", "inproc")
    with pytest.raises(ConfigError, match=r'deploy.on = "afar", and a program hands over counts, lines'):
        flow.run({"lines": ["a"]}, settings={"deploy.on": "afar"})


def test_a_transport_that_stays_in_the_process_has_no_host() -> None:
    with pytest.raises(ConfigError, match=r"and transport 'inproc' reaches no other process") as caught:
        job_of(spec_of(PLAIN, {"deploy.on": "processes", "transport.use": "inproc"}))
    assert caught.value.hint == 'Leave transport.use out, so that one that does is chosen; or use deploy.on = "here".'


@pytest.mark.grpc
def test_nobody_joins_a_job_in_one_process() -> None:
    with pytest.raises(ConfigError, match=r'deploy.start = "join", and deploy.on = "here"'):
        job_of(spec_of(PLAIN, {"deploy.on": "here", "transport.use": "grpc", "deploy.start": "join"}))


def test_a_state_in_memory_is_refused_on_several_processes() -> None:
    state = {"state.use": "memory"}
    with pytest.raises(ConfigError, match="state is kept by 'memory', in the memory of one process"):
        job_of(spec_of(PLAIN, state, {"deploy.on": "processes"}))
    job_of(spec_of(PLAIN, state))
