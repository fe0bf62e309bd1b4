"""Plugins are found by name, one at a time, and whatever is wrong with one is told by name too."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from typing import Any

import click
import pytest

from flamecore.abc.acker import Acker
from flamecore.errors import (
    MissingDependencyError,
    PluginApiError,
    PluginConflictError,
    PluginLoadError,
    UnknownPluginError,
)
from flamecore.runtime.config import plugins as registry
from flamecore.runtime.config.plugins import API_CURRENT, Kind, PluginRegistry

Distributions = Any
"""The fixture's class; a conftest cannot be imported."""

SINK = """
    from flamecore.plugin import hookimpl
    from flamecore.abc.sink import Sink

    class {cls}(Sink):
        name = "{name}"
        api = {api}
        guarantee = "at_least_once"
        async def write(self, time, payloads): ...

    @hookimpl
    def flamestream_sink():
        return {cls}
"""


def sink(name: str, cls: str = "S", api: Any = 1) -> str:
    return SINK.format(name=name, cls=cls, api=api)


def add_sink(distributions: Distributions, distribution: str, module: str, source: str, name: str = "x") -> None:
    distributions.add(distribution, modules={module: source}, entry_points={"flamestream.sink": {name: module}})


def test_only_the_named_module_is_imported(distributions: Distributions) -> None:
    add_sink(distributions, "flamestream-x", "plug_x", sink("x"))
    add_sink(distributions, "flamestream-y", "plug_y", "raise RuntimeError('must not be imported')", "y")
    found = PluginRegistry()
    assert {"x", "y"} <= set(found.names("sink"))
    assert [p.name for p in found.providers("sink") if p.module == "plug_y"] == ["y"]
    assert distributions.imported == set()
    assert found.get("sink", "x").__name__ == "S"
    assert distributions.imported == {"plug_x"}


def test_an_unknown_name_suggests_the_nearest(distributions: Distributions) -> None:
    add_sink(distributions, "flamestream-x", "plug_x", sink("parquet"), "parquet")
    with pytest.raises(UnknownPluginError) as caught:
        PluginRegistry().get("sink", "parqet")
    assert caught.value.kind == "sink"
    assert caught.value.name == "parqet"
    assert caught.value.nearest == "parquet"
    assert "parquet" in caught.value.known
    assert "Did you mean 'parquet'?" in str(caught.value)
    assert distributions.imported == set()


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("data/a.parquet", "--sink NAME=parquet --set sink.NAME.path=data/a.parquet"),
        ("parquet:a.part", "--sink NAME=parquet --set sink.NAME.path=a.part"),
        ("data/log", "--sink NAME=DRIVER --set sink.NAME.path=data/log"),
    ],
)
def test_a_file_in_the_place_of_a_driver_is_told_where_to_go(
    distributions: Distributions, name: str, advice: str
) -> None:
    add_sink(distributions, "flamestream-x", "plug_x", sink("parquet"), "parquet")
    with pytest.raises(UnknownPluginError) as caught:
        PluginRegistry().get("sink", name)
    assert advice in caught.value.hint
    assert "parquet" in caught.value.hint.partition("Known: ")[2]


def test_a_name_of_one_kind_is_unknown_to_another(distributions: Distributions) -> None:
    add_sink(distributions, "flamestream-x", "plug_x", sink("only_a_sink"), "only_a_sink")
    with pytest.raises(UnknownPluginError):
        PluginRegistry().get("source", "only_a_sink")


def test_two_distributions_of_one_name_are_a_conflict(distributions: Distributions) -> None:
    add_sink(distributions, "flamestream-one", "plug_one", sink("x", "One"))
    add_sink(distributions, "flamestream_Two", "plug_two", sink("x", "Two"))
    found = PluginRegistry()
    with pytest.raises(PluginConflictError) as caught:
        found.get("sink", "x")
    assert caught.value.distributions == ("flamestream-one", "flamestream_Two")
    assert distributions.imported == set()
    assert found.get("sink", "flamestream-one:x").__name__ == "One"
    assert found.get("sink", "flamestream-two:x").__name__ == "Two"
    with pytest.raises(UnknownPluginError):
        found.get("sink", "flamestream-three:x")


def test_a_broken_module_is_an_error_with_its_cause(distributions: Distributions) -> None:
    add_sink(distributions, "flamestream-x", "plug_x", "1 / 0")
    with pytest.raises(PluginLoadError) as caught:
        PluginRegistry().get("sink", "x")
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert caught.value.distribution == "flamestream-x"
    assert "flamestream-x 1.0" in str(caught.value)


@pytest.mark.parametrize("source", ["import plug_x_parts", "import flamecore.no_such_module", "import tomllib.no"])
def test_a_missing_module_of_the_plugin_is_no_missing_client(distributions: Distributions, source: str) -> None:
    target = "plug_x_gone" if "parts" in source else "plug_x"
    distributions.add("flamestream-x", modules={"plug_x": source}, entry_points={"flamestream.sink": {"x": target}})
    with pytest.raises(PluginLoadError):
        PluginRegistry().get("sink", "x")


@pytest.mark.parametrize(("kind", "others"), [("transport", "transports"), ("registry", "registries")])
def test_the_error_of_a_missing_client_names_module_and_extra(
    distributions: Distributions, kind: Kind, others: str
) -> None:
    distributions.add(
        "flamestream-x",
        modules={"plug_x": "import no_such_client.aio"},
        entry_points={f"flamestream.{kind}": {"x": "plug_x"}},
        extras=("all", "x"),
    )
    with pytest.raises(MissingDependencyError) as caught:
        PluginRegistry().get(kind, "x")
    assert f"Other {others}: " in str(caught.value)
    assert caught.value.module == "no_such_client"
    assert caught.value.extra == "x"
    assert "pip install 'flamestream-x[x]'" in str(caught.value)
    assert isinstance(caught.value.__cause__, ModuleNotFoundError)


def test_failures_inside_the_hook_are_reported_alike(distributions: Distributions) -> None:
    source = sink("x").replace("return S", "import no_such_client")
    add_sink(distributions, "flamestream-x", "plug_x", source)
    with pytest.raises(MissingDependencyError):
        PluginRegistry().get("sink", "x")
    add_sink(distributions, "flamestream-y", "plug_y", source.replace("import no_such_client", "return 1 / 0"), "y")
    with pytest.raises(PluginLoadError) as caught:
        PluginRegistry().get("sink", "y")
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_a_missing_client_may_have_no_extra(distributions: Distributions) -> None:
    add_sink(distributions, "flamestream-x", "plug_x", "import no_such_client")
    with pytest.raises(MissingDependencyError) as caught:
        PluginRegistry().get("sink", "x")
    assert caught.value.extra is None
    assert "pip install no_such_client" in str(caught.value)


@pytest.mark.parametrize(
    "source",
    [
        sink("x").replace("def flamestream_sink", "def flamestream_sunk"),
        sink("x").replace("flamestream_sink()", "flamestream_sink(wrong)"),
        sink("x").replace("return S", "return None"),
        "x = 1",
        sink("other"),
    ],
    ids=["misspelt hook", "wrong argument", "returns nothing", "no hook", "other name"],
)
def test_a_module_that_is_no_plugin_is_refused(distributions: Distributions, source: str) -> None:
    add_sink(distributions, "flamestream-x", "plug_x", source)
    found = PluginRegistry()
    for _ in range(2):  # a failure is not remembered as a success
        with pytest.raises(PluginLoadError) as caught:
            found.get("sink", "x")
    assert caught.value.name == "x"


@pytest.mark.parametrize("api", [0, API_CURRENT + 1, "'1'", None])
def test_another_version_of_the_contract_is_refused(distributions: Distributions, api: Any) -> None:
    add_sink(distributions, "flamestream-x", "plug_x", sink("x", api=api))
    with pytest.raises(PluginApiError) as caught:
        PluginRegistry().get("sink", "x")
    assert (caught.value.floor, caught.value.current) == (registry.API_FLOOR, API_CURRENT)


def test_one_module_may_be_of_two_kinds_and_have_two_names(distributions: Distributions) -> None:
    source = (
        sink("x")
        + """
    from flamecore.abc.source import Source

    class In(Source):
        name = "x"

    @hookimpl
    def flamestream_source():
        return In
    """
    )
    distributions.add(
        "flamestream-x",
        modules={"plug_x": source},
        entry_points={"flamestream.sink": {"x": "plug_x"}, "flamestream.source": {"x": "plug_x", "again": "plug_x"}},
    )
    found = PluginRegistry()
    assert found.get("sink", "x").__name__ == "S"
    assert found.get("source", "x").__name__ == "In"
    assert found.get("source", "x") is found.get("source", "x")
    with pytest.raises(PluginLoadError, match="calls itself 'x'"):
        found.get("source", "again")


def test_commands_and_observers_are_plugins(distributions: Distributions) -> None:
    command = """
        import click
        from flamecore.plugin import hookimpl

        @click.command("hello")
        def hello(): ...

        @hookimpl
        def flamestream_command():
            return hello
    """
    observer = """
        from flamecore.plugin import hookimpl

        @hookimpl
        def flamestream_job_started(job): ...
    """
    distributions.add(
        "flamestream-x",
        modules={"plug_c": command, "plug_h": observer, "plug_w": observer.replace("job_started", "job_begun")},
        entry_points={"flamestream.command": {"hello": "plug_c"}, "flamestream.hooks": {"h": "plug_h", "w": "plug_w"}},
    )
    found = PluginRegistry()
    assert isinstance(found.get("command", "hello"), click.Command)
    assert found.get("hooks", "h") is sys.modules["plug_h"]
    with pytest.raises(PluginLoadError, match="job_begun"):
        found.get("hooks", "w")


def test_override_adds_and_replaces_plugins_for_a_while(distributions: Distributions) -> None:
    add_sink(distributions, "flamestream-x", "plug_x", sink("x"))

    class Fake(Acker):
        name = "fake"

    found = PluginRegistry()
    with registry.override("acker", "fake", Fake), registry.override("sink", "x", Fake):
        assert found.get("acker", "fake") is Fake
        assert "fake" in found.names("acker")
        assert found.get("sink", "x") is Fake
    assert found.get("sink", "x").__name__ == "S"
    with pytest.raises(UnknownPluginError):
        found.get("acker", "fake")


def test_entry_points_are_read_once_and_late(distributions: Distributions, monkeypatch: pytest.MonkeyPatch) -> None:
    add_sink(distributions, "flamestream-x", "plug_x", sink("x"))
    scans = []
    real = importlib.metadata.entry_points

    def counted() -> Any:
        scans.append(1)
        return real()

    monkeypatch.setattr(importlib.metadata, "entry_points", counted)
    found = PluginRegistry()
    with registry.override("sink", "y", object):
        found.get("sink", "y")
    assert scans == []
    found.get("sink", "x")
    found.names("source")
    found.providers("hooks")
    assert scans == [1]


def test_importing_the_registry_reads_nothing() -> None:
    module = "flamecore.runtime.config.plugins"
    code = f"import sys; before = set(sys.modules); import {module}; print(*set(sys.modules) - before)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"importlib.metadata", "pluggy", "msgspec"} & set(done.stdout.split())


def test_what_is_installed_is_read_once_until_it_changes(
    distributions: Distributions, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    whole = importlib.metadata.entry_points

    def counted(**of: str) -> Any:
        asked.append(of)
        return whole(**of)

    monkeypatch.setattr(importlib.metadata, "entry_points", counted)
    for number in range(3):
        name = f"late-{number}"
        distributions.add(name, entry_points={"flamestream.source": {name: "late"}})
        for _ in range(3):
            assert name in PluginRegistry().names("source")
    assert len(asked) == 3
