"""The checks of a flow refuse what would let them pass without checking anything."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import flamecore as fc
from flamecore.errors import ConfigError, UnknownKeyError
from flamecore.testing import assert_deterministic, assert_exactly_once

Check = Callable[..., Any]

CHECKS = pytest.mark.parametrize("check", [assert_deterministic, assert_exactly_once])


def words() -> fc.Flow:
    flow = fc.Flow("words")
    flow.source("lines", str).flat_map(str.split).sink("words")
    return flow


@CHECKS
def test_records_of_a_source_that_the_flow_does_not_have_are_refused(check: Check) -> None:
    with pytest.raises(UnknownKeyError, match=r"source\.line: the flow has no such source") as caught:
        check(words(), {"line": ["a b"]}, seeds=range(1))
    assert "lines" in str(caught.value)


@CHECKS
@pytest.mark.parametrize("name", ["seeds", "workers", "ackers"])
def test_a_check_of_no_run_is_refused(check: Check, name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} is empty"):
        check(words(), {"lines": ["a b"]}, **{name: ()})


@CHECKS
def test_seeds_may_be_an_iterator(check: Check) -> None:
    assert check(words(), {"lines": ["a b"]}, seeds=iter([3, 4]))
