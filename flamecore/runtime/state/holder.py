"""The holder of a state, and the knowledge of this host about its process.

A process is identified by the host's boot, its process id namespace, its id and its start time: no other process
ever has all four. On another host, or in another container, only its heartbeats show that it runs.
"""

from __future__ import annotations

import os
import platform
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Literal

import msgspec

from flamecore.errors import HeldError

PREFIX: Final = "holder/"
"""Prefix of the names of heartbeat blobs."""

Presence = Literal["gone", "stopped", "running", "unknown"]

_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")
_SPACE: Final = Path("/proc/self/ns/pid")
_DEAD: Final = "ZX"
_STOPPED: Final = "Tt"


def holder_blob(number: int) -> str:
    """Return the name of a heartbeat blob."""
    return f"{PREFIX}{number:012d}"


class Holder(msgspec.Struct, frozen=True, kw_only=True):
    """A heartbeat of the run that holds a state.

    Attributes:
        job: Name of the job.
        claim: A random text for each run.
        host: Name of its host, for display.
        space: The boot of its host and its process id namespace; empty if not known.
        pid: Id of its process.
        born: Start of the process, in ticks since the boot; 0: not known.
        since: Time at which it took the state, in seconds since the epoch, by its own clock.
        seen: Time of this heartbeat, likewise.
        lease_s: Seconds without a heartbeat after which it has lost the state.
        listed: Whether it also holds the lease of the job in a registry that all hosts reach.
    """

    job: str
    claim: str
    host: str
    space: str
    pid: int
    born: int
    since: float
    seen: float
    lease_s: float
    listed: bool = False

    @property
    def words(self) -> str:
        """Return a description of the process for messages."""
        return f"process {self.pid} on {self.host}"

    def refusal(self, store: str, blob: str) -> HeldError:
        """Return the error of a run that finds the state held."""
        since, seen = _utc(self.since), _utc(self.seen)
        return HeldError(
            f"job {self.job!r} is already running: {self.words} holds its state since {since}, "
            f"and sent its last heartbeat at {seen}",
            hint="Stop that one first; or take the job over from it: --take-over, or job.take_over = true.",
            store=store,
            blob=blob,
            job=self.job,
            pid=self.pid,
            host=self.host,
            since=self.since,
            seen=self.seen,
        )


def decode_holder(data: bytes) -> Holder | None:
    """Return the heartbeat in a blob; None if this version cannot read it."""
    try:
        return msgspec.json.decode(data, type=Holder)
    except ValueError:
        return None


def this_process() -> tuple[str, str, int, int]:
    """Return host, namespace, id and start of this process."""
    pid = os.getpid()
    known = _state_and_birth(pid)
    return platform.node(), _space(), pid, known[1] if known is not None else 0


def presence(holder: Holder) -> Presence:
    """Return the state of a holder's process, as far as this host can know it."""
    if not holder.space or holder.space != _space() or holder.pid == os.getpid():
        return "unknown"
    known = _state_and_birth(holder.pid)
    if known is None:
        return "gone"
    state, birth = known
    # Ids of processes are used again; the start of a process is not.
    if birth != holder.born or state in _DEAD:
        return "gone"
    return "stopped" if state in _STOPPED else "running"


def _space() -> str:
    """Return the boot and process id namespace of this process; empty if unknown."""
    try:
        return f"{_BOOT.read_text().strip()} {_SPACE.readlink()}"
    except OSError:
        return ""


def _state_and_birth(pid: int) -> tuple[str, int] | None:
    """Return the state of a process and its start, in ticks since the boot.

    Returns None if there is no such process, or no `/proc`.
    """
    try:
        # The name of the program stands in parentheses, and may hold anything (proc_pid_stat(5)).
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    return fields[0].decode(), int(fields[19])


def _utc(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S} UTC"
