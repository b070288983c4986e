"""A Sigstore instance of a test's own: certificate authority, certificate log, transparency log, and bundles of them.

Everything is made here with fresh keys, as the services of Sigstore would make it: a certificate for a few minutes with
identity and issuer, logged (RFC 6962) before it is given out; a log entry of the signed envelope, with its promise, its
place in a Merkle tree of two entries and the log's signed checkpoint.
"""

from __future__ import annotations

import base64
import hashlib
import json
import struct
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

ISSUER_OID = x509.ObjectIdentifier("1.3.6.1.4.1.57264.1.1")
SCTS_OID = x509.ObjectIdentifier("1.3.6.1.4.1.11129.2.4.2")
USAGE = ("digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement",
         "key_cert_sign", "crl_sign", "encipher_only", "decipher_only")  # fmt: skip
PAYLOAD_TYPE = "application/vnd.in-toto+json"
Key = ec.EllipticCurvePrivateKey


def fresh() -> Key:
    return ec.generate_private_key(ec.SECP256R1())


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def spki(key: Key) -> bytes:
    return key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def signed(key: Key, data: bytes) -> bytes:
    return key.sign(data, ec.ECDSA(SHA256()))


class LocalSigstore:
    """Its keys; `at` is when its authority began."""

    def __init__(self, at: datetime) -> None:
        self.at, self.ca, self.ct, self.log = at, fresh(), fresh(), fresh()
        self.name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "tests' authority")])
        builder = self._builder(self.name, self.ca, at, timedelta(days=3650))
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        builder = builder.add_extension(usage("key_cert_sign", "crl_sign"), critical=True)
        builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(self.ca.public_key()), critical=False)
        self.certificate = builder.sign(self.ca, SHA256())

    def trusted_root(self, path: Path) -> Path:
        """Write the trusted root that verifiers of this instance need."""
        since = {"start": self.at.isoformat().replace("+00:00", "Z")}

        def log(key: Key) -> dict[str, Any]:
            public = {"rawBytes": b64(spki(key)), "keyDetails": "PKIX_ECDSA_P256_SHA_256", "validFor": since}
            return {"baseUrl": "https://log.invalid", "hashAlgorithm": "SHA2_256", "publicKey": public,
                    "logId": {"keyId": b64(identity_of(key))}}  # fmt: skip

        authority = {
            "subject": {"organization": "tests", "commonName": "tests' authority"},
            "uri": "https://ca.invalid",
            "certChain": {"certificates": [{"rawBytes": b64(self.certificate.public_bytes(Encoding.DER))}]},
            "validFor": since,
        }
        kind = "application/vnd.dev.sigstore.trustedroot+json;version=0.1"
        content = {"mediaType": kind, "tlogs": [log(self.log)], "certificateAuthorities": [authority],
                   "ctlogs": [log(self.ct)]}  # fmt: skip
        path.write_text(json.dumps(content))
        return path

    def bundle(self, payload: bytes, identity: str, issuer: str, at: datetime, **changes: Any) -> dict[str, Any]:
        """A bundle v0.3 over a payload, signed at a time by whom the issuer knows as an identity.

        Args:
            changes: `issued` is when the certificate was given out; `payload_type` another kind of payload.
        """
        kind, key = changes.get("payload_type", PAYLOAD_TYPE), fresh()
        certificate = self._certificate(key, identity, issuer, changes.get("issued", at))
        pae = b"DSSEv1 %d %b %d %b" % (len(kind), kind.encode(), len(payload), payload)
        signature = b64(signed(key, pae))
        entry = self._entry(payload, signature, certificate, at)
        return {
            "mediaType": "application/vnd.dev.sigstore.bundle.v0.3+json",
            "verificationMaterial": {
                "certificate": {"rawBytes": b64(certificate.public_bytes(Encoding.DER))},
                "tlogEntries": [entry],
            },
            "dsseEnvelope": {"payload": b64(payload), "payloadType": kind, "signatures": [{"sig": signature}]},
        }

    def _entry(self, payload: bytes, signature: str, certificate: x509.Certificate, at: datetime) -> dict[str, Any]:
        verifier = b64(certificate.public_bytes(Encoding.PEM))
        spec = {
            "envelopeHash": {"algorithm": "sha256", "value": "0" * 64},
            "payloadHash": {"algorithm": "sha256", "value": hashlib.sha256(payload).hexdigest()},
            "signatures": [{"signature": signature, "verifier": verifier}],
        }
        body = json.dumps({"apiVersion": "0.0.1", "kind": "dsse", "spec": spec}, sort_keys=True).encode()
        log_id, seconds = identity_of(self.log), int(at.timestamp())
        before = hashlib.sha256(b"\0an earlier entry").digest()
        tree = hashlib.sha256(b"\1" + before + hashlib.sha256(b"\0" + body).digest()).digest()
        note = f"log.invalid - 1\n2\n{b64(tree)}\n"
        mark = b64(log_id[:4] + signed(self.log, note.encode()))
        promised = {"body": b64(body), "integratedTime": seconds, "logID": log_id.hex(), "logIndex": 1}
        promise = signed(self.log, json.dumps(promised, sort_keys=True, separators=(",", ":")).encode())
        return {
            "logIndex": "1",
            "logId": {"keyId": b64(log_id)},
            "kindVersion": {"kind": "dsse", "version": "0.0.1"},
            "integratedTime": str(seconds),
            "inclusionPromise": {"signedEntryTimestamp": b64(promise)},
            "inclusionProof": {
                "logIndex": "1",
                "rootHash": b64(tree),
                "treeSize": "2",
                "hashes": [b64(before)],
                "checkpoint": {"envelope": f"{note}\n\u2014 log.invalid {mark}\n"},
            },
            "canonicalizedBody": b64(body),
        }

    def _certificate(self, key: Key, identity: str, issuer: str, at: datetime) -> x509.Certificate:
        names = x509.RFC822Name(identity) if "@" in identity else x509.UniformResourceIdentifier(identity)
        builder = self._builder(x509.Name([]), key, at, timedelta(minutes=10))
        builder = builder.add_extension(x509.SubjectAlternativeName([names]), critical=True)
        builder = builder.add_extension(usage("digital_signature"), critical=True)
        builder = builder.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CODE_SIGNING]), critical=False)
        authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(self.ca.public_key())
        builder = builder.add_extension(authority, critical=False)
        builder = builder.add_extension(x509.UnrecognizedExtension(ISSUER_OID, issuer.encode()), critical=False)
        logged = builder.sign(self.ca, SHA256()).tbs_certificate_bytes
        scts = x509.UnrecognizedExtension(SCTS_OID, self._logged(logged, at))
        return builder.add_extension(scts, critical=False).sign(self.ca, SHA256())

    def _logged(self, certificate: bytes, at: datetime) -> bytes:
        """The list of one timestamp of the certificate log, as RFC 6962 encodes it, in a DER octet string."""
        entry = hashlib.sha256(spki(self.ca)).digest() + struct.pack("!I", len(certificate))[1:] + certificate
        milliseconds = int(at.timestamp() * 1000)
        proof = signed(self.ct, struct.pack("!BBQH", 0, 0, milliseconds, 1) + entry + struct.pack("!H", 0))
        stamp = struct.pack("!B32sQHBBH", 0, identity_of(self.ct), milliseconds, 0, 4, 3, len(proof)) + proof
        content = struct.pack("!HH", len(stamp) + 2, len(stamp)) + stamp
        return b"\x04" + (bytes([len(content)]) if len(content) < 128 else b"\x81" + bytes([len(content)])) + content

    def _builder(self, subject: x509.Name, key: Key, at: datetime, lasts: timedelta) -> x509.CertificateBuilder:
        return x509.CertificateBuilder(
            issuer_name=self.name,
            subject_name=subject,
            public_key=key.public_key(),
            serial_number=x509.random_serial_number(),
            not_valid_before=at,
            not_valid_after=at + lasts,
        )


def usage(*names: str) -> x509.KeyUsage:
    return x509.KeyUsage(**{name: name in names for name in USAGE})


def identity_of(key: Key) -> bytes:
    """SHA-256 of a public key: how certificates and logs name it."""
    return hashlib.sha256(spki(key)).digest()


def recently() -> datetime:
    return datetime.now(UTC).replace(microsecond=0) - timedelta(hours=1)
