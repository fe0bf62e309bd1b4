"""What commands print: data and JSON on stdout, everything else on stderr."""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable
from typing import Any, Final, TypeVar

import click

from flamecore.cli.exits import exit_of
from flamecore.errors import FlameError

F = TypeVar("F", bound=Callable[..., Any])

_JSON: Final = "flamestream.json"
_VERBOSE: Final = "flamestream.verbose"


def _remember(ctx: click.Context, parameter: click.Parameter, value: Any) -> Any:
    ctx.meta[f"flamestream.{parameter.name}"] = value
    return value


def json_option(function: F) -> F:
    """The option --json."""
    help = "Print one JSON object on stdout."
    return click.option("--json", "json", is_flag=True, callback=_remember, expose_value=False, help=help)(function)


def verbose_option(function: F) -> F:
    """The option -v."""
    help = "Say more; errors come with the whole traceback. Twice: debug messages too."
    return click.option("-v", "--verbose", count=True, callback=_remember, expose_value=False, help=help)(function)


def wants_json(ctx: click.Context) -> bool:
    """Whether --json was given."""
    return bool(ctx.meta.get(_JSON))


def verbosity(ctx: click.Context) -> int:
    """How often -v was given."""
    return int(ctx.meta.get(_VERBOSE, 0))


def print_json(value: dict[str, Any], *, err: bool = False) -> None:
    """Print one JSON object on one line."""
    click.echo(json.dumps(value, default=str, ensure_ascii=False), err=err)


def facts(error: FlameError) -> dict[str, Any]:
    """An error for programs."""
    own = {key: value for key, value in vars(error).items() if key not in ("what", "hint") and not key.startswith("_")}
    return {"type": type(error).__name__, "message": error.what, "hint": error.hint, **own}


def print_error(ctx: click.Context, error: FlameError) -> None:
    """Print an error on stderr: its text, and its traceback with -v; with --json as an object on stdout too."""
    if verbosity(ctx):
        click.echo("".join(traceback.format_exception(error)), err=True, nl=False)
    else:
        click.echo("\n".join([f"error: {error}", *getattr(error, "__notes__", ())]), err=True)
    if wants_json(ctx):
        print_json({"error": facts(error), "exit_code": int(exit_of(error))})
