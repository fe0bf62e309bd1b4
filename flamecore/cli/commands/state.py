"""The command `flamestream state`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from flamecore.cli.exits import Exit
from flamecore.cli.output import json_option, print_json, say, verbose_option, wants_json
from flamecore.cli.stored import Stored, state_options
from flamecore.model.clock import global_time

if TYPE_CHECKING:
    from flamecore.runtime.state.inspect import Value


@click.group("state")
def command() -> None:
    """Inspect the state of a job, while it runs or after."""


@command.command("get")
@click.argument("vertex")
@click.argument("key")
@state_options
@json_option
@verbose_option
@click.pass_context
def get(ctx: click.Context, /, vertex: str, key: str, **which: Any) -> None:
    """Print what operation VERTEX keeps for KEY, as of the newest snapshot.

    KEY is text; if there is no such key, it is read as JSON, and a list is a tuple: 7, '["be", 2]'. Values of classes,
    and operations of plugins need the flow, which --app names. The exit code is 1 if nothing is kept for the key.
    """
    from flamecore.runtime.codec.codec import Codec
    from flamecore.runtime.state.inspect import value_of

    stored = Stored(**which)
    flow = stored.flow
    graph = None if flow is None else flow.graph()
    codec = Codec() if graph is None else Codec.of(graph)
    value = stored.use(lambda store: value_of(store, codec, vertex, _meant(key), graph))
    if wants_json(ctx):
        print_json({"job": stored.job, "vertex": vertex, **_facts(value)})
    elif value.found:
        say(*repr(value.value).split("\n"))
    if not value.found:
        say(f"{vertex!r} keeps nothing for {key!r}, as of snapshot {value.snapshot.number}", err=True)
        ctx.exit(Exit.FAILED)


def _meant(text: str) -> Iterator[object]:
    """Yield the keys that a text may stand for."""
    yield text
    try:
        value = json.loads(text)
    except ValueError:
        return
    yield _tuples(value)


def _tuples(value: object) -> object:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def _facts(value: Value) -> dict[str, object]:
    import msgspec

    snapshot = {
        "number": value.snapshot.number,
        "time": global_time(value.snapshot.time),
        "created": value.snapshot.created,
    }
    plain = msgspec.to_builtins((value.key, value.value), str_keys=True, enc_hook=repr)
    return {"found": value.found, "key": plain[0], "value": plain[1], "shown": repr(value.value), "snapshot": snapshot}
