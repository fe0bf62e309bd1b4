"""Subjects of the server: where the messages of one job and epoch go.

    PREFIX.JOB.EPOCH.at.ADDRESS           to whoever is bound to an address; `worker/0` is `worker.0`
    PREFIX.JOB.EPOCH.node.LOCATION.KEY    back to one process; the key says which channel or peer it concerns

A user of the server needs to publish and subscribe to `PREFIX.>` and to nothing else.
"""

from __future__ import annotations

import re
from typing import Final

import xxhash

_UNSAFE: Final = re.compile(r"[^A-Za-z0-9_-]+")
_LONGEST: Final = 100


def safe(text: str) -> str:
    """A text as one token of a subject: other texts give other tokens, and what is harmless stays readable."""
    token = _UNSAFE.sub(lambda found: "".join(f"={byte:02X}" for byte in found[0].encode()), text) or "="
    if len(token) > _LONGEST:
        token = f"{token[: _LONGEST - 20]}=={xxhash.xxh3_64_hexdigest(text.encode())}"
    return token


class Subjects:
    """The subjects of one job and epoch.

    Args:
        prefix: What they all begin with; may have dots.
        job: Id of the job.
        epoch: Its incarnation.
    """

    def __init__(self, prefix: str, job: str, epoch: int) -> None:
        base = f"{prefix}.{safe(job)}.{epoch}"
        self._at = f"{base}.at"
        self._node = f"{base}.node."

    def at(self, address: str) -> str:
        """Where messages to an address go."""
        return ".".join((self._at, *map(safe, address.split("/"))))

    def node(self, location: str, key: str) -> str:
        """Where messages to a process go; key `*` for all of them."""
        return f"{self._node}{location}.{key}"

    def location(self, subject: str) -> tuple[str, str]:
        """The process that a subject made by `node` leads to, and the key; empty if it is another kind of subject."""
        if not subject.startswith(self._node):
            return "", ""
        location, _, key = subject[len(self._node) :].partition(".")
        return (location, key) if key and "." not in key else ("", "")
