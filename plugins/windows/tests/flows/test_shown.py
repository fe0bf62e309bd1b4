"""Errors of functions behind windows show the item that the user knows, without the time that goes with it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

import flamecore as fc
import flamestream_windows as w
from flamecore.errors import OperationError

RECORDS = [{"at": 1, "key": "a", "value": "1"}, {"at": 2, "key": "b", "value": "x"}]
SHOWN = "{'at': 2, 'key': 'b', 'value': 'x'}"


def number(record: Any) -> int:
    return int(record["value"])


def keyed(timed: w.Timed[Any]) -> w.TimedKeyed[Any, Any]:
    return timed.key_by(lambda record: record["key"])


FLOWS: dict[str, Callable[[w.Timed[Any]], Any]] = {
    "a map": lambda timed: timed.map(number),
    "a flat_map": lambda timed: timed.flat_map(lambda record: [number(record)]),
    "a filter": lambda timed: timed.filter(number),
    "a key": lambda timed: timed.key_by(number).window(w.fixed(seconds=5)).count(),
    "a map behind distinct": lambda timed: keyed(timed).distinct(within=timedelta(seconds=1)).map(number),
    "a sum in windows": lambda timed: keyed(timed).window(w.fixed(seconds=5)).sum(number),
    "a fold in sessions": lambda timed: (
        keyed(timed)
        .window(w.sessions(seconds=5))
        .fold(0, lambda sum_, record: sum_ + number(record), merge=int.__add__)
    ),
}


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("name", FLOWS)
def test_an_error_shows_the_record_and_no_line_of_the_plugin(name: str, workers: int) -> None:
    flow = fc.Flow("shown")
    FLOWS[name](w.event_time(flow.source("records", dict), lambda record: record["at"], unit="s")).sink("out")
    with pytest.raises(OperationError) as caught:
        flow.run({"records": RECORDS}, workers=workers)
    assert f"record    {SHOWN}\n" in str(caught.value)
    assert "flamestream_windows/" not in str(caught.value)
