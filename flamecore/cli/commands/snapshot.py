"""The command `flamestream snapshot`."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from flamecore.cli.exits import Exit
from flamecore.cli.output import json_option, print_json, say, verbose_option, wants_json
from flamecore.cli.stored import Stored, state_options
from flamecore.errors import JobError
from flamecore.model.clock import global_time

if TYPE_CHECKING:
    from flamecore.runtime.state.format import Manifest
    from flamecore.runtime.state.inspect import Verdict


@click.group("snapshot")
def command() -> None:
    """Look at the snapshots of a job's state, while it runs or after.

    Nothing here disturbs the job.
    """


@command.command("list")
@state_options
@json_option
@verbose_option
@click.pass_context
def list_(ctx: click.Context, /, **which: Any) -> None:
    """List the snapshots that a run could go on from, newest first."""
    from flamecore.runtime.state.scan import scan

    stored = Stored(**which)
    contents = stored.use(scan)
    if wants_json(ctx):
        damaged = [{"blob": error.blob, "what": error.what} for error in contents.damaged]
        snapshots = [_facts(manifest) for manifest in contents.snapshots]
        print_json({"job": stored.job, "snapshots": snapshots, "beginning": contents.beginning, "damaged": damaged})
        return
    for error in contents.damaged:
        say(f"damaged: {error.what}", err=True)
    if not contents.snapshots:
        epochs = f"{len(contents.epochs)} epochs" if contents.epochs else "nothing"
        say(f"no snapshot of job {stored.job!r}; the store has {epochs} of it", err=True)
        return
    say(f"{'SNAPSHOT':>8}  {'EPOCH':>5}  {'TIME':>32}  {'AGE':>8}  {'WORKERS':>7}  {'PARTS':>5}  {'BYTES':>11}")
    for manifest in contents.snapshots:
        facts = _facts(manifest)
        say(
            f"{manifest.number:>8}  {manifest.epoch:>5}  {facts['time']:>32}  {_age(facts['age_s']):>8}"
            f"  {manifest.workers:>7}  {len(manifest.parts):>5}  {facts['bytes']:>11,}{facts['end']}"
        )


@command.command("show")
@click.argument("number", type=int, required=False)
@state_options
@json_option
@verbose_option
@click.pass_context
def show(ctx: click.Context, /, number: int | None, **which: Any) -> None:
    """Show the contents of a snapshot: the newest, or that of a NUMBER."""
    from flamecore.runtime.state.inspect import none_yet
    from flamecore.runtime.state.scan import scan

    stored = Stored(**which)

    async def find(store: Any) -> Manifest:
        contents = await scan(store)
        if not contents.snapshots:
            raise none_yet(store, contents)
        for manifest in contents.snapshots:
            if number in (None, manifest.number):
                return manifest
        known = ", ".join(str(manifest.number) for manifest in contents.snapshots)
        raise JobError(f"there is no snapshot {number} of job {stored.job!r}", hint=f"There are: {known}.")

    manifest = stored.use(find)
    if wants_json(ctx):
        print_json({"job": stored.job, **_facts(manifest), **_details(manifest)})
    else:
        say(*_lines(manifest))


@command.command("verify", short_help="Read every byte, and print which blobs are damaged or belong elsewhere.")
@state_options
@json_option
@verbose_option
@click.pass_context
def verify(ctx: click.Context, /, **which: Any) -> None:
    """Read every byte that a run could go back to, and report damage.

    The report says where the job would go on.

    A blob that is whole but belongs elsewhere counts as damaged: to another state, another run, or under another name.
    Sinks are not opened; the next run finds out whether one holds more than the state accounts for.

    The exit code is 1 if anything is damaged.
    """
    from flamecore.runtime.state import inspect as inspection

    stored = Stored(**which)
    verdict = stored.use(inspection.verify)
    if wants_json(ctx):
        print_json({"job": stored.job, **_judged(verdict)})
    else:
        say(*_verdict_lines(verdict))
    if not verdict.sound:
        ctx.exit(Exit.FAILED)


@command.command("prune", short_help="Delete blobs that no run goes back to.")
@click.option("--dry-run", is_flag=True, help="Only print what would be deleted.")
@state_options
@json_option
@verbose_option
@click.pass_context
def prune(ctx: click.Context, /, dry_run: bool, **which: Any) -> None:
    """Delete what faults and earlier runs have left, and no run goes back to.

    Every run does so by itself, with its first snapshot; this is for a job that is not run any more, or not yet. A
    running job loses nothing that it needs.
    """
    from flamecore.runtime.state import inspect as inspection

    stored = Stored(**which)
    gone = stored.use(lambda store: inspection.prune(store, pretend=dry_run))
    if wants_json(ctx):
        print_json({"job": stored.job, "deleted": gone, "dry_run": dry_run})
        return
    kinds = Counter(name.partition("/")[0] for name in gone)
    told = ", ".join(f"{count} {kind}{'s' if count > 1 else ''}" for kind, count in sorted(kinds.items()))
    say(f"{'would delete' if dry_run else 'deleted'} {told or 'nothing'}")


def _facts(manifest: Manifest) -> dict[str, Any]:
    return {
        "number": manifest.number,
        "epoch": manifest.epoch,
        "time": global_time(manifest.time),
        "created": manifest.created,
        "age_s": max(time.time() - manifest.created, 0.0),
        "workers": manifest.workers,
        "parts": len(manifest.parts),
        "bytes": sum(part.size for part in manifest.parts),
        "finished": manifest.finished,
        "end": "  the end" if manifest.finished else "",
    }


def _details(manifest: Manifest) -> dict[str, Any]:
    parts = Counter(name for part in manifest.parts for name in part.operations)
    return {
        "identity": manifest.identity,
        "operations": {name: {**facts, "parts": parts[name]} for name, facts in manifest.flow.items()},
        "fronts": [
            {
                "front": front.number,
                "source": front.source,
                "partition": front.partition_name,
                "position": front.position,
                "next_time": global_time(front.next_time),
                "ended": front.ended,
                "phase": front.phase,
            }
            for front in manifest.fronts
        ],
        "sinks": [sink._asdict() for sink in manifest.sinks],
        "blobs": [manifest.blob, *(part.blob for part in manifest.parts)],
    }


def _lines(manifest: Manifest) -> Iterator[str]:
    from flamecore.runtime.state.fronts import in_phase
    from flamecore.runtime.state.schema import in_words

    facts, details = _facts(manifest), _details(manifest)
    yield f"snapshot       {manifest.number}, taken {_age(facts['age_s'])} ago in epoch {manifest.epoch}"
    yield f"time           {facts['time']}: everything below is in it, and delivered"
    yield f"size           {facts['bytes']:,} bytes in {facts['parts']} parts, by {manifest.workers} workers"
    for name, operation in details["operations"].items():
        types = " → ".join(operation[key] for key in ("key", "state") if key in operation)
        told = f", {types}" if types else ""
        yield f"operation      {name}: {in_words(manifest.flow[name])}{told}, in {operation['parts']} parts"
    for front in manifest.fronts:
        where = f"{front.source}: {front.partition_name}" if front.partition_name else front.source
        at = "at its beginning" if front.position is None else f"goes on behind {front.position!r}"
        where += in_phase(front.phase)
        yield f"front          {front.number}, {where}, {'has been read to its end' if front.ended else at}"
    for name, phase in manifest.sinks:
        yield f"sink           {name}{in_phase(phase)}"


def _judged(verdict: Verdict) -> dict[str, object]:
    return {
        "sound": verdict.sound,
        "startable": verdict.startable,
        "goes_on_from": verdict.goes_on.number if verdict.startable and verdict.goes_on is not None else None,
        "snapshots": [
            {**_facts(manifest), "damaged": [damage._asdict() for damage in damaged]}
            for manifest, damaged in verdict.snapshots
        ],
        "journals": verdict.journals,
        "damaged": [damage._asdict() for damage in verdict.damaged],
    }


def _verdict_lines(verdict: Verdict) -> Iterator[str]:
    for manifest, damaged in verdict.snapshots:
        size = sum(part.size for part in manifest.parts)
        told = f"sound, {len(manifest.parts)} parts, {size:,} bytes" if not damaged else "DAMAGED"
        yield f"snapshot {manifest.number}: {told}"
        yield from (f"  {damage.what}" for damage in damaged)
    if verdict.journals:
        yield f"journals: {verdict.journals}"
    yield from (f"DAMAGED: {damage.what}" for damage in verdict.damaged)
    if not verdict.startable:
        journal = any(blob.startswith("journal/") for blob, _ in verdict.damaged)
        why = "the times of its records are not known" if journal else "no snapshot is left to continue from"
        yield f"the job cannot continue: {why}. Bring the state back from a copy"
    elif verdict.goes_on is not None:
        yield f"the job would continue from snapshot {verdict.goes_on.number}"
    else:
        yield "the job would continue from the beginning"


def _age(seconds: float) -> str:
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} s"
