"""Reports of the demo: figures of job and index, and postings of a word."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from flamecore.runtime.parts.counters import JobStats
from flamestream_demo.view import Held, IndexView

_SHOWN_POSITIONS: Final = 12


class Figures(NamedTuple):
    """Figures of the job and of the index.

    Attributes:
        pages: Number of pages read; each version of a page is one.
        tokens: Number of tokens in these pages, as far as their changes have been output.
        words: Number of distinct stems in the index.
        changes: Number of changes of the index.
        pages_per_s: Rate over the whole run, from opening the source to closing the sink.
        latency_p50_ms, latency_p99_ms: From reading a page to the delivery of its last change.
        replays: Outputs of operations that were taken back because something came late.
        workers: Number of workers.
    """

    pages: int = 0
    tokens: int = 0
    words: int = 0
    changes: int = 0
    pages_per_s: float = 0.0
    latency_p50_ms: float | None = None
    latency_p99_ms: float | None = None
    replays: int = 0
    workers: int = 1

    @classmethod
    def of(cls, stats: JobStats, view: IndexView, workers: int) -> Figures:
        """Return the figures of the moment."""
        return cls(
            pages=stats.items_in,
            tokens=view.tokens,
            words=len(view.postings),
            changes=view.changes,
            pages_per_s=stats.items_in / stats.elapsed_s if stats.elapsed_s else 0.0,
            latency_p50_ms=stats.latency_p50_ms,
            latency_p99_ms=stats.latency_p99_ms,
            replays=stats.replays,
            workers=workers,
        )

    def rows(self) -> Iterator[tuple[str, str]]:
        """Yield the name and value of each figure, for people."""
        yield "pages", f"{self.pages:,}"
        yield "tokens", f"{self.tokens:,}"
        yield "distinct words", f"{self.words:,}"
        yield "index changes", f"{self.changes:,}"
        yield "pages/s", f"{self.pages_per_s:,.0f}"
        yield "release latency p50", _milliseconds(self.latency_p50_ms)
        yield "release latency p99", _milliseconds(self.latency_p99_ms)
        yield "replays", f"{self.replays:,}"


def _milliseconds(value: float | None) -> str:
    return "–" if value is None else f"{value:,.1f} ms"


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def as_text(rows: Iterable[tuple[str, str]]) -> str:
    """Return rows as lines, names to the left and values to the right."""
    found = list(rows)
    name_width = max(len(name) for name, _ in found)
    value_width = max(len(value) for _, value in found)
    return "\n".join(f"{name:<{name_width}}  {value:>{value_width}}" for name, value in found)


class Answer(NamedTuple):
    """The index's answer to a query of one word.

    Attributes:
        query: The query as it was asked.
        word: Its stem, which is the word in the index.
        postings: Page number → posting of the page, by number; empty if no page holds the word.
        nearest: If no page does: similar words of the index.
    """

    query: str
    word: str
    postings: Mapping[int, Held]
    nearest: list[str]

    @classmethod
    def of(cls, query: str, word: str, view: IndexView) -> Answer:
        """Look a word up."""
        postings = dict(sorted(view.postings.get(word, {}).items()))
        return cls(query, word, postings, [] if postings else view.nearest(word))

    def text(self, titles: Mapping[int, str]) -> str:
        """Return the answer for people; long lists of positions are cut."""
        if not self.postings:
            nearest = f"; nearest: {', '.join(self.nearest)}" if self.nearest else ""
            return f"no page holds {self.query!r} (looked up as {self.word!r}){nearest}"
        total = sum(len(held.positions) for held in self.postings.values())
        width = max(len("page"), *(len(titles[page]) for page in self.postings))
        pages, times = _counted(len(self.postings), "page"), _counted(total, "time")
        lines = [
            f"{self.query!r}, looked up as {self.word!r}: {pages}, {times}",
            f"{'page':<{width}}  version  positions",
        ]
        for page, held in self.postings.items():
            shown = ", ".join(map(str, held.positions[:_SHOWN_POSITIONS]))
            more = len(held.positions) - _SHOWN_POSITIONS
            lines.append(
                f"{titles[page]:<{width}}  {held.version:>7}  {shown}{f' and {more} more' if more > 0 else ''}"
            )
        return "\n".join(lines)

    def facts(self, titles: Mapping[int, str]) -> dict[str, Any]:
        """Return the answer for programs."""
        postings = [
            {"page": page, "title": titles[page], "version": held.version, "positions": list(held.positions)}
            for page, held in self.postings.items()
        ]
        return {"query": self.query, "word": self.word, "postings": postings, "nearest": self.nearest}
