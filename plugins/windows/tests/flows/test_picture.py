"""The command that draws windows: what is in the picture is what the run gives, and nothing else."""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner, Result

from flamecore.cli import main

SVG = "{http://www.w3.org/2000/svg}"
FLOW = """\
from datetime import timedelta
from typing import NamedTuple
import flamecore as fc
import flamestream_windows as w
from flamestream_windows import triggers as t, watermarks

class Reading(NamedTuple):
    at: float
    sensor: str
    value: int

flow = fc.Flow("readings")
late = watermarks.bounded_disorder(seconds=5)
readings = w.event_time(flow.source("readings", Reading), lambda r: r.at, watermark=late).key_by(lambda r: r.sensor)
emit = t.at_watermark(early=t.count(2), late=t.count(1))
sums = readings.window(w.fixed(seconds=10), lateness=timedelta(seconds=10), emit=emit, panes={panes!r})
sums = sums.sum(lambda r: r.value, name="sums")
sums.sink("sums", retractions=True)
sums.key_by(lambda pane: None).window(w.whole()).count(name="of-all").sink("count")

plain = fc.Flow("plain")
plain.source("readings", Reading).sink("sums")
"""
READINGS = [
    (1.0, "a", 3),
    (4.0, "a", 5),
    (2.0, "<b&\u0007>", 7),
    (16.0, "a", 1),
    (8.0, "a", 2),
    (27.0, "a", 4),
    (3.0, "a", 9),
]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with a job, in which the test runs."""
    monkeypatch.chdir(tmp_path)
    lines = [json.dumps({"at": at, "sensor": sensor, "value": value}) for at, sensor, value in READINGS]
    (tmp_path / "readings.jsonl").write_text("\n".join(lines))
    for name, panes in (("accumulating", "accumulating"), ("retracting", "retracting")):
        (tmp_path / f"{name}.py").write_text(FLOW.replace("{panes!r}", repr(panes)))
        (tmp_path / f"{name}.toml").write_text(
            f'schema = 1\n[job]\nflow = "{name}.py:flow"\nworkers = 3\n[source.readings]\nuse = "jsonl"\n'
            'path = "readings.jsonl"\n[sink.sums]\nuse = "jsonl"\npath = "sums.jsonl"\n[sink.count]\nuse = "jsonl"\n'
            'path = "count.jsonl"\n'
        )
    return tmp_path


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["windows", *arguments])


def drawn(*arguments: str) -> ElementTree.Element:
    """Return the picture that the command writes."""
    found = run(*arguments, "-o", "run.svg")
    assert found.exit_code == 0, found.output
    return ElementTree.fromstring(Path("run.svg").read_text("utf-8"))


def charts(picture: ElementTree.Element) -> list[ElementTree.Element]:
    return [group for group in picture.iter(f"{SVG}g") if group.get("class") == "chart"]


def panes(chart: ElementTree.Element) -> list[tuple[str, int, int, int]]:
    """Return class, start and end in seconds, and number of the panes of a chart."""
    groups = [group for group in chart.iter(f"{SVG}g") if str(group.get("class")).startswith("given")]
    return [
        (
            str(group.get("class")).removeprefix("given "),
            int(str(group.get("data-start"))) // 1_000_000,
            int(str(group.get("data-end"))) // 1_000_000,
            int(str(group.get("data-index"))),
        )
        for group in groups
    ]


def points(chart: ElementTree.Element) -> list[tuple[float, float]]:
    (line,) = chart.iter(f"{SVG}polyline")
    return [(float(x), float(y)) for x, y in (point.split(",") for point in str(line.get("points")).split())]


@pytest.mark.usefixtures("folder")
def test_elements_and_panes_of_each_key_are_in_its_chart() -> None:
    first, second = charts(drawn("accumulating.toml"))
    dots = Counter(str(dot.get("class")) for dot in first.iter(f"{SVG}circle"))
    assert dots == {"element": 4, "element late": 1, "element dropped": 1}
    assert panes(first) == [
        ("early", 0, 10, 0),
        ("on-time", 0, 10, 1),
        ("late", 0, 10, 2),
        ("on-time", 10, 20, 0),
        ("on-time", 20, 30, 0),
    ]
    assert panes(second) == [("on-time", 0, 10, 0)]
    assert "sums, key a" in [text.text for text in first.iter(f"{SVG}text")]
    assert any("<b&" in str(text.text) for text in second.iter(f"{SVG}text"))


@pytest.mark.usefixtures("folder")
def test_the_watermark_falls_nowhere_and_panes_are_as_wide_as_their_windows() -> None:
    (chart, _) = charts(drawn("accumulating.toml"))
    line = points(chart)
    assert all(x <= next_x and y <= next_y for (x, y), (next_x, next_y) in pairwise(line))
    boxes = [box for box in chart.iter(f"{SVG}rect") if str(box.get("class")).startswith("pane")]
    assert len(boxes) == 5
    frame = next(box for box in chart.iter(f"{SVG}rect") if box.get("class") == "frame")
    second = float(str(frame.get("width"))) / 30  # from the first window to the end of the last
    assert [round(float(str(box.get("width"))) / second) for box in boxes] == [10] * 5
    assert all(float(str(box.get("height"))) >= 0 for box in boxes)


@pytest.mark.usefixtures("folder")
def test_a_pane_that_is_taken_back_is_drawn_as_such() -> None:
    (chart,) = charts(drawn("retracting.toml", "--key", "a"))
    assert [pane for pane in panes(chart) if pane[0] == "retraction"] == [
        ("retraction", 0, 10, 0),
        ("retraction", 0, 10, 1),
    ]


@pytest.mark.usefixtures("folder")
def test_the_same_run_gives_the_same_picture_and_writes_no_sink() -> None:
    texts = {run("accumulating.toml").output for _ in range(3)}
    assert len(texts) == 1
    assert not Path("sums.jsonl").exists()


@pytest.mark.usefixtures("folder")
def test_only_the_first_records_are_read_if_so_many_are_asked_for() -> None:
    (chart,) = charts(drawn("accumulating.toml", "--records", "2"))
    assert len([*chart.iter(f"{SVG}circle")]) == 2


@pytest.mark.usefixtures("folder")
def test_windows_behind_others_are_drawn_by_name() -> None:
    (chart,) = charts(drawn("accumulating.toml", "--of", "of-all"))
    assert len([*chart.iter(f"{SVG}circle")]) == 6
    found = run("accumulating.toml", "--of", "of-all", "--json")
    facts = json.loads(found.output)
    assert (facts["name"], facts["elements"], facts["keys"], facts["drawn"]) == ("of-all", 6, 1, 1)
    ElementTree.fromstring(facts["svg"])


@pytest.mark.usefixtures("folder")
def test_what_is_not_there_is_named_with_what_is() -> None:
    job = Path("accumulating.toml").read_text().replace("py:flow", "py:plain")
    Path("plain.toml").write_text(job[: job.index("[sink.count]")])
    assert "the flow 'plain' has no windows" in run("plain.toml").output
    assert "there are sums, of-all" in run("accumulating.toml", "--of", "sum").output
    assert "no element has the key 'c'; there are a, " in run("accumulating.toml", "--key", "c").output


def test_a_picture_that_cannot_be_written_is_an_error(folder: Path) -> None:
    found = run("accumulating.toml", "--output", str(folder / "nowhere" / "run.svg"))
    assert found.exit_code == 2
    assert "the picture cannot be written to" in found.output
    assert isinstance(found.exception, SystemExit)
