"""Options of the transport, and their checks before anything listens or connects."""

from __future__ import annotations

from flamecore.abc.paths import FilePath
from flamecore.errors import ConfigError
from flamecore.toolkit.links.options import LinkOptions, Seconds


class Options(LinkOptions, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Options of the transport, besides those of links.

    Attributes:
        listen: "unix": a socket in the job's folder, for processes of one machine. "HOST:PORT" or "HOST": TCP; port 0,
            or none, is any that is free.
        advertise: "HOST" or "HOST:PORT" for others to connect to, if it differs from `listen`.
        insecure: Go to or let in other machines without TLS, or without a token of the job.
        tls_certificate: File with the certificate of this process, and the certificates of its issuers. With it and the
            two below, TCP is spoken in TLS only, and both sides show certificates.
        tls_key: File with the key of that certificate.
        tls_ca: File with the certificates of the authorities that may issue certificates.
        keepalive_s: Interval of the probes of an idle connection, and maximum time for the reply. The end of a killed
            process is detected immediately; this is for machines that lose power or network.
    """

    listen: str = "unix"
    advertise: str = ""
    insecure: bool = False
    tls_certificate: FilePath = ""
    tls_key: FilePath = ""
    tls_ca: FilePath = ""
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
