"""The funnel: numbers of documents and bytes that enter and leave every stage, per bucket; effective token budget."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from plinth.compute.context import Context, manifest, sum_stats
from plinth.corpus import verdicts as verdicts_stage
from plinth.corpus.sources.record import EXCLUSIONS, SEEN_BEFORE, damage, published
from plinth.corpus.verdicts import CASCADE, STAGES
from plinth.records import Manifest, Step, bucket_of

# The funnel: documents and bytes in and out of every stage, per bucket, and the effective token budget.
#
# Pure arithmetic over the statistics of manifests; nothing is read but them.
#
#     D_eff = D_nominal (1 − r_dup) (1 − r_pad) ρ_parse ρ_quality ρ_rest
#
#     ρ_parse    records that parse / those and damage; the text of damage cannot be measured, so records are counted;
#                exclusions are reasons of the first stage, but no failure to parse
#     D_nominal  text bytes that parsed, those of pages captured again unchanged too, / ρ_parse: what the sources would
#                hold had all of them parsed
#     ρ_quality  bytes that the policy keeps / bytes of documents
#     r_dup      1 − (bytes that every stage of deduplication leaves / bytes that the policy keeps) × (bytes of
#                documents / the same with those captured again)
#     ρ_rest     curated text for training / bytes that deduplication leaves: less what is held out, contaminated or
#                protected, and less edits
#     r_pad      share of the training targets that teach nothing, as the mixture measured it
#
# Later stages never see what a stage removes, so its numbers are marginal. Every rule of the policy also counts the
# documents on which it fires, and on which it alone fires (`unique`: those that dropping the rule would let in).
# Tokens of removed text are estimated at the rate of the bucket's curated text, once there are shards.
#
# So D_eff / (1 − r_pad) is the curated text to the byte.

ASSET = "funnel"
VERSION = "6"

#: Stages after deduplication that remove documents from training.
_AFTER = CASCADE[CASCADE.index("holdout") :]
#: The reason that a stage gives; the policy's are its rules, and protected sets give their own.
REASONS = {**verdicts_stage.REASONS, "holdout": "held_out"}
#: Statistics of curated text where there is none yet.
_NO_CURATED = {
    "documents": 0, "text_bytes": 0, "heldout_documents": 0, "heldout_bytes": 0, "edits": 0, "edited_documents": 0,
    "edited_away_bytes": 0,
}  # fmt: skip


def run(
    ctx: Context,
    documents: Mapping[str, Manifest],
    verdicts: Mapping[str, Manifest],
    curated: Mapping[str, Manifest] | None = None,
    shards: Mapping[str, Manifest] | None = None,
    mixture: Manifest | None = None,
    sources: Mapping[str, Manifest] | None = None,
) -> Manifest:
    """Count the documents and bytes that enter and leave every stage.

    Args:
        documents, verdicts: manifests by bucket.
        curated: curated text by bucket. If None, the funnel ends at the verdicts.
        shards: token shards by bucket, from which tokens and tokens per byte are computed. If None, both are 0.
        mixture: mixture of the run, from which r_pad is computed. If None, r_pad is 0.
        sources: source inventory by bucket, from which the `account` of files and records is computed.

    Returns:
        A manifest without parts. Its statistics are `buckets` and `total`, each with `stages` (name, documents and
        bytes in and out, removed, tokens, reasons), `rules` of the policy (fired, first, only), `edits`, `trained`,
        `held_out`, `effective` and, for buckets, `account`.
    """
    counted = {
        bucket: {
            "documents": _counts(documents[bucket]),
            "verdicts": dict(verdicts[bucket].stats),
            "curated": dict(curated[bucket].stats) if curated else {},
            "tokens": int(shards[bucket].stats["tokens"]) if shards and bucket in shards else 0,
        }
        for bucket in sorted(documents)
    }
    total = sum_stats(counted.values())
    stages = stages_of(total["verdicts"])  # of any bucket: a stage that a bucket does not have removes nothing from it
    stats: dict[str, Any] = {
        "buckets": {bucket: _account(counts, stages, padding(mixture, bucket)) for bucket, counts in counted.items()},
        "total": _account(total, stages, padding(mixture)),
    }
    for bucket, own in (sources or {}).items():
        if found := published(own, documents[bucket]):
            stats["buckets"][bucket]["account"] = found.model_dump(mode="json")
    kinds = {"documents": documents, "verdicts": verdicts, "curated": curated or {}, "shards": shards or {}}
    kinds["sources"] = sources or {}
    inputs = {f"{bucket}/{kind}": one for kind, found in kinds.items() for bucket, one in found.items()}
    step = Step(name=ASSET, version=VERSION)
    return manifest(ASSET, step, inputs | ({"mixture": mixture} if mixture else {}), (), stats)


def _counts(documents: Manifest) -> dict[str, Any]:
    return {
        "documents": int(documents.stats["documents"]),
        "text_bytes": int(documents.stats["text_bytes"]),
        "seen_before_bytes": int(documents.stats.get("seen_before_bytes", 0)),
        "rejects": dict(documents.stats.get("rejects", {})),
    }


def _account(counts: Mapping[str, Any], stages: Sequence[str], r_pad: float) -> dict[str, Any]:
    verdicts, curated = counts["verdicts"], counts["curated"] or _foreseen(counts["verdicts"])
    rows = [_documents_stage(counts["documents"]), *_cascade(verdicts, stages)]
    if counts["curated"]:
        rows.append(_curated_stage(verdicts, curated))
    tokens = counts["tokens"]
    rate = tokens / curated["text_bytes"] if curated["text_bytes"] else 0.0
    return {
        "stages": [_with_tokens(row, rate) for row in rows],
        "rules": _rules(verdicts),
        "edits": _edits(curated),
        "trained": {"documents": curated["documents"], "bytes": curated["text_bytes"], "tokens": tokens},
        "held_out": {"documents": curated["heldout_documents"], "bytes": curated["heldout_bytes"]},
        "effective": effective(counts["documents"], rows, curated["text_bytes"], tokens, r_pad),
    }


def _foreseen(verdicts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the counts of curated text that the verdicts predict, before edits."""
    decisions, sizes = verdicts["decisions"], verdicts["decision_bytes"]
    return _NO_CURATED | {
        "documents": decisions.get("train", 0),
        "text_bytes": sizes.get("train", 0),
        "heldout_documents": decisions.get("heldout", 0),
        "heldout_bytes": sizes.get("heldout", 0),
    }


def _with_tokens(row: dict[str, Any], rate: float) -> dict[str, Any]:
    """Add to a funnel row the estimated numbers of tokens that the stage kept and removed, from the tokens per byte of
    curated text. The estimates are None before there are shards."""
    found = {}
    for name in ("out", "removed"):
        volume = row["bytes_out" if name == "out" else "removed_bytes"]
        found[f"tokens_{name}"] = round(volume * rate) if rate and volume is not None else None
    return row | found


def _rules(verdicts: Mapping[str, Any]) -> dict[str, Any]:
    """Return, for each policy rule, the documents that it matches, the documents that it matches first (marginal), and
    the documents that no other rule matches (unique)."""
    first, sizes = verdicts.get("policy_reasons", {}), verdicts.get("policy_reason_bytes", {})
    return {
        rule: {**counts, "first": first.get(rule, 0), "first_bytes": sizes.get(rule, 0)}
        for rule, counts in verdicts.get("rules", {}).items()
    }


def _edits(curated: Mapping[str, Any]) -> dict[str, Any]:
    """Return the numbers of edits, of edited documents and of bytes that edits removed from kept text. `reasons` has
    the numbers by reason."""
    sizes = curated.get("edit_bytes", {})
    return {
        "reasons": {name: {"edits": n, "bytes": sizes[name]} for name, n in curated.get("edit_counts", {}).items()},
        "documents": curated["edited_documents"],
        "edits": curated.get("edits", 0),
        "removed_bytes": curated["edited_away_bytes"],
    }


def _documents_stage(documents: Mapping[str, Any]) -> dict[str, Any]:
    rejected = sum(documents["rejects"].values())
    sizes = {SEEN_BEFORE: documents["seen_before_bytes"]}  # of other rejects there is no text to measure
    return {
        "stage": "documents",
        "documents_in": documents["documents"] + rejected,
        "documents_out": documents["documents"],
        "bytes_in": None,  # a reject has no text to measure
        "bytes_out": documents["text_bytes"],
        "removed": rejected,
        "removed_bytes": None,
        "reasons": {
            reason: {"documents": n, "bytes": sizes.get(reason), "damage": reason not in EXCLUSIONS}
            for reason, n in sorted(documents["rejects"].items())
        },
    }


def stages_of(verdicts: Mapping[str, Any]) -> list[str]:
    """Return the stages that the verdicts name, in order. Stages that the constant `CASCADE` does not list come before
    the holdout."""
    found = {*verdicts["stages"], *STAGES}
    before = [stage for stage in CASCADE if stage in found and stage not in _AFTER]
    return [*before, *sorted(found - set(CASCADE)), *(stage for stage in _AFTER if stage in found)]


def _cascade(verdicts: Mapping[str, Any], stages: Sequence[str]) -> list[dict[str, Any]]:
    """Return the rows of stages that remove documents from training. Counts are marginal: each stage counts only
    documents that earlier stages kept."""
    rows, documents, size = [], verdicts["documents"], verdicts["bytes"]
    for stage in stages:
        removed, removed_bytes = verdicts["stages"].get(stage, 0), verdicts["stage_bytes"].get(stage, 0)
        if stage == "policy":
            reasons = _policy_reasons(verdicts)
        elif stage == "protected":
            reasons = _own_reasons(verdicts)
        else:
            name = REASONS.get(stage, stage)
            reasons = {name: {"documents": removed, "bytes": removed_bytes}} if removed else {}
        rows.append(
            {
                "stage": stage,
                "documents_in": documents,
                "documents_out": documents - removed,
                "bytes_in": size,
                "bytes_out": size - removed_bytes,
                "removed": removed,
                "removed_bytes": removed_bytes,
                "reasons": reasons,
            }
        )
        documents, size = documents - removed, size - removed_bytes
    return rows


def _own_reasons(verdicts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the documents and bytes that protected sets remove, by the reasons that only protected sets give."""
    first, fixed = verdicts["policy_reasons"], set(REASONS.values())
    left = {reason: n - first.get(reason, 0) for reason, n in verdicts["reasons"].items() if reason not in fixed}
    sizes, before = verdicts["reason_bytes"], verdicts["policy_reason_bytes"]
    return {
        reason: {"documents": n, "bytes": sizes[reason] - before.get(reason, 0)}
        for reason, n in sorted(left.items())
        if n
    }


def _policy_reasons(verdicts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the number of documents by the first rule that matches them, and the number of documents that only this
    rule matches."""
    sizes, rules = verdicts["policy_reason_bytes"], verdicts.get("rules", {})
    return {
        reason: {
            "documents": n,
            "bytes": sizes[reason],
            "unique": rules.get(reason, {}).get("only", 0),
            "unique_bytes": rules.get(reason, {}).get("only_bytes", 0),
        }
        for reason, n in sorted(verdicts["policy_reasons"].items())
    }


def _curated_stage(verdicts: Mapping[str, Any], curated: Mapping[str, Any]) -> dict[str, Any]:
    removed = verdicts["decision_bytes"]["train"] - curated["text_bytes"]
    edits = {"documents": curated["edited_documents"], "bytes": curated["edited_away_bytes"]}
    return {
        "stage": "curated",
        "documents_in": verdicts["decisions"]["train"],
        "documents_out": curated["documents"],
        "bytes_in": verdicts["decision_bytes"]["train"],
        "bytes_out": curated["text_bytes"],
        "removed": verdicts["decisions"]["train"] - curated["documents"],
        "removed_bytes": removed,
        "reasons": {"edited": edits} if curated["edited_documents"] else {},
    }


# The effective token budget: the share of the nominal text that is worth training on, every factor as measured.
#
# The formula is at the top of this module.


def padding(mixture: Manifest | None, bucket: str | None = None) -> float:
    """Return the padding ratio r_pad of the run, or of one bucket's streams. If there is no mixture yet, return 0."""
    if mixture is None:
        return 0.0
    if bucket is None:
        return float(mixture.stats["packing"]["r_pad"])
    streams = [own["packing"] for name, own in mixture.stats["buckets"].items() if bucket_of(name) == bucket]
    targets = sum(packing["targets"] for packing in streams)
    return sum(packing["padding"] + packing["masked"] for packing in streams) / targets if targets else 0.0


def effective(
    documents: Mapping[str, Any], stages: list[dict[str, Any]], trained_bytes: int, tokens: int, r_pad: float
) -> dict[str, float]:
    """Return the effective amount of data D_eff and its measured factors, in bytes of text, and in tokens if there are
    shards.

    Args:
        documents: counts of the documents stage.
        stages: the rows of the funnel.
        trained_bytes: bytes of curated text for training.
        tokens: tokens of the curated text; 0 before there are shards.
        r_pad: padding ratio of the run.
    """
    rows = {row["stage"]: row for row in stages}
    # Exclusions do not count: records that are not documents, and text stopped by the illegal-content gate.
    failed = damage(documents["rejects"])
    parsed = documents["documents"] + documents["rejects"].get(SEEN_BEFORE, 0)
    rho_parse = _share(parsed, parsed + failed)
    text = documents["text_bytes"] + documents["seen_before_bytes"]
    kept, deduplicated = rows["policy"]["bytes_out"], rows["holdout"]["bytes_in"]
    rho_quality = _share(kept, documents["text_bytes"])
    r_dup = 1.0 - _share(deduplicated, kept) * _share(documents["text_bytes"], text)
    nominal = text / rho_parse if rho_parse else 0.0
    rho_rest = _share(trained_bytes, deduplicated)
    d_eff = nominal * (1 - r_dup) * (1 - r_pad) * rho_parse * rho_quality * rho_rest
    tokens_per_byte = tokens / trained_bytes if trained_bytes else 0.0
    return {
        "nominal_bytes": nominal,
        "rho_parse": rho_parse,
        "rho_quality": rho_quality,
        "r_dup": r_dup,
        "r_pad": r_pad,
        "rho_rest": rho_rest,
        "effective_bytes": d_eff,
        "tokens_per_byte": tokens_per_byte,
        "nominal_tokens": nominal * tokens_per_byte,
        "effective_tokens": d_eff * tokens_per_byte,
    }


def _share(part: float, whole: float) -> float:
    """Return `part / whole`, or 1 if `whole` is 0."""
    return part / whole if whole else 1.0
