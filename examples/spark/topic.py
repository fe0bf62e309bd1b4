"""Words of messages, counted one by one."""

from typing import NamedTuple

import flamecore as fc


class Count(NamedTuple):
    """A word, and how often it has come until now."""

    word: str
    number: int


def words(message: bytes) -> list[str]:
    """Return the words of the value of a message, which Kafka has as bytes."""
    return message.decode("utf-8", "replace").lower().split()


def count(pair: tuple[str, int]) -> Count:
    """Give a pair its columns."""
    return Count(*pair)


flow = fc.Flow("topic")
flow.source("lines", bytes).flat_map(words).key_by(lambda word: word).count().map(count).sink("counts")
