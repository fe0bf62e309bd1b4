"""The sinks of `flamestream retry`: each says itself whether it takes more."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, ClassVar

import msgspec
import pytest

from flamecore.abc.sink import Guarantee, Sink
from flamecore.abc.source import EdgeContext
from flamecore.cli.commands.retry import _appending
from flamecore.errors import ConfigError


class ModeOptions(msgspec.Struct):
    mode: str = "replace"


class Plain(Sink):
    name: ClassVar[str] = "plain"

    @property
    def guarantee(self) -> Guarantee:
        return "at_least_once"

    async def open(self) -> int:
        return 0

    async def write(self, time: int, payloads: Sequence[Any]) -> None:
        return


class Fixed(Plain):
    takes_more = False


class Appended(Plain):
    Options: ClassVar[Any] = ModeOptions


def spec(**sinks: Any) -> Any:
    return SimpleNamespace(sinks=sinks, dead_letter=None)


def test_a_sink_that_takes_no_more_is_refused_whatever_its_class() -> None:
    with pytest.raises(ConfigError, match="sink 'counts' takes no outputs but those of its own job") as caught:
        _appending(spec(others=Appended(None, EdgeContext("others")), counts=Fixed(None, EdgeContext("counts"))))
    assert "[state]" in caught.value.hint


def test_other_sinks_are_told_to_append_if_they_can_be() -> None:
    sinks = {"a b": Appended(None, EdgeContext("a b")), "c": Plain(None, EdgeContext("c"))}
    assert _appending(spec(**sinks)) == ['sink."a b".mode=append']
