"""Subjects of the messages of one job and incarnation.

    PREFIX.JOB.EPOCH.at.ADDRESS           to the endpoint bound to an address; `worker/0` is `worker.0`
    PREFIX.JOB.EPOCH.node.LOCATION.KEY    back to one process; the key names the channel or peer it concerns

A user of the server needs to publish and subscribe to `PREFIX.>` and to nothing else.
"""

from __future__ import annotations

import re
from typing import Final

import xxhash

_UNSAFE: Final = re.compile(r"[^A-Za-z0-9_-]+")
_LONGEST: Final = 100


def safe(text: str) -> str:
    """Escape a text as one token of a subject.

    Different texts give different tokens; letters, digits, `_` and `-` stay as they are. Long tokens are cut and
    hashed.
    """
    token = _UNSAFE.sub(lambda found: "".join(f"={byte:02X}" for byte in found[0].encode()), text) or "="
    if len(token) > _LONGEST:
        token = f"{token[: _LONGEST - 20]}=={xxhash.xxh3_64_hexdigest(text.encode())}"
    return token


class Subjects:
    """The subjects of one job and incarnation.

    Args:
        prefix: Prefix of all subjects; may have dots.
        job: Id of the job.
        incarnation: The number of the start of the job.
    """

    def __init__(self, prefix: str, job: str, incarnation: int) -> None:
        base = f"{prefix}.{safe(job)}.{incarnation}"
        self._at = f"{base}.at"
        self._node = f"{base}.node."

    def at(self, address: str) -> str:
        """Return the subject of messages to an address."""
        return ".".join((self._at, *map(safe, address.split("/"))))

    def node(self, location: str, key: str) -> str:
        """Return the subject of messages to a process; key `*` stands for all keys."""
        return f"{self._node}{location}.{key}"

    def location(self, subject: str) -> tuple[str, str]:
        """Return process and key of a subject made by `node`; both empty for others."""
        if not subject.startswith(self._node):
            return "", ""
        location, _, key = subject[len(self._node) :].partition(".")
        return (location, key) if key and "." not in key else ("", "")
