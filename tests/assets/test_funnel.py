from __future__ import annotations

from typing import Any

from plinth.records import Manifest
from plinth_assets import accounts
from plinth_assets.framework import evaluate


def _account(trained: int, **removed: int) -> dict[str, Any]:
    """Documents that the policy keeps, and those that its rules remove."""
    found = trained + sum(removed.values())
    row = {"stage": "policy", "documents_in": found, "documents_out": trained, "removed": found - trained}
    row["reasons"] = {reason: {"documents": n} for reason, n in removed.items()}
    return {"stages": [row], "trained": {"documents": trained}}


def _checked(**buckets: dict[str, Any]) -> Any:
    total = {"trained": {"documents": sum(account["trained"]["documents"] for account in buckets.values())}}
    facts = {"step": "funnel", "version": "1", "params": {}, "inputs": {}, "parts": ()}
    made = Manifest(asset="funnel", stats={"buckets": buckets, "total": total}, **facts)
    return evaluate(accounts._suite_funnel(made, {}))


def test_a_bucket_that_ends_empty_is_a_warning_with_the_rules_that_emptied_it() -> None:
    few = _account(0, too_few_words=2, language=1)
    outcome = _checked(few=few, many=_account(60))
    assert not outcome.blocked
    assert outcome.warnings == (
        "bucket few has no training documents left; its sources have 3 records; removed: 2 by too_few_words (policy), "
        "1 by language (policy)",
    )
    alone = _checked(few=few)
    assert alone.blocked
    assert alone.failures[0] == "no bucket has training documents left"
