"""Stories of sources that grow, and of those whose end counts: the check knows what to expect, or says why not."""

from __future__ import annotations

from typing import Literal

import pytest

import flamecore as fc
import flamestream_windows as w
from flamecore.errors import GraphError
from flamecore.testing import assert_exactly_once
from flamecore.testing.draws import seeds
from flamecore.testing.simulation.trouble import Trouble
from flamestream_windows import watermarks

INPUTS = {name: [(place, place * 7) for place in range(12)] for name in ("a", "b")}


def timed(flow: fc.Flow, name: str, at_end: Literal["close", "keep"] = "keep") -> w.Timed[tuple[int, int]]:
    strategy = watermarks.bounded_disorder(microseconds=2)
    source = flow.source(name, tuple)
    return w.event_time(source, lambda record: record[0], unit="us", watermark=strategy, at_end=at_end)


def counted(stream: w.Timed[tuple[int, int]], sink: str) -> None:
    stream.key_by(lambda record: record[1] % 2).window(w.fixed(microseconds=4)).count().sink(sink)


def closing() -> fc.Flow:
    flow = fc.Flow("closing")
    counted(timed(flow, "a", "close"), "out")
    return flow


def meeting() -> fc.Flow:
    flow = fc.Flow("meeting")
    counted(timed(flow, "a").merge(timed(flow, "b")), "out")
    return flow


def apart() -> fc.Flow:
    flow = fc.Flow("apart")
    counted(timed(flow, "a"), "first")
    counted(timed(flow, "b"), "second")
    return flow


def test_a_source_that_closes_its_windows_has_all_its_records_from_the_start() -> None:
    assert_exactly_once(closing(), {"a": INPUTS["a"]}, seeds=seeds(12))


def test_several_sources_grow_if_their_watermarks_do_not_meet() -> None:
    assert Trouble().grows_in(apart().graph())
    assert_exactly_once(apart(), INPUTS, seeds=seeds(12), trouble=Trouble(grows=True))


@pytest.mark.parametrize(
    ("flow", "what"), [(closing(), "closes all windows at the end of its source"), (meeting(), "watermarks of .* meet")]
)
def test_growth_is_refused_where_nobody_knows_what_it_leads_to(flow: fc.Flow, what: str) -> None:
    inputs = {source.name: INPUTS[source.name] for source in flow.graph().sources}
    with pytest.raises(GraphError, match=what) as refused:
        assert_exactly_once(flow, inputs, trouble=Trouble(grows=True))
    assert "Leave Trouble.grows out" in refused.value.hint
    assert not Trouble().grows_in(flow.graph())
