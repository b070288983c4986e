"""The run's asset shows what its jobs cost, on what, and the energy of its devices."""

from __future__ import annotations

import json
from pathlib import Path

from plinth.compute.context import Context
from plinth.operation import admission, settlement, spending
from plinth.storage.workspace import Workspace
from plinth.training import config as configuration
from plinth_assets.training import _present_cost
from tests.plinth.training.conftest import tiny


def test_cost_and_energy_in_the_metadata_of_a_run(tmp_path: Path) -> None:
    """10 s on 2 ranks at 36 an hour are 0.20; an H100's rated 700 W are 3.9 Wh. Without a ledger nothing is shown."""
    ctx = Context(Workspace(tmp_path / "workspace").ensure())
    config = tiny(ctx.workspace.root)
    configuration.write(config)
    path = spending.settings_file(ctx.workspace)
    path.parent.mkdir()
    path.write_text("device: h100\nprice_per_rank_hour: 36\ngrams_co2_per_kwh: 1000\n")
    assert _present_cost(ctx, config) == {}
    admission.reserve(ctx, config)
    step = {"step": 1, "step_s": 5.0, "tokens": 512}
    ranks = {"ranks": 2}
    told = [(0, "job_started", ranks), (4, "run_started", ranks), (9, "step", step), (10, "finished", {})]
    lines = [{"seq": n, "time": 4e9 + at, "event": kind, **more} for n, (at, kind, more) in enumerate(told, 1)]
    config.directory.events.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert settlement.settle(ctx) == []
    shown = _present_cost(ctx, config)
    assert (shown["cost"], shown["energy"]) == (0.2, "0.00389 kWh, 100% at rated power")
    assert round(shown["co2_kg"], 5) == 0.00389
    assert "| goodput | 0.10 |\n| start | 0.10 |" in shown["cost_by_cause"].value
    path.write_text("ledger: /dev/null/nowhere\n")
    assert _present_cost(ctx, config) == {}
