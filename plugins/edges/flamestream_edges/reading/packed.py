"""Compressed files, from which no record could be read."""

from __future__ import annotations

from typing import Final

from flamecore.errors import SourceError

_PACKED: Final = (
    (b"\x1f\x8b\x08", "gzip", "gunzip -k"),
    (b"BZh91AY&SY", "bzip2", "bunzip2 -k"),
    (b"\xfd7zXZ\0", "xz", "unxz -k"),
    (b"\x28\xb5\x2f\xfd", "zstd", "unzstd"),
    (b"PK\x03\x04", "zip", "unzip"),
)
"""First bytes of compressed files, the format, and the command that unpacks them."""


def refuse_packed(source: str, name: str, head: bytes) -> None:
    """Refuse a compressed file.

    Args:
        source: Name of the source.
        name: Path of the file.
        head: Its first bytes.

    Raises:
        SourceError: It is compressed.
    """
    for magic, kind, command in _PACKED:
        if head.startswith(magic):
            raise SourceError(
                f"source {source!r}: {name} is compressed ({kind})",
                hint=f"Unpack it first: {command} {name}",
                source=source,
                position=name,
            )
