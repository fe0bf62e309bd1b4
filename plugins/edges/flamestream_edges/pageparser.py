"""Parser of pages in XML that holds one page at a time: it keeps no tree.

Entities are expanded within the limits that expat sets against exponential ones; nothing outside the file is fetched.
"""

from __future__ import annotations

import codecs
from collections import deque
from typing import Any, Final, NamedTuple
from xml.parsers import expat

from flamestream_edges.reading.splitting import CHUNK_BYTES

_CONTEXT_BYTES: Final = 64


class PagePosition(NamedTuple):
    """Position of a page.

    Attributes:
        offset: Offset of the byte at which the parser can go on after it.
        line: 1-based line of its start tag.
        next_line: 1-based line of `offset`.
    """

    offset: int
    line: int
    next_line: int


class XmlError(Exception):
    """XML error that ends the reading of its file.

    Args:
        reason: The reason.
        line: The line.
        raw: The bytes around it, as text if possible.
    """

    def __init__(self, reason: str, line: int, raw: str | bytes) -> None:
        super().__init__(reason)
        self.line = line
        self.raw = raw


class BadPage(NamedTuple):
    """An element that is no page: the reason, and its start tag."""

    reason: str
    tag: str


class PageParser:
    """Parser that makes pages of bytes pushed in.

    A page is complete when the next tag is met: only then the offset to go on from is known.

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
        self._tag = ""
        self._problem = ""
        self._text: list[str] = []
        self._chars = 0
        self._complete: tuple[Any, int] | None = None  # a page or a BadPage, and its line
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
            XmlError: Nothing more can be read; pages found before are in `found`.
        """
        self._chunk = chunk or self._chunk
        self._pushed += len(chunk)
        try:
            self._parser.Parse(chunk, not chunk)
        except expat.ExpatError as error:
            why = expat.ErrorString(error.code) if chunk else "the file ends too early"
            raise self._give_up(why) from error

    def skip_to(self, offset: int, line: int) -> None:
        """Continue at `offset`, in `line`; the bytes between have not been pushed."""
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
            self._tag = f"<{' '.join((name, *(f'{key}={value!r}' for key, value in attributes.items())))}>"
            self._problem = "" if name == "page" else f"an element <{name}> where <page> is expected"
        self._depth += 1

    def _end(self, name: str) -> None:
        self._next_tag()
        self._depth -= 1
        if self._depth == 1:
            page = self._page()
            self._complete = BadPage(page, self._tag) if isinstance(page, str) else page, self._line
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
        """Return the page that ends here, or a text that says why it is none."""
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
        offset, line = self._here()
        if self._depth < 2:
            self._hand_out(offset, line)
        inside = f", inside {self._title()} that starts in line {self._line}" if self._depth > 1 else ""
        at = max(offset - self._skipped - self._pushed + len(self._chunk), 0)
        return XmlError(
            f"{why} at offset {offset}{inside}; nothing after it can be read",
            line,
            _characters(self._chunk[max(at - 2 * _CONTEXT_BYTES, 0) : at + _CONTEXT_BYTES]),
        )


def _characters(cut: bytes) -> str | bytes:
    """Decode bytes cut out of a file; return them as they are if they are no text.

    Parts of characters at their ends are dropped.
    """
    whole = cut.lstrip(bytes(range(0x80, 0xC0)))
    try:
        return codecs.getincrementaldecoder("utf-8")().decode(whole)
    except UnicodeDecodeError:
        return cut
