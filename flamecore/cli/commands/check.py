"""The command `flamestream check`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from flamecore.abc.config import HERE
from flamecore.cli.app import Options, app_argument, config_options, load_app_flow, read_app
from flamecore.cli.exits import exit_of
from flamecore.cli.output import error_lines, facts, json_option, print_json, say, verbose_option, wants_json
from flamecore.runtime.config import defaults
from flamecore.runtime.config.job_spec import JobSpec
from flamecore.runtime.config.resolve import resolve
from flamecore.runtime.config.validate import Problems

if TYPE_CHECKING:
    from flamecore.cli.sample import Sample
    from flamecore.runtime.cluster.dry_run import ProcessPlan


@click.command("check")
@app_argument
@config_options
@click.option(
    "--sample",
    type=click.IntRange(min=1),
    metavar="N",
    help="Run the flow on the first N records of each source, without sinks and state: print how long its functions "
    "take, and which of them wait. They have their usual effects outside.",
)
@json_option
@verbose_option
@click.pass_context
def command(ctx: click.Context, /, app: str, sample: int | None, **options: Any) -> None:
    """Load everything and start nothing: say what would run, and all that is wrong.

    APP is a job file (job.toml), a script (word_count.py or word_count.py:flow), or a module (package.module:flow).
    """
    from flamecore.runtime.cluster.dry_run import dry_run

    problems = Problems()
    spec: JobSpec | None = None
    processes: list[ProcessPlan] = []
    with problems.noted():
        config = read_app(app, Options(**options), problems)
        spec = resolve(config, load_app_flow(app, config), problems=problems)
        processes = dry_run(spec)
    tried = None
    # Only of a job that could run: a sample calls functions, which may have effects.
    if sample is not None and spec is not None and not problems:
        from flamecore.cli.sample import run_sample

        with problems.noted():
            tried = run_sample(spec, sample)
    described = spec.described() if spec else {}
    notes = list(_notes(spec, processes)) if spec else []
    if tried is not None:
        notes += _waits(tried, processes)
    if wants_json(ctx):
        described["processes"] = [process.described() for process in processes]
        if tried is not None:
            described["sample"] = tried.described()
        wrong = [facts(problem) for problem in problems]
        print_json({"ok": not problems, **described, "notes": notes, "problems": wrong})
    else:
        for line in _lines(spec, described) if spec else ():
            say(line)
        for process in processes:
            say(*_process_lines(process, described["on"]["use"]))
        for line in _sample_lines(tried) if tried is not None else ():
            say(line)
        for note in notes:
            say(f"note           {note}")
        for number, problem in enumerate(problems, 1):
            say(*error_lines(f"problem {number} of {len(problems)}: {problem}", problem), err=True)
        if not problems:
            say("no problems found", err=True)
    if problems:
        problems[0].before_start = True
        ctx.exit(exit_of(problems[0]))


def _notes(spec: JobSpec, processes: Sequence[ProcessPlan]) -> Iterator[str]:
    """Yield notes on settings that work, but may not be intended."""
    workers = spec.config.job.workers
    if workers > 1 and len(processes) == 1:
        yield (
            f"the {workers} workers take turns in one process, and make no function faster, neither one that computes "
            f"nor one that waits; --on {defaults.HOST} gives each a process of its own"
        )


def _waits(sample: Sample, processes: Sequence[ProcessPlan]) -> Iterator[str]:
    """Yield a note on each function that waits, with advice on how to speed it up."""
    if len(processes) == 1:
        advice = (
            "-w in one process does not speed this up; use processes, which wait at the same time: -w 8 --on "
            f"{defaults.HOST}, and .rebalance() before it, unless a key comes before"
        )
    else:
        advice = "more workers (-w) wait at the same time, with .rebalance() before it, unless a key comes before"
    for timing in sample.timings:
        if timing.waits:
            yield f"{timing.name} waits, while the processor is idle; {advice}"


def _sample_lines(sample: Sample) -> Iterator[str]:
    stats = sample.stats
    left_out = f", {stats.left_out} left out" if stats.left_out else ""
    yield f"sample         {stats.records} records{left_out} in {stats.elapsed_s:.3g} s, without sinks and state"
    yield from (f"function       {timing}" for timing in sample.timings)


def _lines(spec: JobSpec, described: dict[str, Any]) -> list[str]:
    plain = ("job", "flow", "workers", "clock", "guarantee", "on_error", "max_in_flight")
    lines = [f"{key:<14} {described[key]}" for key in plain]
    if described["on"]["use"] not in (HERE, defaults.HOST):
        because = f", where the data of {', '.join(spec.at_home)} is at home" if spec.at_home else ""
        lines.append(f"{'on':<14} {_use(described['on'])}{because}")
    lines += [f"{key:<14} {_use(described[key])}" for key in ("transport", "acker")]
    if described["state"]:
        lines.append(f"{'state':<14} {_use(described['state'])}")
    if described["registry"]["use"] != defaults.REGISTRY:
        lines.append(f"{'registry':<14} {_use(described['registry'])}")
    for name, edge in described["sources"].items():
        promise = ""
        if source := spec.sources.get(name):
            capabilities = source.capabilities
            promise = ", replayable" if capabilities.replayable else ", not replayable"
            promise += "" if capabilities.bounded else ", without end"
        lines.append(f"source         {name}: {_use(edge)}{promise}")
    for name, edge in described["sinks"].items():
        promise = f", {spec.sinks[name].guarantee}" if name in spec.sinks else ""
        lines.append(f"sink           {name}: {_use(edge)}{promise}")
    if described["dead_letter"]:
        lines.append(f"dead letters   {described['dead_letter']}")
    lines += [f"hook           {name}" for name in described["hooks"]]
    return lines


def _process_lines(process: ProcessPlan, host: str) -> Iterator[str]:
    indent = " " * 17
    parts = ["the control"] if process.start == "here" else []
    for part in process.parts:
        first, last = process.key_groups.get(part, (None, None))
        owns = [] if first is None else [f"key groups {first} to {last}"]
        owns += [f"home of {cycle}" for cycle in process.homes.get(part, ())]
        parts.append(f"{part} ({'; '.join(owns)})" if owns else part)
    started = {
        "here": "",
        "supervisor": ", started by the supervisor",
        "by hand": ", started by hand",
        "host": f", started on {host}",
    }
    yield f"process        {process.name}{started[process.start]}: {', '.join(parts)}"
    for number, source, partition in process.fronts:
        yield f"{indent}front {number} reads {source}{f': {partition}' if partition else ''}"
    if process.command:
        yield f"{indent}{process.command}"
    if process.outlook is not None and process.outlook.place:
        tls = {True: ", over TLS", False: ", without TLS", None: ""}[process.outlook.tls]
        yield f"{indent}reached at {process.outlook.place}{tls}"
        if process.outlook.missing:
            yield f"{indent}NOT PROTECTED: without {' and '.join(process.outlook.missing)}, as insecure = true allows"


def _use(choice: dict[str, Any]) -> str:
    options = ", ".join(f"{key} = {value!r}" for key, value in choice["options"].items())
    return f"{choice['use'] or '?'}{f' ({options})' if options else ''}"
