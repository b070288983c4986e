"""Evidence for the gates, gathered from tamper-evident sources, with its numbers recomputed.

Numbers come from manifests signed by the evaluator, facts from statements of the responsible role
(`plinth_registry.attestations`), taints from the signed log, the champion from the signed history, decisions from
signatures and tags. Missing evidence is None, and the gate that needs it fails. A signature does not replace
recomputation: numbers must match their tables. Model outputs per item are taken from the table, because recomputing
them needs the model. Events and cost of a run have no table and are accepted as signed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any, Final

from pydantic import ValidationError

from plinth.compute.context import Context
from plinth.corpus.canaries import BUCKET as CANARIES
from plinth.errors import PlinthError, TrustError
from plinth.evaluation.measurement import JudgedCheckpoint, Measurement
from plinth.provenance.statements import INITIAL, Chain, attempts_of
from plinth.recipe.recipe import Recipe
from plinth.records import Manifest
from plinth.text import counted
from plinth.trust.dsse import TRAINER
from plinth.trust.root import Trust
from plinth_registry import approval, attestations, policy, releases, signing, taint, trained
from plinth_registry.attestations import Attestation, by_measurement
from plinth_registry.candidate import Candidate, evidence_of, resume_facts, signed_chain
from plinth_registry.gates.facts import (
    CheckResult,
    CodeFacts,
    ContaminationFacts,
    CostFacts,
    Evidence,
    LicenceFacts,
    ResumeFacts,
    StabilityFacts,
)
from plinth_registry.gates.settings import release_gates


def gather(
    ctx: Context, recipe: Recipe, candidate: Candidate, tags: Mapping[str, Any], *, whole: bool = True
) -> Evidence:
    """Return all current evidence about a candidate. The numbers of measurements are recomputed from their tables.

    Args:
        tags: the candidate version's tags in MLflow, where people leave decisions.
        whole: True to recompute claims about training text, which reads one column of the whole text.
    """
    provenance, signature = _signature(ctx, candidate)
    chain, lineage, code = _lineage(ctx, candidate, provenance)
    approvals, faults = approval.collect(ctx, candidate, tags, policy.governing(ctx, recipe.required_release().name))
    stated = attestations.about(ctx, candidate.checkpoint)
    found = attestations.measurements_of(ctx, candidate.checkpoint, stated.valid)
    return Evidence(
        signature=_with_faults(signature, stated.faults),
        lineage=lineage,
        code=code,
        taints=_taints(ctx, candidate, chain),
        champion=_champion(ctx, recipe.required_release().name, candidate.checkpoint),
        parent=_parent(chain),
        expected_slices=tuple(sorted({*recipe.corpus.buckets, *(provenance or {}).get("materials", {})})),
        measured=attestations.measured_facts(
            found, JudgedCheckpoint(candidate.evaluation, provenance, _trained_on(chain))
        ),
        own=_own(ctx, recipe.required_release().name),
        requested_by=candidate.facts.requested_by,
        approvals=approvals,
        approval_faults=faults,
        miscounted=_miscounted(ctx, candidate, found, stated.valid, chain if whole else None),
        **dict(_facts(stated.valid)),
    )


def _trained_on(ancestry: Chain | None) -> frozenset[str] | None:
    """Return the digests of the curated text that a checkpoint was trained on. Canary texts are left out because they
    are generated. The text behind the initial weights is left out because it is judged with those weights."""
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
    """Return the numbers that differ from their tables, by kind of evidence. Numbers about training text are checked
    only if `chain` is given."""
    wrong = miscounted_measurements(ctx, found)
    if chain is not None:
        wrong |= miscounted_text(ctx, stated, chain)
    if "resume" in stated:
        counted = resume_facts(ctx.refs.load(candidate.checkpoint), candidate.directory)
        if own := differences(dict(stated["resume"].facts), counted):
            wrong["resume"] = own
    return wrong


def _facts(attested: Mapping[str, Attestation]) -> Iterator[tuple[str, Any]]:
    """Yield the facts that the responsible role signed about the run and its data. Facts that cannot be read are
    skipped."""
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
    """Return the check's result, changed to failed if attestations about the checkpoint are invalid. An invalid
    attestation counts like a changed file of the candidate."""
    return CheckResult(holds=False, detail="; ".join((found.detail, *faults))) if faults else found


def champion(ctx: Context, release: str, but: str) -> str:
    """Return the digest of the champion's checkpoint from the signed history, or an empty string if there is no
    champion.

    Args:
        but: checkpoint to skip, so that it is not compared with itself. After its release, a checkpoint is judged
            against the previous champion.

    Raises:
        SignatureError: the history does not verify.
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
    """Return the evidence that gates look up themselves, by gate. Evidence is left out if the policy or the evidence's
    source cannot be read."""
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
    """Return the digest of the checkpoint that the run started from. Return an empty string for random weights, and
    None if the chain does not verify."""
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
    detail = f"{counted(len(chain.links), 'manifest')}, complete down to {sources} (lists of source files with digests)"
    checkpoint = ctx.refs.load(candidate.checkpoint)
    resume = resume_facts(checkpoint, candidate.directory) or {}
    replayed = resume["compared_steps"] if resume.get("bit_exact") else 0
    detail += f"; {trained.in_words(checkpoint, attempts, replayed)}"
    return chain, CheckResult(holds=True, detail=detail), trained.code(attempts)


def _taints(ctx: Context, candidate: Candidate, chain: Chain | None) -> tuple[str, ...] | None:
    """Return the taints on the candidate and its measurements, or None if the taint log cannot be trusted."""
    if chain is None:
        return None
    try:
        return taint.marks_on(ctx, chain, evidence_of(ctx, candidate.checkpoint, candidate.evaluation))
    except PlinthError:
        return None


# Figures of measurements, recomputed from the rows of their items.

#: Relative tolerance. With the same libraries, sums and draws repeat up to the last bits.
CLOSE: Final = 1e-6
#: Maximum number of differences listed per kind of evidence. The others are counted.
LISTED: Final = 3


def differences(stated: Any, counted: Any) -> tuple[str, ...]:
    """Return a sentence for each number that differs from the recomputed number. Beyond a limit, further differences
    are only counted.

    Args:
        stated, counted: plain data of the same form, by name.
    """
    found = list(_differences(stated, counted, ""))
    more = (f"{len(found) - LISTED} more figures differ",) if len(found) > LISTED else ()
    return (*found[:LISTED], *more)


def _differences(stated: Any, counted: Any, where: str) -> Iterator[str]:
    if isinstance(stated, Mapping) and isinstance(counted, Mapping):
        ours, theirs = ({str(name): one for name, one in side.items()} for side in (stated, counted))
        for name in sorted({*ours, *theirs}):
            inside = f"{where}/{name}" if where else name
            yield from _differences(ours.get(name, "absent"), theirs.get(name, "absent"), inside)
    elif not _same(stated, counted):
        yield f"{where}: stated {_shown(stated)}, recomputed {_shown(counted)}"


def _same(stated: Any, counted: Any) -> bool:
    if isinstance(stated, bool) or isinstance(counted, bool) or not _numbers(stated, counted):
        return bool(stated == counted)
    return math.isclose(stated, counted, rel_tol=CLOSE, abs_tol=1e-12)


def _numbers(*given: Any) -> bool:
    return all(isinstance(one, int | float) for one in given)


def _shown(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)[:80]


#: Errors by digests of a manifest and its related measurements, cached per process.
_COUNTED_FAULTS: dict[tuple[str, ...], tuple[str, ...]] = {}
MOST_KNOWN: Final = 4096


def miscounted_measurements(ctx: Context, found: Mapping[str, Manifest]) -> dict[str, tuple[str, ...]]:
    """Return the wrong numbers of each measurement. Measurements without a wrong number are omitted.

    Args:
        found: manifests by asset, signed by the responsible role.
    """
    listed = {}
    for name, (one, made) in by_measurement(found).items():
        if wrong := tuple(f"{asset}: {said}" for asset in made for said in _counted(ctx, one, asset, found)):
            listed[name] = wrong
    return listed


def _counted(ctx: Context, one: Measurement, asset: str, found: Mapping[str, Manifest]) -> tuple[str, ...]:
    if one.recount is None:
        return ()
    key = (found[asset].digest, *sorted(made.digest for made in found.values()))
    if key in _COUNTED_FAULTS:
        return _COUNTED_FAULTS[key]
    try:
        wrong = differences(*one.recount(ctx, found[asset], found))
    except PlinthError as error:  # not cached, since an absent table may be restored
        return (f"cannot be recomputed: {error.what}",)
    except Exception as error:  # tables may hold anything, and so may the code of another package
        return (f"cannot be recomputed: {type(error).__name__}: {error}",)
    if len(_COUNTED_FAULTS) >= MOST_KNOWN:
        _COUNTED_FAULTS.clear()
    _COUNTED_FAULTS[key] = wrong
    return wrong


# Claims about training text, recomputed at promotion. Training text must be in the checkpoint's ancestry: an
# attestation computed from other text, or without one of the buckets, is not about this checkpoint.

CONTAMINATION: Final = "contamination"
#: Recomputed claims by digests of their inputs.
_COUNTED_TEXT: dict[tuple[str, ...], Any] = {}


def miscounted_text(ctx: Context, stated: Mapping[str, Attestation], chain: Chain) -> dict[str, tuple[str, ...]]:
    """Return the errors in attestations about training text, by kind of evidence. Attestations without errors are
    omitted.

    Args:
        stated: valid attestations, by kind.
        chain: the ancestry of the checkpoint.
    """
    made: dict[str, Callable[[Context, Attestation], tuple[str, ...]]] = {
        "licences": _licences,
        CONTAMINATION: _contamination,
    }
    found = {}
    for kind, count in made.items():
        if (one := stated.get(kind)) is None:
            continue
        try:
            own = _of_this_ancestry(one, chain) or count(ctx, one)
        except PlinthError as error:
            own = (f"cannot be recomputed: {error.what}",)
        except (KeyError, TypeError, ValueError) as error:
            own = (f"cannot be recomputed: {type(error).__name__}: {error}",)
        if own:
            found[kind] = tuple(f"{kind}: {each}" for each in own)
    return found


def _of_this_ancestry(one: Attestation, chain: Chain) -> tuple[str, ...]:
    """Return errors in the materials of an attestation: materials with another version in the checkpoint's ancestry,
    and training text that the materials lack."""
    versions = chain.data_versions
    other = [name for name, digest in sorted(one.materials.items()) if versions.get(name, digest) != digest]
    trained = (name for name in versions if name.endswith("/curated") and name != f"{CANARIES}/curated")
    lacking = [name for name in sorted(trained) if name not in one.materials]
    said = (f"the measurement used another version of {', '.join(other)} than the run was trained on",) if other else ()
    return (*said, f"not computed on {', '.join(lacking)}") if lacking else said


def _licences(ctx: Context, one: Attestation) -> tuple[str, ...]:
    from plinth.corpus import curate  # compiled kernels, needed only for candidates

    curated, documents = (_by_bucket(ctx, one, stage) for stage in ("curated", "documents"))
    read = (*(made.digest for made in curated.values()), *(made.digest for made in documents.values()))
    counted = _once(
        ("licences", *read),
        lambda: {
            "documents": curate.licences(ctx.store, curated),
            "sources": curate.terms(ctx.store, documents, curated),
        },
    )
    return differences({name: one.facts[name] for name in ("documents", "sources")}, counted)


def _contamination(ctx: Context, one: Attestation) -> tuple[str, ...]:
    from plinth.corpus import curate  # compiled kernels, needed only for candidates

    verdicts, compared = _by_bucket(ctx, one, "verdicts"), ctx.refs.load(one.materials[CONTAMINATION])
    curated = _by_bucket(ctx, one, "curated")
    if set(verdicts) != set(curated):
        return (f"verdicts of {', '.join(sorted(verdicts)) or 'no bucket'}, text of {', '.join(sorted(curated))}",)
    read = (compared.digest, *(made.digest for made in verdicts.values()), *(made.digest for made in curated.values()))
    counted = _once(
        (CONTAMINATION, *read),
        lambda: {
            "contaminated": curate.contaminated(ctx.store, verdicts, compared),
            "documents": sum(curate.licences(ctx.store, curated).values()),
        },
    )
    return differences({name: one.facts[name] for name in ("contaminated", "documents")}, counted)


def _by_bucket(ctx: Context, one: Attestation, stage: str) -> dict[str, Manifest]:
    return {
        name.removesuffix(f"/{stage}"): ctx.refs.load(digest)
        for name, digest in sorted(one.materials.items())
        if name.endswith(f"/{stage}") and name != f"{CANARIES}/{stage}"
    }


def _once(key: tuple[str, ...], count: Callable[[], Any]) -> Any:
    """Compute a value once per process, and return the cached value in later calls. Caching is safe because manifests
    name their files by digest."""
    if key not in _COUNTED_TEXT:
        _COUNTED_TEXT[key] = count()
    return _COUNTED_TEXT[key]
