"""`probes`: items by family, with their control and the noise of the run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from plinth.evaluation.gate import GateState, release_gate
from plinth.evaluation.measurement import UNREADABLE, JudgedCheckpoint, Measurement
from plinth.evaluation.probes.noise import Worth
from plinth.extensions import late
from plinth.records import Manifest
from plinth.text import counted
from plinth.training.validation import kept_looks, probe_curves
from plinth_registry.gates.facts import Evidence, ProbeFacts, ProbeWorth
from plinth_registry.gates.margins import WHOLE, compared, each_within, subject_of
from plinth_registry.gates.result import GateResult, missing, named, number
from plinth_registry.gates.settings import ProbePolicy


def read(found: Mapping[str, Manifest], judged: JudgedCheckpoint) -> ProbeFacts:
    """Probes with the noise of the run; one of unknown noise decides nothing."""
    (made,) = found.values()
    return ProbeFacts(probes=dict(_probes(made.stats["probes"], worth(judged.provenance))))


def worth(provenance: Mapping[str, Any] | None) -> dict[str, Worth]:
    """What each probe of a run is worth, by the looks that its trainer committed with the checkpoint; empty without."""
    try:
        looks = kept_looks.of(((provenance or {}).get("training") or {}).get("looks", {}))
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
    """Probes that decide (signal-to-noise ratio of at least 1) within the margin of the champion."""
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


MEASUREMENT = Measurement(
    name="probes",
    description="Items by family, with their control and the noise of the run.",
    asset="probes",
    stages=late("plinth_assets.probes:stages"),
    key="evaluation.probes",
    facts=ProbeFacts,
    read=read,
    recount=late("plinth_assets.measurements.probes_items:recount"),
    pairs=late("plinth_assets.measurements.probes_items:pairs"),
    headings={"probes": "Probes"},
    scores=late("plinth_assets.measurements.probes_items:scores"),
    section=late("plinth_assets.measurements.probes_items:section"),
    position=3,
)

GATE = release_gate(probes, ProbePolicy, "probes", ("probes", "comparison"))
