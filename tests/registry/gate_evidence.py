"""Evidence that opens every gate, and a policy that asks them all: what the tests of gates change one fact of."""

from __future__ import annotations

from typing import Any

from plinth.evaluation.measurement import MEASUREMENTS
from plinth_assets.measurements.quality import PiiShare
from plinth_ops.service_levels.tallies import ErrorBudget
from plinth_registry.gates.facts import (
    Approval,
    CheckResult,
    ComparisonFacts,
    ContaminationFacts,
    CostFacts,
    EvaluationFacts,
    Evidence,
    GrantedUses,
    LicenceFacts,
    PairedLine,
    ProbeFacts,
    ProbeWorth,
    ResumeFacts,
    SliceScore,
    StabilityFacts,
    TaskFacts,
    TaskScore,
)
from plinth_registry.gates.settings import GatePolicy, absent_gates, gate_policy

OURS, THEIRS = "a" * 64, "b" * 64


def policy(**changes: Any) -> GatePolicy:
    """Return a policy that requires every installed gate."""
    without = dict.fromkeys(absent_gates(), "its package is not here") | changes.pop("without", {})
    given: dict[str, Any] = {"release": "demo", "slices": {"max_bits_per_byte": 2.4}, "without": without}
    return gate_policy(given | changes)


def person(
    by: str, decision: str = "approved", how: str = "statement", key: str | None = None, proxy: str = ""
) -> Approval:
    """A decision, signed with a key of that person's, or a tag, which the server with the key of `proxy` states."""
    given = {"by": by, "decision": decision, "reason": "looked at it", "how": how, "proxy": proxy}
    return Approval.model_validate(given | {"key": (f"key of {by}" if key is None else key) * (how == "statement")})


def line(kind: str, measure: str, value: float = 0.0, half: float = 0.01, **changes: Any) -> PairedLine:
    """A paired difference with an interval of that half width; bits, so fewer are better."""
    given = {"kind": kind, "measure": measure, "slice": "all", "fewer_is_better": True, "clusters": 40, "value": value}
    return PairedLine.model_validate(given | {"low": value - half, "high": value + half} | changes)


LINES = (
    line("slices", "bits per byte"),
    line("slices", "bits per byte", slice="bucket web"),
    line("probes", "maths: bits per byte"),
    line("probes", "guesses: bits per byte", value=9.0),
    line("tasks", "copying: exact_match", fewer_is_better=False),
    line("fairness", "bits between groups"),
    line("fairness", "bits between groups", slice="attribute gender"),
    line("fairness", "toxicity of continuations", value=9.0),
)


#: Values by measurement.
MEASURED: dict[str, Any] = {
    "evaluation": EvaluationFacts(slices={"web": SliceScore(bytes=10, model=2.0, gzip=3.0, trigram=2.5)}),
    "probes": ProbeFacts(
        probes={
            "maths": ProbeWorth(items=20, signal=0.4, snr=3.0, decides=True),
            "guesses": ProbeWorth(items=20, signal=0.1, snr=0.5, decides=False),
        }
    ),
    "tasks": TaskFacts(tasks={"copying": TaskScore(documents=40, damaged=1)}),
    "comparison": ComparisonFacts(candidate=OURS, champion=THEIRS, lines=LINES),
    "pii_data": PiiShare(
        texts=500,
        found=1,
        at_most=0.01,
        slices={
            "web": PiiShare(texts=150, found=0, at_most=0.0198),
            "books": PiiShare(texts=149, found=0, at_most=0.03),
        },
    ),
}
#: The same of measurements of the ring, as plain data.
_OF_THE_RING: dict[str, Any] = {
    "memorisation_extraction": {
        "slices": {
            "all": {"windows": 200, "at_most": 0.02},
            "duplicated": {"windows": 60, "at_most": 0.04},
            "personal_data": {"windows": 3, "at_most": 0.7},
        }
    },
    "memorisation_canaries": {"planted": 30, "p_values": {1: 0.4, 64: 1e-30}, "epsilon": 2.0},
    "fairness": {
        "attributes": {"gender": {"pairs": 30, "low": -0.5, "high": 1.5}},
        "toxicity": {"continuations": 60, "at_most": 0.04},
    },
    "pii_outputs": {
        "unprompted": {"texts": 200, "found": 1, "at_most": 0.03},
        "invited": {"texts": 120, "found": 40, "at_most": 0.5},
        "memorised": {"texts": 320, "found": 0, "at_most": 0.0094},
    },
}
for _name, _facts in _OF_THE_RING.items():
    if _name in MEASUREMENTS:
        _record = MEASUREMENTS[_name].facts
        assert _record is not None
        MEASURED[_name] = _record.model_validate(_facts)


def proof(**changes: Any) -> Evidence:
    """Evidence that opens every gate, with some of it changed: fields of the evidence, or facts of measurements."""
    holds = CheckResult(holds=True, detail="as it should be")
    measured = {name: changes.pop(name) for name in [*changes] if name in MEASUREMENTS}
    good = {
        "signature": holds,
        "lineage": holds,
        "taints": (),
        "champion": THEIRS,
        "expected_slices": ("web",),
        "measured": MEASURED | measured,
        "contamination": ContaminationFacts(documents=3, contaminated=0),
        "licences": LicenceFacts(
            documents={"MIT": 3},
            permitted=("MIT", "Apache-2.0"),
            sources={"web.example 2026-46": GrantedUses(documents=3, train=True, redistribute=True, commercial=False)},
        ),
        "resume": ResumeFacts(bit_exact=True, compared_steps=4),
        "stability": StabilityFacts(events={"restarts": 1, "interventions": 0}),
        "cost": CostFacts(amounts={"wall_s": 9.0, "tokens": 2.0**20}),
        "own": {
            "error_budget": (
                ErrorBudget(indicator="job success", unit="rank-s", target=0.95, good_s=96, total_s=100),
                ErrorBudget(indicator="restore time", unit="rank-s", target=0.9, good_s=91, total_s=100),
                ErrorBudget(indicator="checkpoint age", unit="rank-s", target=0.99, good_s=0, total_s=0),
                ErrorBudget(indicator="ingestion lag", unit="bucket-s", target=0.9, good_s=0, total_s=100),
            )
        },
        "requested_by": "grace",
        "approvals": (person("ada"),),
    }
    return Evidence.model_validate(good | changes)


def set_fact(data: Any, path: str, value: object) -> None:
    """Set what a path of keys, and of numbers in lists, names in evidence as plain data."""
    *way, last = path.split("/")
    for step in way:
        data = data[int(step) if isinstance(data, list) else step]
    key = int(last) if isinstance(data, list) else last
    assert isinstance(data, list) or data.get(key, "absent") != value
    data[key] = value
