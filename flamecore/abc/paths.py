"""The type of options that hold paths.

class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
path: FilePath
others: tuple[FilePath, ...] = ()
"""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec

MARK: Final[dict[str, Any]] = {"flamestream": "path"}
"""Metadata of the type of an option that is a path."""

FilePath = Annotated[str, msgspec.Meta(extra=MARK)]
"""A text that is the path of a file or folder, or a pattern of such paths.

A driver gets it whole: a relative path in a file begins at the folder of that file, one that a command line, the
environment or a program gives at the working directory; `~` is the home of the user. An empty text, and one that has a
scheme, such as `s3://bucket/folder`, stays as it is; so does the default of an option.
"""
