"""Sign and verify a model directory: OpenSSF model signing, and SLSA provenance beside it.

    models/<12>/                 the directory: weights, tokenizer, state, resume proof, provenance.json
    models/<12>.sig              Sigstore bundle over every file of it (BLAKE3)
    models/<12>.slsa.json        DSSE envelope: SLSA Provenance v1 over the same files (SHA-256)

Signatures lie outside the directory because a signature inside would be one more file of the model.
Both are made with the trainer's key. Nothing is ignored: an added, missing or changed file is named.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from plinth.errors import SignatureError
from plinth.provenance.statements import PROVENANCE_SCHEMA, SLSA_PREDICATE, slsa_statement
from plinth.trust import dsse
from plinth.trust.keys import KeyPair

PROVENANCE_FILE = "provenance.json"


def signature_path(directory: Path) -> Path:
    """The path of a directory's model signature."""
    return directory.with_name(f"{directory.name}.sig")


def slsa_path(directory: Path) -> Path:
    """The path of a directory's SLSA statement."""
    return directory.with_name(f"{directory.name}.slsa.json")


def is_signed(directory: Path) -> bool:
    """Whether signing was finished: the statement is written last. Nothing is verified."""
    return all(
        path.is_file() for path in (directory / PROVENANCE_FILE, signature_path(directory), slsa_path(directory))
    )


def discard(directory: Path) -> None:
    """Remove signatures that belong to a directory about to be replaced."""
    slsa_path(directory).unlink(missing_ok=True)
    signature_path(directory).unlink(missing_ok=True)


def sign(directory: Path, provenance: Mapping[str, Any], subjects: Mapping[str, str], key: KeyPair) -> None:
    """Sign every file of a directory, with a statement of their provenance.

    Args:
        directory: holds the files, `provenance.json` among them.
        provenance: the content of that file.
        subjects: SHA-256 by file name, for every file.

    Raises:
        SignatureError: the key is missing or not private, or the directory cannot be signed.
    """
    from model_signing.signing import Config

    config = Config()  # type: ignore[no-untyped-call]
    signer = config.use_elliptic_key_signer(private_key=key.checked().private).set_hashing_config(_hashing())
    target = signature_path(directory)
    staged = target.with_name(f".{target.name}.tmp")
    try:
        signer.sign(directory, staged)
        staged.replace(target)
    except ValueError as error:
        raise SignatureError(f"{directory} cannot be signed", found=error) from error
    finally:
        staged.unlink(missing_ok=True)
    dsse.write(slsa_path(directory), slsa_statement(provenance, subjects), key)


def verify(directory: Path, key: KeyPair) -> dict[str, Any]:
    """Prove that a directory holds the signed files and no others. Returns its provenance.

    Raises:
        SignatureError: no signature, another signer, or a file that differs; the file is named.
    """
    from cryptography.exceptions import InvalidSignature
    from model_signing.verifying import Config

    _present(directory)
    key.verifier()
    config = Config()  # type: ignore[no-untyped-call]
    try:
        verifier = config.use_elliptic_key_verifier(public_key=key.public).set_hashing_config(_hashing())
        verifier.verify(directory, signature_path(directory))
    except (ValueError, KeyError, TypeError, AttributeError, InvalidSignature, OSError) as error:
        raise SignatureError(
            f"the signature of {directory} does not hold",
            found=str(error) or type(error).__name__,
            expected=f"the files that {key.public.name} signed, unchanged, and no others",
            remedy="do not use this model; register the checkpoint again, or roll back to another version",
        ) from error
    provenance = _provenance(directory)
    _agree(directory, provenance, dsse.read(slsa_path(directory), key, SLSA_PREDICATE))
    return provenance


def _hashing() -> Any:
    """Hash every file: by default model signing would skip git's own files, so that one could be added unseen."""
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
                expected="a registered model directory with its signature and statement beside it",
                remedy="register the checkpoint, or restore the file",
            )


def _provenance(directory: Path) -> dict[str, Any]:
    try:
        content = json.loads((directory / PROVENANCE_FILE).read_bytes())
    except ValueError as error:
        raise SignatureError(f"{directory / PROVENANCE_FILE} is not JSON", found=error) from error
    schema = content.get("schema") if isinstance(content, dict) else None
    if schema != PROVENANCE_SCHEMA:
        raise SignatureError(
            f"{directory / PROVENANCE_FILE} is of another kind", found=schema, expected=PROVENANCE_SCHEMA
        )
    return dict(content)


def _agree(directory: Path, provenance: Mapping[str, Any], statement: Mapping[str, Any]) -> None:
    """The statement must be about these files and this provenance."""
    stated = dsse.subjects(statement)
    expected = {name: file["sha256"] for name, file in provenance["files"].items()}
    expected[PROVENANCE_FILE] = hashlib.sha256((directory / PROVENANCE_FILE).read_bytes()).hexdigest()
    if stated != expected or statement != slsa_statement(provenance, expected):
        different = sorted(name for name in {*stated, *expected} if stated.get(name) != expected.get(name))
        raise SignatureError(
            f"{slsa_path(directory).name} and {PROVENANCE_FILE} disagree",
            found=f"differences in {', '.join(different) or 'the predicate'}",
            expected="one account of where the model comes from",
            remedy="register the checkpoint again",
        )
