"""See it work: an inverted index of the Python language reference."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

import click

from flamecore.abc.hooks import hookimpl
from flamecore.cli.exits import Exit
from flamecore.cli.output import json_option, print_json, say, verbose_option, wants_json
from flamestream_demo.screen import TITLE, screen

if TYPE_CHECKING:
    from flamestream_demo.run import Indexed


class Demo(click.Group):
    """Group that imports its subcommand when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the subcommands."""
        return ["kill"]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a subcommand."""
        if cmd_name != "kill":
            return None
        from flamestream_demo.kill import command as kill

        return kill


BUSIEST: Final = 10
"""Number of words in the summary."""


@click.group("demo", cls=Demo, invoke_without_command=True)
@click.option("--query", metavar="WORD", help="Print where WORD stands, as the index has it in the end.")
@click.option("-w", "--workers", type=click.IntRange(min=1), default=1, show_default=True, help="Share the work.")
@click.option(
    "--repeat", type=click.IntRange(1, 255), default=3, show_default=True, help="Number of versions of a page to read."
)
@json_option
@verbose_option
@click.pass_context
def command(ctx: click.Context, query: str | None, workers: int, repeat: int) -> None:
    """Build an inverted index of the Python language reference, page by page.

    The pages are those that help() shows; they come with Python. Each is read in several versions. The output is
    the log of all changes of the index, in order: a word is added, and removed first where an earlier version had it.

    With --query the exit code is 1 if no page holds the word.
    """
    if ctx.invoked_subcommand is not None:
        return
    word = None if query is None else _stem(query)
    live = sys.stderr.isatty() and not wants_json(ctx)
    # The first frame is there before the engine is imported.
    with screen([("pages", "0")], wanted=live) as frames:
        from flamestream_demo.run import index_topics

        indexed = index_topics(frames.draw, workers=workers, repeat=repeat)
    if indexed is None:
        ctx.exit(Exit.STOPPED)
    if query is None or word is None:
        _print_summary(indexed, json=wants_json(ctx))
    elif not _print_postings(indexed, query, word, json=wants_json(ctx)):
        ctx.exit(Exit.FAILED)


def _stem(query: str) -> str:
    """Return the stem of the queried word, as it is in the index."""
    from flamestream_demo.text import stem, tokens

    found = tokens(query)
    if len(found) != 1:
        raise click.BadParameter(f"{query!r} has {len(found)} words, and one is looked up", param_hint="--query")
    return stem(found[0])


def _print_summary(indexed: Indexed, *, json: bool) -> None:
    from flamestream_demo.report import as_text

    busiest = indexed.view.busiest(BUSIEST)
    if json:
        words = [{"word": word, "pages": pages} for word, pages in busiest]
        print_json({**indexed.figures._asdict(), "drained": indexed.drained, "busiest": words})
        return
    say(TITLE, "", *as_text(indexed.figures.rows()).split("\n"), "", "words on most pages")
    say(*as_text((word, f"{pages:,}") for word, pages in busiest).split("\n"))
    if indexed.drained:
        say("stopped early: all that was read is in the index", err=True)


def _print_postings(indexed: Indexed, query: str, word: str, *, json: bool) -> bool:
    """Print the index's postings of a word; return False if it has none."""
    from flamestream_demo.pages import topics
    from flamestream_demo.report import Answer

    answer = Answer.of(query, word, indexed.view)
    titles = {page.id: page.title for page in topics()}
    if json:
        print_json(answer.facts(titles))
    else:
        say(*answer.text(titles).split("\n"), err=not answer.postings)
    return bool(answer.postings)


@hookimpl
def flamestream_command() -> click.Command:
    return command
