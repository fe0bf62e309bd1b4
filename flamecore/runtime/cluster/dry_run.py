"""A dry run of a job's start: processes, their parts, and all problems.

Sources are asked for their partitions, the acker and the transport are built, files of certificates are read. No
process is started, nothing listens, nothing connects, no sink is opened.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from flamecore.abc.config import HERE
from flamecore.abc.transport import SUPERVISOR, Outlook, Transport, TransportContext
from flamecore.model.hashing import KEY_GROUPS, owned_ranges
from flamecore.model.plan import Plan
from flamecore.runtime.cluster.placement import check_findable, context_to_be, join_command, placed, refusals
from flamecore.runtime.codec.codec import Codec
from flamecore.runtime.config import defaults
from flamecore.runtime.config.flow_loader import importable
from flamecore.runtime.config.job_spec import JobSpec
from flamecore.runtime.engine.planning import acker_plan, check_importable, make_plan

Start = Literal["here", "supervisor", "by hand", "host"]


@dataclass(frozen=True, slots=True)
class ProcessPlan:
    """One process of a job.

    Attributes:
        name: Name of the node; "#1" is the first by name of those that join.
        start: The way it is started: it runs the command itself; or by the supervisor, by hand, or by the host that
            `deploy.on` names.
        outlook: The place where it would be reached; None: that is not known here.
        command: The command that starts it; empty: it runs the command itself, or the supervisor starts it.
        parts: Addresses that live in it.
        fronts: (number, source, partition) of the fronts that it reads.
        key_groups: For each of its workers that owns some, the first and the last.
        homes: For each of its workers that is a home, the names of the cycles.
    """

    name: str
    start: Start
    outlook: Outlook | None
    command: str
    parts: tuple[str, ...]
    fronts: tuple[tuple[int, str, str], ...]
    key_groups: Mapping[str, tuple[int, int]]
    homes: Mapping[str, tuple[str, ...]]

    def described(self) -> dict[str, object]:
        """Return the plan as a mapping, for programs."""
        outlook = self.outlook
        return {
            "name": self.name,
            "start": self.start,
            "command": self.command or None,
            "place": outlook.place if outlook else None,
            "tls": outlook.tls if outlook else None,
            "missing": list(outlook.missing) if outlook else [],
            "parts": list(self.parts),
            "fronts": [{"front": n, "source": source, "partition": partition} for n, source, partition in self.fronts],
            "key_groups": {worker: list(groups) for worker, groups in self.key_groups.items()},
            "homes": {worker: list(cycles) for worker, cycles in self.homes.items()},
        }


def dry_run(spec: JobSpec, environ: Mapping[str, str] | None = None) -> list[ProcessPlan]:
    """Go through the start of a job without starting it.

    Problems are noted in the spec.

    Args:
        spec: The resolved job.
        environ: The environment of the supervisor; that of this process by default.

    Returns:
        The processes, the one that runs the command first; none if it cannot be said.
    """
    environ = os.environ if environ is None else environ
    problems = spec.problems
    fronts = _fronts(spec)
    for sink in spec.all_sinks.values():
        with problems.noted():
            # Each by itself, so that all problems are listed, not the first alone.
            sink.rehearse()
    transport = outlook = None
    with problems.noted():
        transport = spec.transport(_context(spec, environ)) if spec.drivers.transport is not None else None
    if transport is not None:
        with problems.noted():
            outlook = transport.outlook()
            check_findable(spec.config, transport, outlook, listed=spec.is_listed)
        if spec.graph is not None:
            with problems.noted():
                Codec.of(spec.graph)
            with problems.noted():
                check_importable(spec.graph, transport)
                if not spec.embedded:
                    importable(spec.flow)
        problems.extend(refusals(spec.config, transport, spec.store(), environ))
    if spec.has_host:
        for problem in spec.host().problems():
            with problems.noted():  # a sink may have said it, too
                raise problem
    if spec.graph is None or spec.config.job.workers > KEY_GROUPS:
        return []
    # Where some fronts could not be found, the acker is tried with the others.
    plan = make_plan(spec.graph, spec.sources, spec.settings, fronts=fronts or [])
    trackers = None
    with problems.noted():
        trackers = spec.acker(acker_plan(plan)).trackers if spec.drivers.acker is not None else None
    if fronts is None or transport is None or trackers is None:
        return []
    return list(_processes(spec, plan, trackers, transport, outlook, environ))


def outlook_of(spec: JobSpec, environ: Mapping[str, str] | None = None) -> Outlook:
    """Return where the supervisor of a job would be reached.

    Raises:
        FlameError: The transport cannot work as it is configured.
    """
    return spec.transport(_context(spec, os.environ if environ is None else environ)).outlook()


def _context(spec: JobSpec, environ: Mapping[str, str], node: str = SUPERVISOR) -> TransportContext:
    return context_to_be(spec.name, spec.config, environ, node, embedded=spec.embedded)


def _fronts(spec: JobSpec) -> list[tuple[str, int, str]] | None:
    """Return (source, partition number, partition) of every front.

    Returns:
        None if some cannot be found.
    """
    found: list[tuple[str, int, str]] | None = []
    for source in spec.graph.sources if spec.graph is not None else ():
        partitions = None
        if source.name in spec.sources:
            with spec.problems.noted():
                partitions = spec.sources[source.name].partitions()
        if partitions is None:
            found = None
        elif found is not None:
            found += [(source.name, number, partition) for number, partition in enumerate(partitions)]
    return found


def _processes(
    spec: JobSpec,
    plan: Plan,
    trackers: int,
    transport: Transport,
    supervisor: Outlook | None,
    environ: Mapping[str, str],
) -> Iterator[ProcessPlan]:
    config = spec.config
    groups = owned_ranges(plan.owners)
    fronts = [
        (number, front.source, partition, plan.host_of(number))
        for number, (front, partition) in enumerate(zip(plan.fronts, plan.partitions, strict=True), 1)
    ]

    def process(name: str, start: Start, outlook: Outlook | None, parts: Iterator[str]) -> ProcessPlan:
        hosted = tuple(parts)
        workers = {part: int(part.partition("/")[2]) for part in hosted if part.startswith("worker/")}
        reads = tuple(front[:3] for front in fronts if front[3] in workers.values())
        command = ""
        if start == "by hand":
            address = supervisor.join if supervisor is not None else ""
            command = join_command(name.partition(" ")[0], spec.name, address)
        owned = {part: groups[part] for part in workers if part in groups}
        homes = {part: cycles for part, worker in workers.items() if (cycles := plan.homes_on(worker))}
        return ProcessPlan(name, start, outlook, command, hosted, reads, owned, homes)

    if config.deploy.on == HERE or not transport.capabilities.multi_process:
        everything = placed(config, trackers, plan.rears, ["here"] * plan.workers, ["here"])
        yield process("this one", "here", supervisor, iter(everything))
        return
    joining = config.deploy.start == "join"
    workers = [f"worker #{index + 1}" if joining else f"worker-{index}" for index in range(plan.workers)]
    own = trackers if config.deploy.acker == "own" else 0
    ackers = [f"acker #{index + 1}" if joining else f"acker-{index}" for index in range(own)]
    hosts = placed(config, trackers, plan.rears, workers, ackers)
    beside = None
    elsewhere = config.deploy.on != defaults.HOST
    if not joining and not elsewhere and supervisor is not None:
        with spec.problems.noted():
            # One for all: processes that the supervisor starts listen in the same way.
            beside = spec.transport(_context(spec, environ, "worker-0"), beside=True).outlook()
    for name in (SUPERVISOR, *workers, *ackers):
        start: Start = "by hand" if joining else "host" if elsewhere else "supervisor"
        if name == SUPERVISOR:
            start = "here"
        parts = (address for address, host in hosts.items() if host == name)
        yield process(name, start, supervisor if name == SUPERVISOR else beside, parts)
