"""A candidate and its gates, judged now: by the signed policy that governs, on evidence that is read each time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from plinth.compute.context import Context
from plinth.errors import GateError, LineageError, PlinthError, SignatureError, TrustError
from plinth.recipe.recipe import Recipe
from plinth.trust.root import Trust
from plinth_registry import attestations, evidence, gates, policy, signing, verdict, waivers
from plinth_registry import candidate as candidates
from plinth_registry.candidate import Candidate
from plinth_registry.gates.settings import always
from plinth_registry.policy import SignedPolicy
from plinth_registry.registration import show_gates
from plinth_registry.version_text import scores


class Judgement(NamedTuple):
    """A candidate with its present evidence, the policy that governs, and the results of its gates.

    Without a signed policy there is one result: the gate `policy`, failed. `faults` are waivers that do not count.
    """

    candidate: Candidate
    evidence: gates.Evidence
    results: tuple[gates.GateResult, ...]
    policy: SignedPolicy | None
    faults: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        return gates.is_open(self.results)


def judge(ctx: Context, client: Any | None, recipe: Recipe, version: Any, *, whole: bool = True) -> Judgement:
    """A candidate and its gates, judged now and shown on its version in MLflow.

    Args:
        client: of MLflow; None: only judged.
        whole: also count claims about training text again; nothing is promoted without.

    Raises:
        SignatureError, LineageError: the version cannot be tied to a candidate.
    """
    found = candidates.read(ctx, version)
    gathered = evidence.gather(ctx, recipe, found, version.tags, whole=whole)
    judged = _judged(ctx, recipe, found, gathered)
    if client is not None:
        root, measured = Trust.of(ctx.workspace).root.title, _measured(ctx, found)
        show_gates(client, version, judged.results, root, judged.policy, measured)
    return judged


def write_verdict(ctx: Context, recipe: Recipe, judged: Judgement) -> None:
    """The signed verdict beside the candidate, of a refused promotion, too."""
    if judged.policy is None:
        return
    found, release = judged.candidate, recipe.required_release().name
    read = [candidates.evidence_path(found.directory, found.key), *waivers.paths(ctx, release, found.key)]
    read += sorted((ctx.workspace.approvals / found.key[:12]).glob("*.json"))
    read += sorted(attestations.folder_of(ctx, found.checkpoint).glob("*.json"))
    signed = (signing.signature_path(found.directory), signing.slsa_path(found.directory))
    read += [path for path in signed if path.exists()]
    verdict.write(ctx, found, judged.policy, judged.results, read, judged.faults)


def require_open(judged: Judgement) -> None:
    """Require that no gate blocks promotion.

    Raises:
        SignatureError, LineageError, GateError: by the first gate that does, with the reason of each.
    """
    if judged.passed:
        return
    closed = gates.blocking(judged.results)
    kinds: dict[str, type[TrustError]] = {"signature": SignatureError, "lineage": LineageError}
    raise kinds.get(closed[0].name, GateError)(
        f"{judged.candidate.model} version {judged.candidate.version} may not be promoted",
        found="; ".join(f"{result.name}: {result.reason}" for result in closed),
        expected="no gate failed or pending",
        remedy=remedy(judged.candidate.version, judged.results),
    )


def remedy(version: str, results: Sequence[gates.GateResult]) -> str:
    """Command that unblocks a candidate: approve it, waive a gate, or look at what proves it."""
    held = gates.blocking(results)
    failed = [one.name for one in held if one.state == "failed"]
    waivable = [name for name in failed if name not in (*always(), "policy")]
    if "policy" in failed:
        return "`plinth gates sign FILE` signs a gate policy"
    if not failed:
        return f"`plinth approve {version} --by PERSON --reason TEXT`" if held else ""
    if waivable != failed:
        proof = ", ".join(name for name in failed if name in always())
        return f"`plinth approve` lists every gate with its reason; no waiver lifts {proof}"
    waive = f"`plinth gates waive {version} {waivable[0]} --until DATE --reason TEXT`"
    return f"fix the cause and run again, or let the policy's owner waive each gate: {waive}"


def _judged(ctx: Context, recipe: Recipe, found: Candidate, gathered: gates.Evidence) -> Judgement:
    """Every gate of the signed policy that governs now; nothing else says what is asked."""
    try:
        signed = policy.current(ctx, recipe.required_release().name)
    except TrustError as error:
        reason = error.brief
        return Judgement(found, gathered, (gates.GateResult(name="policy", state="failed", reason=reason),), None)
    waived = waivers.of(ctx, signed, found.key)
    return Judgement(found, gathered, gates.evaluate(signed.policy, gathered, waived.said), signed, waived.faults)


def _measured(ctx: Context, found: Candidate) -> str:
    """The scores of the evaluation that the candidate names, whatever somebody wrote on its page; empty without it."""
    try:
        return scores(found.checkpoint, ctx.refs.load(found.evaluation).stats.get("slices") or {})
    except PlinthError:
        return ""
