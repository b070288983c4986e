"""The seal of an export: a statement over every file of a directory, and the record that it was made.

The statement names the release, its policy and the root under which it was signed. It is signed as `promoter`; of a
model that nobody released as `trainer`, and says so. Who verifies it is `plinth.trust.standalone_verify`. Text and
tokens: `signed_data`.
"""

from __future__ import annotations

import base64
import getpass
import hashlib
import json
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from plinth.compute.context import Context
from plinth.errors import SignatureError
from plinth.records import Frozen
from plinth.storage.atomic import write_bytes
from plinth.trust import dsse, sigstore_bundle, standalone_verify
from plinth.trust.authority import PROMOTER, TRAINER, now
from plinth.trust.root import Trust, first
from plinth.trust.sigstore_bundle import SigstoreProof
from plinth.trust.standalone_verify import EXPORT, EXPORT_TYPE, RefusedExport
from plinth_registry import signing
from plinth_registry.gates.result import GateResult

MODEL_SIGNATURE = "model.sig"

#: Digests of every file; a verifier that has the second one's package compares that, four times as fast.
QUICK = "blake3"
KINDS = ("sha256", QUICK)

#: Folder of a workspace with a note for every export.
EXPORT_NOTES = "exports"


class FormClaim(Frozen):
    """A quantised or pruned form of a release, and the gates that let it leave.

    Args:
        name: such as `gguf-q8_0`.
        comparison: digest of the comparison of the form with the release, which the evaluator has signed.
    """

    name: str
    comparison: str
    gates: tuple[GateResult, ...]


class ExportClaim(Frozen):
    """What an export states beside its files.

    Args:
        name: `NAME/VERSION` of a release; any name of an unreleased model.
        number: of the release record; None without one.
        released_at: when the release was recorded, for signatures of keys that were revoked since.
        evidence: by file name the role that signed it.
        form: what the weights became, where the export is not the weights themselves.
    """

    name: str
    status: Literal["released", "UNRELEASED"]
    checkpoint: str
    number: int | None = None
    policy: str | None = None
    released_at: str | None = None
    evidence: Mapping[str, str] = {}
    form: FormClaim | None = Field(None, exclude_if=lambda given: given is None)


def seal(ctx: Context, directory: Path, claim: ExportClaim) -> dict[str, Any]:
    """Sign a directory as it is; nothing may be added afterwards. Returns the statement's predicate.

    Raises:
        SignatureError: no key as `promoter` (of what is unreleased as `trainer`), or a file that cannot be signed.
    """
    trust = Trust.of(ctx.workspace)
    signer = trust.signer(PROMOTER if claim.status == "released" else TRAINER)
    for path in directory.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o444)
    try:
        names = sorted(set(standalone_verify.files_of(directory)) - {MODEL_SIGNATURE})  # it is signed anew
    except RefusedExport as error:
        raise SignatureError(f"{directory} cannot be exported", found=error) from error
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        paths = [directory / name for name in names]
        found = [pool.map(partial(standalone_verify.digest_of, kind=kind), paths) for kind in KINDS]
        digests, quick = (dict(zip(names, own, strict=True)) for own in found)
    bundle = directory / MODEL_SIGNATURE
    signing.sign_digests(directory, digests, bundle, signer)
    bundle.chmod(0o444)
    digests[MODEL_SIGNATURE], quick[MODEL_SIGNATURE] = (standalone_verify.digest_of(bundle, kind) for kind in KINDS)
    root = {"name": trust.root.name, "version": trust.root.version, "sha256": trust.root.digest()}
    predicate = claim.model_dump(mode="json") | {"at": now(), "root": root}
    statement = dsse.statement(EXPORT_TYPE, digests, predicate)
    for one in statement["subject"]:
        one["digest"] |= {QUICK: quick[one["name"]]}
    dsse.write(directory / EXPORT, statement, signer)
    (directory / EXPORT).chmod(0o444)
    return predicate


def record(ctx: Context, *, name: str, status: str, subject: str, to: str, sealed: str | None = None) -> Path:
    """Note in `exports/` what was exported, where to and by whom; only ever added to.

    Args:
        status: `released`, `UNRELEASED` or `data`.
        subject: digest of the checkpoint or manifest.
        to: folder or URI.
        sealed: SHA-256 of the export's statement; None where it has none.
    """
    folder = ctx.workspace.root / EXPORT_NOTES
    folder.mkdir(parents=True, exist_ok=True)
    note = {
        "name": name,
        "status": status,
        "subject": subject,
        "to": to,
        "by": getpass.getuser(),
        "at": now(),
        "statement": sealed,
    }
    path = folder / f"{hashlib.sha256(json.dumps(note, sort_keys=True).encode()).hexdigest()[:16]}.json"
    write_bytes(path, json.dumps(note, indent=1, sort_keys=True).encode(), mode=0o600)
    return path


def is_export(directory: Path) -> bool:
    """Whether a directory claims to be an export; nothing is verified."""
    return (directory / EXPORT).is_file()


def verify(directory: Path, root: Path, *, unreleased: bool = False) -> dict[str, Any]:
    """Prove an export offline; see `standalone_verify.verify`.

    Raises:
        SignatureError: a file, the statement, its signer or the root is not as it must be.
    """
    try:
        return standalone_verify.verify(directory, root, unreleased)
    except (RefusedExport, OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise SignatureError(
            f"{directory} is not a verified export",
            found=str(error) or type(error).__name__,
            expected=f"every file as a {PROMOTER} of the root in {root} signed it, and no others",
            remedy="do not use this model; export the release again (text and tokens: `plinth export verify PLACE`)",
        ) from error


def verify_bundle(directory: Path, root: Path, bundle: Path, trusted_root: Path, role: str) -> SigstoreProof:
    """Prove that somebody whom the root names for a role signed the statement of a verified export by Sigstore too.

    Raises:
        SignatureError: the bundle does not hold, or it is over something else than this export's statement.
    """
    envelope, known = dsse.envelope_of(directory / EXPORT), first(dsse.envelope_of(root.resolve()), str(root))
    proof, payload = sigstore_bundle.verify(bundle, trusted_root, known, role)
    if payload != base64.b64decode(envelope["payload"]):
        raise SignatureError(
            f"the Sigstore bundle {bundle} is about something else",
            found=f"a statement with SHA-256 {hashlib.sha256(payload).hexdigest()}",
            expected=f"the payload of {directory / EXPORT}",
        )
    return proof
