"""`plinth run contract`: the owner signs what would start, once; a demo root signs by itself; the budget is a limit."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

from plinth.compute.context import Context
from plinth.errors import LineageError, MissingError, RecipeError
from plinth.launch.parameters import Launch
from plinth.model.architectures import parameters
from plinth.model.parameters import Model
from plinth.operation import admission, contracts
from plinth.records import Manifest
from plinth.storage.workspace import Workspace
from plinth.tokens.order.steps import Amendment
from plinth.training import attempts, contract, job
from plinth.training import config as configuration
from plinth.training.config import RunConfig
from plinth.training.parameters.guard import Stopping
from plinth.training.parameters.optimizers import Optimizer
from plinth.training.parameters.run import Checkpoints, Training
from plinth.training.predicted_curve import CurvePoint, PredictedCurve
from plinth.training.supervise.result import read_allowance
from plinth.training.telemetry.timeline import Timeline
from plinth.trust import enrolment
from plinth_registry import audit_log
from tests.training_host import HOST


@pytest.fixture
def ctx(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Context:
    """A workspace with a root of its own that is no demo root."""
    monkeypatch.setenv("PLINTH_TRUST", str(tmp_path / "trust"))
    workspace = Workspace(tmp_path / "workspace").ensure()
    enrolment.initialise(workspace, "own", ["ada@example.org"])
    return Context(workspace)


@pytest.fixture
def run(ctx: Context) -> RunConfig:
    """A prepared run of 12 steps on two ranks."""
    buckets = {"web": {"needed": 72, "epochs": 1.5}, "prose": {"needed": 24, "epochs": 0.25}}
    mixture = Manifest(
        asset="mixture", step="mixture", version="1", params={}, inputs={}, parts=(),
        stats={"sequences": 96, "buckets": buckets},
    )  # fmt: skip
    ctx.refs.save(mixture)
    own = Training(model=Model(layers=1, dim=16, heads=2, kv_heads=1, ffn_dim=16))
    made = RunConfig(
        run_id="small-0", key="0" * 64, recipe="small", workspace=str(ctx.workspace.root), model=own.model,
        vocab_size=64, end_of_text=0, optimizer=Optimizer(), precision="fp32", parallel=own.parallel, seed=1,
        launch=own.launch, sequence_tokens=32, micro_batch_sequences=2, global_batch_sequences=8, sequences=96,
        total_steps=12, mixture=mixture.digest, shards={"web": "s" * 64}, tokenizer="t" * 64, checkpoints=Checkpoints(),
        supervision=own.supervision, contract="required",
    )  # fmt: skip
    configuration.write(made)
    return made


@pytest.fixture
def curve(run: RunConfig, tmp_path: Path) -> Path:
    size, tokens = parameters(run.model, run.vocab_size).active, run.tokens_through(12)
    points = (CurvePoint(tokens=tokens // 2, value=4, low=3, high=5), CurvePoint(tokens=tokens, value=3, low=2, high=4))
    made = PredictedCurve(params=size, tokens=tokens, level=0.95, method="by hand", points=points)
    (tmp_path / "curve.json").write_text(made.model_dump_json())
    return tmp_path / "curve.json"


def checked(exits: int, outcome: Any) -> Any:
    assert outcome.code == exits, outcome
    return outcome


def start(run: RunConfig) -> str:
    data = run.directory.config.read_bytes()
    return attempts.state(run.directory, data, run.key, ranks=2, nodes=1, hosts=[HOST], audit=False).contract


def test_sign_and_show(plinth: Callable[..., Any], ctx: Context, run: RunConfig, curve: Path) -> None:
    asked = ("run", "contract", "sign", "small", "--curve", str(curve), "--rank-hours", "5")
    assert "pass --yes" in checked(2, plinth(*asked)).err
    made = json.loads(plinth(*asked, "--yes", "--json").out)
    assert (made["run"], made["number"], made["owner"]) == ("small-0", 1, "owner")
    assert made["budget"] == {"rank_hours": 5.0, "price_per_rank_hour": 0.0, "reason": "stated by the owner"}
    assert made["mixture"]["web"] == {"share": 0.75, "epochs": 1.5}
    assert made["settings"]["launch"]["ranks"] == 2
    assert "workspace" not in made["settings"]
    assert [(one.action, one.subject) for one in audit_log.entries(ctx)] == [("contract", "small-0 number 1")]
    told = plinth("run", "contract", "show", "small").out
    for said in ("local, 2 ranks on 1 node, ZeRO-1", "5 rank-hours", "spent so far: 0", "the newest 2", "prose 25.0%"):
        assert said in told
    assert json.loads(plinth("run", "contract", "show", "small", "--json").out)["sha256"] == start(run)


def test_show_tells_what_the_run_missed(plinth: Callable[..., Any], run: RunConfig, curve: Path) -> None:
    plinth("run", "contract", "sign", "small", "--curve", str(curve), "--rank-hours", "5", "--yes")
    start(run)
    for step in range(1, 13):
        loss = 4.0 if step <= 6 else 4.5
        Timeline(run.directory.events).append(
            "step", step=step, tokens=run.tokens_through(step), loss=loss, step_s=0.1, data_wait_s=0.0, parts={}
        )
    found = json.loads(checked(6, plinth("run", "contract", "show", "small", "--json")).out)
    assert found["missed"] == [{"tokens": run.tokens_through(12), "loss": 4.5}]
    assert (found["segments"], found["kept"]) == (2, False)
    told = checked(6, plinth("run", "contract", "show", "small")).out
    assert "OUTSIDE" in told
    assert "inside" in told


def test_what_cannot_be_signed(
    plinth: Callable[..., Any], run: RunConfig, curve: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sign = ("run", "contract", "sign", "small", "--yes")
    assert "nothing bounds the cost" in checked(2, plinth(*sign)).err
    assert "no contract to amend" in checked(2, plinth(*sign, "--rank-hours", "5", "--amend", "why")).err
    other = PredictedCurve.model_validate_json(curve.read_bytes()).model_copy(update={"params": 5})
    curve.write_text(other.model_dump_json())
    assert "for another run" in checked(2, plinth(*sign, "--rank-hours", "5", "--curve", str(curve))).err
    assert "no launch contract" in checked(3, plinth("run", "contract", "show", "small")).err
    plinth(*sign, "--rank-hours", "5")
    assert "has a launch contract" in checked(2, plinth(*sign, "--rank-hours", "6")).err
    start(run)
    configuration.write(run.model_copy(update={"launch": Launch(ranks=1)}))
    opened = MagicMock(side_effect=contract.opened)
    monkeypatch.setattr(contract, "opened", opened)
    told = plinth(*sign, "--amend", "a node is lost").out
    assert opened.call_count == 1  # each contract is verified once
    assert "changed: launch.ranks: 2 in the contract, 1 in the run" in told
    assert start(run.model_copy(update={"launch": Launch(ranks=1)}))


def test_an_edited_learning_rate_is_no_amendment(plinth: Callable[..., Any], run: RunConfig) -> None:
    sign = ("run", "contract", "sign", "small", "--yes")
    plinth(*sign, "--rank-hours", "5")
    configuration.write(run.model_copy(update={"optimizer": Optimizer(lr=0.5)}))
    refused = checked(7, plinth(*sign, "--amend", "faster")).err
    assert "small-0 has other settings than contract 1" in refused
    assert "optimizer.lr: 0.003 in the contract, 0.5 in the run" in refused


def test_a_run_that_has_started_is_not_promised_afterward(plinth: Callable[..., Any], run: RunConfig) -> None:
    configuration.write(run.model_copy(update={"contract": "optional"}))
    start(run)
    assert "has no launch contract" in checked(3, plinth("run", "contract", "show", "small")).err
    assert "started before" in checked(8, plinth("run", "contract", "sign", "small", "--rank-hours", "5", "--yes")).err


def test_a_submission_needs_the_contract_and_its_budget_is_the_allowance(ctx: Context, run: RunConfig) -> None:
    with pytest.raises(MissingError, match="has no launch contract"):
        contracts.require(ctx, run)
    contracts.sign(ctx, contracts.draft(ctx, run, None, rank_hours=5))
    promised = contracts.require(ctx, run)
    assert promised is not None
    admission.reserve(ctx, run, promised)
    granted = read_allowance(run.directory)
    assert granted is not None
    assert granted.rank_s == 5 * 3600
    with pytest.raises(LineageError, match="not what its launch contract promises"):
        contracts.require(ctx, run.model_copy(update={"seed": 2}))


def test_an_amendment_is_refused_before_the_job_stops_and_can_be_signed(
    plinth: Callable[..., Any], ctx: Context, run: RunConfig
) -> None:
    contracts.sign(ctx, contracts.draft(ctx, run, None, rank_hours=5))
    start(run)
    change = Amendment(from_step=7, global_batch_sequences=16, reason="the loss is noisy")
    amended = run.model_copy(update={"total_steps": 9, "amendments": (change,)})
    with pytest.raises(LineageError, match="not what its launch contract promises"):
        admission.submit(ctx, amended)
    assert job.pending(amended)  # a live job is stopped before the amendment is recorded
    assert contracts.amended(run) == amended
    made = json.loads(plinth("run", "contract", "sign", "small", "--amend", "noise", "--yes", "--json").out)
    assert (made["number"], made["settings"]["total_steps"]) == (2, 9)
    contracts.require_amended(ctx, amended)
    job.record(amended)
    assert contracts.amended(configuration.load(run.directory.config)) == amended
    past = run.model_copy(update={"amendments": (change.model_copy(update={"from_step": 1}),), "total_steps": 6})
    Timeline(run.directory.events).append("step", step=3, loss=1.0)
    with pytest.raises(RecipeError, match="past steps"):
        admission.submit(ctx, past)


def test_a_demo_root_signs_without_a_person(run: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLINTH_TRUST", str(tmp_path / "demo"))
    ctx = Context(Workspace(run.workspace))
    enrolment.initialise(ctx.workspace, "demo", ["ada@example.org"], demo=True)
    bounded = run.model_copy(update={"stopping": Stopping(seconds=600)})
    made = contracts.require(ctx, bounded)
    assert made is not None
    assert (made.owner, made.curve, made.budget.reason) == ("owner", None, "training.stopping.seconds")
    assert contracts.require(ctx, bounded) == made
