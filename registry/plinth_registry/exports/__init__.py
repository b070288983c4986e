"""Exports: a verified release with its documents and evidence, signed as one directory.

    models      a release from the signed history, verified again, with its documents and signed statements; or an
                unreleased checkpoint, with a card that labels it
    data        text and tokens: tainted data is refused, each export is recorded and signed; verified offline

This module signs an export (the seal): it writes the statement over every file, the model signature, and the record in
`exports/`. This module also handles quantized and pruned forms: the evaluator compares each form with its release, and
gates evaluate the comparison. The statement names the release, its policy and the root of trust. The role `promoter`
signs the statement of a release. The role `trainer` signs the statement of an unreleased model, which is labeled as
unreleased.

    DIRECTORY/README.md, *.safetensors, config.json, …    the model, with its card
    DIRECTORY/papers/                                     data card, bill of materials, summary of training content
    DIRECTORY/evidence/                                   signed statements, and the provenance
    DIRECTORY/model.sig                                   OpenSSF model signature of all of the above
    DIRECTORY/EXPORT.json                                 signed statement with the SHA-256 of every file

`plinth.trust.standalone_verify` verifies such a directory anywhere, without the workspace.
"""

from __future__ import annotations

import base64
import getpass
import hashlib
import json
import os
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from pydantic import Field

from plinth.compute.context import Context
from plinth.errors import GateError, IntegrityError, LineageError, SignatureError
from plinth.evaluation.measurement import JudgedCheckpoint
from plinth.model.hugging_face import required_files
from plinth.records import Frozen, Manifest
from plinth.storage.atomic import write_bytes
from plinth.trust import dsse, sigstore_bundle, standalone_verify
from plinth.trust.dsse import EVALUATOR, PROMOTER, TRAINER, now
from plinth.trust.root import Root, Trust, first
from plinth.trust.sigstore_bundle import SigstoreProof
from plinth.trust.standalone_verify import EXPORT, EXPORT_TYPE, RefusedExport
from plinth_registry import attestations, policy, signing
from plinth_registry.gates import GateResult, blocking, of_exports
from plinth_registry.gates.facts import ComparisonFacts, Evidence
from plinth_registry.gates.settings import GatePolicy

MODEL_SIGNATURE = "model.sig"

#: Digests of every file; a verifier with the package of the second one uses that, four times as fast.
QUICK = "blake3"
KINDS = ("sha256", QUICK)

#: Workspace folder with a record of every export.
EXPORT_NOTES = "exports"


class FormClaim(Frozen):
    """Claim about a quantized or pruned form of a release, with the results of the export gates that it passed.

    Args:
        name: name of the form, such as `gguf-q8_0`.
        comparison: digest of the comparison of the form with the release, signed by the evaluator.
    """

    name: str
    comparison: str
    gates: tuple[GateResult, ...]


class ExportClaim(Frozen):
    """Claims that an export makes in addition to its files.

    Args:
        name: `NAME/VERSION` of a release, or any name of an unreleased model.
        number: number of the release record, or None if there is none.
        released_at: time of the release record, for checking signatures of keys that were revoked later.
        evidence: signing role of each evidence file, by file name.
        form: form of the weights, if they were converted.
    """

    name: str
    status: Literal["released", "UNRELEASED"]
    checkpoint: str
    number: int | None = None
    policy: str | None = None
    released_at: str | None = None
    evidence: Mapping[str, str] = {}
    form: FormClaim | None = Field(None, exclude_if=lambda given: given is None)


class ExportRoot(Frozen):
    """Root of trust of an export's signers: name, version, and SHA-256 of its record."""

    name: str
    version: int
    sha256: str

    @classmethod
    def of(cls, root: Root) -> ExportRoot:
        """Return the reference to a root."""
        return cls(name=root.name, version=root.version, sha256=root.digest())


class ExportStatement(ExportClaim):
    """Predicate of a model export's statement."""

    at: str
    root: ExportRoot


def seal(ctx: Context, directory: Path, claim: ExportClaim) -> dict[str, Any]:
    """Sign a directory with its current files, and return the statement's predicate. No file may be added afterward.

    Raises:
        SignatureError: this machine has no `promoter` key (`trainer` if unreleased), or a file cannot be signed.
    """
    trust = Trust.of(ctx.workspace)
    signer = trust.signer(PROMOTER if claim.status == "released" else TRAINER)
    for path in directory.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o444)
    try:
        names = sorted(set(standalone_verify.files_of(directory)) - {MODEL_SIGNATURE})  # it is signed again
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
    stated = ExportStatement(**dict(claim), at=now(), root=ExportRoot.of(trust.root))
    predicate = stated.model_dump(mode="json")
    statement = dsse.statement(EXPORT_TYPE, digests, predicate)
    for one in statement["subject"]:
        one["digest"] |= {QUICK: quick[one["name"]]}
    dsse.write(directory / EXPORT, statement, signer)
    (directory / EXPORT).chmod(0o444)
    return predicate


def record(ctx: Context, *, name: str, status: str, subject: str, to: str, sealed: str | None = None) -> Path:
    """Record an export with its target and user in `exports/`. Records are never changed.

    Args:
        status: `released`, `UNRELEASED` or `data`.
        subject: digest of the checkpoint or manifest.
        to: folder or URI.
        sealed: SHA-256 of the export's statement, or None if there is none.
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


class ExportNote(Frozen):
    """Record of an export in `exports/`; see `record`. `at` is the time, and `by` the user."""

    name: str
    status: str
    subject: str
    to: str
    by: str = ""
    at: str = ""
    statement: str | None = None

    @property
    def run(self) -> str:
        """Run whose unreleased checkpoint was exported, or an empty text."""
        run, colon, _ = self.name.partition(":")
        return run if colon and self.status == "UNRELEASED" else ""

    def is_of(self, digests: Collection[str], steps: Collection[str] = ()) -> bool:
        """Return True if the export has one of these manifests, or an unreleased checkpoint `RUN:STEP` in `steps`."""
        return self.subject in digests or (self.status == "UNRELEASED" and self.name in steps)


def noted(ctx: Context) -> tuple[ExportNote, ...]:
    """Return the records of all exports, sorted by time. The folders of the exports are not opened.

    Raises:
        IntegrityError: a record cannot be read.
    """
    found = []
    for path in sorted((ctx.workspace.root / EXPORT_NOTES).glob("*.json")):
        try:
            found.append(ExportNote.model_validate_json(path.read_bytes()))
        except ValueError as error:
            raise IntegrityError(f"{path} is not an export record", found=repr(error)) from error
    return tuple(sorted(found, key=lambda note: (note.at, note.name, note.to)))


def is_export(directory: Path) -> bool:
    """Return True if a directory claims to be an export. The claim is not verified."""
    return (directory / EXPORT).is_file()


def verify(directory: Path, root: Path, *, unreleased: bool = False) -> dict[str, Any]:
    """Verify an export offline with a root of trust; see `standalone_verify.verify`.

    Raises:
        SignatureError: a file, the statement, its signer or the root is invalid.
    """
    try:
        return standalone_verify.verify(directory, root, unreleased)
    except (RefusedExport, OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise SignatureError(
            f"{directory} is not a verified export",
            found=str(error) or type(error).__name__,
            expected=f"exactly the files that a {PROMOTER} of the root in {root} signed",
            remedy="do not use this model; export the release again (text and tokens: `plinth export verify PLACE`)",
        ) from error


def verify_bundle(directory: Path, root: Path, bundle: Path, trusted_root: Path, role: str) -> SigstoreProof:
    """Verify a Sigstore signature over the statement of an export, by an identity that the root lists for a role.

    Raises:
        SignatureError: the bundle does not verify, or is about another statement.
    """
    envelope, known = dsse.envelope_of(directory / EXPORT), first(dsse.envelope_of(root.resolve()), str(root))
    proof, payload = sigstore_bundle.verify(bundle, trusted_root, known, role)
    if payload != base64.b64decode(envelope["payload"]):
        raise SignatureError(
            f"the Sigstore bundle {bundle} signs another statement",
            found=f"a statement with SHA-256 {hashlib.sha256(payload).hexdigest()}",
            expected=f"the payload of {directory / EXPORT}",
        )
    return proof


# Forms of a release: the plain model, or a quantized or pruned one. The evaluator states the files of each form.
#
#     attestations/<checkpoint 16>/forms.<form>.json    files of the form, and the checkpoint's files behind it
#
# A verifier accepts the files of an export only by this statement, so the promoter, who seals it, cannot replace them.
# The plain model is compared with the checkpoint, tensor by tensor. Other forms are measured on held-out text and
# evaluated by the gates of exports. An existing statement is reused for later exports of the same files, so the
# exporting machine needs no evaluator key.

#: Asset prefix of statements about forms.
FORMS: Final = standalone_verify.FORMS.rstrip("/")


class FormSource(NamedTuple):
    """Checkpoint from which a quantized or pruned form is made: its digest, its signed directory, and its recipe.

    Args:
        files: SHA-256 of weights, configuration and tokenizer, as the trainer signed them.
    """

    checkpoint: str
    directory: Path
    files: Mapping[str, str]
    recipe: str


def form_source(ctx: Context, directory: Path) -> FormSource:
    """Return the checkpoint in a signed directory, as the source of a quantized or pruned form.

    Raises:
        SignatureError: a file differs from the signed file.
    """
    signed = signing.verify(directory, Trust.of(ctx.workspace).authority(TRAINER))
    files = {name: signed["files"][name]["sha256"] for name in required_files(signed["files"])}
    return FormSource(signed["checkpoint"]["digest"], directory, files, signed["recipe"]["fingerprint"])


def require_plain(ctx: Context, directory: Path, folder: Path) -> None:
    """Check that the plain model in a folder equals the checkpoint that its trainer signed.

    Raises:
        IntegrityError: the folder has another model or tokenizer.
        CheckpointError: a file of the checkpoint has another digest.
    """
    from plinth.model.export import require_same

    source = form_source(ctx, directory)
    require_same(source.directory, source.files, folder, _files_of(folder))


def state_plain(ctx: Context, source: FormSource, form: str, folder: Path, plain: Path | None = None) -> None:
    """Check that the plain model in a folder equals its checkpoint, and sign a statement about its files.

    Args:
        form: name of the form, such as `hf-bfloat16` or `megatron`.
        plain: folder to compare with the checkpoint, if `folder` has the same weights in another trainer's layout.

    Raises:
        SignatureError: there is no statement about these files, and no evaluator key on this machine.
        IntegrityError: the folder has another model or tokenizer.
    """
    from plinth.model.export import require_same

    files = _files_of(folder)
    if not _is_stated(ctx, source, form, {"files": files}):
        compared = plain or folder
        require_same(source.directory, source.files, compared, _files_of(compared))
        _state(ctx, source, form, {"files": files})


def judge_form(
    ctx: Context, source: FormSource, release: str, form: str, compared: Manifest, folder: Path
) -> FormClaim:
    """Sign the measurement of a quantized or pruned form, and evaluate the export gates on it.

    Args:
        release: name of the release; its signed policy has the limits.
        form: name of the form, such as `gguf-q8_0`.
        compared: comparison of the form (a) with the checkpoint of the release (b).
        folder: folder of the form.

    Raises:
        GateError: a gate blocks the form.
        SignatureError: this machine has no evaluator key, or the policy does not verify.
    """
    facts = attestations.measured_facts({"comparison": compared}, JudgedCheckpoint()).get("comparison")
    if not isinstance(facts, ComparisonFacts):
        raise LineageError(f"the comparison {compared.digest[:12]} cannot be read")
    materials = {f"{FORMS}/{form}": compared.digest, "weights": facts.candidate, **compared.inputs}
    stated = {"files": _files_of(folder), "lines": [one.model_dump(mode="json") for one in facts.lines]}
    if not _is_stated(ctx, source, form, stated):
        _state(ctx, source, form, stated, materials)
    results = of_exports(_policy(ctx, release), Evidence(measured={"comparison": facts}))
    if closed := blocking(results):
        raise GateError(
            f"{form} of {release} is blocked by gates",
            found="; ".join(f"{one.name}: {one.detail}" for one in closed),
            expected="no failed export gates",
            remedy="choose a form with more bits, or sign a policy with other limits (`extensions: {compressed: …}`)",
        )
    return FormClaim(name=form, comparison=compared.digest, gates=results)


def form_statement(ctx: Context, checkpoint: str, form: str) -> Path:
    """Return the path of the signed statement about a checkpoint's form, such as `gguf-q8_0`."""
    return attestations.path_of(ctx, checkpoint, f"{FORMS}/{form}")


def _files_of(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of every file in an exported form by name, before documents and evidence are added."""
    return {name: standalone_verify.digest_of(folder / name) for name in standalone_verify.files_of(folder)}


def _is_stated(ctx: Context, source: FormSource, form: str, facts: Mapping[str, Any]) -> bool:
    """Return True if the evaluator has already attested these facts about the exported form."""
    known = attestations.about(ctx, source.checkpoint).valid.get(f"{FORMS}/{form}")
    return known is not None and known.facts == _facts(source, form, facts)


def _facts(source: FormSource, form: str, facts: Mapping[str, Any]) -> dict[str, Any]:
    return {"form": form, "source": dict(source.files), **facts}


def _state(
    ctx: Context, source: FormSource, form: str, facts: Mapping[str, Any], materials: Mapping[str, str] | None = None
) -> None:
    asset, stated = f"{FORMS}/{form}", _facts(source, form, facts)
    about = {"materials": materials or {}, "facts": stated}
    try:
        attestations.attest(ctx, source.recipe, "measurement", asset, source.checkpoint, **about)
    except SignatureError as error:
        raise SignatureError(
            f"no statement proves that the files of {form} are derived from checkpoint {source.checkpoint[:12]}",
            found=error.brief,
            expected=f"a statement by the {EVALUATOR} about these files",
            remedy=f"first run this command on the machine that has the {EVALUATOR}'s key, so that the statement is "
            "signed",
        ) from error


def _policy(ctx: Context, release: str) -> GatePolicy:
    return policy.current(ctx, release).policy
