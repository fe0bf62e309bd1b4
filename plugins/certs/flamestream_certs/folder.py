"""The folder of certificates: its roles and files, and the text for a job file."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from ipaddress import ip_address
from pathlib import Path
from typing import Final

from cryptography import x509

from flamecore.errors import ConfigError
from flamestream_certs.authority import Authority, Issued

ROLES: Final = ("supervisor", "worker", "acker", "client", "operator", "nats")
"""Roles with a certificate: the parts of a job, a client that looks at it, an operator that changes it, and the server
of the transport `nats`."""

HERE: Final = ("localhost", "127.0.0.1", "::1")
"""Names and addresses that every certificate is valid for."""

_LABEL: Final = r"(?!-)[A-Za-z0-9_-]{1,63}(?<!-)"
_HOST: Final = re.compile(rf"{_LABEL}(\.{_LABEL})*")


def hosts_of(texts: Iterable[str]) -> tuple[str, ...]:
    """Return the names of this machine and the requested hosts, each once.

    Args:
        texts: Names or addresses, several of them divided by commas.

    Raises:
        ConfigError: One is neither.
    """
    wanted = [host.strip() for text in texts for host in text.split(",")]
    for host in wanted:
        if not _HOST.fullmatch(host) and not _is_address(host):
            raise ConfigError(
                f"{host!r} is neither the name of a host nor an address",
                hint="Write --hosts node1.example,10.0.0.5: without ports, and other letters in punycode.",
                path="--hosts",
            )
    return tuple(dict.fromkeys((*HERE, *wanted)))


def make(folder: Path, hosts: Sequence[str], days: int, *, missing: bool = False) -> dict[str, Path]:
    """Make an authority and a certificate for each role; keys are the user's alone.

    Args:
        folder: The folder.
        hosts: Names and addresses that the certificates are valid for.
        days: Their validity, in days.
        missing: Whether to make only certificates of roles that the folder lacks, by its authority.

    Returns:
        The files by name: `ca.pem`, `ca.key`, and the same two of each role.

    Raises:
        ConfigError: One of the files is there already, or cannot be written; nothing is overwritten. Or the folder has
            no authority for what it lacks.
    """
    files = {f"{name}{ending}": folder / f"{name}{ending}" for name in ("ca", *ROLES) for ending in (".pem", ".key")}
    there = {name: path for name, path in files.items() if path.exists() or path.is_symlink()}
    lacking = [role for role in ROLES if there.keys().isdisjoint((f"{role}.pem", f"{role}.key"))]
    own = {"ca.pem", "ca.key"} <= there.keys()
    if there and not missing:
        raise ConfigError(
            f"{folder} has certificates already: {', '.join(map(str, there.values()))}{_lacks(lacking)}",
            hint=f"Nothing was written. flamestream certs init {folder} --missing makes those that it lacks."
            if lacking and own
            else "Nothing was written. Name another folder, or move these away first.",
            path="FOLDER",
        )
    if missing and not own:
        raise ConfigError(
            f"{folder} has no authority to make certificates: ca.pem and ca.key are not both there",
            hint="Nothing was written. Name the folder in which they were made, or leave out --missing.",
            path="--missing",
        )
    if missing:
        authority = _authority(folder, days)
        issued = {role: authority.issue(role, hosts) for role in lacking}
    else:
        authority = Authority(days)
        issued = {"ca": authority.own, **{role: authority.issue(role, hosts) for role in ROLES}}
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for name, pair in issued.items():
            _write(folder, name, pair)
    except OSError as error:
        raise ConfigError(
            f"certificates cannot be written to {folder}: {error.strerror}",
            hint="Name a folder that you may write to.",
            path="FOLDER",
        ) from error
    return files


def toml(folder: Path, hosts: Sequence[str], days: int) -> str:
    """Return the text to paste into a job file, as TOML, with the rest in comments."""
    folder = folder.resolve()
    of = {role: {"tls_ca": "ca.pem", "tls_certificate": f"{role}.pem", "tls_key": f"{role}.key"} for role in ROLES}
    lines = {role: [f"{key} = {_quoted(folder / file)}" for key, file in files.items()] for role, files in of.items()}
    host = next((host for host in hosts if host not in HERE), "127.0.0.1")
    place = f"[{host}]" if ":" in host else host
    sets = " ".join(f"--set transport.grpc.{key}={folder / file}" for key, file in of["worker"].items())
    return "\n".join(
        [
            f"# Certificates in {folder}, for a test cluster: valid for {days} days, at {', '.join(hosts)}.",
            "# ca.key signs more of them; the processes of a job do not need it. Keep it, and all keys, from others.",
            "",
            "# The supervisor, and the workers that it starts:",
            "[transport.grpc]",
            f"listen = {_quoted(place)}",
            *lines["supervisor"],
            "",
            "# The same over a NATS server:",
            "[transport.nats]",
            f"servers = [{_quoted(f'tls://{place}:4222')}]",
            *lines["supervisor"],
            "",
            "# Workers that join from elsewhere take worker.*, ackers acker.*, `flamestream status` client.*, and",
            "# `flamestream rescale` and `upgrade` operator.*:",
            f"#   flamestream worker --join grpc://{place}:PORT --job NAME {sets}",
            "# The NATS server, in nats-server.conf:",
            f"#   tls {{ cert_file: {_quoted(folder / 'nats.pem')}, key_file: {_quoted(folder / 'nats.key')},",
            f"#         ca_file: {_quoted(folder / 'ca.pem')}, verify: true }}",
        ]
    )


def _lacks(roles: Sequence[str]) -> str:
    return f"; it lacks {', '.join(f'{role}.pem and {role}.key' for role in roles)}" if roles else ""


def _authority(folder: Path, days: int) -> Authority:
    """Return the authority of a folder.

    Raises:
        ConfigError: Its files cannot be read, or are none.
    """
    try:
        own = Issued((folder / "ca.pem").read_bytes(), (folder / "ca.key").read_bytes())
        return Authority(days, own)
    except (OSError, ValueError, TypeError, x509.ExtensionNotFound) as error:
        raise ConfigError(
            f"the authority in {folder} cannot be used: {error}",
            hint="Nothing was written. ca.pem and ca.key must be those that flamestream certs init has made.",
            path="FOLDER",
        ) from error


def _write(folder: Path, name: str, pair: Issued) -> None:
    for ending, data, mode in ((".pem", pair.certificate, 0o644), (".key", pair.key, 0o600)):
        with os.fdopen(os.open(folder / f"{name}{ending}", os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.write(data)


def _is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


def _quoted(text: object) -> str:
    """Quote a text for TOML."""
    plain = str(text).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{plain}"'
