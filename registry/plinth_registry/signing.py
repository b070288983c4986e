"""Sign and verify a model directory: OpenSSF model signing, with SLSA provenance.

    models/<12>/                 the directory: weights, tokenizer, state, proof that training can be resumed,
                                 provenance.json
    models/<12>.sig              Sigstore bundle over every file in the directory (BLAKE3)
    models/<12>.slsa.json        DSSE envelope: SLSA Provenance v1 over the same files (SHA-256), derived from
                                 provenance.json with the trainer's statements during training (`trained`)

Signatures are stored outside the directory, because a signature inside would be an additional file of the model. Both
are made with a key of the role `trainer`. No file is ignored: added, missing and changed files are reported.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from plinth.compute.context import Context
from plinth.errors import LineageError, SignatureError
from plinth.model.hugging_face import required_files
from plinth.provenance.statements import PROVENANCE_SCHEMA, SLSA_PREDICATE, slsa_statement
from plinth.records import Manifest
from plinth.storage import atomic
from plinth.storage.atomic import named_failures, replacing, sync_directory
from plinth.storage.state import checkout
from plinth.storage.store import Store
from plinth.trust import dsse
from plinth.trust.dsse import TRAINER, Authority, revoked_at
from plinth.trust.root import Trust
from plinth.trust.signers import Signer

PROVENANCE_FILE = "provenance.json"


def signature_path(directory: Path) -> Path:
    """Return the path of a directory's model signature."""
    return directory.with_name(f"{directory.name}.sig")


def slsa_path(directory: Path) -> Path:
    """Return the path of the SLSA statement about a directory."""
    return directory.with_name(f"{directory.name}.slsa.json")


def is_signed(directory: Path) -> bool:
    """Return True if a directory has its provenance, signature and statement, so that its signing was finished. Nothing
    is verified."""
    return all(
        path.is_file() for path in (directory / PROVENANCE_FILE, signature_path(directory), slsa_path(directory))
    )


def discard(directory: Path) -> None:
    """Remove the signatures of a directory that will be replaced."""
    slsa_path(directory).unlink(missing_ok=True)
    signature_path(directory).unlink(missing_ok=True)


def sign(directory: Path, provenance: Mapping[str, Any], subjects: Mapping[str, str], signer: Signer) -> None:
    """Sign every file of a directory, and sign a statement of their provenance.

    Args:
        directory: directory with the files, including `provenance.json`.
        provenance: the content of `provenance.json`.
        subjects: SHA-256 by file name, for every file.

    Raises:
        SignatureError: the private key cannot be used, or the directory cannot be signed.
    """
    _write_signature(directory, signature_path(directory), signer, _hashing())
    dsse.write(slsa_path(directory), slsa_statement(provenance, subjects), signer)


def sign_digests(directory: Path, digests: Mapping[str, str], target: Path, signer: Signer) -> None:
    """Write the model signature of files from their SHA-256, which are given by name. No file is read.

    Raises:
        SignatureError: the private key cannot be used.
    """
    _write_signature(directory, target, signer, _KnownDigests(digests))


class _KnownDigests:
    """Source of already computed file hashes for the model-signing library."""

    def __init__(self, digests: Mapping[str, str]) -> None:
        self._digests = digests

    def hash(self, model: Path) -> Any:
        from model_signing._hashing.hashing import Digest
        from model_signing.manifest import FileManifestItem, Manifest, _FileSerialization

        known = ((Path(name), Digest("sha256", bytes.fromhex(own))) for name, own in sorted(self._digests.items()))
        items = [FileManifestItem(path=path, digest=digest) for path, digest in known]
        return Manifest(model.name, items, _FileSerialization("sha256"))


def _write_signature(directory: Path, target: Path, signer: Signer, hashing: Any) -> None:
    from model_signing.signing import Config

    config = Config()  # type: ignore[no-untyped-call]
    config.set_hashing_config(hashing)
    config._signer = _model_signer(signer)
    staged = target.with_name(f".{target.name}.tmp")
    try:
        config.sign(directory, staged)
        staged.replace(target)
    except ValueError as error:
        raise SignatureError(f"{directory} cannot be signed", found=error) from error
    finally:
        staged.unlink(missing_ok=True)


def verify(directory: Path, authority: Authority, *, at: str | None = None) -> dict[str, Any]:
    """Verify that a directory has exactly the signed files, and return its provenance.

    Args:
        authority: accepted keys; one signature is enough.
        at: signing time, if another signed record states it; without it, a revoked key is not accepted.

    Raises:
        SignatureError: there is no signature, it is from another signer, or a file differs; the error names the file.
    """
    from cryptography.exceptions import InvalidSignature
    from model_signing.verifying import Config

    _present(directory)
    config = Config()  # type: ignore[no-untyped-call]
    config.set_hashing_config(_hashing())
    try:
        config._verifier = _model_verifier(_named_key(signature_path(directory), authority, at))
        config.verify(directory, signature_path(directory))
    except (ValueError, KeyError, TypeError, AttributeError, InvalidSignature, OSError) as error:
        raise SignatureError(
            f"the signature of {directory} is invalid",
            found=str(error) or type(error).__name__,
            expected=f"exactly the files that a {authority.role} of {authority.root} signed",
            remedy="do not use this model; register the checkpoint again, or roll back to another version",
        ) from error
    return provenance_of(directory, authority, at=at)[0]


def provenance_of(directory: Path, authority: Authority, *, at: str | None = None) -> tuple[dict[str, Any], bytes]:
    """Return the provenance of a directory and the bytes of its file. The SLSA statement must be about the same
    provenance.

    Raises:
        SignatureError: there is no statement, it is from another signer, or it is about another provenance.
    """
    data = dsse.bytes_of(directory / PROVENANCE_FILE)
    provenance = _provenance(directory, data)
    _agree(directory, provenance, data, dsse.read(slsa_path(directory), authority, SLSA_PREDICATE, at=at))
    return provenance, data


class _ModelKey:
    """Private key from any key storage, with the interface that the model-signing library expects."""

    def __init__(self, signer: Signer) -> None:
        self._signer = signer

    def sign(self, data: bytes, algorithm: object) -> bytes:
        return self._signer.sign(data)

    def public_key(self) -> Any:
        return _loaded(self._signer.public)


def _model_signer(signer: Signer) -> Any:
    """Return a signer of the model-signing library that uses our key, because the library itself reads keys only from
    files."""
    from model_signing._signing.sign_ec_key import Signer as ModelSigner

    made = ModelSigner.__new__(ModelSigner)
    made._private_key = _ModelKey(signer)  # type: ignore[assignment]
    return made


def _model_verifier(public: str) -> Any:
    from model_signing._signing.sign_ec_key import Verifier as ModelVerifier

    made = ModelVerifier.__new__(ModelVerifier)
    made._public_key = _loaded(public)
    return made


def _named_key(signature: Path, authority: Authority, at: str | None) -> str:
    """Return the PEM of the role's key that a signature bundle names by SHA-256. A bundle can select only a key of the
    role."""
    content = json.loads(dsse.bytes_of(signature))
    hint = content["verificationMaterial"]["publicKey"]["hint"]
    for key in authority.keys.values():
        if hashlib.sha256(_canonical_pem(key.public)).hexdigest() == hint:
            if revoked_at(key, at):
                raise ValueError(f"the key of {key.owner} is revoked since {key.revoked_from}")
            return key.public
    raise ValueError(f"the signing key does not belong to a {authority.role}: {hint[:16]}")


def _canonical_pem(public: str) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    return bytes(_loaded(public).public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))


def _loaded(public: str) -> Any:
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    return load_pem_public_key(public.encode())


def _hashing() -> Any:
    """Return a hashing configuration that covers every file. By default, the model-signing library skips Git's own
    files, and an additional file could stay unnoticed."""
    from model_signing.hashing import Config

    config = Config()  # type: ignore[no-untyped-call]
    return config.use_file_serialization(hashing_algorithm="blake3").set_ignored_paths(paths=[], ignore_git_paths=False)


def _present(directory: Path) -> None:
    # An empty directory would sign and verify, so required files are checked by name.
    for path in (directory / PROVENANCE_FILE, signature_path(directory), slsa_path(directory)):
        if not path.is_file():
            raise SignatureError(
                f"{directory} is not a signed model",
                found=f"no {path.name}",
                expected="a registered model directory with its signature and statement",
                remedy="register the checkpoint, or restore the file",
            )


def _provenance(directory: Path, data: bytes) -> dict[str, Any]:
    try:
        content = json.loads(data)
    except ValueError as error:
        raise SignatureError(f"{directory / PROVENANCE_FILE} is not JSON", found=error) from error
    schema = content.get("schema") if isinstance(content, dict) else None
    if schema != PROVENANCE_SCHEMA:
        raise SignatureError(
            f"{directory / PROVENANCE_FILE} has another schema", found=schema, expected=PROVENANCE_SCHEMA
        )
    return dict(content)


def _agree(directory: Path, provenance: Mapping[str, Any], data: bytes, statement: Mapping[str, Any]) -> None:
    """Check that the SLSA statement is about these files and this provenance."""
    stated = dsse.subjects(statement)
    expected = {name: file["sha256"] for name, file in provenance["files"].items()}
    expected[PROVENANCE_FILE] = hashlib.sha256(data).hexdigest()
    trace = {dsse.TRACE: statement[dsse.TRACE]} if dsse.TRACE in statement else {}  # not derived from the provenance
    if stated != expected or statement != slsa_statement(provenance, expected) | trace:
        different = sorted(name for name in {*stated, *expected} if stated.get(name) != expected.get(name))
        raise SignatureError(
            f"{slsa_path(directory).name} and {PROVENANCE_FILE} disagree",
            found=f"differences in {', '.join(different) or 'the predicate'}",
            expected="the same provenance in both",
            remedy="register the checkpoint again",
        )


# A checkpoint as a signed directory: files from the content store, provenance, signature. The signature is written
# last: a directory without one is unfinished and is rebuilt from the store, whose blobs are verified while they are
# copied. Files are copies, not links: a changed model must never change the store.


def directory_of(ctx: Context, checkpoint: str) -> Path:
    """Return the path of the model directory of a checkpoint, from the digest of its manifest."""
    return ctx.workspace.models / checkpoint[:12]


def materialise(ctx: Context, checkpoint: Manifest, provenance: Mapping[str, Any]) -> Path:
    """Return the signed directory of a checkpoint. It is created if needed, and verified in either case.

    Raises:
        SignatureError: the directory exists and has been changed.
        LineageError: the directory exists and belongs to another checkpoint, or the manifest lacks a file.
        IntegrityError, MissingError: a blob of the checkpoint has changed or is absent.
    """
    _require_files(checkpoint)
    target = directory_of(ctx, checkpoint.digest)
    trust = Trust.of(ctx.workspace)
    with atomic.locked(ctx.workspace.models / ".lock"):
        if not is_signed(target):
            _build(ctx.store, target, checkpoint, provenance)
            subjects = {part.name: part.blob.sha256 for part in checkpoint.parts}
            own = hashlib.sha256(_encoded(provenance)).hexdigest()
            sign(target, provenance, subjects | {PROVENANCE_FILE: own}, trust.signer(TRAINER))
        found = verify(target, trust.authority(TRAINER))
    if found["checkpoint"]["digest"] != checkpoint.digest:
        raise LineageError(
            f"{target} belongs to another checkpoint",
            found=found["checkpoint"]["digest"],
            expected=checkpoint.digest,
            remedy="move the directory away",
        )
    return target


def _require_files(checkpoint: Manifest) -> None:
    names = [part.name for part in checkpoint.parts]
    absent = [name for name in required_files(names) if name not in names]
    if absent:
        raise LineageError(
            f"checkpoint {checkpoint.digest} is not a model",
            found=f"files {', '.join(names) or 'none'}",
            expected=f"also {', '.join(absent)}",
        )
    if PROVENANCE_FILE in names:
        raise LineageError(
            f"checkpoint {checkpoint.digest} already has {PROVENANCE_FILE}",
            expected="no such file before registration, which writes it",
        )


def _build(store: Store, target: Path, checkpoint: Manifest, provenance: Mapping[str, Any]) -> None:
    """Write the files of a checkpoint to a staging directory, then rename it to the model directory."""
    staged = target.with_name(f".{target.name}.tmp")
    with named_failures(staged):
        shutil.rmtree(staged, ignore_errors=True)
        staged.mkdir(parents=True)
    checkout(store, checkpoint.parts, staged, mode=0o444)
    with replacing(staged / PROVENANCE_FILE, mode=0o444) as stream:
        stream.write(_encoded(provenance))
    with named_failures(target):
        discard(target)
        shutil.rmtree(target, ignore_errors=True)
        staged.rename(target)
        sync_directory(target.parent)


def _encoded(provenance: Mapping[str, Any]) -> bytes:
    return json.dumps(provenance, indent=1, sort_keys=True).encode()
