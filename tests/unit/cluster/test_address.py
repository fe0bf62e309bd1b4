"""The place of a job: the registry's record goes before the transport's address."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from typing import Any, ClassVar

import msgspec
import pytest

from flamecore.abc.registry import RegistryCapabilities, RegistryContext
from flamecore.abc.transport import JobAddress, Transport
from flamecore.cli import joining as joining_module
from flamecore.errors import ConfigError, RegistryError
from flamecore.runtime.cluster import address as module
from flamecore.runtime.cluster.address import JobPlace, find_job
from flamecore.runtime.cluster.job_record import JobRecord, encode, key_of
from flamecore.runtime.config.layers import from_program
from flamecore.runtime.config.read import make_config
from flamecore.testing import override
from flamestream_inproc.registry import Held, SupervisorRegistry

TOKEN = "secret"


class RoadOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    toll: str = ""
    lane: int = 0


class Road(Transport):
    name: ClassVar[str] = "road"
    Options: ClassVar[Any] = RoadOptions
    schemes: ClassVar[tuple[str, ...] | None] = ("bus", "car")

    @classmethod
    def address_of(cls, url: str) -> JobAddress:
        _, _, place = url.partition("://")
        if not place:
            raise ConfigError(f"{url!r} leads nowhere", path="")
        return JobAddress(f"km {place}", {"toll": "paid", "lane": 1})


class Rail(Transport):
    name: ClassVar[str] = "rail"
    Options: ClassVar[Any] = RoadOptions


class BoardOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    hall: str = ""


class Board(SupervisorRegistry):
    """Entries that all who are asked of one hall share."""

    name: ClassVar[str] = "board"
    Options: ClassVar[Any] = BoardOptions
    schemes: ClassVar[tuple[str, ...] | None] = ("board", "bus")
    halls: ClassVar[dict[str, Held]] = {}

    def __init__(self, options: Any, context: RegistryContext) -> None:
        super().__init__(options, context, self.halls.setdefault(options.hall, Held()))

    @classmethod
    def address_of(cls, url: str) -> Mapping[str, Any]:
        return {"hall": url.partition("://")[2]}

    @property
    def capabilities(self) -> RegistryCapabilities:
        return RegistryCapabilities(shared=True)

    async def open(self) -> None:
        if self.options.hall == "shut":
            raise RegistryError("the hall is shut", registry=self.name, key="")


@pytest.fixture(autouse=True)
def _plugins(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(Board, "halls", {})
    monkeypatch.setattr(module, "WAIT_S", 0.0)
    with ExitStack() as stack:
        stack.enter_context(override("transport", "road", Road))
        stack.enter_context(override("transport", "rail", Rail))
        stack.enter_context(override("registry", "board", Board))
        yield


def put_up(transport: str, hall: str = "5", lease_s: float = 5.0, job: str = "words") -> None:
    where = {"run": "words-3", "transport": transport, "control": "there"}
    record = JobRecord(job=job, incarnation=3, holder="h", claim="c", lease_s=lease_s, **where)
    asyncio.run(Board(BoardOptions(hall=hall), RegistryContext()).create(key_of(job), encode(record, TOKEN)))


def find(address: str, **settings: Any) -> JobPlace:
    config = make_config(from_program({key.replace("__", "."): value for key, value in settings.items()}))
    return find_job(address, "words", config, TOKEN)


def test_without_a_registry_the_transport_knows_the_place() -> None:
    assert find("car://5") == JobPlace("road", {"toll": "paid", "lane": 1}, "words", "words", 1, "km 5")


def test_configured_options_go_before_those_of_the_address() -> None:
    assert find("car://5", transport__road__lane=7).options == {"toll": "paid", "lane": 7}


def test_an_address_that_its_plugin_refuses_is_refused() -> None:
    with pytest.raises(ConfigError, match="leads nowhere"):
        find("car://")


def test_a_registry_that_knows_the_job_goes_before_the_transport() -> None:
    put_up("road")
    assert find("bus://5") == JobPlace("road", {"toll": "paid", "lane": 1}, "words-3", "words", 3, "there")


def test_a_registry_may_lead_to_a_transport_with_other_schemes() -> None:
    put_up("rail")
    assert find("board://5", transport__rail__lane=2) == JobPlace("rail", {"lane": 2}, "words-3", "words", 3, "there")


def test_options_of_a_registry_go_before_those_of_the_address() -> None:
    put_up("rail", hall="6")
    assert find("board://5", registry__use="board", registry__hall="6").control == "there"


def test_a_registry_that_nobody_named_need_not_know_the_job() -> None:
    assert find("bus://5").control == "km 5"
    put_up("road", lease_s=0)  # it has ended
    assert find("bus://5").control == "km 5"


def test_a_registry_that_is_configured_must_know_the_job() -> None:
    with pytest.raises(RegistryError, match="has no entry for job 'words'"):
        find("bus://5", registry__use="board")


def test_a_registry_must_know_the_job_if_no_transport_has_the_scheme() -> None:
    with pytest.raises(RegistryError, match="has no entry for job 'words'"):
        find("board://5")


def test_a_registry_that_cannot_be_asked_matters_only_if_it_is_configured() -> None:
    assert find("bus://shut", registry__use="supervisor").control == "km shut"
    with pytest.raises(RegistryError, match="the hall is shut"):
        find("bus://shut", registry__use="board")


def test_a_record_of_somebody_without_the_token_is_refused() -> None:
    put_up("road")
    with pytest.raises(RegistryError, match="without its token"):
        find_job("bus://5", "words", make_config(from_program({})), "another")


# -- an address and no name of a job -----------------------------------------------------------------------------------


def named(address: str) -> str:
    return find_job(address, "", make_config(from_program({})), TOKEN).job_name


def test_the_only_job_that_a_registry_lists_is_meant() -> None:
    put_up("rail")
    put_up("rail", job="ended", lease_s=0)
    assert named("board://5") == "words"
    assert named("bus://5") == "words", "also where the address may be a transport's"


def test_of_several_jobs_one_has_to_be_named() -> None:
    put_up("rail")
    put_up("rail", job="other words")
    with pytest.raises(RegistryError, match="lists the jobs other words, words") as caught:
        named("board://5")
    assert "ADDRESS#NAME" in caught.value.hint


def test_a_registry_without_jobs_says_so() -> None:
    with pytest.raises(RegistryError, match="lists no job that runs"):
        named("board://5")


def test_an_address_of_a_supervisor_needs_a_name() -> None:
    with pytest.raises(ConfigError, match="does not say which job is meant") as caught:
        named("car://5")
    assert "car://5#NAME" in caught.value.hint


@pytest.mark.parametrize(
    ("address", "job", "asked"),
    [
        ("car://5#my%20words", None, ("car://5", "my words")),
        ("car://5", "words", ("car://5", "words")),
        ("car:///a#b", "words", ("car:///a#b", "words")),
        ("car://5", None, ("car://5", "")),
    ],
)
def test_a_name_may_be_a_part_of_the_address(
    address: str, job: str | None, asked: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[str, str]] = []

    def find_there(address: str, job: str, *_: Any, **__: Any) -> JobPlace:
        told.append((address, job))
        return JobPlace("road", {}, "words-3", "words", 1, "there")

    monkeypatch.setattr(joining_module, "find_job", find_there)
    monkeypatch.setenv("FLAMESTREAM_TOKEN", TOKEN)
    with joining_module.joining(address, job=job, name=None, role="observer", settings=(), config_file=None) as facts:
        assert (facts["job"], facts["job_name"]) == ("words-3", "words")
    assert told == [asked]
