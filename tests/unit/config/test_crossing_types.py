"""Declared classes that cannot go from process to process: a job on processes is refused before it starts."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import pytest

import flamecore as fc
from flamecore.runtime.config.layers import from_program
from flamecore.runtime.config.read import make_config
from flamecore.runtime.config.resolve import resolve


class Bare:
    """A class that is not made of fields."""


class Base:
    """A class that stands for one below it."""


@dataclass
class Below(Base):
    x: int


class Shape(ABC):
    @abstractmethod
    def area(self) -> float: ...


class Sized(Protocol):
    def size(self) -> int: ...


class Pair(NamedTuple):
    word: str
    count: int


def plain(line: str) -> str:
    return line


def bare(line: str) -> Bare:
    return Bare()


def of_bare(item: Bare) -> str:
    return ""


def matched(line: str) -> re.Match[str] | None:
    return None


def listed(line: str) -> list[Bare]:
    return []


def to_a_sink(flow: fc.Flow) -> None:
    flow.source("lines", str).map(bare).sink("out")


def before_a_key(flow: fc.Flow) -> None:
    flow.source("lines", str).map(bare).key_by(lambda item: 1).count().sink("out")


def in_a_key(flow: fc.Flow) -> None:
    flow.source("lines", str).map(lambda line: Bare()).key_by(of_bare).count().sink("out")


def before_others_take_over(flow: fc.Flow) -> None:
    flow.source("lines", str).map(lambda line: Bare()).rebalance().map(of_bare).sink("out")


def in_a_list(flow: fc.Flow) -> None:
    flow.source("lines", str).map(listed).sink("out")


def that_may_be_none(flow: fc.Flow) -> None:
    flow.source("lines", str).map(matched).sink("out")


def problems(build: Callable[[fc.Flow], None], on: str = "processes", *codecs: Any) -> list[str]:
    flow = fc.Flow("crossing")
    for codec in codecs:
        flow.codec(codec, encode=str, decode=lambda text: Bare())
    build(flow)
    config = make_config(from_program({"deploy.on": on, "source.lines.use": "stdin", "job.workers": 2}))
    return [str(problem) for problem in resolve(config, flow).problems]


@pytest.mark.parametrize(
    "build", [to_a_sink, before_a_key, in_a_key, before_others_take_over, in_a_list, that_may_be_none]
)
def test_a_declared_class_that_cannot_cross_is_found_before_the_start(build: Callable[[fc.Flow], None]) -> None:
    (problem,) = problems(build)
    assert re.search(r"(Bare|Match) cannot cross a process boundary, since it is not made of fields", problem)
    assert "flow.codec(" in problem
    assert problems(build, "here") == [], "nothing crosses in one process"


def test_a_class_with_a_codec_may_cross() -> None:
    assert problems(to_a_sink, "processes", Bare) == []


@pytest.mark.parametrize("type_", [str, object, Any, list[int], Pair, Below, Base, Shape, Sized, Bare | str, None])
def test_a_type_that_says_nothing_or_may_stand_for_others_is_no_problem(type_: Any) -> None:
    def result(line: str) -> Any: ...

    result.__annotations__["return"] = type_

    def build(flow: fc.Flow) -> None:
        flow.source("lines", str).map(result).sink("out")

    assert problems(build) == []


def test_what_stays_on_its_worker_may_be_of_any_class() -> None:
    assert problems(lambda flow: flow.source("lines", str).map(bare).map(of_bare).sink("out")) == []
