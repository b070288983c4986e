"""Stages of the corpus: the cost of their last run bounds the next one; without a budget there is no account."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from plinth.compute import context
from plinth.compute.context import AssetCost, Context, StepCost, TaskShare, manifest
from plinth.errors import BudgetError
from plinth.operation import admission, settlement, spending
from plinth.operation.settlement import summarise
from plinth.operation.spending import CorpusPrices, Spending
from plinth.operation.spending_ledger import MICROS, JobCost, Ledger, Limit, Reservation
from plinth.records import Step
from plinth.storage.workspace import Workspace

PRICES = CorpusPrices(core_hour=36.0, million_requests=1e6)

#: 100 s of cores at 0.01 each, 6 writes and 12 reads at 1 and 1/12.
LAST = AssetCost(
    asset="web/curated", steps={"x": StepCost(tasks=2, spared=6, cpu_s=60.0, opened=12, written=6)}, driver_cpu_s=40.0,
    wall_s=9.0, input_bytes=1000,
)  # fmt: skip


def test_the_bound_is_of_all_items_and_of_the_bytes_there_are() -> None:
    assert admission.stage_price(LAST, PRICES) == pytest.approx(1.0 + 6 + 1)
    assert admission.stage_bound(LAST, 1000, PRICES, 0.25) == pytest.approx(8.0 * 4 * 1.25)  # 2 of 8 made
    assert admission.stage_bound(LAST, 3000, PRICES, 0.25) == pytest.approx(8.0 * 4 * 3 * 1.25)
    older = LAST.model_copy(update={"input_bytes": 0})
    assert admission.stage_bound(older, 3000, PRICES, 0.0) == pytest.approx(8.0 * 4)
    assert admission.stage_bound(None, 3000, PRICES, 0.0) is None
    idle = LAST.model_copy(update={"steps": {"x": StepCost(spared=8)}})
    assert admission.stage_bound(idle, 3000, PRICES, 0.0) is None


def test_reserved_refused_and_settled(tmp_path: Path) -> None:
    ctx = Context(Workspace(tmp_path / "workspace").ensure())
    assert admission.reserve_stage(ctx, "web/curated", 1000) is None  # no account is kept
    path = spending.settings_file(ctx.workspace)
    path.parent.mkdir(exist_ok=True)
    path.write_text("margin: 0\nteam: web\nprices: {core_hour: 36, million_requests: 1000000}\n")
    ledger = Ledger(spending.ledger_place(ctx.workspace, spending.load(ctx.workspace)))
    context.save(ctx.workspace, LAST)
    held = admission.reserve_stage(ctx, "web/curated", 1000)
    assert held is not None
    assert (held.run, held.reserved, held.reason) == ("corpus:web/curated", 32 * MICROS, "the last materialization")
    assert admission.reserve_stage(ctx, "web/curated", 1000) == held  # of one whose process died
    ledger.limit(Limit(scope="all", name="", amount=63 * MICROS, period="total", person="bo", made=1.0))
    shared = Context(ctx.workspace, share=TaskShare(0, 2))
    with pytest.raises(BudgetError, match="is not made: it could exceed the budget"):
        admission.reserve_stage(shared, "web/curated", 1000)
    assert settlement.settle(ctx) == [held]  # no run: it stays as it was bounded
    admission.settle_stage(ctx, held, LAST)
    (row,) = [one for one in summarise(ctx, Spending(), ledger.find(), "run") if one.name == "corpus:web/curated"]
    assert (row.spent, row.reserved, row.rank_hours, row.price_per_rank_hour) == (8.0, 0.0, 0.0, 0.0)
    assert admission.reserve_stage(shared, "web/curated", 1000) is not None  # 8 and 32 are within 63


def test_a_limit_alone_keeps_an_account(tmp_path: Path) -> None:
    ctx = Context(Workspace(tmp_path / "workspace").ensure())
    ledger = Ledger(spending.ledger_place(ctx.workspace, Spending()))
    assert admission.reserve_stage(ctx, "web/curated", 1) is None
    ledger.limit(Limit(scope="all", name="", amount=0, period="total", person="bo", made=1.0))
    with pytest.raises(BudgetError, match="is not made"):
        admission.reserve_stage(ctx, "web/curated", 1)


def test_stages_of_the_corpus_beside_runs(tmp_path: Path) -> None:
    """A stage has no rank hours, and does not make those of runs more expensive; of a bucket it is its asset's."""
    ctx = Context(Workspace(tmp_path / "workspace").ensure())
    made = manifest("web/documents", Step(name="d", version="1", params={}), {}, [])
    ctx.refs.save(made)
    ctx.refs.publish(made, "0" * 64)
    ledger = Ledger(spending.ledger_place(ctx.workspace, Spending()))
    common: dict[str, Any] = {"workspace": "w", "recipe": "", "team": "t", "experiment": "", "person": "", "ranks": 1}
    common |= {"price": 1, "spot": False, "reserved": 1, "reason": "", "work": "", "before_s": 0.0, "made": 1.0}
    rows = [("1", "corpus:web/curated", 4, 0.0), ("2", "corpus:dedup/minhash", 2, 0.0), ("3", "run-a", 36, 3600.0)]
    for name, run, money, rank_s in rows:
        ledger.reserve(Reservation(id=name, run=run, **common))
        ledger.settle(name, JobCost(spent=money * MICROS, rank_s=rank_s, tokens=0), 2.0)
    (team,) = summarise(ctx, Spending(), ledger.find(), "team")
    assert (team.spent, team.rank_hours, team.price_per_rank_hour) == (42.0, 1.0, 36.0)
    assert {one.name: one.spent for one in summarise(ctx, Spending(), ledger.find(), "bucket")} == {
        "web": 4.0, "-": 38.0,
    }  # fmt: skip


def test_a_stage_with_its_own_budget_reserves_it(tmp_path: Path) -> None:
    """What a language model costs is bounded by the budget of its endpoint, whatever the last materialization cost."""
    ctx = Context(Workspace(tmp_path / "workspace").ensure())
    ledger = Ledger(spending.ledger_place(ctx.workspace, Spending()))
    ledger.limit(Limit(scope="all", name="", amount=60 * MICROS, period="total", person="bo", made=1.0))
    with pytest.raises(BudgetError, match="could exceed the budget"):
        admission.reserve_stage(ctx, "web/llm", 1, 61.0)
    held = admission.reserve_stage(ctx, "web/llm", 1, 50.0)
    assert held is not None
    assert (held.reserved, held.reason) == (50 * MICROS, "the budget of its endpoint")
    asked = StepCost(tasks=1, tokens=1000, endpoint_price=12.5)
    cost = AssetCost(asset="web/llm", steps={"answers": asked}, driver_cpu_s=0.0, wall_s=1.0)
    admission.settle_stage(ctx, held, cost)
    (row,) = [one for one in ledger.find() if not one.refused]
    assert row.spent == round(12.5 * MICROS)
