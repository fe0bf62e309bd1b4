"""Source `wikipedia`: dumps of pages as XML, streamed.

    <pages>
        <page id="7" title="Литва">text of the page</page>
        …
    </pages>

Only one page is held at a time (`flamestream_edges.pageparser`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Annotated, Any, ClassVar, NamedTuple

import msgspec

from flamecore.abc.hooks import hookimpl
from flamecore.abc.source import Batch, EdgeContext, Reader, Rejected, Source
from flamecore.errors import SourceError
from flamecore.toolkit.records.shapes import is_named_tuple
from flamestream_edges.files import FileSource, PathOptions, unreadable, wrong_type
from flamestream_edges.pageparser import BadPage, PageParser, PagePosition, XmlError
from flamestream_edges.reading.linereader import FileChunks, read_error
from flamestream_edges.reading.seal import check_seal
from flamestream_edges.reading.splitting import CHUNK_BYTES


class Page(NamedTuple):
    """A page: the number and title it has in the dump, and all text in it."""

    id: int
    title: str
    text: str


class WikipediaOptions(PathOptions, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Options of the source.

    Attributes:
        max_page_chars: A page with more text is malformed; it is never held in memory.
    """

    max_page_chars: Annotated[int, msgspec.Meta(ge=1)] = 64 * 1024 * 1024


class PageReader(Reader):
    """Pages of one file, parsed a chunk at a time.

    A position is (offset to go on at, line of the page, line of the offset, seal); line 0: the file has no more pages.
    """

    waits = False

    def __init__(self, source: str, chunks: FileChunks, parser: PageParser | None) -> None:
        self._source = source
        self._chunks = chunks
        self._parser = parser  # None: there is nothing more to parse
        self._found: deque[tuple[Any, PagePosition]] = parser.found if parser else deque()
        self._broken: Rejected | None = None

    async def read(self, limit: int) -> Batch | None:
        try:
            while not self._found and self._parser is not None:
                await self._push(self._parser)
            found = [self._found.popleft() for _ in range(min(limit, len(self._found)))]
            records = [(page, self._sealed(*position)) for page, position in found]
        except OSError as error:
            raise read_error(self._source, self._chunks.name, error) from error
        bad = [Rejected(position, *page) for page, position in records if isinstance(page, BadPage)]
        good = [record for record in records if not isinstance(record[0], BadPage)]
        if not found:
            if self._broken is None:
                return None
            bad.append(self._broken)
            self._broken = None
        return Batch([page for page, _ in good], [position for _, position in good], bad, fresh=True)

    async def _push(self, parser: PageParser) -> None:
        chunk = await self._chunks.read(CHUNK_BYTES)
        try:
            parser.push(chunk)
        except XmlError as error:
            self._parser = None
            position = self._sealed(self._chunks.offset, error.line, 0)
            self._broken = Rejected(position, str(error), error.raw)
            return
        if not chunk:
            self._parser = None
        elif not self._found:
            await asyncio.sleep(0)  # a page of many chunks must not hold the event loop from its first to its last

    def _sealed(self, offset: int, line: int, next_line: int) -> tuple[int, int, int, str]:
        return offset, line, next_line, self._chunks.seal_at(offset)

    def describe(self, position: Any) -> str:
        return f"{self._chunks.name} line {position[1]}"

    async def aclose(self) -> None:
        self._chunks.close()


class Wikipedia(FileSource):
    """Pages of a dump, in the order of the file."""

    name: ClassVar[str] = "wikipedia"
    Options: ClassVar[Any] = WikipediaOptions
    position_numbers: ClassVar[int] = 3

    def __init__(self, options: Any, context: EdgeContext) -> None:
        super().__init__(options, context)
        wanted = context.type
        self._record = Page if wanted in (object, Any) else wanted
        if not is_named_tuple(self._record) or self._record._fields != Page._fields:
            hint = "Declare flamestream_edges.wikipedia.Page, or a NamedTuple with the fields id, title, text."
            raise wrong_type(context, "wikipedia", "Page(id, title, text)", hint)

    async def open_at(self, partition: str, position: Any) -> Reader:
        try:
            chunks = FileChunks(self.context.name, partition)
        except OSError as error:
            raise unreadable(self.context.name, partition, error) from error
        parser: PageParser | None = PageParser(self._record, self.options.max_page_chars)
        if position is not None:
            try:
                parser = await self._parser_at(chunks, position)
            except BaseException:
                chunks.close()
                raise
        return PageReader(self.context.name, chunks, parser)

    async def _parser_at(self, chunks: FileChunks, position: Any) -> PageParser | None:
        """Return a parser that knows the head of the file and continues at a position.

        The head ends before the first page. The result is None at the end of the file.
        """
        source, name = self.context.name, chunks.name
        check_seal(source, name, position, 3)
        offset, _, line, _ = position
        if not line:
            return None
        scout = PageParser(self._record, self.options.max_page_chars)
        head = b""
        try:
            while scout.first_tag is None:
                chunk = await chunks.read(CHUNK_BYTES)
                head += chunk
                scout.push(chunk)
        except OSError as error:
            raise read_error(source, name, error) from error
        except XmlError as error:
            raise self._no_position(name, position, str(error)) from error
        if offset < scout.first_tag:
            raise self._no_position(name, position, f"its first page is at {scout.first_tag}")
        parser = PageParser(self._record, self.options.max_page_chars)
        parser.push(head[: scout.first_tag])
        parser.skip_to(offset, line)
        chunks.skip_to(offset)
        return parser

    def _no_position(self, name: str, position: Any, why: str) -> SourceError:
        return SourceError(
            f"source {self.context.name!r}: {name} cannot be read on from {position!r}: {why}",
            hint="Take positions from the reader of the same file.",
            source=self.context.name,
            position=f"{name} line {position[1]}",
        )


@hookimpl
def flamestream_source() -> type[Source]:
    return Wikipedia
