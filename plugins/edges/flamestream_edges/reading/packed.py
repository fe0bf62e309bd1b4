"""Compressed files, from which no record could be read."""

from __future__ import annotations

from shlex import quote
from typing import Final

from flamecore.errors import SourceError

_PACKED: Final = (
    (b"\x1f\x8b\x08", "gzip", "gunzip", ".gz"),
    (b"BZh91AY&SY", "bzip2", "bunzip2", ".bz2"),
    (b"\xfd7zXZ\0", "xz", "unxz", ".xz"),
    (b"\x28\xb5\x2f\xfd", "zstd", "unzstd", ".zst"),
    (b"PK\x03\x04", "zip", "funzip", ".zip"),
)
"""First bytes of compressed files, the format, the command that unpacks its standard input, and the usual suffix."""


def refuse_packed(source: str, name: str, head: bytes) -> None:
    """Refuse a compressed file.

    Args:
        source: Name of the source.
        name: Path of the file.
        head: Its first bytes.

    Raises:
        SourceError: It is compressed.
    """
    for magic, kind, command, suffix in _PACKED:
        if head.startswith(magic):
            # Through a pipe: given a name, these commands want their own suffix.
            unpacked = name.removesuffix(suffix) if name.endswith(suffix) else f"{name}.txt"
            raise SourceError(
                f"source {source!r}: {name} is compressed ({kind})",
                hint=f"Unpack it first: {command} < {quote(name)} > {quote(unpacked)}",
                source=source,
                position=name,
            )
