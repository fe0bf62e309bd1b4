"""A job's configuration: three layers become one strict value, and every mistake is told with its full path."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import pytest

from flamecore.abc.config import DeployTable, Edge, JobConfig, RegistryTable, SinkEdge
from flamecore.errors import ConfigError, UnknownKeyError
from flamecore.model.settings import DriverChoice, JobTable, StateTable
from flamecore.runtime.config.layers import OWN_KEYS, Layer, from_command, parsed
from flamecore.runtime.config.options import options_of
from flamecore.runtime.config.read import read_config
from flamecore.runtime.config.validate import Problems, expand, redacted

Given = Mapping[str, str]


def read(
    tmp_path: Path,
    text: str = "",
    *,
    env: Given | None = None,
    command: Layer | None = None,
    problems: Problems | None = None,
) -> JobConfig:
    file = tmp_path / "job.toml"
    file.write_text(f"schema = 1\n{text}", "utf-8")
    return read_config(file, environ=env or {}, command=command, problems=problems)


def test_a_whole_file_is_read(tmp_path: Path) -> None:
    config = read(
        tmp_path,
        """
        [job]
        flow = "word_count.py:flow"
        workers = 4
        clock = "wall"
        guarantee = "exactly_once"
        on_error = "skip"
        max_in_flight = 10
        [transport]
        use = "grpc"
        [transport.grpc]
        servers = ["a", "b"]
        [transport.inproc]
        serialise = true
        [acker]
        use = "local"
        [acker.local]
        inner = "sharded"
        [source.pages]
        use = "wikipedia"
        on_error = "dead_letter"
        path = "dump.xml"
        [sink.index]
        use = "sqlite"
        path = "index.db"
        [dead_letter]
        use = "jsonl"
        path = "dead.jsonl"
        [hooks]
        use = ["audit", "trace"]
        """,
    )
    job = config.job
    assert (job.flow, job.workers, job.clock, job.guarantee) == ("word_count.py:flow", 4, "wall", "exactly_once")
    assert (job.on_error, job.max_in_flight) == ("skip", 10)
    assert config.transport.use == "grpc"
    assert config.transport.tables == {"grpc": {"servers": ["a", "b"]}, "inproc": {"serialise": True}}
    assert (config.acker.use, config.acker.tables) == ("local", {"local": {"inner": "sharded"}})
    pages = config.source["pages"]
    assert (pages.use, pages.on_error, pages.options) == ("wikipedia", "dead_letter", {"path": "dump.xml"})
    assert (config.sink["index"].use, config.sink["index"].options) == ("sqlite", {"path": "index.db"})
    assert config.dead_letter is not None
    assert (config.dead_letter.use, config.dead_letter.options) == ("jsonl", {"path": "dead.jsonl"})
    assert config.hooks == ("audit", "trace")
    assert config.folder == tmp_path


def test_an_empty_configuration_has_defaults(tmp_path: Path) -> None:
    config = read_config(environ={})
    assert config.job == JobTable()
    assert config.deploy == DeployTable()
    assert config.registry == RegistryTable(use="supervisor")
    assert config.state.use is None
    assert (config.transport.use, config.acker.use, config.job.workers) == ("", "centralized", 1)
    assert read(tmp_path).job == JobTable()


@pytest.mark.parametrize("text", ["", "schema = 2", "schema = '1'", "schema = true"])
def test_another_schema_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "job.toml"
    file.write_text(text, "utf-8")
    with pytest.raises(ConfigError, match="reads schema 1") as caught:
        read_config(file, environ={})
    assert caught.value.path == "schema"


def test_a_file_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    file = tmp_path / "job.toml"
    file.write_text("schema = 1\n[job]\nworkers = 3\n", "utf-8-sig")
    assert read_config(file, environ={}).job.workers == 3


def test_a_file_missing_or_not_toml_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"gone\.toml cannot be read"):
        read_config(tmp_path / "gone.toml", environ={})
    (tmp_path / "bad.toml").write_bytes(b"schema = 1\n[job\n")
    with pytest.raises(ConfigError, match="line 2"):
        read_config(tmp_path / "bad.toml", environ={})
    (tmp_path / "latin.toml").write_bytes("schema = 1\nname = 'ä'".encode("latin-1"))
    with pytest.raises(ConfigError, match="not a TOML file"):
        read_config(tmp_path / "latin.toml", environ={})


@pytest.mark.parametrize(
    ("text", "path", "nearest"),
    [
        ("[job]\nworkrs = 2", "job.workrs", "job.workers"),
        ("[jop]\nworkers = 2", "jop", "job"),
        ("[sources.lines]\nuse = 'stdin'", "sources", "source"),
        ("[hooks]\nuses = ['a']", "hooks.uses", "hooks.use"),
        ("[job]\nxyz = 2", "job.xyz", None),
    ],
)
def test_an_unknown_key_suggests_the_nearest(tmp_path: Path, text: str, path: str, nearest: str | None) -> None:
    with pytest.raises(UnknownKeyError) as caught:
        read(tmp_path, text)
    assert caught.value.path == path
    assert caught.value.nearest == nearest
    assert path in str(caught.value)
    assert "job.toml" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("[job]\nworkers = '2'", "job.workers"),
        ("[job]\nworkers = 0", "job.workers"),
        ("[job]\nworkers = true", "job.workers"),
        ("[job]\nclock = 'sundial'", "job.clock"),
        ("[source.a]\nuse = 1", "source.a.use"),
        ("[source.a]\non_error = 'explode'", "source.a.on_error"),
        ("[source]\na = 1", "source.a"),
        ("[transport]\nuse = 'inproc'\nserialise = true", "transport.serialise"),
        ("[acker]\nuse = ['local']", "acker.use"),
        ("dead_letter = 'file'", "dead_letter"),
        ("[hooks]\nuse = ['a', 2]", "hooks.use[1]"),
    ],
)
def test_a_wrong_type_is_refused(tmp_path: Path, text: str, path: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, text)
    assert caught.value.path == path
    assert path in str(caught.value)


def test_a_job_has_a_name_that_can_be_written(tmp_path: Path) -> None:
    """It becomes a part of files, keys and messages; a byte of a command line need not be UTF-8."""
    with pytest.raises(ConfigError, match="which no encoding can write") as caught:
        read(tmp_path, command=from_command(["job.name=caf\udce9"]))
    assert caught.value.path == "job.name"


def test_the_error_of_a_wrong_choice_names_the_right_ones(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Did you mean 'sequence'") as caught:
        read(tmp_path, "[job]\nclock = 'sequense'")
    assert "wall" in str(caught.value)


def test_all_problems_are_noted(tmp_path: Path) -> None:
    problems = Problems()
    config = read(
        tmp_path, "[job]\nworkers = '2'\n[jop]\n[transport]\nuse = 3\n[source.a]\non_error = 'x'", problems=problems
    )
    assert [getattr(problem, "path", None) for problem in problems] == [
        "jop",
        "job.workers",
        "transport.use",
        "source.a.on_error",
    ]
    assert config.job.workers == 1


# -- layers ----------------------------------------------------------------------------------------------------------

FILE = "[job]\nworkers = 2\nname = 'file'\n[transport]\nuse = 'grpc'\n"


def test_layers_have_their_precedence(tmp_path: Path) -> None:
    env = {"FLAMESTREAM__JOB__WORKERS": "3", "FLAMESTREAM__TRANSPORT__USE": "inproc", "FLAMESTREAM_DATA": "/elsewhere"}
    assert read(tmp_path, FILE, env=env).job.workers == 3
    config = read(tmp_path, FILE, env=env, command=from_command(["job.workers=4"]))
    assert (config.job.workers, config.job.name, config.transport.use) == (4, "file", "inproc")
    assert read(tmp_path, FILE, command=from_command(["job.workers=4"], workers=5)).job.workers == 5


def test_environment_reaches_names_with_capitals_and_hyphens(tmp_path: Path) -> None:
    text = "[source.My-Pages]\nuse = 'lines'\npath = 'a'"
    config = read(tmp_path, text, env={"FLAMESTREAM__SOURCE__MY_PAGES__PATH": "b"})
    assert config.source.keys() == {"My-Pages"}
    assert config.source["My-Pages"].options == {"path": "b"}


def test_errors_name_the_origin(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="environment variable FLAMESTREAM__JOB__WORKERS"):
        read(tmp_path, FILE, env={"FLAMESTREAM__JOB__WORKERS": "many"})
    with pytest.raises(ConfigError, match=r"--set job\.clock"):
        read(tmp_path, FILE, command=from_command(["job.clock=moon"]))
    with pytest.raises(UnknownKeyError, match="FLAMESTREAM__JBO__WORKERS"):
        read(tmp_path, FILE, env={"FLAMESTREAM__JBO__WORKERS": "1"})
    with pytest.raises(ConfigError, match=r"job\.toml"):
        read(tmp_path, "[job]\nclock = 'moon'")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("4", 4),
        ("4.5", 4.5),
        ("true", True),
        ("[1, 2]", [1, 2]),
        ('"4"', "4"),
        ("out.jsonl", "out.jsonl"),
        ("a=b", "a=b"),
        ("", ""),
        ("1\nx = 2", "1\nx = 2"),
        ("C:\\data", "C:\\data"),
    ],
)
def test_the_command_line_gives_typed_values(text: str, value: Any) -> None:
    assert parsed(text) == value
    assert from_command([f"source.a.key={text}"]).table == {"source": {"a": {"key": value}}}


def test_the_command_line_may_quote_names() -> None:
    assert from_command(['source."a.b".path=x']).table == {"source": {"a.b": {"path": "x"}}}


@pytest.mark.parametrize("text", ["job.workers", "workers=1", "=1", "job..workers=1", "job.worker s=1", "a\nb.c=1"])
def test_a_malformed_setting_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"KEY=VALUE|dotted key|no table"):
        from_command([text])


@pytest.mark.parametrize("text", ["lines", "=stdin", "lines="])
def test_a_malformed_replacement_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="NAME=DRIVER") as caught:
        from_command(sources=[text])
    assert "--source lines=stdin" in caught.value.hint


EDGE = """
[sink.index]
use = "sqlite"
path = "index.db"
table = "words"
[source.a]
use = "csv"
on_error = "skip"
path = "a"
"""


def test_another_driver_drops_the_options_of_the_first(tmp_path: Path) -> None:
    command = from_command(["sink.index.path=OUT.jsonl"], sinks=["index=jsonl"], sources=["a=stdin"])
    config = read(tmp_path, EDGE, command=command)
    assert (config.sink["index"].use, config.sink["index"].options) == ("jsonl", {"path": "OUT.jsonl"})
    assert (config.source["a"].use, config.source["a"].options) == ("stdin", {})
    assert config.source["a"].on_error == "skip"


def test_the_same_driver_keeps_its_options(tmp_path: Path) -> None:
    command = from_command(["sink.index.path=other.db"], sinks=["index=sqlite"])
    assert read(tmp_path, EDGE, command=command).sink["index"].options == {"path": "other.db", "table": "words"}


def test_the_environment_may_choose_another_driver(tmp_path: Path) -> None:
    env = {"FLAMESTREAM__SINK__INDEX__USE": "stdout", "FLAMESTREAM__SINK__INDEX__MODE": "x"}
    config = read(tmp_path, EDGE, env=env)
    assert (config.sink["index"].use, config.sink["index"].options) == ("stdout", {"mode": "x"})
    config = read(tmp_path, EDGE, env=env, command=from_command(sinks=["index=jsonl"]))
    assert (config.sink["index"].use, config.sink["index"].options) == ("jsonl", {})


def test_a_registry_may_be_replaced(tmp_path: Path) -> None:
    text = "[registry]\nuse = 'nats'\nlease_s = 9.0\nservers = ['nats://h:1']"
    registry = read(tmp_path, text).registry
    assert (registry.use, registry.lease_s, registry.options) == ("nats", 9.0, {"servers": ["nats://h:1"]})
    registry = read(tmp_path, text, command=from_command(["registry.use=supervisor"])).registry
    assert (registry.use, registry.lease_s, registry.options) == ("supervisor", 9.0, {})


def test_every_section_knows_its_own_keys() -> None:
    tables: dict[str, type[DriverChoice]] = {"source": Edge, "state": StateTable, "registry": RegistryTable}
    for section, table in tables.items():
        assert {*table.__struct_fields__} - {"options"} == {*OWN_KEYS[section]}
    assert {*SinkEdge.__struct_fields__} - {"options", "on_error"} == {*OWN_KEYS["sink"]}
    assert {*OWN_KEYS["dead_letter"]} < {*OWN_KEYS["sink"]} - {"order"} < {*OWN_KEYS["source"]}, (
        "the others are options"
    )


def test_dead_letters_may_get_another_driver(tmp_path: Path) -> None:
    text = "[dead_letter]\nuse = 'jsonl'\npath = 'dead.jsonl'"
    dead = read(tmp_path, text, command=from_command(["dead_letter.use=stdout"])).dead_letter
    assert dead is not None
    assert (dead.use, dead.options) == ("stdout", {})


def test_a_value_in_place_of_a_table_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"source\.a is a value"):
        from_command(["source.a=1", "source.a.path=x"])
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, EDGE, command=from_command(["source.a=1"]))
    assert caught.value.path == "source.a"


# -- options of drivers -----------------------------------------------------------------------------------------------


class Limits(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    high: int = 1


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    path: str
    size: Annotated[int, msgspec.Meta(ge=1)] = 10
    mode: Literal["new", "append"] = "new"
    limits: Limits = Limits()
    names: tuple[str, ...] = ()
    api_token: str | int = ""


class Driver:
    Options = Options


class Plain:
    Options = None


def test_options_are_built() -> None:
    options = options_of(Driver, {"path": "a", "names": ["b"], "limits": {"high": 3}}, "sink.x")
    assert options == Options(path="a", names=("b",), limits=Limits(high=3))
    assert options_of(Plain, {}, "sink.x") is None


@pytest.mark.parametrize(
    ("table", "path", "nearest"),
    [
        ({"path": "a", "pth": "b"}, "sink.x.pth", "sink.x.path"),
        ({"path": "a", "limits": {"hihg": 1}}, "sink.x.limits.hihg", "sink.x.limits.high"),
    ],
)
def test_an_unknown_option_is_refused(table: dict[str, Any], path: str, nearest: str | None) -> None:
    with pytest.raises(UnknownKeyError) as caught:
        options_of(Driver, table, "sink.x")
    assert (caught.value.path, caught.value.nearest) == (path, nearest)


def test_an_option_for_a_driver_without_options_is_refused() -> None:
    with pytest.raises(UnknownKeyError) as caught:
        options_of(Plain, {"path": "x"}, "sink.x")
    assert caught.value.path == "sink.x.path"


@pytest.mark.parametrize(
    ("table", "path", "text"),
    [
        ({}, "sink.x.path", "missing"),
        ({"path": 1}, "sink.x.path", "expected `str`, got `int`"),
        ({"path": "a", "size": 0}, "sink.x.size", "0"),
        ({"path": "a", "names": ["b", 7]}, "sink.x.names[1]", "= 7 "),
        ({"path": "a", "names": 'b "c"'}, "sink.x.names", """--set 'sink.x.names=["b \\"c\\""]'"""),
        ({"path": "a", "names": 7}, "sink.x.names", "expected `array`, got `int`"),
        ({"path": "a", "limits": {"high": "x"}}, "sink.x.limits.high", "'x'"),
        ({"path": "a", "mode": "apend"}, "sink.x.mode", "Did you mean 'append'?"),
    ],
)
def test_an_option_of_a_wrong_type_is_refused(table: dict[str, Any], path: str, text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        options_of(Driver, table, "sink.x")
    assert caught.value.path == path
    assert text in str(caught.value)


def test_references_to_the_environment_are_expanded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLAME_DIR", "/data")
    options = options_of(Driver, {"path": "${FLAME_DIR}/a", "names": ["$${FLAME_DIR}", "$HOME"]}, "sink.x")
    assert (options.path, options.names) == ("/data/a", ("${FLAME_DIR}", "$HOME"))
    monkeypatch.delenv("FLAME_DIR")
    with pytest.raises(ConfigError) as caught:
        options_of(Driver, {"path": "${FLAME_DIR}/a"}, "sink.x")
    assert caught.value.path == "sink.x.path"
    assert "FLAME_DIR" in str(caught.value)


def test_references_in_the_job_table_are_expanded(tmp_path: Path) -> None:
    assert read(tmp_path, "[job]\nname = 'job-${N}'", env={"N": "7"}).job.name == "job-7"
    with pytest.raises(ConfigError, match="N, which is not set"):
        read(tmp_path, "[job]\nname = 'job-${N}'")


def test_references_in_tables_that_are_not_used_are_left_alone(tmp_path: Path) -> None:
    config = read(tmp_path, "[transport.grpc]\ntoken = '${NOT_SET}'")
    assert config.transport.tables["grpc"] == {"token": "${NOT_SET}"}


def test_secrets_are_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError) as caught:
        options_of(Driver, {"path": "a", "api_token": ["s3cret"]}, "sink.x")
    assert "s3cret" not in str(caught.value)
    assert "***" in str(caught.value)
    monkeypatch.setenv("FLAME_SECRET", "s3cret")
    with pytest.raises(ConfigError) as caught:
        options_of(Driver, {"path": "a", "mode": "${FLAME_SECRET}"}, "sink.x")
    assert "s3cret" not in str(caught.value)
    assert "${FLAME_SECRET}" in str(caught.value)
    shown = redacted({"password": "a", "nested": {"api-key": "b", "user": "ann"}, "tokens": ["c"], "url": "x://u:d@h/"})
    assert shown == {
        "password": "***",
        "nested": {"api-key": "***", "user": "ann"},
        "tokens": "***",
        "url": "x://***@h/",
    }


def test_only_texts_are_expanded() -> None:
    assert expand({"a": 1, "b": [True, "${X}"], "c": {"d": "${X}"}}, "p", {"X": "y"}) == {
        "a": 1,
        "b": [True, "y"],
        "c": {"d": "y"},
    }
