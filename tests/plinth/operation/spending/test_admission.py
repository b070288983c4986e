"""No job is submitted that could exceed a limit; what a job costs is its timeline's rank-seconds at its price."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from plinth.compute.context import Context
from plinth.errors import BudgetError, RequestError, TrainingError
from plinth.launch.base import Handle
from plinth.launch.devices import DEVICES
from plinth.launch.local import LocalLauncher
from plinth.launch.parameters import Launch
from plinth.operation import admission, settlement, spending
from plinth.operation.admission import bound, step_s, work
from plinth.operation.spending import Spending
from plinth.operation.spending_ledger import MICROS, Ledger, Limit, Reservation
from plinth.storage.workspace import Workspace
from plinth.training import config as configuration
from plinth.training import job
from plinth.training.config import RunConfig
from plinth.training.directory import RunDirectory
from plinth.training.parameters.guard import Stopping
from plinth.training.parameters.run import Checkpoints
from plinth.training.supervise import result
from plinth.training.supervise.result import Allowance, AllowanceWatch
from tests.plinth.training.conftest import tiny

#: 12 steps of 8 rows of 32 tokens.
TOKENS = 12 * 8 * 32


@pytest.fixture
def ctx(tmp_path: Path) -> Context:
    return Context(Workspace(tmp_path / "workspace").ensure())


def made(ctx: Context, **changes: Any) -> RunConfig:
    config = tiny(ctx.workspace.root, **{"supervision": {"grace_s": 30.0}, **changes})
    configuration.write(config)
    return config


def stated(ctx: Context, text: str) -> Ledger:
    path = spending.settings_file(ctx.workspace)
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return Ledger(spending.ledger_place(ctx.workspace, spending.load(ctx.workspace)))


def limited(ledger: Ledger, amount: float, **more: Any) -> None:
    given: dict[str, Any] = {"scope": "all", "name": "", "period": "total", "person": "bo", "made": 1.0} | more
    ledger.limit(Limit(amount=round(amount * MICROS), **given))


def lived(config: RunConfig, jobs: Sequence[tuple[float, float, int]], tokens: int = 0, begin: float = 1e9) -> None:
    """Add jobs to the run's timeline: seconds until they start, that they last, and ranks."""
    path, now, lines = config.directory.events, begin, []
    seq = len(path.read_text().splitlines()) if path.exists() else 0
    for wait, last, ranks in jobs:
        lines += [{"time": now, "event": "submitted"}, {"time": now + wait, "event": "job_started", "ranks": ranks}]
        step = {"event": "step", "step": 1, "tokens": tokens, "loss": 1.0, "step_s": 1.0}
        lines += [{"time": now + wait + 1, **step}] if tokens else []
        now += wait + last
        lines += [{"time": now, "event": "finished"}]
    with path.open("a") as stream:
        stream.writelines(json.dumps({"seq": seq + n, **line}) + "\n" for n, line in enumerate(lines, 1))


def test_a_run_that_could_exceed_its_limit_is_not_submitted(ctx: Context) -> None:
    """10 s on 2 ranks with a quarter's margin, and 30 s to leave: 85 rank-seconds, at 36 an hour 0.85."""
    config = made(ctx, stopping=Stopping(seconds=10.0))
    ledger = stated(ctx, "price_per_rank_hour: 36\nstart_s: 0\nteam: web\n")
    limited(ledger, 0.84, scope="team", name="web", period="month")
    with pytest.raises(BudgetError, match="could exceed") as refused:
        admission.submit(ctx, config)
    assert "team web: 0.84 a month; 0.00 spent or reserved, 0.85 wanted (training.stopping.seconds)" in str(
        refused.value.found
    )
    assert not config.directory.handle.exists()
    assert not config.directory.events.exists()
    limited(ledger, 0.85, scope="team", name="web", period="month")
    granted, number = admission.reserve(ctx, config)
    assert (granted.team, granted.reserved, granted.price) == ("web", 850_000, 36_000_000)
    found = result.read_allowance(config.directory)
    assert found is not None
    assert (found.rank_s, found.price_per_rank_hour, found.number) == (85.0, 36.0, number)


def test_a_grant_that_disappears_before_the_job_is_submitted_lifts_no_limit(
    ctx: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Removed, or replaced by an earlier one, between the reservation and the launcher."""
    config = made(ctx, stopping=Stopping(seconds=10.0))
    limited(stated(ctx, "price_per_rank_hour: 36\nstart_s: 0\n"), 90.0)
    result.write_allowance(config.directory, Allowance(rank_s=1e9, price_per_rank_hour=1))
    early = config.directory.allowance.read_bytes()
    started: list[list[str]] = []

    def submit(launcher: object, command: list[str], *place: Path) -> Handle:
        started.append(command)
        return Handle(launcher="local", id="1", started="", host="elsewhere.example")

    monkeypatch.setattr(LocalLauncher, "submit", submit)
    for planted in (None, early):
        monkeypatch.setattr(job, "give", lambda run, *names, planted=planted: plant(run, planted))
        admission.submit(ctx, config)
        _, (least, _) = result.SubmittedNumbers.split(started[-1])
        with pytest.raises(TrainingError, match="is not the allowance of this run"):
            AllowanceWatch.of(config, least)
        config.directory.handle.unlink(missing_ok=True)


def plant(run: RunDirectory, planted: bytes | None) -> None:
    run.allowance.unlink(missing_ok=True)
    if planted is not None:
        run.allowance.write_bytes(planted)


def test_without_a_limit_nothing_is_granted_and_all_is_entered(ctx: Context) -> None:
    config = made(ctx)
    granted, number = admission.reserve(ctx, config)
    assert (granted.reserved, number) == (None, 0)  # no price
    assert not config.directory.allowance.exists()
    assert [one.run for one in stated(ctx, "").find()] == [config.run_id]


def test_a_recipe_cannot_raise_its_own_limit(ctx: Context) -> None:
    """Neither by a low price of its own, nor by stating none."""
    ledger = stated(ctx, "price_per_rank_hour: 36\nstart_s: 0\n")
    limited(ledger, 0.5)
    for stopping in (Stopping(seconds=10.0, price_per_rank_hour=0.001), Stopping(seconds=10.0)):
        with pytest.raises(BudgetError, match="could exceed"):
            admission.reserve(ctx, made(ctx, stopping=stopping))
    stated(ctx, "team: web\n")
    with pytest.raises(BudgetError, match="no upper bound"):
        admission.reserve(ctx, made(ctx, stopping=Stopping(seconds=10.0)))


def test_bounds_are_the_planners_like_runs_and_the_recipes_own(ctx: Context) -> None:
    config = made(ctx)
    nothing = bound(config, None, 0.25, 0.0, ())
    assert nothing.rank_s is None
    h100 = DEVICES["h100"]
    planned = bound(config, h100, 0.25, 0.0, ())
    steps = 12 + config.checkpoints.audit_steps
    assert planned.rank_s == pytest.approx(step_s(config, h100) * steps * 2 * 1.25 + 60.0)
    assert planned.reason == "the planner, at 40% of the device's peak"
    common: dict[str, Any] = {"workspace": "w", "recipe": "", "team": "", "experiment": "", "person": "", "ranks": 2}
    common |= {"work": work(config), "price": 1, "spot": False, "reserved": 1, "reason": ""}
    common |= {"before_s": 0.0, "made": 1.0}
    known = [
        Reservation(id="1", run="a", rank_s=100.0, spent=1, tokens=TOKENS // 2, **common),
        Reservation(id="2", run="a", rank_s=300.0, spent=1, tokens=TOKENS, **common),
        Reservation(id="3", run="b", rank_s=200.0, spent=1, tokens=TOKENS, **common),
        Reservation(id="4", run="c", **common),
        Reservation(id="5", run="d", rank_s=9e9, spent=1, tokens=TOKENS // 11, **common),  # it came nowhere
    ]
    like = bound(config, h100, 0.25, 0.0, known)
    assert like == (pytest.approx(400 * 1.25 + 60.0), "similar runs in the ledger")
    config.directory.checkpoints.mkdir()
    (config.directory.checkpoints / "step-00000009.json").touch()  # a quarter is left
    assert bound(config, h100, 0.25, 0.0, known).rank_s == pytest.approx(100 * 1.25 + 60.0)
    assert bound(config, h100, 0.0, 0.0, ()).rank_s == pytest.approx(step_s(config, h100) * (steps - 9) * 2 + 60.0)
    later = bound(config, h100, 0.25, 300.0, known).rank_s
    assert later == pytest.approx(100 * 1.25 + 60.0 + 600.0)  # starting takes as long, however little is left
    short = made(ctx, stopping=Stopping(money=0.01, price_per_rank_hour=36.0))
    assert bound(short, h100, 0.25, 0.0, known) == (pytest.approx(1.25 + 60.0), "training.stopping.money")


def test_work_is_what_costs_alike(ctx: Context) -> None:
    config = made(ctx)
    assert work(config) == work(made(ctx, seed=7, mixture="n" * 64, checkpoints=Checkpoints(every_steps=6)))
    assert work(config) != work(made(ctx, launch=Launch(ranks=4)))


def test_a_job_is_settled_at_its_rank_seconds_times_its_price(ctx: Context) -> None:
    """Two jobs, 100 s on 2 ranks and 50 s on 4; each submission pays its own, and no queue."""
    config = made(ctx)
    ledger = stated(ctx, "price_per_rank_hour: 36\nstart_s: 0\n")
    admission.reserve(ctx, config)
    lived(config, [(500.0, 100.0, 2)], tokens=TOKENS // 2, begin=4e9)
    assert settlement.settle(ctx) == []
    (first,) = ledger.find()
    assert (first.rank_s, first.spent, first.tokens) == (200.0, 2 * MICROS, TOKENS // 2)
    second, _ = admission.reserve(ctx, config)
    assert second.before_s == 200.0
    lived(config, [(5.0, 50.0, 4)], tokens=TOKENS, begin=5e9)
    third, _ = admission.reserve(ctx, config)  # settles the second, whose job is gone
    assert [one.spent for one in ledger.find()] == [2 * MICROS, 2 * MICROS, None]
    assert third.before_s == 400.0
    assert (third.reason, third.reserved) == ("similar runs in the ledger", 5_600_000)  # no step is committed


def test_a_submission_without_an_end_stays_open_at_first(ctx: Context) -> None:
    config = made(ctx)
    ledger = stated(ctx, "price_per_rank_hour: 36\nstart_s: 0\n")
    admission.reserve(ctx, config)
    assert [one.run for one in settlement.settle(ctx)] == [config.run_id]  # it may be on its way to the scheduler
    assert ledger.find()[0].spent is None


def test_a_job_that_only_another_machine_knows_keeps_its_bound(ctx: Context) -> None:
    here, there = made(ctx), made(ctx, run_id="tiny-elsewhere")
    ledger = stated(ctx, "price_per_rank_hour: 36\nstart_s: 0\n")
    for config in (there, here):
        admission.reserve(ctx, config)
        lived(config, [(0.0, 100.0, 2)], begin=4e9)
    handle = Handle(launcher="local", id="1", started="", host="elsewhere.example")
    there.directory.handle.write_text(handle.model_dump_json())
    assert [one.run for one in settlement.settle(ctx)] == [there.run_id]
    assert {one.run: one.spent for one in ledger.find()} == {there.run_id: None, here.run_id: 2 * MICROS}


def test_prices_of_the_table_on_demand_and_spot() -> None:
    assert Spending(device="H100").price(9.0) == DEVICES["h100"].on_demand_hour
    assert Spending(device="h100", spot=True).price(9.0) == DEVICES["h100"].spot_hour
    assert Spending(device="h100", price_per_rank_hour=0.5).price(9.0) == 0.5
    assert Spending().price(9.0) == 9.0
    with pytest.raises(RequestError, match="unknown device"):
        Spending(device="abacus").price(9.0)


def test_settings_that_are_none_are_named(ctx: Context) -> None:
    stated(ctx, "")
    spending.settings_file(ctx.workspace).write_text("limit: 3\n")
    with pytest.raises(RequestError, match="is not a valid budget settings file"):
        spending.load(ctx.workspace)
