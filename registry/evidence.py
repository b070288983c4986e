"""Gather the evidence of the gates, from sources in which forgery is noticed.

Numbers come from content-addressed manifests, facts from the trainer's signed statement, the resume
proof from inside the signed directory, marks from the workspace, decisions from signatures and tags.
Evidence that is missing stays None, and its gate fails.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from plinth.compute.context import Context
from plinth.errors import PlinthError, TrustError
from plinth.provenance.statements import Chain
from plinth.recipe.recipe import Recipe
from plinth.trust.authority import TRAINER
from plinth.trust.pin import Trust
from registry import approval, signing, taint
from registry.candidate import Candidate, signed_chain
from registry.gates import CheckResult, Evidence, SliceScore

RESUME_FILE = "resume.json"


def gather(ctx: Context, recipe: Recipe, candidate: Candidate, tags: Mapping[str, Any]) -> Evidence:
    """All evidence about a candidate, as it is now.

    Args:
        tags: the candidate version's tags in MLflow, where people leave decisions.
    """
    provenance, signature = _signature(ctx, candidate)
    chain, lineage = _lineage(ctx, candidate, provenance)
    approvals, faults = approval.collect(ctx, candidate, tags)
    return Evidence(
        signature=signature,
        lineage=lineage,
        slices=_slices(ctx, candidate),
        expected_slices=tuple(sorted(recipe.corpus.buckets)),
        contaminated_documents=candidate.facts.contaminated_documents,
        licences=candidate.facts.licences,
        permitted_licences=recipe.corpus.permitted_licences,
        resume=_resume(candidate),
        stability=candidate.facts.stability,
        taints=None if chain is None else taint.marks_on(ctx, chain),
        requested_by=candidate.facts.requested_by,
        approvals=approvals,
        approval_faults=faults,
    )


def _signature(ctx: Context, candidate: Candidate) -> tuple[Mapping[str, Any] | None, CheckResult]:
    try:
        provenance = signing.verify(candidate.directory, Trust.of(ctx.workspace).authority(TRAINER))
    except TrustError as error:
        return None, CheckResult(holds=False, detail=_sentence(error))
    return provenance, CheckResult(holds=True, detail=f"every file is as the {TRAINER} signed it")


def _lineage(
    ctx: Context, candidate: Candidate, provenance: Mapping[str, Any] | None
) -> tuple[Chain | None, CheckResult | None]:
    if provenance is None:
        return None, None
    try:
        chain = signed_chain(ctx, candidate, provenance)
    except TrustError as error:
        return None, CheckResult(holds=False, detail=_sentence(error))
    detail = f"{len(chain.links)} manifests, complete down to {len(chain.sources)} source inventories"
    return chain, CheckResult(holds=True, detail=detail)


def _slices(ctx: Context, candidate: Candidate) -> dict[str, SliceScore] | None:
    """Scores by slice; a slice whose numbers cannot be read counts as worse than any baseline, never as absent."""
    try:
        stats = ctx.refs.load(candidate.evaluation).stats.get("slices")
    except PlinthError:
        return None
    if not isinstance(stats, Mapping):
        return None
    return {str(name): _score(row) for name, row in stats.items()}


def _score(row: Any) -> SliceScore:
    try:
        return SliceScore(
            bytes=row["bytes"], model=float(row["model"]), gzip=float(row["gzip"]), trigram=float(row["trigram"])
        )
    except (KeyError, TypeError, ValueError, ValidationError):
        return SliceScore(bytes=0, model=math.inf, gzip=0.0, trigram=0.0)


def _resume(candidate: Candidate) -> CheckResult | None:
    """The proof of resume inside the signed directory."""
    path = candidate.directory / RESUME_FILE
    try:
        proof = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        return CheckResult(holds=False, detail=f"{RESUME_FILE} cannot be read: {error}")
    exact = proof.get("bit_exact") if isinstance(proof, dict) else None
    if exact is None:
        return None
    detail = "a resumed run is bit-identical to an uninterrupted one" if exact is True else "a resumed run differs"
    return CheckResult(holds=exact is True, detail=detail)


def _sentence(error: PlinthError) -> str:
    return error.what if error.found is None else f"{error.what}: {error.found}"
