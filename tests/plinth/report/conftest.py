"""A page's worth of results with every section, in the shapes that the assets make."""

import math
import random
from typing import Any

import pytest

from plinth.report.page import Ancestor, Fact, GateOutcome, Next, ReleaseCard, ReportData, RunCard

BUCKETS = {"code": (5200, 0.86), "manuals": (2900, 0.7), "prose": (610, 0.9), "web": (1480, 0.95)}
STAGES = {
    "policy": (0.16, {"licence": 0.7, "too_short": 0.2, "gopher_repetition": 0.1}),
    "exact": (0.05, {"exact_duplicate": 1.0}),
    "near": (0.09, {"near_duplicate": 1.0}),
    "holdout": (0.01, {}),
    "contamination": (0.006, {"contaminated": 1.0}),
    "curated": (0.0, {}),
}


def account(documents: int, keep: float) -> dict[str, Any]:
    rejected = documents // 120
    left = documents - rejected
    reasons = {"timeout": {"documents": rejected, "bytes": None}}
    stages = [
        {
            "stage": "documents",
            "documents_in": documents,
            "documents_out": left,
            "removed": rejected,
            "reasons": reasons,
        }
    ]
    for stage, (share, why) in STAGES.items():
        gone = int(left * share / keep)
        found = {reason: {"documents": int(gone * part), "bytes": 0} for reason, part in why.items()}
        stages.append(
            {"stage": stage, "documents_in": left, "documents_out": left - gone, "removed": gone, "reasons": found}
        )
        left -= gone
    return {"stages": stages}


def added(accounts: list[dict[str, Any]]) -> dict[str, Any]:
    stages = []
    for rows in zip(*(each["stages"] for each in accounts), strict=True):
        reasons: dict[str, dict[str, Any]] = {}
        for row in rows:
            for reason, found in row["reasons"].items():
                reasons.setdefault(reason, {"documents": 0})["documents"] += found["documents"]
        total = {key: sum(row[key] for row in rows) for key in ("documents_in", "documents_out", "removed")}
        stages.append({"stage": rows[0]["stage"], "reasons": reasons, **total})
    return {"stages": stages}


@pytest.fixture
def funnel() -> dict[str, Any]:
    buckets = {name: account(*facts) for name, facts in BUCKETS.items()}
    total = added(list(buckets.values()))
    total["effective"] = {
        "nominal_bytes": 48.3e6, "rho_parse": 0.9915, "rho_quality": 0.812, "r_dup": 0.131, "rho_rest": 0.98,
        "r_pad": 0.0004, "effective_bytes": 33.8e6, "effective_tokens": 8.9e6,
    }  # fmt: skip
    return {"buckets": buckets, "total": total}


@pytest.fixture
def mixture() -> tuple[dict[str, Any], ...]:
    weights = {
        "main": {"code": 0.4, "manuals": 0.25, "prose": 0.15, "web": 0.2},
        "annealing": {"code": 0.2, "manuals": 0.1, "prose": 0.35, "web": 0.35},
    }
    return tuple(
        {
            "phase": phase, "bucket": bucket, "weight": weight, "share": weight + 0.0004, "tokens": int(weight * 8e5),
            "epochs": 0.8,
        }
        for phase, own in weights.items()
        for bucket, weight in own.items()
    )  # fmt: skip


@pytest.fixture
def slices() -> dict[str, dict[str, Any]]:
    return {
        "code": {"bytes": 201_000, "documents": 31, "tokens": 60_000, "model": 1.523, "gzip": 2.31, "trigram": 2.62},
        "manuals": {"bytes": 95_000, "documents": 22, "tokens": 30_000, "model": 1.91, "gzip": 3.02, "trigram": 2.93},
        "prose": {"bytes": 41_000, "documents": 5, "tokens": 12_000, "model": 2.18, "gzip": 3.4, "trigram": 3.05},
        "web": {"bytes": 88_000, "documents": 12, "tokens": 25_000, "model": 1.77, "gzip": 2.7, "trigram": 2.81},
    }


@pytest.fixture
def run() -> RunCard:
    picks = random.Random(1)
    steps = tuple(
        {
            "step": i,
            "loss": 3.1 + 5.9 * math.exp(-i / 22) + picks.gauss(0, 0.07),
            "lr": 3e-3 * min(1, i / 4, (101 - i) / 20),
        }
        for i in range(1, 101)
    )
    events = (
        {"event": "run_started", "attempt": 1},
        {"event": "checkpoint", "step": 25},
        {"event": "checkpoint", "step": 50},
        {"event": "restart", "step": 58, "lost_steps": 8, "reason": "rank 1 was killed"},
        {"event": "resumed", "step": 50},
        {"event": "checkpoint", "step": 75},
        {"event": "checkpoint", "step": 100},
        {"event": "finished", "step": 100},
    )
    facts = (Fact(label="speed", value="3,410 tokens/s"), Fact(label="restarts", value="1", note="8 steps redone"))
    return RunCard(run_id="demo-3fa9c1d2b7e0", steps=steps, events=events, facts=facts)


@pytest.fixture
def data(
    funnel: dict[str, Any], mixture: tuple[dict[str, Any], ...], slices: dict[str, dict[str, Any]], run: RunCard
) -> ReportData:
    return ReportData(
        title="demo: from raw corpus to an approved, signed checkpoint",
        subtitle="Text that is on every machine with Python: documentation, source code, descriptions, manual pages.",
        headline=(
            Fact(label="text read", value="48.3 MB", note="10,190 records in 4 buckets"),
            Fact(label="kept for training", value="33.1 MB", note="8.7 M tokens"),
            Fact(label="trained", value="819 k tokens", note="100 steps, 4.1 min"),
            Fact(label="bits per byte", value="1.74", note="trigram 2.79, gzip 2.71"),
            Fact(label="gates", value="9 of 10", note="approvals waits"),
        ),
        release=ReleaseCard(
            name="demo-model", version="1", alias="champion", approved_by=("demo-approver",),
            facts=(Fact(label="signed by", value="trainer 5be1…09"), Fact(label="from candidate", value="version 1")),
        ),
        gates=(
            GateOutcome(name="signature", state="passed", tone="pass", reason="all files match"),
            GateOutcome(name="lineage", state="passed", tone="pass", reason="63 manifests, down to 4 sources"),
            GateOutcome(name="beats_trigram", state="passed", tone="pass", reason="code 1.523, limit 2.620"),
            GateOutcome(name="approvals", state="pending", tone="fail", reason="0 of 1 approvals"),
        ),
        gates_summary="pending (approvals); 4 gates: 3 passed, 1 pending",
        slices=slices,
        languages={"manuals/de": slices["manuals"]},
        run=run,
        funnel=funnel,
        mixture=mixture,
        lineage=(
            Ancestor(asset="release", digest="ab" * 32, note="demo-model version 1"),
            Ancestor(asset="checkpoint", digest="cd" * 32, note="step 100"),
            Ancestor(asset="web/documents", digest="ef" * 32, note="inventory of 1 file"),
        ),
        next=(
            Next(what="The asset graph", link="http://127.0.0.1:3000/asset-groups", command="plinth up"),
            Next(what="Where a document came from and which steps saw it", command="plinth explain DOC_ID"),
        ),
    )  # fmt: skip
