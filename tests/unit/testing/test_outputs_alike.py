"""The comparison of outputs, where values are not equal to themselves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pytest

import flamecore as fc
from flamecore.testing import assert_deterministic, assert_exactly_once
from flamecore.testing.flows.deterministic import compare_outputs

NAN = float("nan")


class Point(NamedTuple):
    x: float


@dataclass(frozen=True)
class Place:
    x: float


class Spot(msgspec.Struct):
    x: float


def other_nan() -> float:
    return float("nan")


@pytest.mark.parametrize(
    ("got", "wanted"),
    [
        (NAN, other_nan()),
        ({"a": [(1, NAN)]}, {"a": [(1, other_nan())]}),
        (Point(NAN), Point(other_nan())),
        (Place(NAN), Place(other_nan())),
        (Spot(NAN), Spot(other_nan())),
        (np.array([1.0, NAN]), np.array([1.0, NAN])),
        (np.array([1, 2]), np.array([1, 2])),
        (np.array(["a" * 3, 1.5, NAN], dtype=object), np.array(["a" * 3, 1.5, other_nan()], dtype=object)),
        ([np.array([1])], [np.array([1])]),
        (np.float64("nan"), np.float64("nan")),
        (1, 1.0),
    ],
)
def test_values_with_nan_and_arrays_are_alike(got: Any, wanted: Any) -> None:
    compare_outputs({"out": [1, got]}, {"out": [1, wanted]}, "a test")


@pytest.mark.parametrize(
    ("got", "wanted"),
    [
        (NAN, 1.0),
        (1, True + 1),
        ((NAN, 1.0), (1.0, NAN)),
        ([NAN], (NAN,)),
        ({"a": NAN}, {"b": NAN}),
        (Place(NAN), Place(1.0)),
        (Spot(NAN), Place(NAN)),
        (np.array([1, 2]), np.array([1, 3])),
        (np.array([1, 2]), np.array([1, 2, 3])),
        (np.array([1, 2]), np.array([1.0, NAN])),
        (np.array([1]), np.array([1.0])),
        (np.array([[1]]), 1),
        ([np.array([1])], [np.array([[1]])]),
        (np.array(["a"], dtype=object), np.array(["b"], dtype=object)),
    ],
)
def test_values_that_differ_are_named(got: Any, wanted: Any) -> None:
    with pytest.raises(AssertionError, match="the first difference is output 1"):
        compare_outputs({"out": [1, got]}, {"out": [1, wanted]}, "a test")


def test_flows_with_nan_are_checked() -> None:
    flow = fc.Flow("nan")
    flow.source("numbers", float).key_by(lambda n: int(n)).reduce(max).map(lambda n: (n, NAN)).sink("out")
    numbers = [1.0, 2.0, 1.5, 2.5]
    assert len(assert_deterministic(flow, {"numbers": numbers}, seeds=range(3))["out"]) == 4
    assert_exactly_once(flow, {"numbers": numbers}, seeds=range(3))


def test_flows_with_arrays_are_checked() -> None:
    flow = fc.Flow("arrays")
    flow.source("numbers", int).map(lambda n: np.array([n, n + 1])).sink("out")
    assert len(assert_deterministic(flow, {"numbers": [1, 2, 3]}, seeds=range(3))["out"]) == 3
