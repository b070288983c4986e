"""Plans at the speed of recorded runs, on the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from plinth.operation import forecast
from plinth.storage.workspace import Workspace
from plinth.training.telemetry import machine_speed
from plinth_jobs.cli import cli
from plinth_jobs.recipes import load
from tests.plinth.operation.planning.test_recorded import PEAK, SPEED, STEPS, device, lived


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return Workspace(tmp_path / "workspace").ensure()


def test_the_wall_clock_of_a_plan_is_at_the_speed_of_recorded_runs(workspace: Workspace) -> None:
    """Steps of 2.25 s without saves; a speed that is stated goes before, another device has none."""
    asked = ["run", "plan", "--workspace", str(workspace.root), "-r", "jobs/plinth_jobs/recipes/demo.yaml"]

    def answer(*more: str) -> dict[str, Any]:
        made = CliRunner().invoke(cli, [*asked, *more, "--json"], catch_exceptions=False).stdout
        found: dict[str, Any] = json.loads(made)
        return found

    assert answer()["wall_clock_s"] is None
    recipe = load(Path("jobs/plinth_jobs/recipes/demo.yaml"))
    training, length = recipe.training, recipe.required_mixture().sequence_tokens
    like = {"model": training.model, "vocab_size": recipe.tokenizer.vocab_size, "sequence_tokens": length}
    like |= {"global_batch_sequences": training.global_batch_sequences, "parallel": training.parallel}
    lived(workspace, "one", [2.0] * STEPS, **like, micro_batch_sequences=training.micro_batch_sequences)
    made = answer()
    assert made["wall_clock_s"] == pytest.approx(made["steps"] * 2.25)
    assert made["tokens_per_second"] == pytest.approx(made["global_batch_tokens"] / 2.25)
    assert "tokens/s over all ranks (1 run of this model on cpu, recorded)" in made["assumptions"][-1]
    assert answer("--tokens-per-second", "1000")["wall_clock_s"] == pytest.approx(made["tokens"] / 1000)
    assert answer("--device", "h100")["wall_clock_s"] is None
    lived(workspace, "two", [4.0] * STEPS, **like, micro_batch_sequences=training.micro_batch_sequences)
    both = answer()
    assert both["tokens_per_second"] == pytest.approx(made["global_batch_tokens"] * (1 / 2.25 + 1 / 4.25) / 2)
    assert "2 runs of this model on cpu, recorded, 482 to 910 tokens/s" in both["assumptions"][-1]
    shown = CliRunner().invoke(cli, asked, catch_exceptions=False).stdout
    assert f"at {both['tokens_per_second']:,.0f} tokens/s (2 runs of this model on cpu, recorded, 482 to" in shown


def test_a_plan_says_what_was_recorded(workspace: Workspace) -> None:
    asked = ["--workspace", str(workspace.root)]
    recipe = load(Path("jobs/plinth_jobs/recipes/demo.yaml"))
    model = {"model": recipe.training.model, "vocab_size": recipe.tokenizer.vocab_size}
    config = lived(workspace, "one", [2.0] * STEPS, **model)
    forecast.keep(config, forecast.predict(config, device()))
    for more in ([], ["--devices", "8xH100"]):
        done = CliRunner().invoke(cli, ["run", "plan", *asked, "-r", "demo", *more], catch_exceptions=False)
        assert "predictions and measurements of 1 run: the median error of the step time is" in done.stdout
    assert "computation reaches 40.00% to 60.00% of the peak (stated" in done.stdout
    own = [*asked, "-r", "jobs/plinth_jobs/recipes/demo.yaml", "--devices", "2xcpu", "--json"]
    refused = CliRunner().invoke(cli, ["run", "plan", *own])
    assert "were not measured" in str(refused.exception)
    speed = SPEED.model_copy(update={"machine": machine_speed.this_machine()})
    workspace.objects(machine_speed.FOLDER).put(f"{speed.machine}.json", speed.model_dump_json().encode(), None)
    found = json.loads(CliRunner().invoke(cli, ["run", "plan", *own], catch_exceptions=False).stdout)
    (run,) = forecast.known(workspace)[0]
    assert run.flops_per_s is not None
    assert found["efficiency"]["low"] == pytest.approx(run.flops_per_s[0] / PEAK)
    assert found["efficiency"]["source"] == "1 run of this model on cpu, recorded"
    assert found["pauses"]["stall_s"] == pytest.approx(0.5)
    assert found["foretold"][0]["run"] == "one"
    for more in (["--budget", "2M"], ["--budget", "2M", "--devices", "2xcpu"]):
        assert CliRunner().invoke(cli, ["run", "plan", *asked, *more]).exit_code == 2
