"""Gather the evidence of the gates, from sources in which forgery is noticed.

Numbers come from content-addressed manifests (`registry.measured`), facts from the trainer's signed statement, the
resume proof from inside the signed directory, marks from the workspace, the champion from the signed history, decisions
from signatures and tags. Evidence that is missing stays None, and its gate fails.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from plinth.compute.context import Context
from plinth.errors import PlinthError, TrustError
from plinth.provenance.statements import Chain
from plinth.recipe.recipe import Recipe
from plinth.trust.authority import TRAINER
from plinth.trust.pin import Trust
from registry import approval, measured, releases, signing, taint
from registry.candidate import Candidate, evidence_of, signed_chain
from registry.gates import CheckResult, Evidence
from registry.gates.facts import ContaminationFacts, CostFacts, LicenceFacts, ResumeFacts, StabilityFacts
from registry.standing import standing

RESUME_FILE = "resume.json"


def gather(ctx: Context, recipe: Recipe, candidate: Candidate, tags: Mapping[str, Any]) -> Evidence:
    """All evidence about a candidate, as it is now.

    Args:
        tags: the candidate version's tags in MLflow, where people leave decisions.
    """
    provenance, signature = _signature(ctx, candidate)
    chain, lineage = _lineage(ctx, candidate, provenance)
    approvals, faults = approval.collect(ctx, candidate, tags)
    found = measured.of(ctx, candidate.checkpoint)
    return Evidence(
        signature=signature,
        lineage=lineage,
        taints=_taints(ctx, candidate, chain),
        champion=_champion(ctx, recipe.required_release().name, candidate.checkpoint),
        expected_slices=tuple(sorted(recipe.corpus.buckets)),
        evaluation=measured.evaluation(ctx, candidate.evaluation),
        probes=measured.probes(found, measured.worth(ctx, candidate.run.id)),
        tasks=measured.tasks(found),
        comparison=measured.comparison(found),
        memorisation=measured.memorisation(found),
        bias=measured.bias(found),
        resume=_resume(candidate),
        requested_by=candidate.facts.requested_by,
        approvals=approvals,
        approval_faults=faults,
        **_stated(recipe, candidate),
    )


def _stated(recipe: Recipe, candidate: Candidate) -> dict[str, Any]:
    """What the signed statement of facts says."""
    facts = candidate.facts
    documents = sum((facts.licences or {}).values())
    found: dict[str, Any] = {"cost": CostFacts(amounts=facts.cost)}
    if facts.contaminated_documents is not None:
        found["contamination"] = ContaminationFacts(documents=documents, contaminated=facts.contaminated_documents)
    if facts.licences is not None:
        permitted, sources = recipe.corpus.permitted_licences, facts.sources or {}
        found["licences"] = LicenceFacts(documents=facts.licences, permitted=permitted, sources=sources)
    if facts.stability is not None:
        found["stability"] = StabilityFacts(events=facts.stability)
    return found


def champion(ctx: Context, release: str, but: str) -> str:
    """The checkpoint of the champion by the signed history; empty where there is none.

    Args:
        but: a checkpoint that is not compared with itself: once released, it is judged beside the champion before it.

    Raises:
        SignatureError: the history does not hold.
    """
    history = releases.history(ctx, release)
    checkpoints = {record.version: record.candidate["checkpoint"] for record in history if record.version}
    held = [checkpoints[version] for version in standing(history).champions]
    return next((one for one in reversed(held) if one != but), "")


def _champion(ctx: Context, release: str, own: str) -> str | None:
    try:
        return champion(ctx, release, own)
    except TrustError:
        return None


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


def _taints(ctx: Context, candidate: Candidate, chain: Chain | None) -> tuple[str, ...] | None:
    """Marks on the candidate and on what was measured of it; None where they cannot be trusted."""
    if chain is None:
        return None
    try:
        return taint.marks_on(ctx, chain, evidence_of(ctx, candidate.checkpoint, candidate.evaluation))
    except PlinthError:
        return None


def _resume(candidate: Candidate) -> ResumeFacts | None:
    """The proof of resume inside the signed directory; one that cannot be read is none."""
    try:
        proof = json.loads((candidate.directory / RESUME_FILE).read_bytes())
        return ResumeFacts(bit_exact=proof["bit_exact"] is True, compared_steps=int(proof["compared_steps"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _sentence(error: PlinthError) -> str:
    return error.what if error.found is None else f"{error.what}: {error.found}"
