"""Forms of a release: the plain model, or a quantised or pruned one. The evaluator states which files hold it.

    attestations/<checkpoint 16>/forms.<form>.json    files of the form, and the checkpoint's files that it was made of

A verifier accepts the files of an export by this statement only: the promoter, who seals the export, cannot exchange
them. The plain model is compared with the checkpoint, tensor by tensor. Another form is measured on held-out text and
judged by the gates of exports. A statement that is there already serves every later export of the same files, so that
the machine that exports needs no key of the evaluator.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from plinth.compute.context import Context
from plinth.errors import GateError, LineageError, SignatureError
from plinth.evaluation.measurement import JudgedCheckpoint
from plinth.model.hugging_face import required_files
from plinth.records import Manifest
from plinth.trust import standalone_verify
from plinth.trust.authority import EVALUATOR, TRAINER
from plinth.trust.root import Trust
from plinth_registry import attestations, measured, policy, signing
from plinth_registry.exports.sealed import FormClaim
from plinth_registry.gates import Evidence, GatePolicy, blocking, of_exports
from plinth_registry.gates.facts import ComparisonFacts

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


def source_of(ctx: Context, directory: Path) -> FormSource:
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


def judge(ctx: Context, source: FormSource, release: str, form: str, compared: Manifest, folder: Path) -> FormClaim:
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
    facts = measured.facts({"comparison": compared}, JudgedCheckpoint()).get("comparison")
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


def statement_of(ctx: Context, checkpoint: str, form: str) -> Path:
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
