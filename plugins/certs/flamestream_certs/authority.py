"""A new authority and its certificates. Its key is kept beside them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

SLACK: Final = timedelta(hours=1)
"""Time by which certificates are dated back: clocks of several hosts differ."""


@dataclass(frozen=True, slots=True)
class Issued:
    """A certificate and its key, PEM."""

    certificate: bytes
    key: bytes


class Authority:
    """An authority that issues certificates with P-256 keys, known to every TLS 1.3.

    Args:
        days: Validity of its own and all issued certificates.
        own: Certificate and key of an authority that is there already; None: a new one.

    Raises:
        ValueError, TypeError, x509.ExtensionNotFound: `own` is no authority with such a key.
    """

    def __init__(self, days: int, own: Issued | None = None) -> None:
        self._from = datetime.now(UTC) - SLACK
        self._until = self._from + SLACK + timedelta(days=days)
        if own is None:
            self._begin()
        else:
            self._go_on(own)

    def _go_on(self, own: Issued) -> None:
        """Take over the authority that is there; nothing that it issues is valid for longer than it is itself."""
        key, certificate = load_pem_private_key(own.key, None), x509.load_pem_x509_certificate(own.certificate)
        if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
            raise ValueError("ca.key is not the key of ca.pem")
        self.own, self._key, self._name = own, key, certificate.subject
        self._identifier = certificate.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
        self._until = min(self._until, certificate.not_valid_after_utc)
        if self._until <= self._from + SLACK:
            raise ValueError(f"it has expired on {self._until:%Y-%m-%d}")

    def _begin(self) -> None:
        """Make a key, and a certificate of its own."""
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name("authority")
        public = self._key.public_key()
        self._identifier = x509.SubjectKeyIdentifier.from_public_key(public)
        certificate = (
            self._builder(self._name, public)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(signs_certificates=True), critical=True)
            .add_extension(self._identifier, critical=False)
            .sign(self._key, SHA256())
        )
        self.own = Issued(certificate.public_bytes(Encoding.PEM), _pem(self._key))

    def issue(self, role: str, hosts: Sequence[str]) -> Issued:
        """Issue a certificate for a role, for servers at these hosts and for clients."""
        key = ec.generate_private_key(ec.SECP256R1())
        public = key.public_key()
        issuer = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(self._identifier)
        both = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        certificate = (
            self._builder(_name(role), public)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(both), critical=False)
            .add_extension(x509.SubjectAlternativeName([*map(_host, hosts), role_name(role)]), critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
            .add_extension(issuer, critical=False)
            .sign(self._key, SHA256())
        )
        return Issued(certificate.public_bytes(Encoding.PEM), _pem(key))

    def _builder(self, subject: x509.Name, public: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(self._from)
            .not_valid_after(self._until)
        )


def role_name(role: str) -> x509.UniformResourceIdentifier:
    """Return the name of a role in its certificate."""
    return x509.UniformResourceIdentifier(f"urn:flamestream:{role}")


def _name(common: str) -> x509.Name:
    return x509.Name(
        [x509.NameAttribute(NameOID.ORGANIZATION_NAME, "flamestream"), x509.NameAttribute(NameOID.COMMON_NAME, common)]
    )


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
