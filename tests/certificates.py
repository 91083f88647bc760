"""Issues certificates from a test authority."""

from __future__ import annotations

import ipaddress
import ssl
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

DAY = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class CertificatePair:
    certificate: Path
    key: Path

    def build_server_context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.certificate, self.key)
        return context


class Authority:
    """A certificate authority; ``file`` holds its certificate."""

    def __init__(self, folder: Path, *, has_usage: bool = True) -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "a test's authority")])
        builder = self._builder(self._name, self._key, DAY).add_extension(
            x509.BasicConstraints(ca=True, path_length=None), critical=True
        )
        # Python 3.13 and later take no authority without it.
        usage = x509.KeyUsage(
            digital_signature=False,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            key_cert_sign=True,
            crl_sign=False,
            encipher_only=False,
            decipher_only=False,
        )
        key_id = x509.SubjectKeyIdentifier.from_public_key(self._key.public_key())
        if has_usage:
            builder = builder.add_extension(usage, critical=True)
        certificate = builder.add_extension(key_id, critical=False).sign(self._key, hashes.SHA256())
        self.file = folder / "authority.pem"
        self.file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def build_client_context(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=self.file)

    def issue(self, name: str, *, lifetime: timedelta = DAY) -> CertificatePair:
        """Issues a certificate for 127.0.0.1 and localhost; a negative ``lifetime`` makes an expired one."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        builder = self._builder(subject, key, lifetime).add_extension(
            x509.SubjectAlternativeName(names), critical=False
        )
        authority_key_id = x509.AuthorityKeyIdentifier.from_issuer_public_key(
            self._key.public_key()
        )
        certificate = builder.add_extension(authority_key_id, critical=False).sign(
            self._key, hashes.SHA256()
        )
        pair = CertificatePair(self._folder / f"{name}.pem", self._folder / f"{name}.key")
        pair.certificate.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        pair.key.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        return pair

    def _builder(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, lifetime: timedelta
    ) -> x509.CertificateBuilder:
        not_after = datetime.now(UTC) + lifetime
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(not_after - 30 * DAY)
            .not_valid_after(not_after)
        )
