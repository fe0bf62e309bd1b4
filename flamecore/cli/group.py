"""The group of all commands, which it imports when they are called.

Errors end as their text and an exit code.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

import click

from flamecore import events, logs
from flamecore.cli.exits import Exit, exit_of
from flamecore.cli.output import print_error
from flamecore.errors import FlameError
from flamecore.escapes import block
from flamecore.model.failure import memory_error
from flamecore.runtime.config.plugins import PluginRegistry, Provider
from flamecore.suggest import nearest

BUILT_IN: Final[Mapping[str, str]] = {
    "run": "Run a flow: a script, a module, or a job file.",
    "retry": "Read the records of a file of dead letters again, once.",
    "check": "Load everything, start nothing: show what would run, and every problem.",
    "graph": "Draw the graph of a flow.",
    "plugins": "List the plugins that are installed.",
    "version": "Print the version.",
    "worker": "Join a job that runs elsewhere, as one of its workers.",
    "acker": "Join a job that runs elsewhere, to host its trackers.",
    "status": "Show a job that runs on several processes.",
    "rescale": "Change the number of workers of a running job.",
    "upgrade": "Switch a running job to another version of its flow.",
    "plan": "Show which state a changed flow keeps, drops or cannot read.",
    "snapshot": "List, show, verify and prune the snapshots of a job.",
    "state": "Look up a key in the state of a job.",
    "merge-output": "Write the output of a sink in partitions as one sequence.",
    "verify-output": "Compare outputs in files with their checksums.",
}
"""The commands that come with the core; each has a module of its name, with `_` for `-`, in this package."""


class FlameGroup(click.Group):
    """The commands of this package, and those of plugins.

    Plugins provide commands in the entry-point group `flamestream.command`.

    A plugin's command is imported when it is called by name, never to list it.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the core's commands, then those of plugins."""
        return [*BUILT_IN, *(name for name in _registry(ctx).names("command") if name not in BUILT_IN)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command; None if there is none of that name.

        Raises:
            PluginError: A plugin provides it, and cannot be used.
        """
        if cmd_name in BUILT_IN:
            command: click.Command = importlib.import_module(
                f"flamecore.cli.commands.{cmd_name.replace('-', '_')}"
            ).command
            return command
        if cmd_name.rpartition(":")[2] not in _registry(ctx).names("command"):
            if cmd_name.endswith((".py", ".toml")) and not ctx.resilient_parsing:
                ctx.fail(f"No such command {cmd_name!r}. Did you mean 'flamestream run {cmd_name}'?")
            close = nearest(cmd_name, self.list_commands(ctx))
            if close is not None and not ctx.resilient_parsing:
                ctx.fail(f"No such command {cmd_name!r}. Did you mean {close!r}?")
            return None
        return _registry(ctx).get("command", cmd_name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without importing any."""
        plugins = {provider.name: _words_of(provider) for provider in _registry(ctx).providers("command")}
        rows = [(name, BUILT_IN.get(name) or plugins.get(name, "")) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def main(self, *args: Any, **extra: Any) -> Any:
        """Run the group; a program ends even if a part of it hangs.

        It is a program if no arguments are given here. A task that hangs was given up before.
        """
        program = not args and extra.get("args") is None
        if program:
            logs.to_stderr(alone=True)
        try:
            return super().main(*args, **extra)
        except BaseException as end:
            if program and "flamecore.runtime.tasks.event_loop" in sys.modules:
                sys.modules["flamecore.runtime.tasks.event_loop"].exit_without_waiting(end)
            raise

    def invoke(self, ctx: click.Context) -> Any:
        """Call a command; print an error of the project and exit with its code."""
        logs.to_stderr()
        given = [*ctx._protected_args, *ctx.args]  # which the command takes
        try:
            return super().invoke(ctx)
        except MemoryError as error:
            known = memory_error(error, f"flamestream {ctx.invoked_subcommand}")
            known.__cause__ = error
            self._end(ctx, known)
        except FlameError as error:
            self._end(ctx, error)
        except KeyboardInterrupt:
            ctx.exit(Exit.STOPPED)
        except click.ClickException as error:
            error.message = block(error.message)  # type: ignore[misc]  # click shows it with the usage
            if not logs.as_json() and not _asks_for_json(given):
                raise
            os.environ[logs.VARIABLE] = "json"
            facts = {"error": type(error).__name__, "message": error.format_message(), "exit_code": error.exit_code}
            logs.logger().error(events.COMMAND_FAILED, **facts)
            ctx.exit(error.exit_code)

    def _end(self, ctx: click.Context, error: FlameError) -> None:
        print_error(ctx, error)
        ctx.exit(exit_of(error))


def _asks_for_json(arguments: Sequence[str]) -> bool:
    """Return whether arguments that could not be read ask for a log of JSON."""
    return "--log=json" in arguments or ("--log", "json") in pairwise(arguments)


def _words_of(provider: Provider) -> str:
    first, _, _ = _docstring_of(provider.module).partition("\n")
    return first or f"Provided by {provider.distribution} {provider.version}."


def _docstring_of(module: str) -> str:
    """Return the docstring of a module without importing anything.

    It is empty if there is none that can be read.

    Metadata has no place for a text: the value of an entry point is a reference. A second group of entry points
    could hold one only in disguise, and apart from the command that it describes.
    """
    import ast  # for --help only
    from importlib.abc import InspectLoader

    # `importlib.util.find_spec` imports the packages above a module, so each level is looked up by itself.
    spec, folders, name = None, None, ""
    for part in module.split("."):
        if name and folders is None:
            return ""  # the module above is no package
        name = f"{name}.{part}" if name else part
        spec = next((spec for finder in sys.meta_path if (spec := finder.find_spec(name, folders))), None)
        if spec is None:
            return ""
        folders = spec.submodule_search_locations
    loader = spec.loader if spec is not None else None
    if not isinstance(loader, InspectLoader):
        return ""
    try:
        return ast.get_docstring(ast.parse(loader.get_source(name) or "")) or ""
    except (ImportError, SyntaxError, ValueError):
        return ""  # calling the command shows the error; the list of commands must not fail for it


def _registry(ctx: click.Context) -> PluginRegistry:
    registry: PluginRegistry = ctx.meta.setdefault("flamestream.registry", PluginRegistry())
    return registry
