"""TLS certificates of this process, read again whenever their files change.

Both sides show certificates, and accept only those that `tls_ca` has issued; a client accepts a server only for the
host it has connected to. New files apply to every connection made after they are there; open connections stay as they
are. Files that cannot be used, such as a certificate whose key is not there yet, change nothing: the former stay, and a
warning says so.
"""

from __future__ import annotations

import ssl
from pathlib import Path
from threading import Lock
from typing import NamedTuple

import grpc

from flamecore.errors import ConfigError
from flamecore.events import CERTIFICATES_REFUSED, CERTIFICATES_REPLACED
from flamecore.logs import logger
from flamestream_grpc.options import Options, wrong

Stamp = tuple[tuple[int, int, int] | None, ...]
"""For each file: time of its last change, inode, size; None if it does not exist."""


class Pem(NamedTuple):
    """Contents of the files."""

    ca: bytes
    key: bytes
    certificate: bytes


class Certificates:
    """The certificates of a process; safe to use from gRPC's own threads.

    Args:
        options: The transport's options, with files for TLS.

    Raises:
        ConfigError: The files cannot be used.
    """

    def __init__(self, options: Options) -> None:
        self._options = options
        self._lock = Lock()
        self._stamp = self._refused = _stamp(options)
        self._pem = self._served = read(options)
        self._channel = grpc.ssl_channel_credentials(*self._pem)

    def of_server(self) -> grpc.ServerCredentials:
        """Return credentials that accept only clients with certificates of `tls_ca`."""
        return grpc.dynamic_ssl_server_credentials(_served(self._pem), self._fetch, require_client_authentication=True)

    def of_channel(self) -> grpc.ChannelCredentials:
        """Return credentials to show to a server.

        The server's certificate must be issued by `tls_ca` for the host connected to.
        """
        with self._lock:
            self._look()
            return self._channel

    def _fetch(self) -> grpc.ServerCertificateConfiguration | None:
        """Return the new configuration, or None; gRPC calls it before each handshake."""
        with self._lock:
            self._look()
            if self._served is self._pem:
                return None
            self._served = self._pem
            return _served(self._pem)

    def _look(self) -> None:
        """Read the files again if they have changed."""
        stamp = _stamp(self._options)
        if stamp in (self._stamp, self._refused):
            return
        try:
            pem = read(self._options)
        except ConfigError as error:
            self._refused = stamp
            logger().warning(CERTIFICATES_REFUSED, reason=error.what)
            return
        if _stamp(self._options) != stamp:  # they are being written: the next connection looks again
            return
        self._stamp = self._refused = stamp
        self._pem = pem
        self._channel = grpc.ssl_channel_credentials(*pem)
        logger().info(CERTIFICATES_REPLACED, certificate=self._options.tls_certificate)


def read(options: Options) -> Pem:
    """Read the files.

    Raises:
        ConfigError: A file cannot be read, or they do not belong together.
    """
    found = []
    for key in Pem._fields:
        name = f"tls_{key}"
        path = getattr(options, name)
        try:
            data = Path(path).read_bytes()
        except OSError as error:
            raise wrong(name, f"is {path}, which cannot be read: {error.strerror}", "Give a PEM file.") from error
        if b"-----BEGIN" not in data:
            raise wrong(name, f"is {path}, which is no PEM file", "Give a PEM file.")
        found.append(data)
    name = "tls_certificate"
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        context.load_cert_chain(options.tls_certificate, options.tls_key, password=_no_password)
        name = "tls_ca"
        context.load_verify_locations(options.tls_ca)
    except (ssl.SSLError, OSError, ValueError) as error:
        raise wrong(
            name,
            f"is {getattr(options, name)}, which cannot be used: {error}",
            "tls_key must be the key of tls_certificate, without a password, and all of them PEM files.",
        ) from error
    return Pem(*found)


def _no_password() -> str:
    raise ValueError("the key is encrypted")


def _served(pem: Pem) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(pem.key, pem.certificate)], root_certificates=pem.ca)


def _stamp(options: Options) -> Stamp:
    stamps: list[tuple[int, int, int] | None] = []
    for path in (options.tls_ca, options.tls_key, options.tls_certificate):
        try:
            found = Path(path).stat()
        except OSError:
            stamps.append(None)
        else:
            stamps.append((found.st_mtime_ns, found.st_ino, found.st_size))
    return tuple(stamps)
