"""An address leads to the drivers whose scheme it has; nobody but they themselves says which scheme that is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from textwrap import dedent
from typing import Any, ClassVar

import pytest

from flamecore.abc.config import JobConfig
from flamecore.abc.registry import JobRegistry
from flamecore.abc.transport import JobAddress, Transport
from flamecore.errors import ConfigError, MissingDependencyError, PluginConflictError
from flamecore.runtime.config.layers import from_program
from flamecore.runtime.config.plugins import PluginRegistry, override
from flamecore.runtime.config.read import make_config
from flamecore.runtime.config.schemes import SchemeDrivers, find_drivers, has_scheme, schemes_of


class Pigeon(Transport):
    """An old one, which says nothing of schemes."""

    name: ClassVar[str] = "pigeon"


class Road(Transport):
    name: ClassVar[str] = "road"
    schemes: ClassVar[tuple[str, ...] | None] = ("car", "bus")


class Board(JobRegistry):
    name: ClassVar[str] = "board"
    schemes: ClassVar[tuple[str, ...] | None] = ("board", "bus")


MODULE = """
    from flamecore.abc.hooks import hookimpl
    from flamecore.abc.transport import Transport

    class {cls}(Transport):
        name = "{name}"
        schemes = {schemes}

    @hookimpl
    def flamestream_transport():
        return {cls}
"""


@pytest.fixture(autouse=True)
def _plugins() -> Iterator[None]:
    with ExitStack() as stack:
        stack.enter_context(override("transport", "pigeon", Pigeon))
        stack.enter_context(override("transport", "road", Road))
        stack.enter_context(override("registry", "board", Board))
        yield


def configured(**use: str) -> JobConfig:
    return make_config(from_program({f"{section}.use": name for section, name in use.items()}))


def found(address: str, **use: str) -> SchemeDrivers:
    return find_drivers(address, configured(**use), PluginRegistry())


def add(distributions: Any, name: str, schemes: tuple[str, ...], head: str = "") -> None:
    source = f"{head}\n{dedent(MODULE.format(cls='T', name=name, schemes=schemes))}"
    points = {"flamestream.transport": {name: f"plug_{name}"}}
    distributions.add(f"flamestream-{name}", modules={f"plug_{name}": source}, entry_points=points)


def test_a_driver_that_names_no_schemes_has_its_name_for_one() -> None:
    assert schemes_of(Pigeon) == ("pigeon",)
    assert has_scheme(Pigeon, "pigeon://north")
    assert not has_scheme(Pigeon, "car://north")
    assert found("pigeon://north") == (None, ("pigeon", Pigeon))


def test_all_behind_the_scheme_is_the_location_unless_a_driver_says_otherwise() -> None:
    assert Pigeon.address_of("pigeon://north/tower") == JobAddress("north/tower", {})
    assert Board.address_of("board://hall") == {}


def test_a_scheme_may_be_another_word_than_the_name() -> None:
    assert found("car://a1") == (None, ("road", Road))


def test_a_registry_and_a_transport_may_have_one_scheme() -> None:
    assert found("bus://12") == (("board", Board), ("road", Road))
    assert found("board://hall") == (("board", Board), None)


def test_the_name_of_a_driver_is_no_scheme_if_it_has_others() -> None:
    with pytest.raises(ConfigError, match="no plugin with the scheme 'road'"):
        found("road://a1")


def test_only_the_driver_of_that_name_is_imported(distributions: Any) -> None:
    add(distributions, "quick", ("quick",))
    add(distributions, "broken", ("slow",), head="raise RuntimeError")
    transport = found("quick://here").transport
    assert transport is not None
    assert transport[0] == "quick"
    assert distributions.imported == {"plug_quick"}


def test_an_unknown_scheme_names_the_known_ones_and_their_plugins(distributions: Any) -> None:
    add(distributions, "quick", ("quick", "fast"))
    with pytest.raises(ConfigError) as caught:
        found("fastt://here")
    assert caught.value.what == "'fastt://here' is no address of a job: no plugin with the scheme 'fastt' is installed"
    assert caught.value.hint.startswith("Did you mean fast://? Known: ")
    for part in (
        "quick:// and fast:// (transport quick of flamestream-quick 1.0)",
        "car:// and bus:// (transport road of this process)",
        "board:// and bus:// (registry board of this process)",
    ):
        assert part in caught.value.hint
    assert "inproc" not in caught.value.hint  # nobody joins a job over that


def test_an_unknown_scheme_names_plugins_that_cannot_be_asked(distributions: Any) -> None:
    add(distributions, "broken", ("slow",), head="import no_such_client")
    with pytest.raises(ConfigError, match="'slow'") as caught:
        found("slow://here")
    assert "transport broken of flamestream-broken 1.0 may have others, and cannot be used" in caught.value.hint


def test_a_driver_of_that_name_whose_client_is_missing_says_so(distributions: Any) -> None:
    add(distributions, "broken", ("broken",), head="import no_such_client")
    with pytest.raises(MissingDependencyError, match="no_such_client"):
        found("broken://here")


@pytest.mark.parametrize("address", ["", "here", "127.0.0.1:7070", "car:/a1"])
def test_a_text_without_a_scheme_is_no_address(address: str) -> None:
    with pytest.raises(ConfigError, match="is no address of a job") as caught:
        found(address)
    assert "car://" in caught.value.hint


def test_the_configured_driver_is_taken_of_two_with_one_scheme(distributions: Any) -> None:
    add(distributions, "rail", ("car",))
    with pytest.raises(PluginConflictError) as caught:
        found("car://a1")
    assert caught.value.what == "'car://a1' may be an address of 2 drivers: transport rail and road"
    assert caught.value.hint == "Select one: --set transport.use=rail"
    assert caught.value.distributions == ("flamestream-rail 1.0", "this process")
    assert found("car://a1", transport="road") == (None, ("road", Road))


def test_a_configured_transport_does_not_hide_a_registry_with_the_scheme() -> None:
    assert found("bus://12", transport="road") == (("board", Board), ("road", Road))


def test_a_configured_driver_without_the_scheme_does_not_matter() -> None:
    assert found("pigeon://north", transport="road", registry="board") == (None, ("pigeon", Pigeon))
