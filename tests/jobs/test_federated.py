"""Two sites and their coordinator from the command line: one model, of text that each site has for itself."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from plinth.records import Manifest
from plinth.storage.state import Refs
from plinth.storage.workspace import Workspace
from plinth_registry.mlflow.server import stop_server
from tests.jobs.conftest import ROOT, answer, digests, plinth, variant
from tests.shared import copied

pytestmark = pytest.mark.exhaustive

SITE = """
name: {site}
mixture:
  total_tokens: 10240
  phases:
    - {{name: one, fraction: 1, weights: {weights}}}
training:
  federated: {{site: {site}, sites: [lima, oslo], exchange: "{exchange}", inner_steps: {inner_steps}}}
  checkpoints: {{every_steps: 5}}
release: {{name: {site}}}
"""
WEIGHTS = {"lima": "{code: 1, prose: 1}", "oslo": "{web: 2, prose: 1}"}
BUCKETS = {"lima": {"code", "prose"}, "oslo": {"web", "prose"}}


def test_two_sites_train_one_model(corpus: Path, tmp_path: Path) -> None:
    exchange = tmp_path / "exchange"
    places = {site: copied(corpus, tmp_path / site / "workspace") for site in WEIGHTS}
    recipes = {site: _recipe(places[site].parent, site, exchange, 10) for site in WEIGHTS}
    command = [sys.executable, "-m", "plinth_jobs.cli", "-w", str(places["oslo"]), "run", "federated", "coordinate"]
    coordinator = subprocess.Popen([*command, "-r", str(recipes["oslo"])], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        with ThreadPoolExecutor() as pool:
            words = ("run", "--select", "candidate", "-r")
            list(pool.map(lambda site: plinth(places[site], *words, recipes[site]), WEIGHTS))
        told, _ = coordinator.communicate(timeout=600)
        assert coordinator.returncode == 0
        assert [line.split(";")[0] for line in told.splitlines()] == [f"round {n}: lima, oslo" for n in range(3)]
        _agree(places, recipes, exchange)
    finally:
        coordinator.kill()
        for place in places.values():
            stop_server(Workspace(place))


def _recipe(folder: Path, site: str, exchange: Path, inner_steps: int) -> Path:
    return variant(folder, SITE.format(site=site, weights=WEIGHTS[site], exchange=exchange, inner_steps=inner_steps))


def _agree(places: dict[str, Path], recipes: dict[str, Path], exchange: Path) -> None:
    """One model, two lineages: each of its own mixture, with the rounds that both took part in."""
    lima, oslo = (_published(places[site]) for site in ("lima", "oslo"))
    assert lima["run"].stats["federated"] == oslo["run"].stats["federated"]
    rounds = [(one["step"], one["round"], one["sites"]) for one in lima["run"].stats["federated"]]
    assert rounds == [(step, number, ["lima", "oslo"]) for number, step in enumerate((0, 10, 20))]
    assert lima["checkpoint"].stats["parameters_sha256"] == oslo["checkpoint"].stats["parameters_sha256"]
    assert lima["checkpoint"].digest != oslo["checkpoint"].digest
    assert lima["run"].inputs["tokenizer"] == oslo["run"].inputs["tokenizer"]
    assert lima["run"].inputs["mixture"] != oslo["run"].inputs["mixture"]
    for site, made in (("lima", lima), ("oslo", oslo)):
        assert made["checkpoint"].stats["bit_exact_resume"]
        proved = answer(places[site], "verify", f"{site}-candidate/1")
        assert proved["checkpoint"] == made["checkpoint"].digest
        listed = answer(places[site], "federated", "rounds", "-r", recipes[site])
        assert [one["common"]["sha256"] for one in listed] == [one["common"] for one in made["run"].stats["federated"]]
        steps = [answer(places[site], "batch", "latest", step)["sequences"] for step in (1, 2, 3)]
        assert {one["bucket"] for step in steps for one in step} <= BUCKETS[site]

    moved = exchange.rename(exchange.with_name("moved"))
    recipe = _recipe(places["lima"].parent, "lima", moved, 10)
    assert "nothing to do" in plinth(places["lima"], "run", "--select", "candidate", "-r", recipe).stdout
    other = _recipe(places["lima"].parent, "lima", moved, 4)
    stale = plinth(places["lima"], "status", "-r", other).stdout
    (line,) = (line for line in stale.splitlines() if line.split()[:1] == ["run"])
    assert "stale" in line, line


def _published(place: Path) -> dict[str, Manifest]:
    refs, made = Refs(Workspace(place)), digests(place)
    return {asset: refs.load(made[asset]) for asset in ("run", "checkpoint")}
