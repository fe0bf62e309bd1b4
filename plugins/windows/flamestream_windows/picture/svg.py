"""Drawing of a story: one chart for each key, as plain SVG.

The same story gives the same text. Across is event time, downwards the global time at which an operation works. A pane
is a box as wide as its window, from the pane before it, or the window's first element, down to the moment at which it
is given.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from html import escape
from typing import Any, Final

from flamecore.model.failure import shorten_repr
from flamestream_windows.model.panes import Timing
from flamestream_windows.model.times import END_OF_GLOBAL_WINDOW, MIN
from flamestream_windows.picture.story import Element, Given, Story

SECOND: Final = 1_000_000
_DAY: Final = 86_400 * SECOND
_LEFT, _RIGHT, _WIDTH, _HEIGHT = 90.0, 30.0, 780.0, 320.0
_TOP, _TITLE, _BELOW = 50.0, 34.0, 62.0
_TICKS: Final = 8
_LETTER: Final = 6.4
"""Width of a letter of a label."""

_SECONDS: Final = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200, 86_400)
_STEPS: Final = (
    *(digit * 10**power for power in range(6) for digit in (1, 2, 5)),
    *(seconds * SECOND for seconds in _SECONDS),
    *(days * _DAY for days in (2, 7, 14, 28, 91, 182, 364, 728, 3640, 36_400)),
)
_NAMES: Final = {Timing.EARLY: "early", Timing.ON_TIME: "on time", Timing.LATE: "late"}
_STYLE: Final = """
text { font: 12px sans-serif; fill: #222 } .small { font-size: 11px } .title { font-weight: bold }
.frame { fill: none; stroke: #999 } .grid { stroke: #e4e4e4 }
.watermark { fill: none; stroke: #7a3fb0; stroke-width: 2 }
.early { fill: #c98a00; stroke: #c98a00 }
.on-time { fill: #1f7a4d; stroke: #1f7a4d }
.late { fill: #b4302a; stroke: #b4302a }
.pane { fill-opacity: .16; stroke-width: 1; stroke-opacity: .5 } .edge { stroke-width: 3 }
.retraction { stroke-dasharray: 4 3 }
.element { fill: #20639b; stroke: white }
.element.late { fill: #b4302a } .element.dropped { fill: white; stroke: #b4302a }
""".strip()


@dataclass(frozen=True, slots=True)
class Scale:
    """The scales of all charts.

    Attributes:
        begin, end: Event times at the left and at the right.
        first, last: Global times at the top and at the bottom.
    """

    begin: int
    end: int
    first: int
    last: int

    @classmethod
    def of(cls, story: Story) -> Scale:
        """Return the scale on which all of a story is seen."""
        times = [element.at for element in story.elements]
        for _, pane in story.panes:
            times += [time for time in pane.window if MIN < time < END_OF_GLOBAL_WINDOW - _DAY]
        noted = [each[0] for each in (*story.panes, *story.watermarks)]
        noted += [element.time for element in story.elements]
        begin, end = min(times, default=0), max(times, default=1)
        return cls(begin, max(end, begin + 1), min(noted, default=0), max(noted, default=1))

    def x(self, at: int) -> float:
        """Return the place of an event time, at the edge if it is outside."""
        at = min(max(at, self.begin), self.end)
        return _LEFT + (at - self.begin) / (self.end - self.begin) * _WIDTH

    def y(self, time: int) -> float:
        """Return the place of a global time below the top of a chart."""
        return (time - self.first) / max(self.last - self.first, 1) * _HEIGHT


def draw(story: Story, name: str, keys: Sequence[Any], *, counts: bool) -> str:
    """Return the picture of a story.

    Args:
        story: The story.
        name: The name of the operation.
        keys: The keys to draw, a chart each.
        counts: Whether global times are counts of records, and not of the wall clock.
    """
    scale = Scale.of(story)
    height = _TOP + len(keys) * (_TITLE + _HEIGHT + _BELOW)
    width = _LEFT + _WIDTH + _RIGHT
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}">',
        f"<title>{_text(f'Windows of {name}')}</title>",
        f"<style>{_STYLE}</style>",
        '<rect width="100%" height="100%" fill="white"/>',
        *_legend(),
    ]
    for number, key in enumerate(keys):
        top = _TOP + number * (_TITLE + _HEIGHT + _BELOW) + _TITLE
        lines += [
            f'<g class="chart" transform="translate(0 {top:g})">',
            *_chart(story, name, key, scale, counts),
            "</g>",
        ]
    return "\n".join([*lines, "</svg>"]) + "\n"


def _legend() -> Iterator[str]:
    x = _LEFT
    for fate in ("in time", "late", "dropped"):
        yield f'<circle class="element{_class(fate)}" cx="{x + 5:.1f}" cy="24" r="5"/>'
        yield _label(x + 15, 28, f"element {fate}")
        x += 130 if fate == "in time" else 110
    for timing in ("early", "on time", "late"):
        yield f'<line class="edge {timing.replace(" ", "-")}" x1="{x:.1f}" y1="24" x2="{x + 18:.1f}" y2="24"/>'
        yield _label(x + 24, 28, f"{timing} pane")
        x += 105
    yield f'<line class="watermark" x1="{x:.1f}" y1="24" x2="{x + 18:.1f}" y2="24"/>'
    yield _label(x + 24, 28, "watermark")


def _chart(story: Story, name: str, key: Any, scale: Scale, counts: bool) -> Iterator[str]:
    yield _label(_LEFT, -10, f"{name}, key {_short(key)}", "title")
    yield from _axes(scale, counts)
    elements = [element for element in story.elements if element.key == key]
    panes = [given for given in story.panes if given.pane.key == key]
    for place, given in enumerate(panes):
        yield from _pane(given, _from(given, panes[:place], elements), scale)
    yield from _watermark(story, scale)
    for element in elements:
        yield from _element(element, scale)


def _axes(scale: Scale, counts: bool) -> Iterator[str]:
    ticks = _ticks(scale.begin, scale.end)
    for at, shown in ticks:
        x = scale.x(at)
        yield f'<line class="grid" x1="{x:.1f}" y1="0" x2="{x:.1f}" y2="{_HEIGHT:g}"/>'
        yield _label(x, _HEIGHT + 16, shown, "small", "middle")
    yield f'<rect class="frame" x="{_LEFT:g}" y="0" width="{_WIDTH:g}" height="{_HEIGHT:g}"/>'
    day = f", {_moment(scale.begin):%Y-%m-%d} UTC" if scale.begin >= _DAY else ""
    yield _label(_LEFT + _WIDTH / 2, _HEIGHT + 34, f"event time{day} →", "small", "middle")
    low, high = ("first record", "last record") if counts else ("first arrival", "last arrival")
    yield _label(_LEFT - 8, 10, low, "small", "end")
    yield _label(_LEFT - 8, _HEIGHT, high, "small", "end")
    yield (
        f'<text class="small" text-anchor="middle" transform="translate({_LEFT - 14:g} {_HEIGHT / 2:g}) rotate(90)">'
        f"{'order of records' if counts else 'processing time'} →</text>"
    )


def _ticks(begin: int, end: int) -> list[tuple[int, str]]:
    """Return event times at round distances, with labels."""
    step = next((step for step in _STEPS if (end - begin) <= step * _TICKS), _STEPS[-1])
    ticks = range(-(-begin // step) * step, end + 1, step)
    if begin < _DAY:
        return [(at, f"{at / SECOND:g} s") for at in ticks]
    form = "%Y-%m-%d" if step >= _DAY else "%H:%M" if step >= 60 * SECOND else "%H:%M:%S"
    return [(at, f"{_moment(at):{form}}" if step >= SECOND else f"{_moment(at):%H:%M:%S.%f}") for at in ticks]


def _moment(at: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=at)


def _from(given: Given, before: Sequence[Given], elements: Sequence[Element]) -> int:
    """Return the global time at which the box of a pane begins.

    It is the time of the pane before it, or of the window's first element.
    """
    window = given.pane.window
    earlier = [each.time for each in before if each.pane.window == window and not each.pane.retraction]
    taken = [
        each.time
        for each in elements
        if each.fate != "dropped" and window.start <= each.at < window.end and each.time <= given.time
    ]
    return earlier[-1] if earlier else min(taken, default=given.time)


def _pane(given: Given, begin: int, scale: Scale) -> Iterator[str]:
    time, pane = given
    x, right = scale.x(pane.window.start), scale.x(pane.window.end)
    y, bottom = scale.y(begin), scale.y(time)
    name = _NAMES[pane.timing]
    kind = name.replace(" ", "-")
    told = f"{_short(pane.value)}: {name}, number {pane.index}{', last' if pane.last else ''}"
    facts = f'data-start="{pane.window.start}" data-end="{pane.window.end}" data-index="{pane.index}"'
    if pane.retraction:
        yield f'<g class="given retraction" {facts}><title>{_text(f"taken back: {told}")}</title>'
        yield f'<line class="retraction {kind}" x1="{x:.1f}" y1="{bottom:.1f}" x2="{right:.1f}" y2="{bottom:.1f}"/></g>'
        return
    yield f'<g class="given {kind}" {facts}><title>{_text(told)}</title>'
    yield f'<rect class="pane {kind}" x="{x:.1f}" y="{y:.1f}" width="{right - x:.1f}" height="{bottom - y:.1f}"/>'
    yield f'<line class="edge {kind}" x1="{x:.1f}" y1="{bottom:.1f}" x2="{right:.1f}" y2="{bottom:.1f}"/>'
    shown = _fitting([f"{_short(pane.value)}  {name} {pane.index}", _short(pane.value)], right - x - 8)
    yield f"{_label(x + 5, bottom - 5, shown, 'small')}</g>"


def _fitting(texts: Sequence[str], width: float) -> str:
    """Return the first text that fits, or as much of the last as does."""
    most = int(width / _LETTER)
    found = next((text for text in texts if len(text) <= most), None)
    return found if found is not None else f"{texts[-1][: most - 1]}…" if most > 1 else ""


def _watermark(story: Story, scale: Scale) -> Iterator[str]:
    x, points = scale.x(MIN), [(scale.x(MIN), 0.0)]
    for time, watermark in story.watermarks:
        y = scale.y(time)
        points.append((x, y))
        x = scale.x(watermark)
        points.append((x, y))
    points.append((x, _HEIGHT))
    places = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    yield f'<polyline class="watermark" points="{places}"/>'


def _element(element: Element, scale: Scale) -> Iterator[str]:
    x, y = scale.x(element.at), scale.y(element.time)
    yield f'<circle class="element{_class(element.fate)}" cx="{x:.1f}" cy="{y:.1f}" r="4.5">'
    yield f"<title>{_text(f'{_short(element.value)}: {element.fate}')}</title></circle>"


def _class(fate: str) -> str:
    return "" if fate == "in time" else f" {fate}"


def _label(x: float, y: float, text: str, kind: str = "", anchor: str = "") -> str:
    attributes = (f' class="{kind}"' if kind else "") + (f' text-anchor="{anchor}"' if anchor else "")
    return f'<text{attributes} x="{x:.1f}" y="{y:.1f}">{_text(text)}</text>'


def _short(value: Any) -> str:
    return value if type(value) is str and value.isprintable() and len(value) < 80 else shorten_repr(value)


def _text(text: str) -> str:
    """Return a text that XML can hold."""
    return escape("".join(char if char.isprintable() else "�" for char in text))
