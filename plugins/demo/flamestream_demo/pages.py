"""Pages that come with CPython: the topics of the Python language reference.

The module `pydoc_data` has their texts.
"""

from __future__ import annotations

import asyncio
import platform
import time
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, NamedTuple

import msgspec

from flamecore.abc.hooks import hookimpl
from flamecore.abc.source import Batch, EdgeContext, Reader, Source, SourceCapabilities
from flamecore.errors import SourceError


class Page(NamedTuple):
    """A page, as the inverted index takes it.

    Attributes:
        id: Number of the page, below 2**24. A page that comes again under one id is a newer version of it.
        title: Title for people.
        text: The text to index.
    """

    id: int
    title: str
    text: str


def topics(limit: int | None = None) -> list[Page]:
    """Return the first `limit` topics, or all, by name, numbered from 1.

    Raises:
        SourceError: This Python came without them.
    """
    try:
        from pydoc_data.topics import topics as texts
    except ImportError as error:
        raise SourceError(
            f"Python {platform.python_version()} came without the module pydoc_data.topics, which holds the texts",
            hint="Some distributions put it into a package of its own (documentation); or use another source of pages.",
            source="pydoc",
            position=None,
        ) from error
    return [Page(number, name, texts[name]) for number, name in enumerate(sorted(texts)[:limit], 1)]


def revised(page: Page, version: int) -> Page:
    """Return the 1-based version of a page; each moves one more line to the end."""
    if version == 1:
        return page
    lines = page.text.splitlines()
    moved = (version - 1) % len(lines)
    return page._replace(text="\n".join([*lines[moved:], *lines[:moved]]))


class PydocReader(Reader):
    """Reader of every topic in its first version, then every one in its second, etc.

    A position is the 0-based ordinal of the record.

    Args:
        pages: The topics.
        repeat: Number of versions of each page.
        start: Ordinal of the first record to read.
        pages_per_s: Maximum pages per second, read one by one; None: no limit.
    """

    def __init__(self, pages: Sequence[Page], repeat: int, start: int, pages_per_s: float | None = None) -> None:
        self._pages = pages
        self._next = start
        self._end = len(pages) * repeat
        self._pause_s = 0.0 if pages_per_s is None else 1 / pages_per_s
        self._due = time.monotonic()

    async def read(self, limit: int) -> Batch | None:
        if self._pause_s and self._next < self._end:
            await asyncio.sleep(self._due - time.monotonic())
            self._due = max(self._due, time.monotonic() - self._pause_s) + self._pause_s
            limit = 1
        found = range(self._next, min(self._next + limit, self._end))
        if not found:
            return None
        self._next = found.stop
        count = len(self._pages)
        return Batch([revised(self._pages[n % count], n // count + 1) for n in found], found, fresh=True)

    def describe(self, position: Any) -> str:
        version, number = divmod(position, len(self._pages))
        return f"topic {self._pages[number].title!r}, version {version + 1}"


class Pydoc(Source):
    """Python's language reference: 79 pages, half a million characters in 3.11."""

    name: ClassVar[str] = "pydoc"

    class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
        """Options of the driver.

        Attributes:
            repeat: Number of versions of each page to send; at most 255.
            limit: Maximum number of pages to send (in each version); by default all.
            pages_per_s: Maximum number to send per second; by default no limit.
        """

        repeat: Annotated[int, msgspec.Meta(ge=1, le=255)] = 1
        limit: Annotated[int, msgspec.Meta(ge=1)] | None = None
        pages_per_s: Annotated[float, msgspec.Meta(gt=0)] | None = None

    options: Options

    def __init__(self, options: Options | None, context: EdgeContext) -> None:
        super().__init__(options or self.Options(), context)

    @property
    def capabilities(self) -> SourceCapabilities:
        return SourceCapabilities(replayable=True, bounded=True)

    def fingerprint(self) -> str:
        # The texts change with the interpreter's version and with nothing else.
        return f"pydoc {platform.python_version()} repeat={self.options.repeat} limit={self.options.limit}"

    async def open(self, partition: str, position: Any = None) -> Reader:
        pages = topics(self.options.limit)
        records = len(pages) * self.options.repeat
        start = 0 if position is None else position + 1
        if not 0 <= start <= records:
            raise SourceError(
                f"source {self.context.name!r} cannot go on after record {position}: there are {records} records",
                hint="The position is of another Python version or of other options; start from the beginning.",
                source=self.context.name,
                position=position,
            )
        return PydocReader(pages, self.options.repeat, start, self.options.pages_per_s)


@hookimpl
def flamestream_source() -> type[Source]:
    return Pydoc
