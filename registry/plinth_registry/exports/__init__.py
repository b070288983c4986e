"""What leaves the workspace: a verified release with its documents and evidence, signed as one directory.

    models      a release from the signed history, verified again, with its documents and signed statements; or a
                checkpoint that no history released, with a card that says so
    data        text and tokens: what is tainted stays, each export is recorded and signed; verified offline

Here is the seal of an export: the statement over every file, the model signature, the record in `exports/`; quantised
and pruned forms, measured against their release, stated by the evaluator, judged by gates. The statement names the
release, its policy and the root under which it was signed. The role `promoter` signs it, or `trainer` for a model
without a release, and it says so.

    DIRECTORY/README.md, *.safetensors, config.json, …    the model, with its card
    DIRECTORY/papers/                                     data card, bill of materials, summary of training content
    DIRECTORY/evidence/                                   signed statements, and the provenance
    DIRECTORY/model.sig                                   OpenSSF model signature of all of the above
    DIRECTORY/EXPORT.json                                 signed statement with the SHA-256 of every file

`plinth.trust.standalone_verify` proves such a directory anywhere, with nothing of the workspace.
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
from typing import Any, Final, Literal, NamedTuple

from pydantic import Field

from plinth.compute.context import Context
from plinth.errors import GateError, LineageError, SignatureError
from plinth.evaluation.measurement import JudgedCheckpoint
from plinth.model.hugging_face import required_files
from plinth.records import Frozen, Manifest
from plinth.storage.atomic import write_bytes
from plinth.trust import dsse, sigstore_bundle, standalone_verify
from plinth.trust.dsse import EVALUATOR, PROMOTER, TRAINER, now
from plinth.trust.root import Trust, first
from plinth.trust.sigstore_bundle import SigstoreProof
from plinth.trust.standalone_verify import EXPORT, EXPORT_TYPE, RefusedExport
from plinth_registry import attestations, policy, signing
from plinth_registry.gates import GateResult, blocking, of_exports
from plinth_registry.gates.facts import ComparisonFacts, Evidence
from plinth_registry.gates.settings import GatePolicy

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


# Forms of a release: the plain model, or a quantised or pruned one. The evaluator states which files hold it.
#
#     attestations/<checkpoint 16>/forms.<form>.json    files of the form, and the checkpoint's files behind it
#
# A verifier accepts the files of an export by this statement only: the promoter, who seals the export, cannot exchange
# them. The plain model is compared with the checkpoint, tensor by tensor. Another form is measured on held-out text and
# judged by the gates of exports. A statement that is there already serves every later export of the same files, so that
# the machine that exports needs no key of the evaluator.

#: Folder of the assets under which forms are stated about the checkpoint of their release.
FORMS: Final = standalone_verify.FORMS.rstrip("/")


class FormSource(NamedTuple):
    """The checkpoint that a form holds: its digest, its signed directory, and that of its recipe.

    Args:
        files: SHA-256 of weights, configuration and tokenizer, as the trainer signed them.
    """

    checkpoint: str
    directory: Path
    files: Mapping[str, str]
    recipe: str


def form_source(ctx: Context, directory: Path) -> FormSource:
    """The checkpoint in a signed directory.

    Raises:
        SignatureError: a file differs from what was signed.
    """
    signed = signing.verify(directory, Trust.of(ctx.workspace).authority(TRAINER))
    files = {name: signed["files"][name]["sha256"] for name in required_files(signed["files"])}
    return FormSource(signed["checkpoint"]["digest"], directory, files, signed["recipe"]["fingerprint"])


def state_plain(ctx: Context, source: FormSource, form: str, folder: Path) -> None:
    """Compare the plain model in a folder with its checkpoint, and state its files.

    Args:
        form: such as `hf-bfloat16`.

    Raises:
        SignatureError: nobody stated these files, and no key of the evaluator is here.
        IntegrityError: the folder holds another model, or another tokenizer.
    """
    from plinth.model.export import require_same

    files = _files_of(folder)
    if not _is_stated(ctx, source, form, {"files": files}):
        require_same(source.directory, source.files, folder, files)
        _state(ctx, source, form, {"files": files})


def judge_form(
    ctx: Context, source: FormSource, release: str, form: str, compared: Manifest, folder: Path
) -> FormClaim:
    """Sign what was measured of a form, and ask the gates of exports.

    Args:
        release: name of the release; its signed policy has the bounds.
        form: such as `gguf-q8_0`.
        compared: comparison of the form (a) with the checkpoint of the release (b).
        folder: of the form.

    Raises:
        GateError: a gate holds the form back.
        SignatureError: no key of the evaluator, or no policy that holds.
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
            f"{form} of {release} may not leave",
            found="; ".join(f"{one.name}: {one.detail}" for one in closed),
            expected="no gate of exports failed",
            remedy="choose a form with more bits; or sign a policy with other bounds (`extensions: {compressed: …}`)",
        )
    return FormClaim(name=form, comparison=compared.digest, gates=results)


def form_statement(ctx: Context, checkpoint: str, form: str) -> Path:
    """Where the statement about a form lies."""
    return attestations.path_of(ctx, checkpoint, f"{FORMS}/{form}")


def _files_of(folder: Path) -> dict[str, str]:
    """SHA-256 of the files of a form, by name, before papers and evidence are added."""
    return {name: standalone_verify.digest_of(folder / name) for name in standalone_verify.files_of(folder)}


def _is_stated(ctx: Context, source: FormSource, form: str, facts: Mapping[str, Any]) -> bool:
    """True if the evaluator has stated the same before."""
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
            f"nobody stated that the files of {form} hold checkpoint {source.checkpoint[:12]}",
            found=error.brief,
            expected=f"a statement of the {EVALUATOR} about these very files",
            remedy=f"run the same command where the {EVALUATOR}'s key is, which signs the statement; then here again",
        ) from error


def _policy(ctx: Context, release: str) -> GatePolicy:
    return policy.current(ctx, release).policy
