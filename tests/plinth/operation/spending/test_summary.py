"""Sums of the ledger: by a column, and by bucket as its tokens were drawn."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from plinth.compute.context import Context, manifest
from plinth.model.architectures import parameters
from plinth.operation import settlement
from plinth.operation.settlement import Energy, bucket_shares, sampled, summarise
from plinth.operation.spending import Spending, settings_file
from plinth.operation.spending_ledger import MICROS, Reservation
from plinth.records import Step
from plinth.storage.workspace import Workspace
from plinth.tokens.order.steps import LengthChange
from plinth.training import config as configuration
from plinth.training.config import RunConfig
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
    made = summarise(ctx, Spending(), rows, "run")
    found = [(row.name, row.submissions, row.refused, row.reserved, row.spent) for row in made]
    assert found == [("a", 2, 0, 0.0, 5.0), ("b", 1, 0, 5.0, 0.0), ("c", 0, 1, 0.0, 0.0)]
    (web, code) = summarise(ctx, Spending(), rows, "team")
    assert (web.name, web.spent, web.reserved, web.price_per_rank_hour) == ("web", 5.0, 5.0, pytest.approx(36.0))
    assert (code.name, code.refused) == ("code", 1)
    assert [row.name for row in summarise(ctx, Spending(), rows, "experiment")] == ["-"]


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
    found = summarise(ctx, Spending(), [one("1", config.run_id, 8), one("2", "gone", 1)], "bucket")
    assert [(row.name, row.spent) for row in found] == [("web", 6.0), ("code", 2.0), ("-", 1.0)]


def lived(config: RunConfig, power: float | None) -> None:
    """100 s in a queue; 200 s on 2 ranks: 20 to start, a failed step of 30, 10 to start again, 100 and 40 at its end;
    the power of both devices in the second half."""
    told = [
        (0, {"event": "submitted"}),
        (100, {"event": "job_started", "ranks": 2}),
        (120, {"event": "run_started", "ranks": 2}),
        (150, {"event": "step", "step": 1, "step_s": 30.0, "tokens": 512, "loss": 1.0}),
        (150, {"event": "restart", "attempt": 1, "from_step": 0}),
        (160, {"event": "run_started", "ranks": 2}),
        (260, {"event": "step", "step": 1, "step_s": 100.0, "tokens": 512, "loss": 1.0}),
        (300, {"event": "finished"}),
    ]
    run = config.directory
    run.devices.mkdir(parents=True, exist_ok=True)
    lines = [{"seq": n, "time": 1e9 + at, **event} for n, (at, event) in enumerate(told, 1)]
    run.events.write_text("".join(json.dumps(line) + "\n" for line in lines))
    samples = [
        {"seq": n + 1, "time": 1e9 + 200 + 10 * n, "event": "devices", "node": 0,
         "gpus": [{"gpu": gpu, "power_w": power} for gpu in (0, 1)]}
        for n in range(11)
    ]  # fmt: skip
    (run.devices / "node-0000.jsonl").write_text("".join(json.dumps(line) + "\n" for line in samples))


def test_what_the_money_went_to_and_the_energy(ctx: Context) -> None:
    """400 rank-seconds: half of them at 500 W as sampled, half at the H100's 700 W; 4 dollars by cause."""
    config = tiny(ctx.workspace.root, telemetry={"devices_s": 10.0})
    configuration.write(config)
    lived(config, 500.0)
    rows = [one("1", config.run_id, 1, rank_s=100.0), one("2", config.run_id, 3, rank_s=300.0)]
    rated = Spending(device="h100", grams_co2_per_kwh=400.0, power_usage_effectiveness=1.2)
    (row,) = summarise(ctx, rated, rows, "run")
    expected = {"goodput": 2.0, "redone work": 0.6, "start": 1.4}  # to start, to start again, and to end
    assert row.causes == pytest.approx(expected)
    assert sum(row.causes.values()) == pytest.approx(row.spent)
    assert row.queue_hours == pytest.approx(200 / 3600)
    kwh = (200 * 500 + 200 * 700) * 1.2 / 3.6e6
    assert (row.kwh, row.measured, row.co2_kg) == (pytest.approx(kwh), 0.5, pytest.approx(kwh * 0.4))
    (quarter,) = summarise(ctx, rated, rows[:1], "team")
    assert quarter.kwh == pytest.approx(kwh / 4)
    (row,) = summarise(ctx, Spending(), rows, "run")  # nothing rated: half of it is not known, so neither is the sum
    assert (row.kwh, row.measured) == (None, 0.5)
    lived(config, None)  # devices that do not say their power
    (row,) = summarise(ctx, rated, rows, "run")
    assert (row.kwh, row.measured) == (pytest.approx(400 * 700 * 1.2 / 3.6e6), 0.0)


def test_the_devices_of_others_on_a_shared_node_are_not_measured(ctx: Context) -> None:
    """Eight devices are visible, of which the run has two."""
    config = tiny(ctx.workspace.root, telemetry={"devices_s": 10.0})
    configuration.write(config)
    lived(config, 500.0)
    place = config.directory.devices / "node-0000.jsonl"
    eight = [{"gpu": gpu, "power_w": 500.0} for gpu in range(8)]
    lines = [json.loads(line) | {"gpus": eight} for line in place.read_text().splitlines()]
    place.write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = settlement.use(ctx, Spending(device="h100"), config.run_id)
    assert found is not None
    assert found.energy == (pytest.approx(400 * 700 / 3.6e6), 0.0)
    assert "kwh" not in settlement.amounts(ctx, config)  # no device is set


def test_every_executed_step_counts_with_its_row_length(ctx: Context) -> None:
    """Steps 1 to 3 in rows of 32 tokens, the third twice; steps 7 and 8 in rows of 16: each with its attention."""
    config = tiny(ctx.workspace.root, length_schedule=(LengthChange(from_tokens=1024, sequence_tokens=16),))
    events = [{"event": "step", "step": step} for step in (1, 2, 3, 3, 7, 8)] + [{"event": "finished"}]
    matrices = 6 * (parameters(config.model, 64).total - parameters(config.model, 64).norms)
    attention = 12 * config.model.layers * config.model.dim
    tokens = 8 * 32  # of a step
    expected = 4 * tokens * (matrices + 32 * attention) + 2 * tokens * (matrices + 16 * attention)
    assert settlement.executed_flops(config, events) == expected


def test_amounts_without_known_power_have_no_energy(ctx: Context) -> None:
    config = tiny(ctx.workspace.root, telemetry={"devices_s": 10.0})
    configuration.write(config)
    lived(config, 500.0)
    found = settlement.amounts(ctx, config)
    assert (found["device_s"], found["job_s"], found["flops"] > 0) == (400.0, 200.0, True)
    assert found.keys() == {"flops", "device_s", "job_s"}
    path = settings_file(ctx.workspace)
    path.parent.mkdir(exist_ok=True)
    path.write_text("device: h100\npower_usage_effectiveness: 1.2\n")
    found = settlement.amounts(ctx, config)
    assert (found["kwh"], found["kwh_measured"]) == (pytest.approx((100 + 140) * 1e3 * 1.2 / 3.6e6), 0.5)
    assert found["pue"] == 1.2


def test_energy_says_how_it_is_known() -> None:
    assert Energy(1.0, 1.0).source == "100% measured"
    assert Energy(1.0, 0.25).source == "25% measured, 75% at rated power"
    assert Energy(None, 0.5).source.startswith("unknown")
    assert Energy(2.0, 0.0).kilograms(None) is None


def test_a_gap_between_samples_is_not_measured() -> None:
    at = [{"time": t, "node": 0, "gpus": [{"gpu": 0, "power_w": w}]} for t, w in ((0, 100), (10, 200), (50, 200))]
    assert sampled(at, 30.0) == (1500.0, 10.0)
    assert sampled(at, 40.0) == (9500.0, 50.0)
