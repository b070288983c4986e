"""The review of a week or month has what happened in it, and nothing else."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from plinth.compute.context import Context
from plinth.operation.spending_ledger import MICROS, JobCost, Ledger, Reservation
from plinth.records import Manifest
from plinth.storage.workspace import Workspace
from plinth_assets.framework.placement import ALONE
from plinth_jobs.instance import interruptible
from plinth_ops.reviews import review, schedule
from plinth_ops.reviews.review import Period, PeriodSection, is_unusual, period


def at(*date: int) -> float:
    return datetime(*date, tzinfo=UTC).timestamp()  # type: ignore[arg-type, misc]


NOW = at(2026, 11, 4, 9)  # a Wednesday
LAST_WEEK = Period("week", at(2026, 10, 26), at(2026, 11, 2))


@pytest.fixture
def ctx(tmp_path: Path) -> Context:
    return Context(Workspace(tmp_path / "workspace").ensure())


def section(ctx: Context, title: str) -> PeriodSection:
    return next(one for one in review.review(ctx, LAST_WEEK).sections if one.title == title)


def test_periods_are_whole_weeks_and_months_that_have_ended() -> None:
    assert period("week", NOW) == LAST_WEEK
    assert period("week", at(2026, 11, 2)) == LAST_WEEK
    assert period("week", at(2026, 11, 2) - 1).end == LAST_WEEK.begin
    assert (period("month", NOW).begin, period("month", NOW).end) == (at(2026, 10, 1), at(2026, 11, 1))
    assert [period("week", NOW).name, period("month", NOW).name] == ["2026-W44", "2026-10"]
    assert period("week", at(2027, 1, 4)).name == "2026-W53"
    assert LAST_WEEK.before == Period("week", at(2026, 10, 19), at(2026, 10, 26))


def test_an_empty_workspace_has_nothing_to_say(ctx: Context) -> None:
    found = review.review(ctx, LAST_WEEK)
    assert [one.good for one in found.sections] == [True, None, None, None, None, None]
    path = review.write(ctx, "week", NOW)
    assert path.name == "review-2026-W44.html"
    text = path.read_text()
    assert "http" not in text.replace("http-equiv", "")  # it loads nothing
    assert review.write(ctx, "week", NOW).read_text() == text


def test_failed_jobs_of_the_week_have_their_reasons(ctx: Context) -> None:
    def line(when: float, message: str) -> str:
        return json.dumps({"time": when, "run": "", "job": "make_corpus", "message": message}) + "\n"

    inside = line(LAST_WEEK.begin, "disk full\n  found: x") + line(LAST_WEEK.end, "next week")
    (ctx.workspace.root / "alerts.jsonl").write_text(line(LAST_WEEK.begin - 1, "the week before") + inside)
    run = ctx.workspace.runs / "r1"
    run.mkdir()
    events = [
        {"seq": 1, "time": LAST_WEEK.begin + 1, "event": "rank_failed", "what": "a shard is short", "kind": "X"},
        {"seq": 2, "time": LAST_WEEK.begin + 2, "event": "lost", "reason": "a node is lost"},
        {"seq": 3, "time": LAST_WEEK.begin + 3, "event": "step", "step": 1},
        {"seq": 4, "time": LAST_WEEK.end + 3, "event": "failed", "reason": "next week"},
    ]
    (run / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    found = section(ctx, "Failed jobs")
    assert (found.good, found.verdict) == (False, "2 failed")
    assert [row[1:] for row in found.rows] == [
        ("make_corpus", "job", "disk full"), ("r1", "rank_failed", "a shard is short"), ("r1", "lost", "a node is lost")
    ]  # fmt: skip


def spend(ledger: Ledger, ctx: Context, when: float, money: float, tokens: int = 1000, name: str = "r") -> None:
    given: dict[str, Any] = dict.fromkeys(("recipe", "team", "experiment", "person", "reason"), "")
    number = f"{name}-{when}"
    ledger.reserve(
        Reservation(
            id=number, workspace=str(ctx.workspace.root), run=name, ranks=1, price=0, spot=False, reserved=None,
            work="w", before_s=0.0, made=when, **given,
        )
    )  # fmt: skip
    ledger.settle(number, JobCost(spent=round(money * MICROS), rank_s=1.0, tokens=tokens), when + 1)


@pytest.mark.parametrize(
    ("this_week", "tokens", "unusual"),
    [(10.5, 1000, []), (40.0, 1000, ["all jobs", "new"]), (40.0, 4000, ["all jobs"])],
)
def test_cost_far_from_earlier_weeks_or_from_like_jobs_is_unusual(
    ctx: Context, this_week: float, tokens: int, unusual: list[str]
) -> None:
    (ctx.workspace.root / "budget").mkdir()
    ledger, span = Ledger(str(ctx.workspace.root / "budget" / "ledger.sqlite")), LAST_WEEK
    spend(ledger, ctx, span.begin + 5, this_week, tokens, "new")
    for number in range(5):
        span = span.before
        spend(ledger, ctx, span.begin + 5, 10.0 + 0.1 * number, 1000, f"old{number}")
    found = section(ctx, "Cost")
    assert [row[0] for row in found.rows] == unusual
    assert found.good == (not unusual)
    assert f"{this_week:,.2f} spent" in found.lead


def test_what_is_unusual() -> None:
    assert not is_unusual(14.0, [10, 10, 10])  # less than half more
    assert is_unusual(16.0, [10, 10, 10])
    assert not is_unusual(16.0, [6, 10, 14, 8, 12])  # they differ by the same amount among themselves
    assert is_unusual(0.0, [10, 10, 11])


def test_a_chain_that_is_broken_is_named(ctx: Context) -> None:
    def publish(asset: str, inputs: dict[str, str]) -> Manifest:
        made = Manifest(asset=asset, step="s", version="1", params={}, inputs=inputs, parts=())
        ctx.refs.save(made)
        ctx.refs.publish(made, "k")
        return made

    source = publish("web/documents", {"web": "5" * 64})
    publish("web/curated", {"web/documents": source.digest})
    publish("books/documents", {"books": "6" * 64})
    assert section(ctx, "Provenance").verdict == "2 of 2 complete"
    (ctx.workspace.manifests / f"{source.digest}.json").unlink()
    found = section(ctx, "Provenance")
    assert (found.good, found.verdict) == (False, "2 broken")
    assert [row[0] for row in found.rows] == ["web/curated", "web/documents"]


def test_both_are_written_by_schedule(ctx: Context) -> None:
    made = [schedule._schedule(ctx.workspace.root, length, ALONE) for length in schedule.CRON]
    assert {one.cron_schedule for one in made} == {"0 6 * * 1", "0 6 1 * *"}
    for one in made:
        with interruptible():
            assert one.job.execute_in_process().success  # type: ignore[attr-defined]
    assert len(list(ctx.workspace.reports.glob("review-*.html"))) == 2
