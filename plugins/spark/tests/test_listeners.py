"""Events that a program's own listener hears of `stream()`: those of Spark's query of each source, and of no other."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import flamecore as fc
import flamestream_spark
from flamecore.errors import FlameError
from flamecore.testing.progress import Patience

pytestmark = [pytest.mark.usefixtures("spark")]


class Heard:
    """Events, in order: the kind and the event.

    They come on a thread of Spark, some time after what they tell of.
    """

    def __init__(self) -> None:
        self.events: list[tuple[str, Any]] = []

    def of(self, kind: str, count: int) -> list[Any]:
        """Return the events of a kind, once there are so many."""
        limit = Patience(60)
        while len(found := [event for name, event in self.events if name == kind]) < count:
            assert not limit.passed(), f"{len(found)} events of {kind}, and {count} were to come"
        return found


@pytest.fixture
def heard(spark: Any) -> Iterator[Heard]:
    """Return the events from now on, of a listener added as users add theirs."""
    heard = Heard()

    class Listener(import_module("pyspark.sql.streaming").StreamingQueryListener):  # type: ignore[misc]
        def onQueryStarted(self, event: Any) -> None:
            heard.events.append(("started", event))

        def onQueryProgress(self, event: Any) -> None:
            heard.events.append(("progress", event))

        def onQueryIdle(self, event: Any) -> None:
            heard.events.append(("idle", event))

        def onQueryTerminated(self, event: Any) -> None:
            heard.events.append(("terminated", event))

    listener = Listener()
    spark.streams.addListener(listener)
    yield heard
    spark.streams.removeListener(listener)


def both() -> fc.Flow:
    flow = fc.Flow("both")
    a, b = flow.source("a", str), flow.source("b", str)
    a.merge(b).flat_map(str.split).key_by(lambda word: word).count().sink("counts")
    return flow


@pytest.mark.parametrize("on_spark", [False, True])
def test_a_listener_hears_the_query_of_each_source(spark: Any, tmp_path: Path, heard: Heard, on_spark: bool) -> None:
    frames = {}
    for name, files in {"a": 3, "b": 2}.items():
        (tmp_path / name).mkdir()
        for number in range(files):
            (tmp_path / name / f"{number}.txt").write_text("to be\n" * (6 // files))
        frames[name] = spark.readStream.option("maxFilesPerTrigger", 1).text(str(tmp_path / name))
    checkpoint = tmp_path / "job"
    running = flamestream_spark.stream(both(), frames, checkpoint=checkpoint, on_spark=on_spark)
    running.processAllAvailable()
    rows = running.output().count()
    running.stop()
    ids = {name: str(query.query.id) for name, query in running.queries.items()}
    terminated = heard.of("terminated", 2)
    started, progress = heard.of("started", 2), heard.of("progress", 5)
    assert sorted(str(event.id) for event in started) == sorted(str(event.id) for event in terminated)
    assert sorted(str(event.id) for event in started) == sorted(ids.values())
    assert [event.exception for event in terminated] == [None, None]
    read = {name: [event.progress for event in progress if str(event.progress.id) == ids[name]] for name in ids}
    batches = {name: [one.batchId for one in told if one.numInputRows] for name, told in read.items()}
    assert batches == {"a": [0, 1, 2], "b": [0, 1]}
    assert {name: sum(one.numInputRows for one in told) for name, told in read.items()} == {"a": 6, "b": 6}
    assert rows == 24, "outputs are no events of Spark"
    again = flamestream_spark.stream(both(), frames, checkpoint=checkpoint, on_spark=on_spark)
    again.processAllAvailable()
    again.stop()
    runs = {str(event.runId) for event in heard.of("started", 4)}
    assert len(runs) == 4
    assert {str(event.id) for event in heard.of("terminated", 4)} == {*ids.values()}, "a second start goes on"


@pytest.mark.parametrize("where", ["query", "flow"])
def test_a_listener_hears_that_a_query_has_failed_and_not_that_a_flow_has(
    spark: Any, tmp_path: Path, heard: Heard, where: str
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_text("1\nx\n")
    lines = spark.readStream.text(str(tmp_path / "in"))
    if where == "query":
        lines = lines.selectExpr("raise_error('no number') AS value")
    flow = fc.Flow("numbers")
    flow.source("lines", str).map(int).sink("numbers")
    running = flamestream_spark.stream(flow, lines=lines, checkpoint=tmp_path / "job")
    with pytest.raises(FlameError, match="no number" if where == "query" else "invalid literal"):
        running.awaitTermination(60)
    (terminated,) = heard.of("terminated", 1)
    assert str(terminated.id) == str(running.queries["lines"].query.id)
    assert ("no number" in (terminated.exception or "")) is (where == "query")
    assert (terminated.exception is None) is (where == "flow")
    assert running.exception() is not None
