"""Access rules: other machines need TLS and a token, this machine does not."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from typing import Final

from flamecore.errors import ConfigError, TransportError
from flamecore.model.messages import CLIENT, CONTROL, NODE, OPERATOR
from flamecore.toolkit.links.connection import Role
from flamecore.toolkit.links.unix import is_path
from flamestream_grpc.options import Options, parse

_ROLE: Final = "urn:flamestream:"
"""Prefix of a role's name in certificates."""
_CONTROL: Final = frozenset({CONTROL})
_ROLES: Final[Mapping[str, Role]] = {
    role.name: role
    for role in (
        Role("supervisor"),
        Role("worker", (NODE, "worker/", "acker/")),
        Role("acker", (NODE, "acker/")),
        Role("client", (CLIENT,), _CONTROL),
        Role("operator", (CLIENT, OPERATOR), _CONTROL),
    )
}
"""The roles that a certificate can name. What each may say to the control, the control knows."""


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
        return is_path(text.removeprefix("unix:"))
    try:
        return parse(text)[1] > 0
    except ConfigError:
        return False


def roles_of(shown: Mapping[str, Sequence[bytes]]) -> tuple[Role, ...]:
    """Return the roles of a process, by its certificate.

    Without a role in the certificate it may send anything; with unknown ones alone, nothing.

    Args:
        shown: The caller's authentication context, as gRPC gives it; without TLS it has no certificate.
    """
    names = [name.decode(errors="replace") for name in shown.get("peer_uri", ())]
    roles = [name.removeprefix(_ROLE) for name in names if name.startswith(_ROLE)]
    return tuple(_ROLES[role] for role in roles if role in _ROLES) if roles else (Role(),)


def _on_this_machine(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
