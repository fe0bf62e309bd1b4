"""The live table of the demo."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from rich.live import Live

TITLE: Final = "inverted index of the Python language reference"

Rows = Iterable[tuple[str, str]]


class Screen:
    """A table on the terminal that is drawn repeatedly; nothing without a terminal."""

    def __init__(self, live: Live | None = None) -> None:
        self._live = live

    def draw(self, rows: Rows) -> None:
        """Show rows in place of those before."""
        if self._live is None:
            return
        from rich.console import Group
        from rich.table import Table

        table = Table.grid(padding=(0, 2))
        table.add_column(style="dim")
        table.add_column(justify="right", min_width=10)
        for row in rows:
            table.add_row(*row)
        self._live.update(Group(TITLE, "", table), refresh=True)


@contextmanager
def screen(rows: Rows, *, wanted: bool) -> Iterator[Screen]:
    """Show a screen with `rows` within the block, and remove it afterwards.

    Args:
        rows: The first rows.
        wanted: Whether there is a terminal to draw on (stderr).
    """
    if not wanted:
        yield Screen()
        return
    from rich.console import Console
    from rich.live import Live

    with Live(console=Console(stderr=True), auto_refresh=False, transient=True) as live:
        shown = Screen(live)
        shown.draw(rows)
        yield shown
