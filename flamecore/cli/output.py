"""The output of commands: data and JSON on stdout, all else on stderr."""

from __future__ import annotations

import json
import os
import traceback
from collections.abc import Callable
from typing import Final, TypeVar

import click

from flamecore import events, logs
from flamecore.cli.exits import exit_of
from flamecore.errors import FlameError
from flamecore.escapes import block, line

F = TypeVar("F", bound=Callable[..., object])

_JSON: Final = "flamestream.json"
_VERBOSE: Final = "flamestream.verbose"
_TAKEN: Final = "flamestream.stdout_taken"


def _remember(ctx: click.Context, parameter: click.Parameter, value: object) -> object:
    ctx.meta[f"flamestream.{parameter.name}"] = value
    return value


def json_option(function: F) -> F:
    """Add the option --json to a command."""
    help = "Print one JSON object on stdout."
    return click.option("--json", "json", is_flag=True, callback=_remember, expose_value=False, help=help)(function)


def verbose_option(function: F) -> F:
    """Add the option -v to a command."""
    help = "More output; errors come with the whole traceback. Twice: debug messages too."
    return click.option("-v", "--verbose", count=True, callback=_remember, expose_value=False, help=help)(function)


def _choose_log(ctx: click.Context, parameter: click.Parameter, value: str | None) -> None:
    if value is not None:
        os.environ[logs.VARIABLE] = value  # the processes that are started log the same way
        logs.to_stderr()


def log_option(function: F) -> F:
    """Add the option --log to a command."""
    help = f"Format of log lines: text or JSON. Default: that of ${logs.VARIABLE}, or text."
    kind = click.Choice(["text", "json"])
    return click.option("--log", type=kind, callback=_choose_log, expose_value=False, help=help)(function)


def wants_json(ctx: click.Context) -> bool:
    """Return whether --json was given."""
    return bool(ctx.meta.get(_JSON))


def verbosity(ctx: click.Context) -> int:
    """Return how often -v was given."""
    return int(ctx.meta.get(_VERBOSE, 0))


def leave_stdout(ctx: click.Context) -> None:
    """Reserve stdout for data; JSON objects of the command go to stderr."""
    ctx.meta[_TAKEN] = True


def say(*lines: str, err: bool = False) -> None:
    """Write lines for people. All that commands write passes here, or is JSON or data.

    On stderr they are a line of the log if that is JSON.

    Args:
        lines: The lines; what would act on a terminal is made visible, the end of a line in the midst of one, too.
        err: Whether they go to stderr.
    """
    if err and logs.as_json():
        logs.logger().info(events.COMMAND_NOTED, text="\n".join(lines))
    else:
        click.echo("\n".join(map(line, lines)), err=err)


def print_json(value: dict[str, object], ctx: click.Context | None = None) -> None:
    """Print one JSON object on one line.

    It goes to stdout, or to stderr where the context reserves stdout for data.
    """
    taken = ctx is not None and bool(ctx.meta.get(_TAKEN))
    click.echo(line(json.dumps(value, default=str, ensure_ascii=False)), err=taken)


def facts(error: FlameError) -> dict[str, object]:
    """Return an error as a mapping, for programs."""
    own = {key: value for key, value in vars(error).items() if key not in ("what", "hint") and not key.startswith("_")}
    notes = {"notes": error.__notes__} if hasattr(error, "__notes__") else {}
    return {"type": type(error).__name__, "message": error.what, "hint": error.hint, **own, **notes}


def print_error(ctx: click.Context, error: FlameError) -> None:
    """Print an error on stderr: its text, or its traceback with -v.

    With --json print it as an object too.
    """
    if logs.as_json():
        known = {key: value for key, value in facts(error).items() if key != "type"}
        more = {"traceback": _traceback_of(error)} if verbosity(ctx) else {}
        kind, code = type(error).__name__, int(exit_of(error))
        logs.logger().error(events.COMMAND_FAILED, error=kind, **{**known, **more, "exit_code": code})
    elif verbosity(ctx):
        say(*block(_traceback_of(error).rstrip("\n")).split("\n"), err=True)
    else:
        say(*error_lines(f"error: {error}", error), err=True)
    if wants_json(ctx):
        print_json({"error": facts(error), "exit_code": int(exit_of(error))}, ctx)


def error_lines(text: str, error: FlameError) -> list[str]:
    """Return the lines of an error's text and of its notes."""
    return [row for part in (text, *getattr(error, "__notes__", ())) for row in block(part).split("\n")]


def _traceback_of(error: FlameError) -> str:
    """Return the whole traceback of an error.

    Errors that a program may show have left out a part of theirs.
    """
    left_out = traceback.format_tb(error.full_traceback)
    head = ["In the engine (most recent call last):\n", *left_out, "\n"] if left_out else []
    return "".join([*head, *traceback.format_exception(error)])
