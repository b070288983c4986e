"""Facts, gates and records of measurements: personal data in training text, and capabilities of the model."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from pydantic import Field

from plinth.evaluation.measurement import (
    UNREADABLE,
    GateState,
    JudgedCheckpoint,
    Measurement,
    Stats,
    no_stages,
    release_gate,
    single,
)
from plinth.evaluation.probes.noise import Worth
from plinth.extensions import late
from plinth.records import Frozen, Manifest
from plinth.text import counted
from plinth.training.validation import probe_curves
from plinth_registry.gates import GateResult, decided, missing, named, number, shown, skipped
from plinth_registry.gates.facts import (
    ComparisonFacts,
    EvaluationFacts,
    Evidence,
    F,
    PairedLine,
    ProbeFacts,
    ProbeWorth,
    SliceScore,
    TaskFacts,
    TaskScore,
)
from plinth_registry.gates.margins import (
    WHOLE,
    Bounded,
    UpperBound,
    compared,
    each_within,
    label,
    subject_of,
    within_margins,
    worst_share,
)
from plinth_registry.gates.settings import ProbePolicy, SlicePolicy, TaskPolicy

# `pii/data`: personal data in training text; shared code of gates on personal data.


class PiiPolicy(Frozen):
    """Limits on the rate of texts with personal data, as found by the corpus's own detector."""

    max_data_share: float = Field(
        0.02,
        gt=0,
        le=1,
        description="Maximum upper bound of the rate of personal data in training text, overall and per bucket.",
    )
    min_documents: int = Field(
        150,
        ge=1,
        description="Buckets with fewer documents than this are only listed. If 150 documents have no finding, the "
        "upper bound is 2%.",
    )
    max_output_share: float = Field(
        0.05,
        gt=0,
        le=1,
        description="Maximum upper bound of the rate of personal data in unprompted samples of the model.",
    )
    max_memorised_share: float = Field(
        0.01,
        gt=0,
        le=1,
        description="Maximum upper bound of the rate of outputs, prompted or unprompted, that repeat personal data "
        "from training text.",
    )


class PiiShare(Frozen):
    """Number of texts in which the corpus's own detector finds personal data, with an upper bound of their rate."""

    texts: int
    found: int
    at_most: float
    slices: Mapping[str, PiiShare] = Field(default_factory=dict, description="Shares by bucket.")
    per_million: Mapping[str, float] = Field(
        default_factory=dict, description="Upper bound of the rate per million texts, by kind of personal data."
    )
    detector: str = Field("", description="Name and version of the detector.")


def read_pii(stats: Stats) -> PiiShare:
    """Return the rate of training documents with personal data: overall, by bucket and by kind."""
    buckets = {name: pii_share(one) for name, one in stats["buckets"].items() if one["documents"]}
    kinds = {kind: one["per_million_at_most"] for kind, one in stats["kinds"].items() if stats["documents"]}
    more = {"slices": buckets, "per_million": kinds, "detector": detector_name(stats)}
    return pii_share(stats).model_copy(update=more)


def detector_name(stats: Mapping[str, Any]) -> str:
    """Return the name and version of the personal data detector as text."""
    return f"{stats['detector']['annotator']} version {stats['detector']['version']}"


def pii_share(stats: Mapping[str, Any], counted: str = "documents") -> PiiShare:
    """Return the rate of texts with personal data from statistics. `counted` is the key of the number of texts."""
    return PiiShare(texts=stats[counted], found=stats["found"], at_most=stats["at_most"])


def of_all_text(read: Callable[[Stats], F]) -> Callable[[Mapping[str, Manifest], JudgedCheckpoint], F | None]:
    """Return `read` as a function that yields facts only if the measurement covers all text in the checkpoint's
    ancestry."""

    def facts(found: Mapping[str, Manifest], judged: JudgedCheckpoint) -> F | None:
        (made,) = found.values()
        known = judged.trained_on
        return read(made.stats) if known is not None and known <= set(made.inputs.values()) else None

    return facts


def pii_data(asked: PiiPolicy, evidence: Evidence) -> GateResult:
    """Limit the rate of training documents in which personal data remains after the edits that remove it."""
    known = evidence.of("pii_data", PiiShare)
    if not known or known.texts <= 0:
        return missing("pii_data")
    shares = {WHOLE: known, **known.slices}
    rates = {name: UpperBound(one.texts, one.at_most, one.found) for name, one in shares.items()}
    more = {
        "slices": {name: share_figures(share) for name, share in shares.items()},
        "per_million_at_most": {kind: number(limit) for kind, limit in known.per_million.items()},
        "detector": known.detector,
    }
    return worst_share("pii_data", "personal data", rates, asked.min_documents, asked.max_data_share, "bucket", **more)


def share_figures(one: PiiShare) -> dict[str, float | str]:
    """Return the numbers of a rate, as evidence in a verdict."""
    return {"texts": one.texts, "found": one.found, "at_most": number(one.at_most)}


PII_DATA = Measurement(
    name="pii_data",
    description="Personal data left in training text.",
    asset="pii/data",
    stages=late("plinth_assets.measurements.pii_stage:stages"),
    facts=PiiShare,
    read=of_all_text(read_pii),
    recount=late("plinth_assets.measurements.pii_stage:recount"),
    section=late("plinth_assets.measurements.pii_stage:section"),
    statement="personal_data",
    position=9,
)


PII_GATE = release_gate(pii_data, PiiPolicy, "pii", ("pii_data",))


# Capabilities of the model: facts, gates and records of `evaluation`, `comparison`, `probes`, `tasks/NAME` and
# `serving`.

# `evaluation`: bits per byte of held-out text, as a whole and by slice.


def read_evaluation(found: Mapping[str, Manifest], judged: JudgedCheckpoint) -> EvaluationFacts | None:
    """Return the checkpoint's scores by slice. A slice with unreadable numbers counts as worse than every baseline.

    Only the evaluation with which the candidate was registered is evidence.
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
    """Require bits per byte below `gzip -9` on the held-out text of every bucket."""
    return _below("beats_gzip", evidence, lambda score: score.gzip, "gzip -9")


def beats_trigram(asked: SlicePolicy, evidence: Evidence) -> GateResult:
    """Require bits per byte below a byte trigram model on the held-out text of every bucket."""
    return _below("beats_trigram", evidence, lambda score: score.trigram, "the byte trigram")


def max_bits_per_byte(asked: SlicePolicy, evidence: Evidence) -> GateResult:
    """Require bits per byte below the policy's absolute limit on the held-out text of every bucket."""
    bound = asked.max_bits_per_byte
    assert bound is not None  # a policy that requires this gate has one
    return _below("max_bits_per_byte", evidence, lambda _: bound, "the limit")


def slices(asked: SlicePolicy, evidence: Evidence) -> GateResult:
    """Require that held-out bits per byte exceed the champion's by at most a margin, both overall and on every slice
    (bucket, language, …) with enough documents."""
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
    """Require bits per byte strictly below `bound` on every expected slice. NaN never passes."""
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
    faults += [f"not measured: {', '.join(unseen)}"] * bool(unseen)
    closest = max(rows, key=lambda key: rows[key]["model"] - rows[key]["bound"])
    reason = f"bits per byte below {what} on {counted(len(rows), 'bucket')}; closest: {text[closest]}"
    table = {key: {side: number(value) for side, value in row.items()} for key, row in rows.items()}
    return decided(name, not faults, "; ".join(faults) or reason, bits_per_byte=table)


EVALUATION = Measurement(
    name="evaluation",
    description="Bits per byte of held-out text, as a whole and by slice.",
    asset="evaluation",
    stages=late("plinth_assets.measurements.evaluation_stage:stages"),
    facts=EvaluationFacts,
    read=read_evaluation,
    recount=late("plinth_assets.measurements.evaluation_stage:recount"),
    pairs=late("plinth_assets.measurements.evaluation_stage:pairs"),
    headings={"slices": "Held-out text", "protected": "Items of protected sets"},
    section=late("plinth_assets.measurements.evaluation_stage:section"),
    position=1,
)


EVALUATION_PARENT = Measurement(
    name="evaluation_parent",
    description="Bits per byte on the held-out text of the parent's run, computed for the comparison.",
    asset="evaluation/parent",
    stages=no_stages,
    pairs=late("plinth_assets.measurements.evaluation_stage:pairs_of_parent"),
    headings={"parent slices": "Held-out text of the parent's run"},
    position=2,
)

BEATS_GZIP = release_gate(beats_gzip, SlicePolicy, "slices", ("evaluation",))
BEATS_TRIGRAM = release_gate(beats_trigram, SlicePolicy, "slices", ("evaluation",))
MAX_BITS_PER_BYTE = release_gate(max_bits_per_byte, SlicePolicy, "slices", ("evaluation",))
SLICES = release_gate(slices, SlicePolicy, "slices", ("comparison",))


# `comparison`: the checkpoint against another model, measured alike.


def read_comparison(stats: Stats) -> ComparisonFacts:
    """Return the lines of the comparison of the checkpoint, which is model a, with another model."""
    return ComparisonFacts(
        candidate=stats["models"]["a"]["checkpoint"],
        champion=stats["models"]["b"]["checkpoint"],
        lines=tuple(_line(one) for one in stats["lines"]),
    )


def _line(stats: Mapping[str, Any]) -> PairedLine:
    gap = stats["difference"]
    named = {name: stats[name] for name in ("kind", "measure", "slice", "fewer_is_better")}
    return PairedLine(**named, **{name: gap[name] for name in ("clusters", "value", "low", "high")})


COMPARISON = Measurement(
    name="comparison",
    description="The checkpoint against another model, with the same measurements.",
    asset="comparison",
    stages=late("plinth_assets.measurements.comparison_stage:stages"),
    key="evaluation.against",
    facts=ComparisonFacts,
    read=single(read_comparison),
    recount=late("plinth_assets.measurements.comparison_stage:recount"),
    position=12,
)


# `probes`: items by family, with their control and the noise of the run.


def read_probes(found: Mapping[str, Manifest], judged: JudgedCheckpoint) -> ProbeFacts:
    """Return the probes with their noise over the run. A probe with unknown noise has no effect on gates."""
    (made,) = found.values()
    return ProbeFacts(probes=dict(_probes(made.stats["probes"], worth(judged.provenance))))


def worth(provenance: Mapping[str, Any] | None) -> dict[str, Worth]:
    """Return each probe's signal-to-noise ratio, from the evaluations committed with the checkpoint. The result is
    empty if no evaluations were committed."""
    try:
        looks = probe_curves.of(((provenance or {}).get("training") or {}).get("looks", {}))
        return {name: probe_curves.value(own) for name, own in looks.items() if own}
    except UNREADABLE:
        return {}


def _probes(stats: Mapping[str, Any], known: Mapping[str, Worth]) -> Iterator[tuple[str, ProbeWorth]]:
    for name, row in stats.items():
        one = known.get(name)
        signal = row["signal"]["value"] if "signal" in row else 0.0
        yield (
            name,
            ProbeWorth(
                items=row["items"],
                signal=one.signal if one else signal,
                snr=one.snr if one else None,
                decides=one.decides if one else False,
            ),
        )


def probes(asked: ProbePolicy, evidence: Evidence) -> GateResult:
    """Require every probe (a set of questions scored by likelihood) with a signal-to-noise ratio of at least 1 to be
    within its margin of the champion. The signal is the score minus that of a control; the noise is its standard
    deviation over checkpoints or seeds."""
    known = evidence.of("probes", ProbeFacts)
    if known is None or not any(one.items for one in known.probes.values()):
        return missing("probes")
    deciding = sorted(name for name, one in known.probes.items() if one.decides and one.items)
    noise = {name: None if one.snr is None else number(one.snr) for name, one in sorted(known.probes.items())}
    undecided = named([(name, one.items) for name, one in sorted(known.probes.items()) if name not in deciding])
    if not deciding:
        state: GateState = "skipped" if asked.none_decides == "passes" else "failed"
        reason = f"none of {len(noise)} probes has a signal-to-noise ratio of at least 1: {undecided}"
        return GateResult(name="probes", state=state, reason=reason, evidence={"snr": noise})
    lines, closed = compared("probes", "probes", evidence)
    if closed is not None:
        return closed.model_copy(update={"evidence": {"snr": noise}})
    own = [one for one in lines if one.slice == WHOLE and subject_of(one) in deciding]
    unseen = sorted(set(deciding) - {subject_of(one) for one in own})
    if unseen:
        return missing("probes", f"{', '.join(unseen)} not compared with the champion")
    result = each_within("probes", own, asked.margin, asked.min_templates)
    count = len(noise) - len(deciding)
    left = f"; {counted(count, 'probe')} skipped (signal-to-noise ratio below 1): {undecided}" if count else ""
    return result.model_copy(update={"reason": result.reason + left, "evidence": {**result.evidence, "snr": noise}})


PROBES = Measurement(
    name="probes",
    description="Scores of probe items by family, with a control and the noise over the run.",
    asset="probes",
    stages=late("plinth_assets.measurements.probes_stage:stages"),
    key="evaluation.probes",
    facts=ProbeFacts,
    read=read_probes,
    recount=late("plinth_assets.measurements.probes_stage:recount"),
    pairs=late("plinth_assets.measurements.probes_stage:pairs"),
    headings={"probes": "Probes"},
    scores=late("plinth_assets.measurements.probes_stage:scores"),
    section=late("plinth_assets.measurements.probes_stage:section"),
    position=3,
)

PROBES_GATE = release_gate(probes, ProbePolicy, "probes", ("probes", "comparison"))


# `tasks/NAME`: tasks of lm-evaluation-harness from local files.


def read_tasks(found: Mapping[str, Manifest], judged: JudgedCheckpoint) -> TaskFacts:
    """Return the facts about the tasks of all task sets."""
    return TaskFacts(tasks={task: score for made in found.values() for task, score in _tasks(made.stats).items()})


def _tasks(stats: Mapping[str, Any]) -> dict[str, TaskScore]:
    counts = ("documents", "damaged")
    return {task: TaskScore(**{name: one[name] for name in counts}) for task, one in stats["tasks"].items()}


def tasks(asked: TaskPolicy, evidence: Evidence) -> GateResult:
    """Require every metric of every task (a benchmark run with lm-evaluation-harness) to be within its margin of the
    champion."""
    known = evidence.of("tasks", TaskFacts)
    if known is None or not known.tasks:
        return missing("tasks")
    empty = sorted(name for name, one in known.tasks.items() if one.documents - one.damaged <= 0)
    if empty:
        return missing("tasks", f"not measured: {', '.join(empty)}")
    lines, closed = compared("tasks", "tasks", evidence)
    if closed is not None:
        return closed
    own = [one for one in lines if one.slice == WHOLE]
    unseen = sorted(set(known.tasks) - {subject_of(one) for one in own})
    if unseen:
        return missing("tasks", f"{', '.join(unseen)} not compared with the champion")
    return each_within("tasks", own, asked.margin, asked.min_items)


TASKS = Measurement(
    name="tasks",
    description="Tasks of lm-evaluation-harness from local files.",
    asset="tasks",
    stages=late("plinth_assets.measurements.tasks_stage:stages"),
    family=True,
    key="evaluation.tasks",
    facts=TaskFacts,
    read=read_tasks,
    recount=late("plinth_assets.measurements.tasks_stage:recount"),
    pairs=late("plinth_assets.measurements.tasks_stage:pairs"),
    headings={"tasks": "Tasks"},
    scores=late("plinth_assets.measurements.tasks_stage:scores"),
    section=late("plinth_assets.measurements.tasks_stage:section"),
    position=4,
)

TASKS_GATE = release_gate(tasks, TaskPolicy, "tasks", ("tasks", "comparison"))


# `serving`: lower bounds on the cost of serving the checkpoint.

SERVING = Measurement(
    name="serving",
    description="Lower bounds on the cost of serving the checkpoint.",
    asset="serving",
    stages=late("plinth_assets.measurements.serving_stage:stages"),
    scores=late("plinth_assets.measurements.serving_stage:scores"),
    section=late("plinth_assets.measurements.serving_stage:section"),
    position=11,
)
