"""Text that came from outside, for people: nothing in it acts on a terminal, or looks like another line.

Names, data, texts of exceptions and what processes print may hold any character. All that is written to a terminal or a
log passes here.
"""

from __future__ import annotations

import re
from typing import Final

_ACTING: Final = re.compile(
    # Controls (the second set, too: some terminals take it for the escape sequences that it abbreviates), marks that
    # turn the direction of text, separators of lines, and halves of letters, which no encoding can write.
    "[\x00-\x08\x0a-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
_SHORT: Final = {"\n": "\\n", "\r": "\\r"}
_INDENT: Final = "  "


def line(text: str) -> str:
    """Return a text as one line: characters that act are written as in a string of JSON or Python."""
    return _ACTING.sub(_escaped, text)


def block(text: str) -> str:
    """Return a text of several lines, all but the first of them indented, so that none looks like the beginning."""
    first, *others = map(line, text.split("\n"))
    return "\n".join([first, *(row if not row or row[0].isspace() else _INDENT + row for row in others)])


def _escaped(found: re.Match[str]) -> str:
    letter = found[0]
    return _SHORT.get(letter) or f"\\u{ord(letter):04x}"
