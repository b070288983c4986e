"""Gather the evidence of the gates, from sources in which forgery is noticed.

Numbers come from manifests that the evaluator has signed for (`plinth_registry.measured`), facts from statements of the
role that may make them (`plinth_registry.attestations`), marks from the signed log, the champion from the signed
history, decisions from signatures and tags. Evidence that is missing stays None, and its gate fails.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from pydantic import ValidationError

from plinth.compute.context import Context
from plinth.corpus.canaries.parameters import BUCKET as CANARIES
from plinth.errors import PlinthError, TrustError
from plinth.evaluation.measurement import JudgedCheckpoint
from plinth.provenance.statements import INITIAL, Chain, attempts_of
from plinth.recipe.recipe import Recipe
from plinth.records import Manifest
from plinth.text.plural import counted
from plinth.trust.authority import TRAINER
from plinth.trust.root import Trust
from plinth_registry import approval, attestations, measured, policy, releases, signing, taint, trained
from plinth_registry.attestations import Attestation
from plinth_registry.candidate import Candidate, evidence_of, resume_facts, signed_chain
from plinth_registry.gates import CheckResult, Evidence
from plinth_registry.gates.facts import (
    CodeFacts,
    ContaminationFacts,
    CostFacts,
    LicenceFacts,
    ResumeFacts,
    StabilityFacts,
)
from plinth_registry.gates.settings import release_gates
from plinth_registry.recount.measurements import differences


def gather(
    ctx: Context, recipe: Recipe, candidate: Candidate, tags: Mapping[str, Any], *, whole: bool = True
) -> Evidence:
    """All evidence about a candidate, as it is now; figures of measurements are counted again from their tables.

    Args:
        tags: the candidate version's tags in MLflow, where people leave decisions.
        whole: also count claims about training text again, which reads a column of all of it.
    """
    provenance, signature = _signature(ctx, candidate)
    chain, lineage, code = _lineage(ctx, candidate, provenance)
    approvals, faults = approval.collect(ctx, candidate, tags, policy.governing(ctx, recipe.required_release().name))
    stated = attestations.about(ctx, candidate.checkpoint)
    found = measured.of(ctx, candidate.checkpoint, stated.valid)
    return Evidence(
        signature=_with_faults(signature, stated.faults),
        lineage=lineage,
        code=code,
        taints=_taints(ctx, candidate, chain),
        champion=_champion(ctx, recipe.required_release().name, candidate.checkpoint),
        parent=_parent(chain),
        expected_slices=tuple(sorted({*recipe.corpus.buckets, *(provenance or {}).get("materials", {})})),
        measured=measured.facts(found, JudgedCheckpoint(candidate.evaluation, provenance, _trained_on(chain))),
        own=_own(ctx, recipe.required_release().name),
        requested_by=candidate.facts.requested_by,
        approvals=approvals,
        approval_faults=faults,
        miscounted=_miscounted(ctx, candidate, found, stated.valid, chain if whole else None),
        **dict(_facts(stated.valid)),
    )


def _trained_on(ancestry: Chain | None) -> frozenset[str] | None:
    """Digests of the curated text that a checkpoint was trained on; planted texts are generated, and the text behind
    the weights that it began from is judged with those."""
    if ancestry is None:
        return None
    links = (link for link in ancestry.own if link.asset.endswith("/curated"))
    return frozenset(link.digest for link in links if link.asset != f"{CANARIES}/curated")


def _miscounted(
    ctx: Context,
    candidate: Candidate,
    found: Mapping[str, Manifest],
    stated: Mapping[str, Attestation],
    chain: Chain | None,
) -> dict[str, tuple[str, ...]]:
    """Figures that the tables do not give; of training text only with its ancestry."""
    from plinth_registry.recount import corpus, measurements  # compiled kernels, which only a candidate needs

    wrong = measurements.faults(ctx, found)
    if chain is not None:
        wrong |= corpus.faults(ctx, stated, chain)
    if "resume" in stated:
        counted = resume_facts(ctx.refs.load(candidate.checkpoint), candidate.directory)
        if own := differences(dict(stated["resume"].facts), counted):
            wrong["resume"] = own
    return wrong


def _facts(attested: Mapping[str, Attestation]) -> Iterator[tuple[str, Any]]:
    """Facts of the run and its data, each as the role that may state it has signed it; what cannot be read is none."""
    made: dict[str, Callable[..., Any]] = {
        "contamination": ContaminationFacts,
        "licences": LicenceFacts,
        "resume": ResumeFacts,
        "stability": StabilityFacts,
        "cost": CostFacts,
    }
    for kind, record in made.items():
        one = attested.get(kind)
        if one is not None and one.kind == kind:
            with suppress(ValidationError, TypeError):
                yield kind, record(**one.facts)


def _with_faults(found: CheckResult, faults: tuple[str, ...]) -> CheckResult:
    """A statement about the checkpoint that does not hold is a changed file of the candidate."""
    return CheckResult(holds=False, detail="; ".join((found.detail, *faults))) if faults else found


def champion(ctx: Context, release: str, but: str) -> str:
    """The checkpoint of the champion by the signed history; empty where there is none.

    Args:
        but: a checkpoint that is not compared with itself: once released, it is judged beside the champion before it.

    Raises:
        SignatureError: the history does not hold.
    """
    history = releases.history(ctx, release)
    checkpoints = {record.version: record.candidate["checkpoint"] for record in history if record.version}
    held = [checkpoints[version] for version in history.standing.champions]
    return next((one for one in reversed(held) if one != but), "")


def _champion(ctx: Context, release: str, own: str) -> str | None:
    try:
        return champion(ctx, release, own)
    except TrustError:
        return None


def _own(ctx: Context, release: str) -> dict[str, Any]:
    """What gates find themselves, by the policy that governs; nothing where that, or what they read, cannot be read."""
    found: dict[str, Any] = {}
    with suppress(PlinthError):
        governing = policy.current(ctx, release).policy
        for name in governing.asked:
            gate = release_gates().get(name)
            if gate and gate.find:
                with suppress(PlinthError):
                    found[name] = gate.find(ctx, governing.parameters(gate))
    return found


def _parent(chain: Chain | None) -> str | None:
    """Digest of what the run began from; empty where that was random, None where the chain does not hold."""
    if chain is None:
        return None
    return next((digest for link in chain.own if link.asset == INITIAL for digest in link.inputs.values()), "")


def _signature(ctx: Context, candidate: Candidate) -> tuple[Mapping[str, Any] | None, CheckResult]:
    try:
        provenance = signing.verify(candidate.directory, Trust.of(ctx.workspace).authority(TRAINER))
    except TrustError as error:
        return None, CheckResult(holds=False, detail=error.brief)
    return provenance, CheckResult(holds=True, detail=f"all files match the {TRAINER}'s signature")


def _lineage(
    ctx: Context, candidate: Candidate, provenance: Mapping[str, Any] | None
) -> tuple[Chain | None, CheckResult | None, CodeFacts | None]:
    if provenance is None:
        return None, None, None
    try:
        chain = signed_chain(ctx, candidate, provenance)
        attempts = attempts_of(provenance["training"])
    except TrustError as error:
        return None, CheckResult(holds=False, detail=error.brief), None
    sources = counted(len(chain.sources), "source inventory")
    detail = f"{counted(len(chain.links), 'manifest')}, complete down to {sources}"
    detail += f"; {trained.in_words(ctx.refs.load(candidate.checkpoint), attempts)}"
    return chain, CheckResult(holds=True, detail=detail), trained.code(attempts)


def _taints(ctx: Context, candidate: Candidate, chain: Chain | None) -> tuple[str, ...] | None:
    """Marks on the candidate and on what was measured of it; None where they cannot be trusted."""
    if chain is None:
        return None
    try:
        return taint.marks_on(ctx, chain, evidence_of(ctx, candidate.checkpoint, candidate.evaluation))
    except PlinthError:
        return None
