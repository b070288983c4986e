"""From a ladder to a run that keeps its promise, and one that does not, through the commands of docs/contract.md."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from plinth.compute.context import Context
from plinth.extensions import NoParams
from plinth.operation import contracts
from plinth.provenance.statements import chain
from plinth.storage.workspace import TRUST_VARIABLE, Workspace
from plinth.training.predicted_curve import MISSED
from plinth.training.telemetry.timeline import timeline
from plinth.trust import enrolment
from plinth_jobs.targets import find_run
from plinth_registry import trained
from plinth_registry.gates.facts import CostFacts
from plinth_registry.gates.forecast import forecast
from plinth_registry.mlflow.server import stop_server
from tests.jobs.conftest import answer, plinth
from tests.registry.gate_evidence import proof
from tests.shared import copied

RECIPE = """
extends: tiny
name: promised
mixture: {sequence_tokens: 32, total_tokens: 25600}
training:
  model: {layers: 1, dim: 48, heads: 2, kv_heads: 1, ffn_dim: 96}
  optimizer: {lr: 6.7e-3, schedule: wsd, warmup_fraction: 0.05, decay_fraction: 0.3}
  micro_batch_sequences: 2
  global_batch_sequences: 2
  launch: {ranks: 1}
  checkpoints: {every_steps: 200}
  contract: required
  validation: null
"""

LADDER = """
name: rungs
question: Which loss will the promised run reach?
recipe: promised.yaml
base: plain
test: {prose: {path: test/prose.jsonl}}
common: {training: {contract: optional, checkpoints: {every_steps: 400}}}
arms: {plain: {}}
ladder: {held_out: d32-400}
seeds: [1]
sizes:
"""

#: Learning rates by width.
RATES = {8: 0.04, 16: 0.02, 32: 0.01}


def written(folder: Path, workspace: Path) -> tuple[Path, Path]:
    """Write the recipe, its ladder of three sizes by three lengths, and the text that the ladder is tested on."""
    recipe, ladder = folder / "promised.yaml", folder / "rungs.yaml"
    recipe.write_text(RECIPE)
    sizes = [
        f"  d{dim}-{steps}: {{mixture: {{total_tokens: {64 * steps}}}, training: {{model: {{dim: {dim}, "
        f"ffn_dim: {2 * dim}}}, optimizer: {{lr: {rate}}}}}}}"
        for dim, rate in RATES.items()
        for steps in (100, 200, 400)
    ]
    ladder.write_text(LADDER + "\n".join(sizes))
    found = [line for line in (workspace / "input/tiny/prose.jsonl").read_text().splitlines() if '"text"' in line]
    texts = [json.loads(line)["text"] for line in found if line.endswith("}")][:20]
    rows = [json.dumps({"id": f"d{number}", "text": text}) for number, text in enumerate(texts)]
    (workspace / "input" / "test").mkdir()
    (workspace / "input" / "test" / "prose.jsonl").write_text("\n".join(rows))
    return recipe, ladder


@pytest.mark.exhaustive
@pytest.mark.slow
def test_from_a_ladder_to_a_promise_that_is_kept_and_one_that_is_not(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seal, trust = Path(os.environ[TRUST_VARIABLE]) / "seal", tmp_path / "trust"
    trust.mkdir()
    shutil.copy2(seal, trust)
    monkeypatch.setenv(TRUST_VARIABLE, str(trust))  # no demo root, which would sign without a curve
    workspace = copied(corpus, tmp_path / "workspace")
    enrolment.initialise(Workspace(workspace), "own", ["ada@example.org"])
    recipe, ladder = written(tmp_path, workspace)
    try:
        stopped = plinth(workspace, "run", "-r", recipe, "--select", "checkpoint", check=False)
        assert "has no launch contract" in stopped.stderr
        run = find_run(Context(Workspace(workspace)), "promised").run_id
        assert answer(workspace, "experiment", "run", ladder)["failed"] == []
        curve = answer(workspace, "experiment", "scaling", "curve", ladder, run, "--out", tmp_path / "curve.json")
        assert (len(curve["runs"]), curve["level"]) == (9, 0.95)
        kept = kept_by(workspace, recipe, run, tmp_path / "curve.json")
        assert (kept["kept"], kept["segments"], kept["missed"]) == (True, len(curve["points"]), [])
        assert gate(workspace, run, kept) == ("passed", False)

        recipe.write_text(RECIPE.replace("lr: 6.7e-3", "lr: 1.0e-5"))
        plinth(workspace, "run", "-r", recipe, "--select", "checkpoint", check=False)
        slow = find_run(Context(Workspace(workspace)), "latest").run_id
        assert slow != run
        missed = kept_by(workspace, recipe, slow, tmp_path / "curve.json")
        assert not missed["kept"]
        told = timeline(workspace / "runs" / slow / "events.jsonl").of(MISSED)
        assert [one["tokens"] for one in missed["missed"]] == [one["tokens"] for one in told]
        assert missed["missed"][-1]["tokens"] == curve["tokens"]
        assert gate(workspace, slow, missed) == ("failed", True)
    finally:
        stop_server(Workspace(workspace))


def kept_by(workspace: Path, recipe: Path, run: str, curve: Path) -> Any:
    """Sign the contract of a run, train it, and return what it has kept."""
    plinth(workspace, "run", "contract", "sign", run, "--curve", curve, "--rank-hours", "5", "--yes")
    plinth(workspace, "run", "-r", recipe, "--select", "checkpoint")
    return json.loads(plinth(workspace, "run", "contract", "show", run, "--json", check=False).stdout)


def gate(workspace: Path, run: str, shown: Any) -> tuple[str, bool]:
    """Judge the newest checkpoint by the gate `forecast`: its state, and whether the final loss is too high."""
    ctx = Context(Workspace(workspace))
    signed = contracts.current(ctx, find_run(ctx, run))
    assert signed is not None
    known = trained.contract_facts(ctx, chain(ctx.refs, ctx.refs.current("checkpoint")), signed.contract)
    assert len(known.missed) == len(shown["missed"])  # the run's manifest tells the same as its timeline
    cost = CostFacts(amounts={"device_s": 3600 * shown["rank_hours"]})
    found = forecast(NoParams(), proof(contract=known, cost=cost))
    return found.state, ", above " in found.reason
