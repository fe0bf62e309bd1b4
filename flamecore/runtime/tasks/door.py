"""The door of a part: messages that no part of a job says to it are refused, counted, and told of with their sender.

A process with the job's token may send anything. A part acts on what it understands, and goes on without the rest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Final

from flamecore.events import MESSAGE_REFUSED
from flamecore.logs import logger

Fits = Callable[[Any], bool]
"""Tells whether a message of a known kind is about something that there is."""

_SENDERS: Final = 1000
"""Most senders that are counted one by one."""
_OTHERS: Final = "others"


def anything(_: Any) -> bool:
    """Return True: every message of this kind is understood."""
    return True


class Door:
    """Lets in the messages that a part understands.

    Args:
        address: Address of the part.
        kinds: Classes of the messages, and which of each are understood.

    Attributes:
        refused: How many messages of each sender were refused.
        plain: Classes of messages that are understood, whatever they say: nobody has to ask.
    """

    def __init__(self, address: str, kinds: Mapping[type, Fits]) -> None:
        self.refused: Counter[str] = Counter()
        self._address = address
        self._kinds = kinds
        self.plain = frozenset(kind for kind, fits in kinds.items() if fits is anything)

    def admits(self, sender: str, message: Any) -> bool:
        """Return whether a message is for this part; one that is not is counted, the first of a sender is logged."""
        fits = self._kinds.get(type(message))
        if fits is not None and fits(message):
            return True
        self.refuse(sender, message)
        return False

    def refuse(self, sender: str, message: Any) -> None:
        """Count a message that is not understood, and log the first of its sender."""
        known = sender in self.refused
        self.refused[sender if known or len(self.refused) < _SENDERS else _OTHERS] += 1
        if not known and len(self.refused) <= _SENDERS:
            kind = type(message).__name__
            logger().warning(MESSAGE_REFUSED, address=self._address, sender=sender, kind=kind)
