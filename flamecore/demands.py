"""What a configuration demands of a job as a whole, and which of its parts cannot keep it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from flamecore.errors import ConfigError
from flamecore.plan import DEAD_LETTERS

if TYPE_CHECKING:
    from flamecore.layout import Layout


def broken_by(layout: Layout) -> Iterator[ConfigError]:
    """What is demanded of a job whose parts are there, and cannot be kept."""
    if layout.config.state.use is None:
        yield from _one_phase(layout)
    else:
        yield from _ordered_state(layout)
    if layout.config.job.guarantee == "exactly_once":
        yield from _exactly_once(layout)


def _one_phase(layout: Layout) -> Iterator[ConfigError]:
    """Without state there is nothing that an earlier phase could have left."""
    edges = [(f"source.{name}", edge) for name, edge in layout.config.source.items()]
    edges += [(f"sink.{name}", edge) for name, edge in layout.config.sink.items()]
    for path, edge in edges:
        if edge.phase > 1:
            yield ConfigError(
                f"{path}.phase is {edge.phase}, and the job keeps no state that an earlier phase could be in",
                hint="Configure [state] in the jobs of all phases, the same.",
                path=f"{path}.phase",
            )


def _ordered_state(layout: Layout) -> Iterator[ConfigError]:
    """A snapshot is of a time."""
    if not layout.config.job.barrier:
        yield ConfigError(
            "state is kept, and the barrier is off: outputs that left at once could not be told from their repeats",
            hint="Set job.barrier = true, or leave [state] out.",
            path="job.barrier",
        )
    if layout.graph is not None and layout.graph.ordering == "local_times":
        yield ConfigError(
            "state is kept, and the flow's ordering is 'local_times', which takes no snapshots",
            hint="Leave [state] out, or use the default ordering.",
            path="state.use",
        )


def _exactly_once(layout: Layout) -> Iterator[ConfigError]:
    """Every part that cannot keep the guarantee, with what can."""
    lacking = []
    if layout.config.job.clock == "wall" and layout.config.state.use is None:
        why = "times of the wall clock are others in a second run, and without state nothing keeps them"
        lacking.append(("job.clock", why, 'job.clock = "sequence", or keep state: [state] use = "sqlite"'))
    for name, source in layout.sources.items():
        if not source.capabilities.replayable:
            path = f"source.{name}"
            what = f"source {name!r} ({layout.drivers[path]}) cannot be read again from where it stopped"
            instead = "a source that can: write what comes to a file and read that (lines, jsonl, csv), or to a stream"
            lacking.append((path, what, instead))
    sinks = {f"sink.{name}": sink for name, sink in layout.sinks.items()}
    if layout.dead_letter is not None:
        sinks[DEAD_LETTERS] = layout.dead_letter
    for path, sink in sinks.items():
        if sink.guarantee != "exactly_once":
            what = f"sink {sink.context.name!r} ({layout.drivers[path]}) promises only {sink.guarantee}"
            lacking.append((path, what, "a sink that knows what it holds, such as sqlite or jsonl"))
    for path, what, instead in lacking:
        hint = f'Use {instead}; or set job.guarantee = "at_least_once".'
        yield ConfigError(f'job.guarantee = "exactly_once", but {what}', hint=hint, path=path)
