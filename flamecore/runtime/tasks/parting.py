"""The splitting of messages that are too large to send."""

from __future__ import annotations

import reprlib
from collections.abc import Sequence
from typing import Any

from flamecore.errors import FlameError, FrameError, TooLargeError
from flamecore.model.batch import Orders, PackedOrders, middle
from flamecore.model.clock import global_time
from flamecore.model.messages import Items, Piece, Released
from flamecore.model.meta import decode_time


def is_too_large(error: FlameError) -> bool:
    """Return whether an error means that less of the same message could be sent."""
    return isinstance(error, TooLargeError) or (isinstance(error, FrameError) and error.reason == "oversized")


def parted(message: object) -> list[Any]:
    """Split a message into two equivalent ones; return none if it has no two items."""
    if type(message) is Items:
        return _parted_items(message)
    if type(message) is Released and len(message.payloads) > 1:
        return _parted_release(message)
    return []


def told(error: FlameError, message: object) -> FlameError:
    """Return the error of a message with a single item, with that item added."""
    orders, payloads = _items(message)
    if len(payloads) != 1:
        return error
    what = f"{error.what}: {reprlib.repr(payloads[0])}, an item of time {global_time(decode_time(orders[0]))}"
    facts = {name: getattr(error, name, TooLargeError.path) for name in ("type_name", "path")}
    facts["type_name"] = facts["type_name"] or type(payloads[0]).__qualname__
    return TooLargeError(what, hint=error.hint, vertex=getattr(error, "vertex", None), **facts)


def _items(message: object) -> tuple[Orders, Sequence[object]]:
    if type(message) is Released:
        return message.orders, message.payloads
    if type(message) is Items:
        pieces = [piece for piece in message.pieces if len(piece[3])]
        if len(pieces) == 1:
            return pieces[0][3], pieces[0][4]
    return (), ()


def _parted_items(message: Items) -> list[Items]:
    """Split the items in the middle.

    The acks and the time go with the last message: they hold once the receiver has processed all.
    """
    # By halves, since only the transport knows what is too much, and says so of the whole alone.
    counts = [len(piece[3]) for piece in message.pieces]
    half = sum(counts) // 2
    if not half:
        return []
    first: list[Piece] = []
    for at, (piece, count) in enumerate(zip(message.pieces, counts, strict=True)):
        if count > half:
            index, trace, alive, orders, payloads = piece
            first.append((index, trace, alive, orders[:half], payloads[:half]))
            rest: Piece = (index, trace, alive, orders[half:], payloads[half:])
            return [Items(first, ()), Items([rest, *message.pieces[at + 1 :]], message.acks, message.until)]
        first.append(piece)
        half -= count
    raise AssertionError("half of the items are more than all")


def _parted_release(message: Released) -> list[Released]:
    """Split the payloads near the middle.

    The first message's time is at most the earliest time in the second. A record that ends the job goes with the first:
    nothing behind it may be delivered.
    """
    worker, time, orders, payloads, failures, heard, away = message
    heard = time if heard is None else heard
    half = middle(orders)  # both parts stay packed
    rest = orders[half:]
    # The first part must not claim the times of the second: the collector would take these for
    # late. Packed orders ascend, and those of items without a barrier may not.
    reached = min(time, decode_time(rest[0] if isinstance(rest, PackedOrders) else min(rest)))
    return [
        Released(worker, reached, orders[:half], payloads[:half], failures, min(heard, reached), away),
        Released(worker, time, rest, payloads[half:], [], heard),
    ]
