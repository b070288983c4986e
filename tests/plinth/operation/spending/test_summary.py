"""Sums of the ledger: by a column, and by bucket as its tokens were drawn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from plinth.compute.context import Context
from plinth.compute.stage import manifest
from plinth.operation.spending.ledger import MICROS, Reservation
from plinth.operation.spending.summary import bucket_shares, summarise
from plinth.records import Step
from plinth.storage.workspace import Workspace
from plinth.training import config as configuration
from tests.plinth.training.conftest import tiny


@pytest.fixture
def ctx(tmp_path: Path) -> Context:
    return Context(Workspace(tmp_path / "workspace").ensure())


def one(id: str, run: str, spent: int | None, **more: Any) -> Reservation:
    given: dict[str, Any] = {"workspace": "w", "recipe": "demo", "team": "web", "experiment": "", "person": "ann"}
    given |= {"ranks": 2, "price": 36 * MICROS, "spot": False, "reserved": 5 * MICROS, "reason": "", "work": ""}
    given |= {"before_s": 0.0, "made": 1.0, "ended": None if spent is None else 2.0}
    settled = {} if spent is None else {"spent": spent * MICROS, "rank_s": spent * 100.0, "tokens": 512}
    return Reservation(**{**given, **settled, "id": id, "run": run, **more})


def test_sums_by_run_and_team(ctx: Context) -> None:
    rows = [
        one("1", "a", 2),
        one("2", "a", 3),
        one("3", "b", None),
        one("4", "c", 0, reserved=0, reason="refused: too dear", team="code"),
    ]
    found = [(row.name, row.submissions, row.refused, row.reserved, row.spent) for row in summarise(ctx, rows, "run")]
    assert found == [("a", 2, 0, 0.0, 5.0), ("b", 1, 0, 5.0, 0.0), ("c", 0, 1, 0.0, 0.0)]
    (web, code) = summarise(ctx, rows, "team")
    assert (web.name, web.spent, web.reserved, web.price_per_rank_hour) == ("web", 5.0, 5.0, pytest.approx(36.0))
    assert (code.name, code.refused) == ("code", 1)
    assert [row.name for row in summarise(ctx, rows, "experiment")] == ["-"]


#: Two phases of 8 sequences: web alone, then half and half with code.
FIRST, SECOND = {"code/a": 0, "web/a": 4, "web/b": 4}, {"code/a": 4, "web/a": 4, "web/b": 0}
STATS = {
    "buckets": {name: {} for name in FIRST},
    "sequences": 16,
    "block_sequences": 4,
    "phases": [
        {"phase": name, "first": first, "sequences": 8, "blocks": 2, "counts": counts,
         "block_totals": counts, "weights": {one: n / 8 for one, n in counts.items()}}
        for name, first, counts in (("one", 0, FIRST), ("two", 8, SECOND))
    ],
}  # fmt: skip


def test_shares_of_buckets_follow_the_phases_as_far_as_the_run_came() -> None:
    """Streams of a bucket count together; a run that has seen nothing is divided as its whole mixture."""
    assert bucket_shares(STATS, 10, 80) == {"web": 1.0}
    assert bucket_shares(STATS, 10, 160) == {"web": 0.75, "code": 0.25}
    assert bucket_shares(STATS, 10, 0) == {"web": 0.75, "code": 0.25}


def test_a_runs_money_is_divided_between_buckets_by_the_tokens_that_it_saw(ctx: Context) -> None:
    """512 tokens of 32 are all 16 sequences; of a run that was elsewhere nothing is known."""
    mixed = manifest("mixture", Step(name="mixture", version="1", params={}), {}, (), STATS)
    config = tiny(ctx.workspace.root, mixture=mixed.digest)
    ctx.refs.save(mixed)
    configuration.write(config)
    found = summarise(ctx, [one("1", config.run_id, 8), one("2", "gone", 1)], "bucket")
    assert [(row.name, row.spent) for row in found] == [("web", 6.0), ("code", 2.0), ("-", 1.0)]
