"""One definition a figure: every output that shows the final loss or the step time of a run shows the same number."""

from __future__ import annotations

import json
import re
import statistics
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from plinth.compute.context import Context
from plinth.recipe.load import load
from plinth.report import run_page
from plinth.report.page import IndexData, ReportData, index_page
from plinth.report.page import page as results_page
from plinth.storage.workspace import Workspace
from plinth.training import config as configuration
from plinth.training.config import RunConfig
from plinth.training.telemetry.timeline import LABELS, of_events, of_history, read_events, timeline
from plinth_assets import training
from plinth_jobs import results, workspace_index
from plinth_registry import run_metrics as mlflow_timeline
from tests.jobs.conftest import RECIPE
from tests.plinth.training.conftest import tiny

#: Losses of 30 steps; the last 20 count. One value is not finite, and the last step is an outlier.
LOSSES = [9.0 - 0.1 * step for step in range(30)]
SECONDS = [1.0 + 0.01 * step for step in range(30)]


@pytest.fixture
def ctx(tmp_path: Path) -> Context:
    return Context(Workspace(tmp_path / "workspace").ensure())


@pytest.fixture
def run(ctx: Context) -> RunConfig:
    """A run of 30 steps, of which a resume has repeated two: the later line counts."""
    config = tiny(ctx.workspace.root, total_steps=30)
    configuration.write(config)
    told: list[dict[str, Any]] = [{"event": "job_started", "ranks": 2, "nodes": 1}]
    told.append({"event": "run_started", "ranks": 2})
    measured = {"grad_norm": 1.0, "lr": 0.1, "tokens": 1, "tokens_per_s": 10.0, "data_wait_s": 0.0, "loss_ema": 4.0}
    for number, (loss, seconds) in enumerate(zip(LOSSES, SECONDS, strict=True), 1):
        if number == 29:
            told += [{"event": "step", "step": 28, "loss": 99.0, "step_s": 99.0, **measured}, told[-1]]
        told.append({"event": "step", "step": number, "loss": loss, "step_s": seconds, **measured})
    told[-1]["loss"] = 20.0
    lines = [json.dumps({"seq": at, "time": 4e9 + at, **event}) for at, event in enumerate(told, 1)]
    config.directory.events.write_text("".join(line + "\n" for line in [*lines, json.dumps(
        {"seq": len(lines) + 1, "time": 4e9 + 99, "event": "finished", "step": 30})]))  # fmt: skip
    return config


class Recorder:
    """An MLflow client with one run, which keeps what is logged."""

    def __init__(self) -> None:
        self.logged: dict[str, Any] = {}
        data = SimpleNamespace(params={}, tags={})
        self.run = SimpleNamespace(info=SimpleNamespace(run_id="r", start_time=0), data=data)

    def get_experiment_by_name(self, _: str) -> Any:
        return SimpleNamespace(experiment_id="0")

    def search_runs(self, *_: Any, **__: Any) -> list[Any]:
        return [self.run]

    def log_batch(self, _: str, **what: Any) -> None:
        self.logged |= what


def shown(text: str, label: str) -> str:
    """The number that a page shows next to a label."""
    found = re.search(rf"{re.escape(label)}(?:<[^>]*>|\s)+([\d.]+)", text)
    assert found, label
    return found[1]


def test_every_output_shows_the_same_final_loss_and_step_time(
    ctx: Context, run: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    loss = f"{statistics.fmean([*LOSSES[10:29], 20.0]):.3f}"
    seconds = f"{statistics.median(SECONDS):.3f}"
    assert (loss, seconds) == ("7.745", "1.145")
    of_loss, of_time = (LABELS[name] for name in ("final_loss", "median_step_s"))

    line = workspace_index.run_line(ctx, run.directory.config)
    index = index_page(IndexData(workspace="w", written="", runs=(line,)))
    assert f">{of_loss}</th>" in index
    assert f'class="n">{loss}</td>' in index

    manifest: Any = SimpleNamespace(stats={"run_id": run.run_id, "final_loss": LOSSES[-1]})
    card = results._training(ctx, manifest)
    text = results_page(ReportData(title="t", run=card))
    assert (shown(text, of_loss), shown(text, of_time)) == (loss, seconds)
    assert f">{loss}</text>" in text  # at the end of the curve

    own = run_page.page(list(read_events(run.directory.events)), run_page.About(run_id=run.run_id, ranks=2))
    assert (shown(own, of_loss), shown(own, of_time)) == (loss, seconds)

    monkeypatch.setattr(training, "_page", lambda *_: ctx.workspace.reports / "run.html")
    metadata = training._present_run(load(RECIPE), ctx, manifest)
    assert (f"{metadata['final_loss']:.3f}", f"{metadata['median_step_s']:.3f}") == (loss, seconds)
    assert f"| {of_loss} | {loss} |" in metadata["facts"].value

    client, figures = Recorder(), of_history(timeline(run.directory.events)).known()
    mlflow_timeline.describe(client, "tiny", run.run_id, params={"seed": 1}, tags={"mlflow.user": "a"}, figures=figures)
    logged = {metric.key: f"{metric.value:.3f}" for metric in client.logged["metrics"]}
    assert (logged["final_loss"], logged["median_step_s"]) == (loss, seconds)


def test_a_run_without_steps_and_losses_that_are_not_finite_have_no_figure() -> None:
    assert of_events([]).known() == {}
    steps = [{"event": "step", "step": 1, "loss": "nan", "step_s": 2.0}]
    assert of_events(steps).rounded() == {"median_step_s": "2.000"}
