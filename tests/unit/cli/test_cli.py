"""The command line around its commands: help, plugins, versions, errors and exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
from click.testing import CliRunner, Result

import flamecore
from flamecore.cli import main
from flamecore.cli.exits import Exit, exit_of
from flamecore.errors import ConfigError, FlameError, GraphError, JobError, PluginLoadError, UnknownKeyError

Distributions = Any
"""The fixture's class; a conftest cannot be imported."""

COMMAND = """
    import click
    from flamecore.cli.output import json_option, verbose_option
    from flamecore.errors import {error}
    from flamecore.plugin import hookimpl

    @click.command("{name}")
    @json_option
    @verbose_option
    def command():
        "Says hello."
        click.echo("hello")
        if {fails}:
            raise {error}("it is broken", hint="Correct it.", number=7)

    @hookimpl
    def flamestream_command():
        return command
"""


def call(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments), prog_name="flamestream")


def add_command(distributions: Distributions, source: str, name: str = "greet") -> None:
    distributions.add(
        "flamestream-x", modules={"plug_c": source}, entry_points={"flamestream.command": {name: "plug_c"}}
    )


def command(name: str = "greet", error: str = "JobError", fails: bool = False) -> str:
    return COMMAND.format(name=name, error=error, fails=fails)


def test_an_address_that_leads_nowhere_is_told_before_the_token_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FLAMESTREAM_TOKEN", raising=False)
    for arguments in (["worker", "--join", "foo://here"], ["status", "foo://here"]):
        done = call(*arguments, "--job", "words")
        assert done.exit_code == Exit.REFUSED
        assert "no plugin with the scheme 'foo' is installed" in done.stderr
    done = call("status", "socket:///here", "--job", "words")
    assert done.exit_code == Exit.REFUSED
    assert "FLAMESTREAM_TOKEN is not set" in done.stderr


def test_version_is_printed() -> None:
    assert call("--version").stdout == call("version").stdout
    done = call("version")
    assert done.exit_code == 0
    assert flamecore.__version__ in done.stdout
    facts = json.loads(call("version", "--json").stdout)
    assert facts["flamestream"] == flamecore.__version__
    assert facts["plugin_api"] == [1, 1]


def test_help_lists_commands_and_exit_codes_and_imports_none(distributions: Distributions) -> None:
    add_command(distributions, "raise RuntimeError")
    for arguments in (["--help"], ["-h"]):
        done = call(*arguments)
        assert done.exit_code == 0
        for word in ("run", "check", "graph", "plugins", "version", "greet", "flamestream-x 1.0"):
            assert word in done.stdout
        for code in Exit:
            assert f"\n    {code.value} " in done.stdout
    assert distributions.imported == set()


def test_help_has_the_first_line_of_the_module_of_a_command(distributions: Distributions) -> None:
    add_command(distributions, '"""Greet the world.\n\nAnd more."""\nraise RuntimeError')
    shown = call("--help").stdout
    assert "Greet the world." in shown
    assert "And more" not in shown
    assert distributions.imported == set()


def test_help_imports_no_package_above_a_command(distributions: Distributions) -> None:
    package = distributions.folder / "plug_p"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError", "utf-8")
    (package / "command.py").write_text('"""Greet from a package."""\nraise RuntimeError', "utf-8")
    distributions.add("flamestream-p", entry_points={"flamestream.command": {"greet": "plug_p.command"}})
    assert "Greet from a package." in call("--help").stdout
    assert "plug_p" not in sys.modules


@pytest.mark.parametrize("module", ["plug_none", "plug_c.command", "plug_c"])
def test_help_names_the_distribution_of_a_command_that_says_nothing(distributions: Distributions, module: str) -> None:
    points = {"flamestream.command": {"greet": module}}
    distributions.add("flamestream-x", modules={"plug_c": "this is no Python"}, entry_points=points)
    assert "Provided by flamestream-x 1.0." in call("--help").stdout


def test_help_of_the_commands_that_come_along(installed: None) -> None:
    shown = call("--help").stdout
    assert "Make certificates for TLS" in shown
    assert "See it work" in shown


@pytest.mark.parametrize("name", ["run", "check", "graph", "plugins", "version"])
def test_every_command_has_help(name: str) -> None:
    done = call(name, "--help")
    assert done.exit_code == 0
    assert "--json" in done.stdout


def test_commands_import_only_modules_they_need() -> None:
    code = """if True:
        import sys
        from flamecore.cli import main
        main(["version"], standalone_mode=False)
        heavy = {"rich", "structlog", "asyncio", "msgspec", "pluggy", "importlib.metadata"}
        print(sorted(heavy & set(sys.modules)))
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_a_plugin_may_bring_a_command(distributions: Distributions) -> None:
    add_command(distributions, command())
    done = call("greet")
    assert (done.exit_code, done.stdout) == (0, "hello\n")
    assert "Says hello." in call("greet", "--help").stdout
    assert call("flamestream-x:greet").stdout == "hello\n"


def test_an_unknown_command_suggests_the_nearest(distributions: Distributions) -> None:
    add_command(distributions, "raise RuntimeError")
    done = call("gret")
    assert done.exit_code == Exit.REFUSED
    assert "Did you mean 'greet'?" in done.stderr
    assert "Did you mean 'flamestream run shop.py'?" in call("shop.py").stderr
    assert "Did you mean 'flamestream run job.toml'?" in call("job.toml").stderr
    assert call("zzz").exit_code == Exit.REFUSED
    assert call("run").exit_code == Exit.REFUSED
    assert distributions.imported == set()


def test_a_broken_command_spoils_only_itself(distributions: Distributions) -> None:
    add_command(distributions, "raise RuntimeError('boom')")
    assert call("version").exit_code == 0
    done = call("greet")
    assert done.exit_code == Exit.PLUGIN
    assert "boom" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (FlameError("x"), 1),
        (JobError("x"), 1),
        (ConfigError("x"), 2),
        (UnknownKeyError("x"), 2),
        (GraphError("x"), 2),
        (PluginLoadError("x"), 3),
    ],
)
def test_each_error_has_its_exit_code(error: FlameError, code: int) -> None:
    assert exit_of(error) == code


@pytest.mark.parametrize(("error", "code"), [("JobError", 1), ("GraphError", 2), ("PluginLoadError", 3)])
def test_an_error_gives_its_text_and_an_exit_code(distributions: Distributions, error: str, code: int) -> None:
    add_command(distributions, command(error=error, fails=True))
    done = call("greet")
    assert done.exit_code == code
    assert done.stdout == "hello\n"
    assert done.stderr == "error: it is broken\n  Correct it.\n"


def test_a_process_without_memory_says_so_in_short(distributions: Distributions) -> None:
    source = command(fails=True).replace('JobError("it is broken", hint="Correct it.", number=7)', "MemoryError")
    add_command(distributions, source)
    done = call("greet")
    assert done.exit_code == Exit.FAILED
    first, where, hint = done.stderr.splitlines()
    assert first == "error: memory ran out during flamestream greet:"
    assert where.endswith("in command: raise MemoryError")
    assert "max_in_flight" in hint
    facts = json.loads(call("greet", "--json").stdout.removeprefix("hello\n"))
    assert (facts["error"]["type"], facts["exit_code"]) == ("JobError", 1)
    assert "Traceback" in call("greet", "-v").stderr


def test_errors_may_be_json_and_have_a_traceback(distributions: Distributions) -> None:
    add_command(distributions, command(fails=True))
    done = call("greet", "--json")
    assert done.exit_code == 1
    facts = json.loads(done.stdout.removeprefix("hello\n"))
    assert facts == {
        "error": {"type": "JobError", "message": "it is broken", "hint": "Correct it.", "number": 7},
        "exit_code": 1,
    }
    assert "Traceback" not in done.stderr
    assert "Traceback" in call("greet", "-v").stderr


def test_an_interrupt_before_a_job_runs_ends_the_command(distributions: Distributions) -> None:
    add_command(distributions, command().replace("if False:", "raise KeyboardInterrupt\n        if False:"))
    assert call("greet").exit_code == Exit.STOPPED


# -- plugins ---------------------------------------------------------------------------------------------------------


def rows_of(*arguments: str, kind: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(call("plugins", *arguments, "--json").stdout)["plugins"]
    return [row for row in rows if row["kind"] == kind and row["distribution"].startswith("flamestream-")]


def test_plugins_are_listed_without_importing(distributions: Distributions) -> None:
    add_command(distributions, "raise RuntimeError")
    assert rows_of(kind="command") == [
        {
            "kind": "command",
            "name": "greet",
            "distribution": "flamestream-x",
            "version": "1.0",
            "module": "plug_c",
            "conflict": False,
            "error": None,
        }
    ]
    assert any(line.split()[:2] == ["command", "greet"] for line in call("plugins").stdout.splitlines())
    assert distributions.imported == set()


def test_plugins_are_checked_by_importing(distributions: Distributions) -> None:
    add_command(distributions, command())
    assert [row["ok"] for row in rows_of("--check", kind="command")] == [True]
    assert distributions.imported == {"plug_c"}


def test_broken_plugin_is_found_by_the_check(distributions: Distributions) -> None:
    add_command(distributions, "import no_such_client")
    row = rows_of("--check", kind="command")[0]
    assert row["ok"] is False
    assert row["error"]["type"] == "MissingDependencyError"
    assert row["error"]["module"] == "no_such_client"
    done = call("plugins", "--check")
    assert done.exit_code == Exit.PLUGIN
    assert "pip install no_such_client" in done.stdout
    assert call("plugins").exit_code == 0


def test_conflict_is_shown(distributions: Distributions) -> None:
    add_command(distributions, command())
    distributions.add("flamestream-y", entry_points={"flamestream.command": {"greet": "plug_c"}})
    assert [row["conflict"] for row in rows_of(kind="command")] == [True, True]
    done = call("plugins", "--check")
    assert done.exit_code == Exit.PLUGIN
    assert "flamestream-y:greet" in done.stdout
    assert call("greet").exit_code == Exit.PLUGIN
    assert call("flamestream-y:greet").stdout == "hello\n"
