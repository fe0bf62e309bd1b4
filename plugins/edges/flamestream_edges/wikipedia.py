"""Source `wikipedia`: dumps of pages as XML, streamed.

    <pages>
        <page id="7" title="Литва">text of the page</page>
        …
    </pages>

Only one page is held at a time: the parser keeps no tree. Entities are expanded within the limits expat sets against
exponential ones; nothing outside the file is ever fetched.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from typing import Annotated, Any, ClassVar, Final, NamedTuple
from xml.parsers import expat

import msgspec

from flamecore.errors import SourceError
from flamecore.front import Batch, EdgeContext, Reader, Rejected, Source
from flamecore.plugin import hookimpl
from flamestream_edges.files import FileSource, PathOptions, unreadable, wrong_type
from flamestream_edges.linereader import FileChunks, read_error
from flamestream_edges.shapes import is_named_tuple
from flamestream_edges.splitting import CHUNK_BYTES

_CONTEXT_BYTES: Final = 200


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


class PagePosition(NamedTuple):
    """Where a page stood.

    Attributes:
        offset: Of the byte at which the parser can go on after it; -1 if there is nothing to go on with.
        line: 1-based line its start tag is in.
        next_line: 1-based line of `offset`.
    """

    offset: int
    line: int
    next_line: int


class PageParser:
    """Makes pages of bytes that are pushed in.

    A page is handed out when the tag after it is met: only then it is known where to go on from.

    Args:
        record: The NamedTuple that pages become.
        max_chars: Most text of one page.
    """

    def __init__(self, record: Any, max_chars: int) -> None:
        self.found: deque[tuple[Any, PagePosition]] = deque()
        self.first_tag: int | None = None
        """Offset of the first tag after the root's start tag, once it has been met."""
        self._record = record
        self._max_chars = max_chars
        self._depth = 0
        self._attributes: dict[str, str] = {}
        self._line = 0
        self._problem = ""
        self._text: list[str] = []
        self._chars = 0
        self._complete: tuple[Any, int] | None = None  # a page or why there is none, and its line
        self._chunk = b""
        self._pushed = 0
        self._skipped = self._skipped_lines = 0
        self._parser = parser = expat.ParserCreate()
        parser.buffer_text = True
        parser.buffer_size = CHUNK_BYTES
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.CharacterDataHandler = self._characters

    def push(self, chunk: bytes) -> None:
        """Parse the next bytes; none at the end of the file.

        Raises:
            XmlError: There is nothing more to be had; what was found before is in `found`.
        """
        self._chunk = chunk or self._chunk
        self._pushed += len(chunk)
        try:
            self._parser.Parse(chunk, not chunk)
        except expat.ExpatError as error:
            why = expat.ErrorString(error.code) if chunk else "the file ends too early"
            raise self._give_up(why) from error

    def skip_to(self, offset: int, line: int) -> None:
        """The next bytes pushed are those at `offset`, in that line; what is between has not been pushed."""
        self._skipped = offset - self._pushed
        self._skipped_lines = line - self._chunk.count(b"\n") - 1

    def _here(self) -> tuple[int, int]:
        return self._parser.CurrentByteIndex + self._skipped, self._parser.CurrentLineNumber + self._skipped_lines

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        if self._depth == 0 and name != "pages":
            raise self._give_up(f"the outermost element is <{name}>, and <pages> is expected")
        if self._depth:
            self._next_tag()
        if self._depth == 1:
            self._attributes = attributes
            self._line = self._here()[1]
            self._problem = "" if name == "page" else f"an element <{name}> where <page> is expected"
        self._depth += 1

    def _end(self, name: str) -> None:
        self._next_tag()
        self._depth -= 1
        if self._depth == 1:
            self._complete = self._page(), self._line
            self._text = []
            self._chars = 0

    def _characters(self, text: str) -> None:
        if self._depth > 1:
            self._chars += len(text)
            if self._chars <= self._max_chars:
                self._text.append(text)
            else:
                self._text.clear()

    def _next_tag(self) -> None:
        if self._complete is not None or self.first_tag is None:
            self._hand_out(*self._here())

    def _hand_out(self, offset: int, line: int) -> None:
        if self.first_tag is None:
            self.first_tag = offset
        if self._complete is not None:
            page, started = self._complete
            self.found.append((page, PagePosition(offset, started, line)))
            self._complete = None

    def _page(self) -> Any:
        """The page that ends here, or a text that says why it is none."""
        found = self._attributes
        if self._problem:
            return self._problem
        if self._chars > self._max_chars:
            return f"{self._title()} has {self._chars:,} characters, and max_page_chars is {self._max_chars:,}"
        for name in ("id", "title"):
            if name not in found:
                return f'{self._title()} has no attribute {name}; a page is <page id="7" title="…">text</page>'
        try:
            return self._record(int(found["id"]), found["title"], "".join(self._text))
        except ValueError:
            return f"{self._title()} has an id that is no number: {found['id']!r}"

    def _title(self) -> str:
        return " ".join(
            ("page", *(repr(self._attributes[name]) for name in ("id", "title") if name in self._attributes))
        )

    def _give_up(self, why: str) -> XmlError:
        parser = self._parser
        offset, line = self._here()
        if self._depth < 2:
            self._hand_out(offset, line)
        inside = f", inside {self._title()} that starts in line {self._line}" if self._depth > 1 else ""
        at = max(offset - self._skipped - self._pushed + len(self._chunk), 0)
        return XmlError(
            f"{why} at column {parser.CurrentColumnNumber + 1}, offset {offset}{inside}; nothing after it can be read",
            line,
            self._chunk[max(at - _CONTEXT_BYTES, 0) : at + _CONTEXT_BYTES],
        )


class XmlError(Exception):
    """XML that ends the reading of its file. Arguments: why, the line, and the bytes around it."""

    def __init__(self, reason: str, line: int, raw: bytes) -> None:
        super().__init__(reason)
        self.line = line
        self.raw = raw


class PageReader(Reader):
    """Pages of one file, parsed a chunk at a time."""

    def __init__(self, source: str, chunks: FileChunks, parser: PageParser | None) -> None:
        self._source = source
        self._chunks = chunks
        self._parser = parser  # None: there is nothing more to parse
        self._found: deque[tuple[Any, PagePosition]] = parser.found if parser else deque()
        self._broken: Rejected | None = None

    async def read(self, limit: int) -> Batch | None:
        while not self._found and self._parser is not None:
            await self._push(self._parser)
        values: list[Any] = []
        positions: list[PagePosition] = []
        bad: list[Rejected] = []
        for _ in range(min(limit, len(self._found))):
            page, position = self._found.popleft()
            if isinstance(page, str):
                bad.append(Rejected(position, page, None))
            else:
                values.append(page)
                positions.append(position)
        if not values and not bad:
            if self._broken is None:
                return None
            bad.append(self._broken)
            self._broken = None
        return Batch(values, positions, bad)

    async def _push(self, parser: PageParser) -> None:
        try:
            chunk = await self._chunks.read(CHUNK_BYTES)
            parser.push(chunk)
        except OSError as error:
            raise read_error(self._source, self._chunks.name, error) from error
        except XmlError as error:
            self._parser = None
            self._broken = Rejected(PagePosition(-1, error.line, error.line), str(error), error.raw)
            return
        if not chunk:
            self._parser = None
        elif not self._found:
            await asyncio.sleep(0)  # a page of many chunks must not hold the event loop from its first to its last

    def describe(self, position: Any) -> str:
        return f"{self._chunks.name} line {position[1]}"

    async def aclose(self) -> None:
        self._chunks.close()


class Wikipedia(FileSource):
    """Pages of a dump, in the order of the file."""

    name: ClassVar[str] = "wikipedia"
    Options: ClassVar[Any] = WikipediaOptions

    def __init__(self, options: Any, context: EdgeContext) -> None:
        super().__init__(options, context)
        wanted = context.type
        self._record = Page if wanted in (object, Any) else wanted
        if not is_named_tuple(self._record) or self._record._fields != Page._fields:
            hint = "Declare flamestream_edges.wikipedia.Page, or a NamedTuple with the fields id, title, text."
            raise wrong_type(context, "wikipedia", "Page(id, title, text)", hint)

    async def open(self, partition: str, position: Any = None) -> Reader:
        try:
            chunks = FileChunks(partition)
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
        """A parser that has seen what comes before the first page, and goes on at the position; None at the end."""
        source, name = self.context.name, chunks.name
        try:
            offset, _, line = map(int, position)
            if offset == -1:
                return None
            scout = PageParser(self._record, self.options.max_page_chars)
            head = b""
            while scout.first_tag is None:
                chunk = await chunks.read(CHUNK_BYTES)
                head += chunk
                scout.push(chunk)
            size = chunks.file.seek(0, os.SEEK_END)
            if not scout.first_tag <= offset <= size:
                raise ValueError(f"pages start at {scout.first_tag}, and the file ends at {size}")
        except OSError as error:
            raise read_error(source, name, error) from error
        except (ValueError, TypeError, XmlError) as error:
            raise SourceError(
                f"source {source!r}: {name} cannot be read on from {position!r}: {error}",
                hint="The file has changed since the position was noted: put the old one back, or start afresh.",
                source=source,
                position=position,
            ) from error
        parser = PageParser(self._record, self.options.max_page_chars)
        parser.push(head[: scout.first_tag])
        parser.skip_to(offset, line)
        chunks.file.seek(offset)
        return parser


@hookimpl
def flamestream_source() -> type[Source]:
    return Wikipedia
