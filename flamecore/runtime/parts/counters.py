"""The counters of a job, declared once.

A declaration has the counter's name, its meaning, and how the values of several parts are combined. Status, progress,
log and docs follow from the declaration. A new counter is a field here, and a value in `counts` of the part that counts
it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple, TypeVar

from flamecore.model.clock import global_time, moment
from flamecore.runtime.parts.histogram import Histogram

K = TypeVar("K")
Counted = TypeVar("Counted", bound="Counters")


class Meaning(NamedTuple):
    """The declaration of one counter.

    Attributes:
        text: Description for docs.
        key: Name of the keys of a counter by key, as docs write it; empty: it is one value.
        merge: Function that makes one value of those of several parts; None: only a job has it.
        present: Whether it is about the present, so that it ends with its parts; other counters only grow.
        shown: Whether progress shows it where it is not 0.
        stays: Whether one about the present still holds when the job has ended.
        spell: Function that returns a value, or each of several, for tables and JSON; None: it is as it is.
        spell_key: The same of each key.
    """

    text: str
    key: str
    merge: Callable[[Iterable[Any]], Any] | None
    present: bool
    shown: bool
    stays: bool = False
    spell: Callable[[Any], object] | None = None
    spell_key: Callable[[Any], object] | None = None


def _added(tables: Iterable[Mapping[K, int]]) -> dict[K, int]:
    total: dict[K, int] = {}
    for table in tables:
        for key, count in table.items():
            total[key] = total.get(key, 0) + count
    # Without zeros, so that progress and status show only what has happened.
    return {key: count for key, count in total.items() if count}


def _least(tables: Iterable[Mapping[K, int]]) -> dict[K, int]:
    least: dict[K, int] = {}
    for table in tables:
        for key, value in table.items():
            least[key] = min(value, least.get(key, value))
    return least


def _any(tables: Iterable[Mapping[K, str]]) -> dict[K, str]:
    return {key: text for table in tables for key, text in table.items()}


def earliest(firsts: Iterable[Mapping[int, str]]) -> dict[int, str]:
    """Return the entry with the least time in several mappings, or none."""
    return dict(sorted((time, text) for first in firsts for time, text in first.items())[:1])


def _counter(
    text: str,
    key: str = "",
    *,
    merge: Callable[[Iterable[Any]], object] | None = None,
    present: bool = False,
    shown: bool = False,
    stays: bool = False,
    spell: Callable[[Any], object] | None = None,
    spell_key: Callable[[Any], object] | None = None,
) -> dict[str, Meaning]:
    merged_by = merge or (_added if key else sum)
    return {"meaning": Meaning(text, key, merged_by, present or stays, shown, stays, spell, spell_key)}


def _derived(text: str, key: str = "", *, spell: Callable[[Any], object] | None = None) -> dict[str, Meaning]:
    return {"meaning": Meaning(text, key, None, present=False, shown=False, spell=spell)}


def meanings(kind: type[Counters]) -> dict[str, Meaning]:
    """Return the declarations of the counters of a class, by name."""
    return {each.name: each.metadata["meaning"] for each in fields(kind)}


def _described(kind: type[Counted]) -> type[Counted]:
    """Add the meanings of its counters to the docstring of a class."""
    lines = [f"        {name}: {meaning.text}." for name, meaning in meanings(kind).items()]
    kind.__doc__ = "\n".join([f"{kind.__doc__}\n\n    Attributes:", *lines, "    "])
    return kind


@dataclass(frozen=True, slots=True)
class Counters:
    """The counters that a job has, and each of its nodes and parts."""

    items_in: int = field(default=0, metadata=_counter("records read, without malformed ones"))
    items_out: dict[str, int] = field(
        default_factory=dict, metadata=_counter("outputs delivered to that sink of the flow", "SINK")
    )
    in_flight: int = field(
        default=0,
        metadata=_counter(
            "records read whose outputs are not yet all delivered; never more than `job.max_in_flight`",
            present=True,
        ),
    )
    held_back: int = field(
        default=0,
        metadata=_counter(
            "fronts that stand still because a sink or a worker is slower than they are",
            present=True,
        ),
    )
    waiting: dict[str, int] = field(
        default_factory=dict,
        metadata=_counter(
            "items that wait before that stateful operation, or that cycle, until nothing can come before them",
            "OPERATION",
            present=True,
        ),
    )
    replays: int = field(
        default=0,
        metadata=_counter(
            "outputs that operations took back because something came late",
            shown=True,
        ),
    )
    calls: dict[str, int] = field(
        default_factory=dict,
        metadata=_counter(
            "how often that stateful operation has worked on an item, the first time or again", "OPERATION"
        ),
    )
    calls_in_vain: dict[str, int] = field(
        default_factory=dict,
        metadata=_counter(
            "how many of these calls were made in vain, at most; all others are final, or will prove so", "OPERATION"
        ),
    )
    watermarks: dict[str, int] = field(
        default_factory=dict,
        metadata=_counter(
            "the watermark of that ordered operation, the least that the origins of its marks have said last",
            "OPERATION",
            merge=_least,
            stays=True,
            spell=moment,
        ),
    )
    marks: dict[str, int] = field(
        default_factory=dict,
        metadata=_counter(
            "the mark that the partitions of that ordered operation have said last, the least of them",
            "OPERATION",
            merge=_least,
            stays=True,
            spell=moment,
        ),
    )
    held_by: dict[str, str] = field(
        default_factory=dict,
        metadata=_counter(
            "the front, or the operation, whose marks hold back that watermark", "OPERATION", merge=_any, stays=True
        ),
    )
    pending: dict[str, int] = field(
        default_factory=dict,
        metadata=_counter(
            "pending timers of that ordered operation: of windows each that is open has one", "OPERATION", stays=True
        ),
    )
    held: dict[str, int] = field(
        default_factory=dict,
        metadata=_counter(
            "items in the state of that ordered operation that come out only when its watermark rises, counted when "
            "the job has ended",
            "OPERATION",
            stays=True,
        ),
    )
    held_for: dict[str, str] = field(
        default_factory=dict,
        metadata=_counter(
            "the front, at its end, for which these items wait, also if other operations are between",
            "OPERATION",
            merge=_any,
            stays=True,
        ),
    )
    released_by: dict[str, str] = field(
        default_factory=dict,
        metadata=_counter(
            "the option of the flow with which the end of that front holds nothing back",
            "OPERATION",
            merge=_any,
            stays=True,
        ),
    )
    late: dict[str, int] = field(
        default_factory=dict,
        metadata=_counter(
            "items that came to that ordered operation behind the watermark, and were taken", "OPERATION", shown=True
        ),
    )
    dropped: dict[str, int] = field(
        default_factory=dict,
        metadata=_counter("items that that ordered operation did not take, as too late", "OPERATION", shown=True),
    )
    ahead: dict[str, int] = field(
        default_factory=dict,
        metadata=_counter(
            "records that do not count for the marks of that operation, as their times are too far ahead",
            "OPERATION",
            shown=True,
        ),
    )
    rejected: int = field(default=0, metadata=_counter("malformed records", shown=True))
    failed: int = field(
        default=0,
        metadata=_counter(
            "records that a function failed on, and that did not end the job, each counted once", shown=True
        ),
    )
    first_failed: dict[int, str] = field(
        default_factory=dict,
        metadata=_counter(
            "the earliest of these by its time: at which operation, why, and where it stood",
            "TIME",
            merge=earliest,
            spell_key=global_time,
        ),
    )
    dead_letters: int = field(default=0, metadata=_counter("dead letters delivered; they are no outputs", shown=True))
    unfinished: dict[int, str] = field(
        default_factory=dict,
        metadata=_counter(
            "the beginning of a record at the end of that front's partition, left to a later run: where, how much, why",
            "FRONT",
            merge=_any,
        ),
    )
    messages: dict[str, int] = field(
        default_factory=dict, metadata=_counter("messages between the parts of the job", "KIND")
    )

    def rows(self) -> Iterator[tuple[str, object]]:
        """Yield names and values, for tables and JSON: times as text."""
        for name, meaning in meanings(type(self)).items():
            value, spell, spell_key = getattr(self, name), meaning.spell, meaning.spell_key
            if spell_key is not None:
                value = {spell_key(key): each for key, each in value.items()}
            if spell is not None:
                value = {key: spell(each) for key, each in value.items()} if meaning.key else spell(value)
            yield name, value

    def past(self: Counted) -> Counted:
        """Return these counters at the end of their parts: without the present ones."""
        return self._without(meaning.present for meaning in meanings(type(self)).values())

    def at_end(self: Counted) -> Counted:
        """Return these counters at the end of the job: nothing is under way any more."""
        return self._without(meaning.present and not meaning.stays for meaning in meanings(type(self)).values())

    def _without(self: Counted, gone: Iterable[bool]) -> Counted:
        ended: dict[str, Any] = {
            each.name: type(getattr(self, each.name))() for each, ends in zip(fields(self), gone, strict=True) if ends
        }
        return replace(self, **ended)


@_described
@dataclass(frozen=True, slots=True)
class NodeStats(Counters):
    """The counters of one node, or of one of its parts."""

    min_times: dict[int, int] = field(
        default_factory=dict,
        metadata=_counter("the minimum time that each worker knows", "WORKER", merge=_least, present=True),
    )
    latency: dict[int, int] = field(
        default_factory=dict,
        metadata=_counter(
            "release latencies of records that the fronts admitted, by bucket of a `Histogram`", "BUCKET"
        ),
    )
    busy_s: dict[int, float] = field(
        default_factory=dict,
        metadata=_counter("seconds for which that worker had work: it ran, or waited for a processor", "WORKER"),
    )
    cpu_s: dict[int, float] = field(
        default_factory=dict, metadata=_counter("seconds for which that worker ran on a processor", "WORKER")
    )
    up_s: dict[int, float] = field(
        default_factory=dict, metadata=_counter("seconds since that worker was made, when it reported", "WORKER")
    )
    run_s: dict[str, float] = field(
        default_factory=dict,
        metadata=_counter("seconds of the operations between that source and the first states", "SOURCE"),
    )
    read_s: dict[int, float] = field(
        default_factory=dict, metadata=_counter("seconds of reading that front, if its reads never wait", "FRONT")
    )
    read: dict[int, int] = field(default_factory=dict, metadata=_counter("records read by that front", "FRONT"))
    taken: dict[int, int] = field(
        default_factory=dict, metadata=_counter("items that the states of that worker took", "WORKER")
    )
    key_groups: dict[int, int] = field(
        default_factory=dict, metadata=_counter("items of that key group in a sample of these", "GROUP")
    )
    group_s: dict[int, float] = field(
        default_factory=dict, metadata=_counter("seconds of all items of that key group, by the sample", "GROUP")
    )
    hot_keys: dict[int, str] = field(
        default_factory=dict,
        metadata=_counter(
            "the most costly key of that key group in the sample, of the groups with most seconds",
            "GROUP",
            merge=_any,
            present=True,
        ),
    )


@_described
@dataclass(frozen=True, slots=True)
class JobStats(Counters):
    """The counters of a job at one moment."""

    min_time: int = field(
        default=0, metadata=_derived("the minimum time: everything below is delivered", spell=global_time)
    )
    latency_p50_ms: float | None = field(
        default=None, metadata=_derived("half of the records took less from reading to the delivery of their outputs")
    )
    latency_p99_ms: float | None = field(default=None, metadata=_derived("99 % of the records took less for that"))
    elapsed_s: float = field(default=0.0, metadata=_derived("since the start"))
    where: Mapping[str, object] = field(
        default_factory=dict,
        metadata=_derived(
            "where workers are, if they are not processes of this machine: on Spark `master`, `workers`, "
            "`executors`, `ui`",
            "KEY",
        ),
    )

    @property
    def total_out(self) -> int:
        """Return the outputs delivered to all sinks."""
        return sum(self.items_out.values())

    @property
    def records(self) -> int:
        """Return the records read, with malformed ones."""
        return self.items_in + self.rejected

    @property
    def left_out(self) -> int:
        """Return the records that failed without ending the job: skipped, or dead letters."""
        return self.rejected + self.failed

    @property
    def total_calls(self) -> int:
        """Return the number of calls of all stateful operations."""
        return sum(self.calls.values())

    @property
    def total_in_vain(self) -> int:
        """Return an upper bound of the wasted calls among these."""
        return sum(self.calls_in_vain.values())


def merged(parts: Iterable[NodeStats]) -> NodeStats:
    """Return the counters of several parts or nodes as one."""
    parts = list(parts)
    return NodeStats(
        **{
            name: meaning.merge(getattr(part, name) for part in parts)
            for name, meaning in meanings(NodeStats).items()
            if meaning.merge is not None
        }
    )


def summed(nodes: Iterable[NodeStats], elapsed_s: float) -> JobStats:
    """Return the counters of a job, summed over its nodes."""
    whole = merged(nodes)
    latency = Histogram()
    latency.merge(whole.latency)
    p50, p99 = latency.percentile(0.50), latency.percentile(0.99)
    return JobStats(
        **{each.name: getattr(whole, each.name) for each in fields(Counters) if each.name != "unfinished"},
        unfinished={front: text for front, text in whole.unfinished.items() if text},
        min_time=min(whole.min_times.values(), default=0),
        latency_p50_ms=None if p50 is None else p50 * 1000,
        latency_p99_ms=None if p99 is None else p99 * 1000,
        elapsed_s=elapsed_s,
    )
