"""Keys that are equal and differ: which one a pane shows follows from the records, in whatever portions they come."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from random import Random
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import pytest

import flamecore as fc
import flamestream_windows as windows
from flamecore.runtime.operators import drift, ordered
from flamecore.runtime.operators.keyed_state import MOST_ENDED
from flamecore.testing import assert_exactly_once
from flamecore.testing.draws import seeds
from flamestream_windows import triggers, watermarks


class Pair(NamedTuple):
    first: int
    second: int


NOON = datetime(2024, 1, 1, 12, tzinfo=UTC)
FAMILIES: list[list[Any]] = [
    [1, True, 1.0],
    [0.0, -0.0, 0, False],
    [(1, 2), Pair(1, 2)],
    [Decimal("1.0"), Decimal("1.00")],
    [NOON, NOON.astimezone(ZoneInfo("Europe/Berlin"))],
    ["x"],
]
Record = tuple[Any, int]
Build = Callable[[Any], Any]


@pytest.fixture(autouse=True, params=[2, MOST_ENDED])
def most_ended(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget keys that have ended at once, as in long runs, and not at all, as in short ones."""
    for module in (drift, ordered):
        monkeypatch.setattr(module, "MOST_ENDED", request.param)


def timed(stream: Any) -> Any:
    late = watermarks.bounded_disorder(seconds=3)
    return windows.event_time(stream, lambda record: float(record[1]), watermark=late, at_end="close")


def shown(pane: Any) -> tuple[str, int, Any]:
    return repr(pane.key), pane.window.start // 10**6, pane.value


def windowed(window: Any, verb: str, **how: Any) -> Build:
    def build(stream: Any) -> Any:
        panes = timed(stream).key_by(lambda record: record[0]).window(window, **how)
        return getattr(panes, verb)().map(shown)

    return build


WINDOWS = {
    "fixed": windows.fixed(seconds=10),
    "sliding": windows.sliding(seconds=10, every=timedelta(seconds=5)),
    "sessions": windows.sessions(seconds=7),
    "whole": windows.whole(),
}
HOW: dict[str, dict[str, Any]] = {
    "final": {},
    "late": {"lateness": timedelta(seconds=20)},
    "updates": {"emit": "updates", "panes": "accumulating"},
    "early": {"emit": triggers.at_watermark(early=triggers.count(2)), "panes": "discarding"},
    "retracting": {"emit": "updates", "panes": "retracting"},
}
OPERATIONS: dict[str, Build] = {
    "count": lambda s: s.key_by(lambda r: r[0]).count().map(repr),
    "stateful": lambda s: s.key_by(lambda r: r[0]).stateful_map(0, lambda n, r: (n + 1, [(n, r)])).map(repr),
    "distinct": lambda s: timed(s).key_by(lambda r: r[0]).distinct(within=timedelta(seconds=9)).map(repr),
    "inactive": lambda s: timed(s).key_by(lambda r: r[0]).inactive(after=timedelta(seconds=9)).map(repr),
    **{
        f"{window} {how} {verb}": windowed(WINDOWS[window], verb, **HOW[how])
        for window, how, verb in itertools.product(WINDOWS, HOW, ("count", "collect"))
    },
}


def drawn(seed: int) -> list[Record]:
    """Return records of several keys, or of some that are all equal, within the disorder that `timed` allows or not."""
    random = Random(f"equal keys {seed}")
    count, families = random.randint(3, 30), random.choice([FAMILIES, FAMILIES[:1]])
    step, early = random.choice([(2, -4), (1, -3)])
    return [
        (random.choice(random.choice(families)), step * number + random.randrange(early, 3)) for number in range(count)
    ]


@pytest.mark.parametrize("seed", seeds(3))
@pytest.mark.parametrize("operation", OPERATIONS)
def test_portions_and_workers_do_not_decide_which_key_is_shown(operation: str, seed: int) -> None:
    records, wanted = drawn(seed), None
    for workers, most in itertools.product((1, 3), (1, 2, 3, 8192)):
        flow = fc.Flow("keys")
        OPERATIONS[operation](flow.source("records", tuple)).sink("out")
        settings = {"job.max_in_flight": most}
        found = repr(flow.run({"records": records}, workers=workers, settings=settings)["out"])
        wanted = wanted or found
        assert found == wanted, f"{workers} workers, {most} in flight"


@pytest.mark.parametrize("operation", OPERATIONS)
def test_snapshots_and_faults_do_not_decide_which_key_is_shown(operation: str) -> None:
    for seed in seeds(2):
        flow = fc.Flow("keys")
        flow.codec(Pair)
        OPERATIONS[operation](flow.source("records", tuple)).map(repr).sink("out")
        assert_exactly_once(flow, {"records": drawn(seed)}, seeds=(seed, seed + 1), workers=(1, 2, 3))


@pytest.mark.parametrize("family", FAMILIES[:-1], ids=repr)
@pytest.mark.parametrize("most", [1, 8192])
def test_a_pane_shows_the_key_of_the_first_record_since_the_key_had_no_open_window(
    family: list[Any], most: int
) -> None:
    one, other, third = family[0], family[1], family[-1]
    # The window up to 10 is open when that from 10 on begins; none is at 60.
    records = [(one, 0), ("x", 3), (other, 6), (third, 11), ("x", 40), (other, 60), (one, 61), ("x", 90)]
    flow = fc.Flow("keys")
    windowed(WINDOWS["fixed"], "count")(flow.source("records", tuple)).sink("out")
    out = flow.run({"records": records}, workers=2, settings={"job.max_in_flight": most})["out"]
    assert [pane for pane in out if pane[0] != "'x'"] == [(repr(one), 0, 2), (repr(one), 10, 1), (repr(other), 60, 2)]
