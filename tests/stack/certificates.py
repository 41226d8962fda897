"""Certificates made at test time: an authority, and what it signs; elliptic keys, as these take no time to make."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import pkcs12
from cryptography.x509.oid import NameOID

__all__ = ["Authority", "Certified"]

_HOME = ("localhost", "127.0.0.1")


@dataclass(frozen=True, kw_only=True)
class Certified:
    """A certificate with the key that it belongs to."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @property
    def certificate_pem(self) -> str:
        return self.certificate.public_bytes(serialization.Encoding.PEM).decode()

    def key_pem(self, password: str | None = None) -> str:
        """The key as PKCS #8, encrypted where there is a password."""
        protection: serialization.KeySerializationEncryption = serialization.NoEncryption()
        if password is not None:
            protection = serialization.BestAvailableEncryption(password.encode())
        form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8)
        return self.key.private_bytes(*form, protection).decode()

    def pkcs12(self, password: str) -> bytes:
        """Both in one key store."""
        protection = serialization.BestAvailableEncryption(password.encode())
        return pkcs12.serialize_key_and_certificates(b"client", self.key, self.certificate, None, protection)


class Authority:
    """Signs certificates; its own is what ``ssl.ca.location`` names."""

    def __init__(self, name: str) -> None:
        key = ec.generate_private_key(ec.SECP256R1())
        self._name = _named(name)
        constraints = x509.BasicConstraints(ca=True, path_length=None)
        draft = self._draft(self._name, key).add_extension(constraints, critical=True)
        self._own = Certified(certificate=draft.sign(key, hashes.SHA256()), key=key)

    @property
    def pem(self) -> str:
        return self._own.certificate_pem

    def sign(self, name: str, hosts: tuple[str, ...] = _HOME, days: int = 30) -> Certified:
        """A certificate for these hosts; with negative ``days`` one that expired so long ago."""
        key = ec.generate_private_key(ec.SECP256R1())
        names = x509.SubjectAlternativeName([_host(host) for host in hosts])
        draft = self._draft(_named(name), key, days).add_extension(names, critical=False)
        return Certified(certificate=draft.sign(self._own.key, hashes.SHA256()), key=key)

    def _draft(self, name: x509.Name, key: ec.EllipticCurvePrivateKey, days: int = 30) -> x509.CertificateBuilder:
        ends = datetime.now(UTC) + timedelta(days=days)
        begins = min(ends, datetime.now(UTC)) - timedelta(days=1)
        draft = x509.CertificateBuilder().subject_name(name).issuer_name(self._name).public_key(key.public_key())
        return draft.serial_number(x509.random_serial_number()).not_valid_before(begins).not_valid_after(ends)


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
