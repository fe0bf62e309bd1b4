"""The record of a job in a registry: its supervisor, and where its parts are.

The writer of a record proves by it to know the token of the job, so that a process that looks a job up joins no
stranger's.
"""

from __future__ import annotations

import hmac
import re
from hashlib import blake2b
from typing import Final

import msgspec

from flamecore._version import __version__
from flamecore.abc.registry import MAX_KEY, JobRegistry
from flamecore.errors import ConfigError, RegistryError

PREFIX: Final = "jobs/"
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9_-]")


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """A process of a job.

    Attributes:
        role: "worker", or "acker" for one that hosts trackers only.
        location: Its location, in the transport's words.
        pid: Its process id, on its host.
        parts: Addresses of the parts that it hosts.
        version: Its version of flamestream.
    """

    role: str
    location: str
    pid: int
    parts: tuple[str, ...] = ()
    version: str = __version__


class JobLease(msgspec.Struct, frozen=True, kw_only=True):
    """The lease of a job's name.

    Attributes:
        job: Name of the job.
        incarnation: Number of its start; grows with every lease.
        holder: Its supervisor, for people: host and process.
        claim: A random text for each lease.
        lease_s: Seconds without a change of the record after which the supervisor is gone; 0: it has ended.
    """

    job: str
    incarnation: int
    holder: str
    claim: str
    lease_s: float


class JobRecord(JobLease, frozen=True, kw_only=True):
    """The record of a job in a registry: its lease, and where its parts are.

    Attributes:
        run: The transport's name for the job (`TransportContext.job`).
        transport: Name of the transport's driver.
        control: Location of the supervisor, in the transport's words; empty before it listens.
        members: Its processes except the supervisor, by name.
        key_groups: First and last key group of each worker, by address.
        homes: Names of the cycles that are at home on each worker, by address.
        fronts: (source, partition, address of the worker) of each front, in the order of their numbers.
        version: The supervisor's version of flamestream.
    """

    run: str = ""
    transport: str = ""
    control: str = ""
    members: dict[str, Member] = {}
    key_groups: dict[str, tuple[int, int]] = {}
    homes: dict[str, tuple[str, ...]] = {}
    fronts: tuple[tuple[str, str, str], ...] = ()
    version: str = __version__


class _Sealed(msgspec.Struct, frozen=True):
    """A record, with proof that its writer knows the token of the job."""

    record: msgspec.Raw
    proof: str


async def find(registry: JobRegistry, job: str, token: str) -> JobRecord:
    """Return the record of a running job, for a process that wants to join it.

    Raises:
        RegistryError: There is none, or its supervisor does not listen yet, or its writer does not know the token; or
            the registry cannot be used.
    """
    key = key_of(job)
    entry = await registry.get(key)
    facts = {"registry": registry.name, "key": key}
    if entry is None:
        known = ", ".join(sorted(_name_of(key) for key in await registry.keys(PREFIX))) or "none"
        raise RegistryError(
            f"the registry has no entry for job {job!r}; it has: {known}", hint="Start its supervisor first.", **facts
        )
    record = read(entry.value, job, token)
    if not record.lease_s or not record.control:
        what = "listens nowhere yet" if record.lease_s else "has ended"
        raise RegistryError(
            f"the supervisor of job {job!r}, {record.holder}, {what}", hint="Start it, and try again.", **facts
        )
    return record


async def only_job(registry: JobRegistry) -> str:
    """Return the name of the only job that runs, by a registry.

    Raises:
        RegistryError: There is none, or there are several; or the registry cannot be used.
    """
    running = []
    for key in sorted(await registry.keys(PREFIX)):
        name, entry = _name_of(key), await registry.get(key)
        if entry is not None and read(entry.value, name).lease_s > 0:
            running.append(name)
    if len(running) == 1:
        return running[0]
    listed = f"lists the jobs {', '.join(running)}" if running else "lists no job that runs"
    raise RegistryError(
        f"no job is named, and the registry {listed}",
        hint="Name one behind the address, ADDRESS#NAME, or as --job NAME."
        if running
        else "Start its supervisor first.",
        registry=registry.name,
        key=PREFIX,
    )


def key_of(job: str) -> str:
    """Return the key of a job's record.

    Raises:
        ConfigError: The name of the job is too long.
    """
    quoted = _UNSAFE.sub(lambda found: "".join(f"={byte:02X}" for byte in found[0].encode()), job)
    if not quoted or len(PREFIX + quoted) > MAX_KEY:
        raise ConfigError(
            f"a job needs a name of at most {MAX_KEY - len(PREFIX)} letters to be in a registry: {job[:40]!r}",
            hint="Set name under [job].",
            path="job.name",
        )
    return PREFIX + quoted


def _name_of(key: str) -> str:
    quoted = key.removeprefix(PREFIX).encode()
    return re.sub(rb"=([0-9A-F]{2})", lambda found: bytes([int(found[1], 16)]), quoted).decode(errors="replace")


def encode(record: JobRecord, token: str) -> bytes:
    """Encode a record as the value of an entry.

    It has proof that its writer knows the token.
    """
    raw = msgspec.json.encode(record)
    return msgspec.json.encode(_Sealed(msgspec.Raw(raw), _proof(raw, token)))


def read(value: bytes, job: str, token: str | None = None) -> JobRecord:
    """Return the record that an entry holds.

    Args:
        value: The entry's value.
        job: Name of the job.
        token: Secret of the job; None: any writer will do.

    Raises:
        RegistryError: It is none, or its writer does not know the token.
    """
    try:
        sealed = msgspec.json.decode(value, type=_Sealed)
        record = msgspec.json.decode(sealed.record, type=JobRecord)
    except ValueError as error:
        raise RegistryError(
            f"what the registry holds under {key_of(job)} is no record of a job: {error}",
            hint="Does something else use it, or another version of flamestream?",
            registry="",
            key=key_of(job),
        ) from error
    if record.job != job or (token is not None and not hmac.compare_digest(sealed.proof, _proof(sealed.record, token))):
        raise RegistryError(
            f"the record of job {job!r} was written by a process without its token",
            hint="Set FLAMESTREAM_TOKEN to the same secret for the supervisor and every process that joins.",
            registry="",
            key=key_of(job),
        )
    return record


def _proof(raw: bytes | msgspec.Raw, token: str) -> str:
    key = blake2b(token.encode(), digest_size=32, person=b"flamestream").digest()
    return blake2b(bytes(raw), key=key, digest_size=16).hexdigest()
