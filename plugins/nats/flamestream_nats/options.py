"""Options of transport, registry and store, and their checks."""

from __future__ import annotations

import ipaddress
import re
import ssl
from typing import Annotated, ClassVar, Final
from urllib.parse import urlsplit

import msgspec

from flamecore.abc.paths import FilePath
from flamecore.errors import ConfigError, MissingDependencyError, TransportError

MOST_FRAMES: Final = 65_536
"""Most messages a receiver keeps for one sender, whatever the sender's window."""
MOST_BYTES: Final = 256 * 2**20
"""Most bytes of messages a receiver keeps for one sender before it refuses another."""

_PREFIX: Final = re.compile(r"[A-Za-z0-9_=-]+(\.[A-Za-z0-9_=-]+)*")
_BUCKET: Final = re.compile(r"[A-Za-z0-9_-]+")
_SECRETS: Final = ("token", "password", "nkey_seed")

SCHEMES: Final = ("nats", "tls")
"""Schemes of server addresses; `tls` is TLS from the first byte on."""

Seconds = Annotated[float, msgspec.Meta(gt=0, le=3600)]


class ServerOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Options of a connection to the server.

    Attributes:
        servers: Addresses of the server, or of the servers of one cluster: `nats://HOST:PORT` or `tls://HOST:PORT`.
        token: Shown to the server.
        user: Shown to the server, with `password`.
        password: See `user`.
        nkey_seed: Seed of the key pair that signs the server's challenge; needs `nats-py[nkeys]`.
        tls_ca: File with the certificates of the authorities that may vouch for the server; this machine's by default.
        tls_certificate: File with the certificate that is shown to the server.
        tls_key: File with the key of that certificate.
        insecure: Go to other machines without TLS, or without a token of the job.
        connect_timeout_s: Maximum time for the first connection.
        reconnect_timeout_s: Time after which an unreachable server counts as lost.
    """

    section: ClassVar[str]
    """Section of the configuration that has these options."""

    servers: tuple[str, ...] = ("nats://127.0.0.1:4222",)
    token: str = ""
    user: str = ""
    password: str = ""
    nkey_seed: str = ""
    tls_ca: FilePath = ""
    tls_certificate: FilePath = ""
    tls_key: FilePath = ""
    insecure: bool = False
    connect_timeout_s: Seconds = 2.0
    reconnect_timeout_s: Seconds = 30.0

    def __repr__(self) -> str:
        shown = {name: getattr(self, name) for name in self.__struct_fields__ if getattr(self, name) != ""}
        shown |= {name: "***" for name in _SECRETS if name in shown}
        shown["servers"] = tuple(map(shown_server, self.servers))
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in shown.items())})"

    @property
    def shown(self) -> str:
        """Return the servers, as errors name them."""
        return ", ".join(map(shown_server, self.servers))

    @property
    def secured(self) -> bool:
        """Return whether TLS is required."""
        files = self.tls_ca or self.tls_certificate or self.tls_key
        return bool(files) or any(server.startswith("tls://") for server in self.servers)

    @property
    def permissions(self) -> str:
        """Return the permissions a user of the server needs, as errors name them."""
        raise NotImplementedError


class Options(ServerOptions, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Options of the transport, besides those of `ServerOptions`.

    Attributes:
        prefix: Prefix of all subjects.
        window_frames: Most messages on their way from one sender to one receiver, until the receiver has read them.
        window_bytes: Most bytes on that way; one message more may be under way, however large.
        send_timeout_s: Maximum wait of `send` for a receiver that has no room.
        heartbeat_s: Interval at which a process checks its peers that were not connected the last time; it checks all
            peers every other time. A process that the server has no connection to four times in a row is gone.
        silence_timeout_s: Time of silence after which a connected process counts as lost: its machine may have lost
            power. It limits the time of a single call of a user's function.
    """

    section: ClassVar[str] = "transport.nats"

    prefix: str = "flamestream"
    window_frames: Annotated[int, msgspec.Meta(ge=1, le=MOST_FRAMES)] = 512
    window_bytes: Annotated[int, msgspec.Meta(ge=1, le=MOST_BYTES)] = 4 * 2**20
    send_timeout_s: Seconds = 30.0
    heartbeat_s: Seconds = 0.25
    silence_timeout_s: Seconds = 30.0

    @property
    def permissions(self) -> str:
        return f"publish and subscribe to {self.prefix}.>"


class RegistryOptions(ServerOptions, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Options of the registry, besides those of `ServerOptions`.

    Attributes:
        bucket: Name of the key-value bucket; it is created if it does not exist.
        replicas: Number of servers of the cluster that store it, if it has to be made.
        request_timeout_s: Maximum time for a reply of the server.
    """

    section: ClassVar[str] = "registry"

    bucket: str = "flamestream"
    replicas: Annotated[int, msgspec.Meta(ge=1, le=5)] = 1
    request_timeout_s: Seconds = 2.0

    @property
    def permissions(self) -> str:
        return f"publish to $JS.API.> and $KV.{self.bucket}.>, and subscribe to _INBOX.>"


class StoreOptions(ServerOptions, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Options of the store, besides those of `ServerOptions`.

    Attributes:
        prefix: Prefix of the names of streams, one for each job, and of their subjects.
        replicas: Number of servers of the cluster that store a stream, if it has to be made.
        request_timeout_s: Time after which a request to a slow or unreachable server fails.
    """

    section: ClassVar[str] = "state"

    prefix: str = "flamestream"
    replicas: Annotated[int, msgspec.Meta(ge=1, le=5)] = 1
    request_timeout_s: Seconds = 30.0

    @property
    def permissions(self) -> str:
        return f"publish to $JS.API.> and {self.prefix}.state.>, and subscribe to _INBOX.>"


def check(options: ServerOptions) -> None:
    """Check the options for values that no type can forbid.

    Raises:
        ConfigError: An option cannot be used. No secret is shown.
    """
    if not options.servers:
        raise _wrong(options, "servers", "names no server", "Give at least one, as nats://HOST:PORT.")
    for server in options.servers:
        parts = urlsplit(server)
        try:
            usable = parts.scheme in SCHEMES and parts.hostname and parts.port != 0
        except ValueError:
            usable = False
        if not usable:
            raise _wrong(
                options, "servers", f"has {shown_server(server)!r}", "Write it as nats://HOST:PORT or tls://HOST:PORT."
            )
    if isinstance(options, Options | StoreOptions) and not _PREFIX.fullmatch(options.prefix):
        raise _wrong(
            options, "prefix", f"is {options.prefix!r}", "Use letters, digits, _ and -, in parts joined by dots."
        )
    if isinstance(options, RegistryOptions) and not _BUCKET.fullmatch(options.bucket):
        raise _wrong(options, "bucket", f"is {options.bucket!r}", "Use letters, digits, _ and -.")
    if bool(options.user) != bool(options.password):
        raise _wrong(options, "user", "and password are of use only together", "Give both, or neither.")
    if bool(options.tls_certificate) != bool(options.tls_key):
        raise _wrong(options, "tls_certificate", "and tls_key are of use only together", "Give both, or neither.")


def exposed(options: ServerOptions, token: str | None) -> list[str]:
    """Return the protections that the way to other machines lacks.

    The list is empty if all servers are on this machine, or if nothing is missing.

    Args:
        options: The options, checked.
        token: The job's token; None if none is needed.

    Raises:
        TransportError: A protection is missing, and `insecure` does not allow it.
    """
    far = [shown_server(server) for server in options.servers if not _on_this_machine(urlsplit(server).hostname or "")]
    if not far:
        return []
    missing = [what for what, there in (("TLS", options.secured), ("a token of the job", token != "")) if not there]
    if missing and not options.insecure:
        raise TransportError(
            f"{', '.join(far)} is not on this machine, and messages would go there without {' and '.join(missing)}",
            hint="Use tls:// and tls_ca, or a server on this machine; or set insecure = true under "
            f"[{options.section}].",
            address="",
            peer=far[0],
        )
    return missing


def shown_server(server: str) -> str:
    """Return a server's address as errors show it: without credentials."""
    scheme, _, rest = server.rpartition("://")
    return f"{scheme or 'nats'}://{rest.rpartition('@')[2]}"


def warn(options: ServerOptions, missing: list[str]) -> None:
    """Log the protections missing on the way to other machines."""
    from flamecore.events import TRANSPORT_EXPOSED
    from flamecore.logs import logger

    logger().warning(TRANSPORT_EXPOSED, location=options.shown, missing=missing)


def ssl_context(options: ServerOptions) -> ssl.SSLContext | None:
    """Return the TLS context for the server, or None if TLS is not required.

    Raises:
        ConfigError: A file cannot be used.
    """
    if not options.secured:
        return None
    key = "tls_ca"
    try:
        context = ssl.create_default_context(cafile=options.tls_ca or None)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if options.tls_certificate:
            key = "tls_certificate"
            context.load_cert_chain(options.tls_certificate, options.tls_key)
    except OSError as error:  # ssl.SSLError is one
        path = options.tls_ca if key == "tls_ca" else f"{options.tls_certificate} with {options.tls_key}"
        reason = error.strerror or str(error)
        raise _wrong(
            options, key, f"{path} cannot be used: {reason}", "Give PEM files that this user can read."
        ) from error
    return context


def check_seed(options: ServerOptions) -> None:
    """Check `nkey_seed`.

    Raises:
        MissingDependencyError: The package that signs with it is not installed.
        ConfigError: It is not a seed.
    """
    try:
        import nkeys
    except ModuleNotFoundError as error:
        raise MissingDependencyError(
            f"{options.section}.nkey_seed needs module 'nkeys', which is not installed",
            hint="Run: pip install 'nats-py[nkeys]'",
            kind=options.section.partition(".")[0],
            name="nats",
            distribution="flamestream",
            module="nkeys",
            extra=None,
        ) from error
    try:
        nkeys.from_seed(bytearray(options.nkey_seed.strip().encode())).wipe()
    except Exception:  # noqa: BLE001 - the package raises any error, and its text may show the seed
        hint = "Give the seed itself, SU…; ${NAME} takes it from the environment."
        raise _wrong(options, "nkey_seed", "is no seed of a user's key pair", hint) from None


def _on_this_machine(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _wrong(options: ServerOptions, key: str, what: str, hint: str) -> ConfigError:
    path = f"{options.section}.{key}"
    return ConfigError(f"{path} {what}", hint=hint, path=path)
