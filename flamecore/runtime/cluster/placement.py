"""The placement of a job's parts on processes, and reasons to refuse a start.

A job follows the placement that is computed here, and `flamestream check` shows it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from flamecore.abc.config import HERE, JobConfig
from flamecore.abc.store import Store
from flamecore.abc.transport import SUPERVISOR, Outlook, Transport, TransportContext
from flamecore.errors import ConfigError
from flamecore.model.hashing import KEY_GROUPS
from flamecore.runtime.config.defaults import EXAMPLE_TRANSPORT, STATE_IN_FOLDER
from flamecore.toolkit.private_dir import folder_like_private

TOKEN: Final = "FLAMESTREAM_TOKEN"
"""The variable with the secret that the processes of a job share."""

_JOINS: Final = 'deploy.start = "join"'
_PLACE: Final = 'listen = "127.0.0.1:7070"'
"""An option of the example of a transport that is reached from elsewhere."""


def placed(
    config: JobConfig, trackers: int, rears: Sequence[str], workers: Sequence[str], ackers: Sequence[str]
) -> dict[str, str]:
    """Return the process that hosts each address of a job on several processes.

    Args:
        config: The configuration, with the number of workers and the place of trackers.
        trackers: Number of trackers.
        rears: Names of the rears.
        workers: Names of the processes for workers, in the order in which they get their parts.
        ackers: The same for processes that host trackers alone.
    """
    # The first workers host the fronts, and the last ones own key groups where not all do. A tracker with these hears
    # of what came in together with the items, and at once when they are done.
    # Not the supervisor by default: no report would stay in its process, and a release take 1.1 ms in place of 0.7
    # (gRPC, 1,000 lines a second). Rears are there, so that their sinks stay open while workers are replaced.
    last_first = workers[config.job.workers - 1 :: -1]
    hosting = {"supervisor": (SUPERVISOR,), "worker": last_first, "own": ackers}[config.deploy.acker]
    return {
        **{f"worker/{index}": workers[index] for index in range(config.job.workers)},
        **{f"acker/{index}": hosting[index % len(hosting)] for index in range(trackers)},
        **{f"rear/{name}": SUPERVISOR for name in rears},
    }


def too_many_workers(config: JobConfig) -> Iterator[ConfigError]:
    """Yield the reason to refuse a start on as many workers as are configured, if there is one."""
    if config.job.workers > KEY_GROUPS:
        yield ConfigError(
            f"job.workers is {config.job.workers}, and {KEY_GROUPS} key groups are shared out among workers",
            hint=f"Use {KEY_GROUPS} at most.",
            path="job.workers",
        )


def refusals(
    config: JobConfig, transport: Transport, store: Store | None, environ: Mapping[str, str]
) -> Iterator[ConfigError]:
    """Yield the reasons to refuse a start, whatever its transport would do.

    Args:
        config: The job's configuration.
        transport: The configured transport, not started.
        store: The store of state, if there is one; not open.
        environ: The environment of the supervisor.
    """
    yield from too_many_workers(config)
    on = config.deploy.on
    if on != HERE and store is not None and not (store.capabilities.durable or store.capabilities.shared):
        yield ConfigError(
            f"state is kept by {store.name!r}, in the memory of one process, which the others of this job do not reach",
            hint=f'Use one that they reach, such as [state] use = "{STATE_IN_FOLDER}"; or deploy.on = "{HERE}".',
            path="state.use",
        )
    if config.deploy.start != "join":
        if on != HERE and not transport.capabilities.multi_process:
            yield ConfigError(
                f'deploy.on = "{on}", and transport {transport.name!r} reaches no other process',
                hint=f'Leave transport.use out, so that one that does is chosen; or use deploy.on = "{HERE}".',
                path="transport.use",
            )
        return
    if on == HERE:
        yield ConfigError(
            f'{_JOINS}, and deploy.on = "{HERE}": nobody can join what is in one process',
            hint="Leave out one of the two.",
            path="deploy.on",
        )
    elif not transport.capabilities.multi_process:
        yield ConfigError(
            f"{_JOINS}, and transport {transport.name!r} reaches no other process",
            hint=f'Use one that does, such as [transport] use = "{EXAMPLE_TRANSPORT}"; or leave deploy.start out.',
            path="deploy.start",
        )
    elif not environ.get(TOKEN):
        yield ConfigError(
            f"{_JOINS}, and there is no secret that workers could show: ${TOKEN} is not set",
            hint=f"Set {TOKEN} to the same text for the supervisor and every process that joins.",
            path=TOKEN,
        )


def context_to_be(
    job: str, config: JobConfig, environ: Mapping[str, str], node: str = SUPERVISOR, *, embedded: bool
) -> TransportContext:
    """Return the context that a transport will be started with, as far as it is known beforehand.

    Args:
        job: Name of the job.
        config: Its configuration.
        environ: The environment of the supervisor.
        node: Name of the process.
        embedded: Whether all of the job is in one process.
    """
    if embedded:  # as `flamecore.runtime.engine.job.Job` starts it: with no way for others
        return TransportContext(job=job)
    # Without a token in the environment, the supervisor makes one for those that it starts.
    token = environ.get(TOKEN) or ("" if config.deploy.start == "join" else "made up")
    return TransportContext(job=job, node=node, token=token, folder=folder_like_private())


def join_command(role: str, job: str, address: str) -> str:
    """Return the command that starts a process to join a job.

    Args:
        role: `worker` or `acker`.
        job: Name of the job.
        address: Address of the job; empty if it is only known where the command is run.
    """
    return f"flamestream {role} --join {address or 'ADDRESS'} --job {job} --name NAME"


def check_findable(config: JobConfig, transport: Transport, outlook: Outlook, *, listed: bool) -> None:
    """Raise an error if processes are to join a supervisor that they cannot find.

    Args:
        config: The job's configuration.
        transport: The configured transport, not started.
        outlook: Its outlook.
        listed: Whether others find the job in a registry.

    Raises:
        ConfigError: No process could find it.
    """
    joined = config.deploy.start == "join" and transport.capabilities.multi_process
    if joined and not outlook.join and not listed:
        name, known_by = transport.name, outlook.known_by
        if not known_by:
            name, known_by = EXAMPLE_TRANSPORT, _PLACE
        raise ConfigError(
            f"{_JOINS}, and workers would have no way to find the supervisor: it would listen at {outlook.place}",
            hint=f"Name a place, such as [transport.{name}] {known_by}"
            + ("." if name == transport.name else f', with transport.use = "{name}".'),
            path=f"transport.{name}.{known_by.partition(' ')[0]}",
        )
