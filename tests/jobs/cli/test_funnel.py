"""`plinth corpus funnel` over published statistics."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from plinth.compute.context import Context
from plinth.records import Manifest
from plinth.storage.workspace import Workspace

Plinth = Callable[..., Any]

EFFECTIVE = {
    "nominal_bytes": 2_000_000.0,
    "rho_parse": 0.9,
    "rho_quality": 0.5,
    "r_dup": 0.1,
    "rho_rest": 1.0,
    "r_pad": 0.0,
    "effective_bytes": 810_000.0,
    "effective_tokens": 200_000.4,
}


def account(documents: int, removed: int) -> dict[str, Any]:
    stage = {
        "stage": "policy",
        "documents_in": documents,
        "documents_out": documents - removed,
        "removed": removed,
        "removed_bytes": 1_500_000,
        "reasons": {"too_few_words": {"documents": removed, "bytes": 1_500_000}},
    }
    parsing = {**stage, "stage": "documents", "removed": 0, "removed_bytes": None, "reasons": {}}
    kept = documents - removed
    return {
        "stages": [parsing, stage],
        "trained": {"documents": kept, "bytes": 500_000, "tokens": 123_456},
        "held_out": {"documents": 3, "bytes": 5},
        "effective": EFFECTIVE,
    }


@pytest.fixture
def funnel(tmp_path: Path) -> dict[str, Any]:
    files = {"found": 3, "read": 2, "not_read": {".md": 1}, "records": 1000, "documents": 1000, "repeats": 0}
    files |= {"exclusions": {}, "damage": {}}
    stats = {"buckets": {"web": account(1000, 250) | {"account": files}, "code": account(40, 0)}}
    stats |= {"total": account(1040, 250)}
    ctx = Context(Workspace(tmp_path / "workspace").ensure())
    made = Manifest(asset="funnel", step="funnel", version="1", params={}, inputs={}, parts=(), stats=stats)
    ctx.refs.publish(made, "key")
    return stats


def test_all_buckets(plinth: Plinth, funnel: dict[str, Any]) -> None:
    outcome = plinth("corpus", "funnel")
    assert outcome.code == 0
    shown = [" ".join(line.split()) for line in outcome.out.splitlines()]
    assert "policy 1,040 790 250 24.0% 1.5 MB" in shown
    assert "too_few_words policy 250 1.5 MB -" in shown
    assert "web 1,000 750 3 500.0 kB 123,456" in shown
    assert "D_eff 810.0 kB of 2.0 MB (200,000 tokens)" in outcome.out
    assert shown[-1] == "web: 3 files: 2 read, 1 not read (1 .md); 1,000 records: 1,000 documents"
    assert max(map(len, outcome.out.splitlines())) <= 110


def test_one_bucket(plinth: Plinth, funnel: dict[str, Any]) -> None:
    shown = [" ".join(line.split()) for line in plinth("corpus", "funnel", "--bucket", "web").out.splitlines()]
    assert "policy 1,000 750 250 25.0% 1.5 MB" in shown


def test_json_is_the_statistics(plinth: Plinth, funnel: dict[str, Any]) -> None:
    assert json.loads(plinth("corpus", "funnel", "--json").out) == funnel
    assert json.loads(plinth("corpus", "funnel", "--json", "-b", "code").out) == funnel["buckets"]["code"]


def test_unknown_bucket(plinth: Plinth, funnel: dict[str, Any]) -> None:
    outcome = plinth("corpus", "funnel", "--bucket", "wbe")
    assert outcome.code == 3
    assert "one of web, code" in outcome.err or "one of code, web" in outcome.err


def test_not_made_yet(plinth: Plinth, tmp_path: Path) -> None:
    Workspace(tmp_path / "workspace").ensure()
    outcome = plinth("corpus", "funnel")
    assert outcome.code == 3
    assert "plinth run --select funnel" in outcome.err


def test_an_account_of_buckets_before_there_is_a_mixture(plinth: Plinth, tmp_path: Path) -> None:
    ctx = Context(Workspace(tmp_path / "workspace").ensure())
    documents = {"documents": 10, "text_bytes": 1000, "rejects": {"broken_record": 2}}
    verdicts = {
        "documents": 10,
        "bytes": 1000,
        "stages": {"policy": 10},
        "stage_bytes": {"policy": 1000},
        "policy_reasons": {"too_few_words": 10},
        "policy_reason_bytes": {"too_few_words": 1000},
        "decisions": {"train": 0},
        "decision_bytes": {"train": 0},
    }
    curated = {
        "documents": 0,
        "text_bytes": 0,
        "heldout_documents": 0,
        "heldout_bytes": 0,
        "edited_documents": 0,
        "edited_away_bytes": 0,
    }
    for kind, stats in {"documents": documents, "verdicts": verdicts, "curated": curated}.items():
        made = Manifest(asset=f"web/{kind}", step="s", version="1", params={}, inputs={}, parts=(), stats=stats)
        ctx.refs.publish(made, "key")
    shown = [" ".join(line.split()) for line in plinth("corpus", "funnel").out.splitlines()]
    assert "too_few_words policy 10 1.0 kB 0" in shown
    assert "broken_record (damage) documents 2 - -" in shown
