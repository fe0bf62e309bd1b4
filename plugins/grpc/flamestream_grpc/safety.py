"""Access rules: other machines need TLS and a token, this machine does not."""

from __future__ import annotations

import errno
import ipaddress
import socket
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from flamecore.errors import ConfigError, TransportError
from flamestream_grpc.options import Options, parse

_ROLE: Final = "urn:flamestream:"
"""Prefix of a role's name in certificates."""
_SPEAKS_AS: Final[Mapping[str, tuple[str, ...]]] = {
    "supervisor": ("",),
    "worker": ("node/", "worker/", "acker/"),
    "acker": ("node/", "acker/"),
    "client": ("client/",),
}
"""Prefixes of the addresses that a role may send from."""

_UNIX_PATH_BYTES = 107  # sun_path of Linux, without the final zero


def exposed(location: str, options: Options, token: str) -> list[str]:
    """Return the protections that the way to or from other machines lacks.

    The list is empty if the location is on this machine, or if nothing is missing.

    Args:
        location: The location this process listens at, or connects to.
        options: The transport's options.
        token: The job's token.

    Raises:
        TransportError: A protection is missing, and `insecure` does not allow it.
    """
    if location.startswith("unix:") or _on_this_machine(parse(location)[0]):
        return []
    missing = [what for what, there in (("TLS", options.secured), ("a token of the job", token)) if not there]
    if missing and not options.insecure:
        raise TransportError(
            f"{location} is not on this machine alone, and messages would go there without {' and '.join(missing)}",
            hint="Set tls_certificate, tls_key and tls_ca; or set insecure = true under [transport.grpc].",
            address="",
            peer=location,
        )
    return missing


def is_location(text: str) -> bool:
    """Return whether a process of this transport may listen at a location.

    Locations that peers name must pass, because this process connects to them to see who is gone.
    """
    if text.startswith("unix:"):
        path = text.removeprefix("unix:")
        return path.startswith("/") and len(path.encode()) <= _UNIX_PATH_BYTES and "\0" not in path
    try:
        return parse(text)[1] > 0
    except ConfigError:
        return False


def speaks_as(shown: Mapping[str, Sequence[bytes]]) -> tuple[str, ...]:
    """Return the prefixes of addresses a process may send from, by its certificate.

    All addresses are allowed if the certificate names no role.

    Args:
        shown: The caller's authentication context, as gRPC gives it; without TLS it has no certificate.
    """
    names = [name.decode(errors="replace") for name in shown.get("peer_uri", ())]
    roles = [name.removeprefix(_ROLE) for name in names if name.startswith(_ROLE)]
    return tuple(start for role in roles for start in _SPEAKS_AS.get(role, ())) if roles else ("",)


def socket_path(folder: str, node: str) -> Path:
    """Return the path for a node's unix socket.

    Raises:
        TransportError: The path cannot be used, or a process listens there.
    """
    if not folder:
        raise _cannot("this job has no folder for sockets", "Set listen to 127.0.0.1:0 under [transport.grpc].")
    path = Path(folder) / f"{node.replace('/', '-') or 'node'}.sock"
    if len(bytes(path)) > _UNIX_PATH_BYTES:
        text = f"{path} is too long for a unix socket: {len(bytes(path))} bytes, and {_UNIX_PATH_BYTES} are the limit"
        raise _cannot(text, "Set TMPDIR to a shorter path, or listen to 127.0.0.1:0 under [transport.grpc].")
    # gRPC would silently take a socket away from the process that listens on it.
    with socket.socket(socket.AF_UNIX) as probe:
        if probe.connect_ex(str(path)) not in (errno.ENOENT, errno.ECONNREFUSED):
            raise _cannot(f"{path} is taken", "Does another process of this job have the same name?")
    return path


def keep_private(path: Path) -> None:
    """Restrict a socket to connections of this user."""
    path.chmod(stat.S_IRUSR | stat.S_IWUSR)


def _on_this_machine(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _cannot(what: str, hint: str) -> TransportError:
    return TransportError(f"cannot listen: {what}", hint=hint, address="", peer="")
