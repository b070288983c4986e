"""Certificates of a trial: an authority made for it, and one certificate for `localhost`. Keys stay in its folder."""

from __future__ import annotations

import ipaddress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from plinth.storage.atomic import write_bytes

VALID = timedelta(days=30)


class Certificate(NamedTuple):
    """Files in PEM: whom to trust, the server's certificate, and its private key (0600)."""

    authority: Path
    chain: Path
    key: Path


def make(folder: Path) -> Certificate:
    """An authority, whose key is not kept, and a certificate that it signs for `localhost`, valid for 30 days."""
    authority_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    named = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Plinth trial")])
    authority = (
        _builder(named, named, authority_key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(authority_key.public_key()), critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    hosts = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    server = (
        _builder(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")]), named, key.public_key())
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.SubjectAlternativeName(hosts), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    found = Certificate(folder / "authority.pem", folder / "server.pem", folder / "server.key")
    plain = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    write_bytes(found.authority, authority.public_bytes(serialization.Encoding.PEM), mode=0o644)
    write_bytes(found.chain, server.public_bytes(serialization.Encoding.PEM), mode=0o644)
    write_bytes(found.key, key.private_bytes(*plain), mode=0o600)
    return found


def _builder(subject: x509.Name, issuer: x509.Name, public: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    begins = datetime.now(UTC) - timedelta(hours=1)  # clocks differ
    builder = x509.CertificateBuilder(issuer, subject, public, x509.random_serial_number())
    return builder.not_valid_before(begins).not_valid_after(begins + VALID)


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
