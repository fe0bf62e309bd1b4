"""A filter of received messages.

Messages that a part does not understand are refused, counted, and logged with their sender. A process with the job's
token may send anything. A part acts on the messages that it understands, and ignores the rest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Final

from flamecore.events import MESSAGE_REFUSED
from flamecore.logs import logger

Fits = Callable[[Any], bool]
"""Function that returns whether a message of a known kind refers to existing things."""

_SENDERS: Final = 1000
"""Most senders that are counted separately."""
_OTHERS: Final = "others"


def anything(_: object) -> bool:
    """Return True: every message of this kind is understood."""
    return True


class Door:
    """The filter of the messages to one part.

    Args:
        address: Address of the part.
        kinds: Classes of messages that the part understands, with a check of each.

    Attributes:
        refused: Number of refused messages of each sender.
        plain: Classes of messages without a check, which need no call.
    """

    def __init__(self, address: str, kinds: Mapping[type, Fits]) -> None:
        self.refused: Counter[str] = Counter()
        self._address = address
        self._kinds = kinds
        self.plain = frozenset(kind for kind, fits in kinds.items() if fits is anything)

    def admits(self, sender: str, message: object) -> bool:
        """Return whether a message is understood; refuse it if not."""
        fits = self._kinds.get(type(message))
        if fits is not None and fits(message):
            return True
        self.refuse(sender, message)
        return False

    def refuse(self, sender: str, message: object) -> None:
        """Count a message that is not understood; log the first of its sender."""
        known = sender in self.refused
        self.refused[sender if known or len(self.refused) < _SENDERS else _OTHERS] += 1
        if not known and len(self.refused) <= _SENDERS:
            # Once for each sender: one that means harm would otherwise fill the log.
            kind = type(message).__name__
            logger().warning(MESSAGE_REFUSED, address=self._address, sender=sender, kind=kind)
