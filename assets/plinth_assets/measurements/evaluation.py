"""`evaluation`: bits per byte of held-out text, as a whole and by slice."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from plinth.evaluation.gate import release_gate
from plinth.evaluation.measurement import UNREADABLE, JudgedCheckpoint, Measurement, no_stages
from plinth.extensions import late
from plinth.records import Manifest
from plinth.text import counted
from plinth_registry.gates.facts import EvaluationFacts, Evidence, SliceScore
from plinth_registry.gates.margins import WHOLE, Bounded, compared, label, within_margins
from plinth_registry.gates.result import GateResult, decided, missing, number, shown, skipped
from plinth_registry.gates.settings import SlicePolicy


def read(found: Mapping[str, Manifest], judged: JudgedCheckpoint) -> EvaluationFacts | None:
    """Scores by slice; a slice whose numbers cannot be read counts as worse than any baseline, never as absent.

    Another evaluation than the one that the candidate was registered with is no evidence about it.
    """
    (made,) = found.values()
    stats = made.stats.get("slices") if made.digest == judged.evaluation else None
    if not isinstance(stats, Mapping):
        return None
    return EvaluationFacts(slices={str(name): _score(row) for name, row in stats.items()})


def _score(row: Any) -> SliceScore:
    try:
        return SliceScore(
            bytes=row["bytes"], model=float(row["model"]), gzip=float(row["gzip"]), trigram=float(row["trigram"])
        )
    except UNREADABLE:
        return SliceScore(bytes=0, model=math.inf, gzip=0.0, trigram=0.0)


def beats_gzip(asked: SlicePolicy, evidence: Evidence) -> GateResult:
    """Bits per byte below `gzip -9` on every slice."""
    return _below("beats_gzip", evidence, lambda score: score.gzip, "gzip -9")


def beats_trigram(asked: SlicePolicy, evidence: Evidence) -> GateResult:
    """Bits per byte below the byte trigram on every slice."""
    return _below("beats_trigram", evidence, lambda score: score.trigram, "the byte trigram")


def max_bits_per_byte(asked: SlicePolicy, evidence: Evidence) -> GateResult:
    """Bits per byte below an absolute bound on every slice."""
    bound = asked.max_bits_per_byte
    assert bound is not None  # a policy that requires this gate has one
    return _below("max_bits_per_byte", evidence, lambda _: bound, "the bound")


def slices(asked: SlicePolicy, evidence: Evidence) -> GateResult:
    """Held-out text within the margin of the champion: the whole, and every slice with enough documents."""
    lines, closed = compared("slices", "slices", evidence)
    if closed is not None:
        return closed
    small = [one for one in lines if one.slice != WHOLE and one.clusters < asked.min_documents]
    judged = [Bounded.of(one, asked.margins.get(one.slice, asked.margin)) for one in lines if one not in small]
    if not any(one.line.slice == WHOLE for one in judged):
        return missing("slices", "held-out text as a whole was not compared with the champion")
    left = skipped("slice", asked.min_documents, [(label(one), one.clusters) for one in small])
    return within_margins("slices", judged, left, small)


def _below(name: str, evidence: Evidence, bound: Callable[[SliceScore], float], what: str) -> GateResult:
    """Require bits per byte strictly below the bound on every expected slice; NaN is not below anything."""
    known = evidence.of("evaluation", EvaluationFacts)
    if known is None or not known.slices:
        return missing(name)
    scores = known.slices
    rows = {key: {"model": score.model, "bound": bound(score)} for key, score in sorted(scores.items())}
    empty = {key for key, score in scores.items() if score.bytes <= 0}
    unseen = sorted(empty.union(set(evidence.expected_slices) - set(rows)))
    text = {
        key: f"{key} {shown(row['model'], row['bound'])}, limit {shown(row['bound'], row['model'])}, "
        f"n {scores[key].bytes:,} bytes"
        for key, row in rows.items()
    }
    above = [key for key, row in rows.items() if key not in empty and not row["model"] < row["bound"]]
    faults = [f"bits per byte not below {what}: {'; '.join(text[key] for key in above)}"] * bool(above)
    faults += [f"nothing measured on {', '.join(unseen)}"] * bool(unseen)
    closest = max(rows, key=lambda key: rows[key]["model"] - rows[key]["bound"])
    reason = f"bits per byte below {what} on {counted(len(rows), 'slice')}; closest: {text[closest]}"
    table = {key: {side: number(value) for side, value in row.items()} for key, row in rows.items()}
    return decided(name, not faults, "; ".join(faults) or reason, bits_per_byte=table)


MEASUREMENT = Measurement(
    name="evaluation",
    description="Bits per byte of held-out text, as a whole and by slice.",
    asset="evaluation",
    stages=late("plinth_assets.evaluation:stages"),
    facts=EvaluationFacts,
    read=read,
    recount=late("plinth_assets.measurements.evaluation_items:recount"),
    pairs=late("plinth_assets.measurements.evaluation_items:pairs"),
    headings={"slices": "Held-out text", "protected": "Items of protected sets"},
    section=late("plinth_assets.measurements.evaluation_items:section"),
    position=1,
)


PARENT = Measurement(
    name="evaluation_parent",
    description="Bits per byte of what the model that a run began from held out; the comparison makes it.",
    asset="evaluation/parent",
    stages=no_stages,
    pairs=late("plinth_assets.measurements.evaluation_items:pairs_of_parent"),
    headings={"parent slices": "Held-out text of the parent's run"},
    position=2,
)

BEATS_GZIP = release_gate(beats_gzip, SlicePolicy, "slices", ("evaluation",))
BEATS_TRIGRAM = release_gate(beats_trigram, SlicePolicy, "slices", ("evaluation",))
MAX_BITS_PER_BYTE = release_gate(max_bits_per_byte, SlicePolicy, "slices", ("evaluation",))
SLICES = release_gate(slices, SlicePolicy, "slices", ("comparison",))
