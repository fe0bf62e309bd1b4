"""Options of the transport, and their checks before anything listens or connects."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from flamecore.errors import ConfigError
from flamecore.toolkit.frames import MAX_BODY_BYTES

MOST_FRAMES: Final = 2**16
MOST_BYTES: Final = 2**30
"""Largest windows; a peer with more unread on one channel does not wait for room, and is refused."""

Seconds = Annotated[float, msgspec.Meta(gt=0, le=86_400)]


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Options of the transport.

    Attributes:
        listen: "unix": a socket in the job's folder, for processes of one machine. "HOST:PORT" or "HOST": TCP; port 0,
            or none, is any that is free.
        advertise: "HOST" or "HOST:PORT" for others to connect to, if it differs from `listen`.
        insecure: Go to or let in other machines without TLS, or without a token of the job.
        tls_certificate: File with the certificate of this process, and the certificates of its issuers. With it and the
            two below, TCP is spoken in TLS only, and both sides show certificates.
        tls_key: File with the key of that certificate.
        tls_ca: File with the certificates of the authorities that may issue certificates.
        max_frame_bytes: Largest message.
        window_frames: Most messages on their way from one sender to one receiver, until the receiver has read them.
        window_bytes: Most bytes on that way; one message more may be under way, however large.
        send_timeout_s: Maximum wait of `send` for a receiver that has no room.
        connect_timeout_s: Maximum time for the first connection to a process; attempts are repeated until then.
        reconnect_timeout_s: Time after which the process at the end of a broken connection counts as lost.
        keepalive_s: Interval of the probes of an idle connection, and maximum time for the reply. The end of a killed
            process is detected immediately; this is for machines that lose power or network.
    """

    listen: str = "unix"
    advertise: str = ""
    insecure: bool = False
    tls_certificate: str = ""
    tls_key: str = ""
    tls_ca: str = ""
    max_frame_bytes: Annotated[int, msgspec.Meta(ge=1024, le=MOST_BYTES)] = MAX_BODY_BYTES
    window_frames: Annotated[int, msgspec.Meta(ge=1, le=MOST_FRAMES)] = 1024
    window_bytes: Annotated[int, msgspec.Meta(ge=1, le=MOST_BYTES)] = 4 * 2**20
    send_timeout_s: Seconds = 30.0
    connect_timeout_s: Seconds = 10.0
    reconnect_timeout_s: Seconds = 0.5
    keepalive_s: Seconds = 5.0

    @property
    def secured(self) -> bool:
        """Return whether TCP is spoken in TLS."""
        return bool(self.tls_ca)


def check(options: Options) -> None:
    """Check the options for values that no type can forbid.

    Raises:
        ConfigError: An option cannot be used.
    """
    files = {"tls_certificate": options.tls_certificate, "tls_key": options.tls_key, "tls_ca": options.tls_ca}
    for key, path in files.items():
        if not path and any(files.values()):
            raise wrong(key, "is missing", "Give tls_certificate, tls_key and tls_ca, or none of them.")
    if options.listen == "unix":
        if options.advertise:
            raise wrong("advertise", "is of no use with a unix socket", "Set listen to HOST:PORT, or leave it out.")
        return
    for key, text in (("listen", options.listen), ("advertise", options.advertise)):
        if text or key == "listen":
            parse(text, key)
    host, _ = parse(options.listen, "listen")
    if host in ("0.0.0.0", "::") and not options.advertise:
        raise wrong("listen", f"is {options.listen!r}, where nobody can connect to", "Set advertise to HOST:PORT too.")


def parse(text: str, key: str = "listen") -> tuple[str, int]:
    """Parse "HOST", "HOST:PORT" or "[HOST]:PORT" to host and port; port 0 if left out.

    Raises:
        ConfigError: The text is none of these.
    """
    host, colon, port = text.rpartition(":")
    if not colon or text.endswith("]"):
        host, port = text, "0"
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:  # an IPv6 address without brackets: its last group is no port
        host = ""
    if not host or host == "unix" or not port.isdecimal() or int(port) > 65535:
        raise wrong(key, f"is {text!r}", 'Write it as HOST:PORT, "[::1]:PORT" for IPv6; or leave it out.')
    return host, int(port)


def joined(host: str, port: int) -> str:
    """Return the location of a host and port."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def wrong(key: str, what: str, hint: str) -> ConfigError:
    """Return the error of an option that cannot be used."""
    path = f"transport.grpc.{key}"
    return ConfigError(f"{path} {what}", hint=hint, path=path)
