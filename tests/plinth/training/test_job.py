"""A run as its asset sees it, on real shards: from curated text to the manifest of the checkpoint."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import held_ranks
import pytest
from tiny_mixture import made_mixture

from plinth.compute.context import Context
from plinth.errors import CheckpointError, ResumeError, TrainingError
from plinth.launch.base import JobStatus
from plinth.launch.local import LocalLauncher
from plinth.launch.parameters import Launch, Supervision
from plinth.model.folder import load_model
from plinth.model.parameters import Model
from plinth.storage.parts import read_table
from plinth.storage.workspace import Workspace
from plinth.tokens.order.steps import Amendment, BatchChange, LengthChange
from plinth.tokens.shards.parameters import Reading
from plinth.training import attempts, config, hooks, job, manifests, preparation
from plinth.training.attempts import code_digests
from plinth.training.checkpoint import checkpoint
from plinth.training.config import RunConfig
from plinth.training.data import open_batches
from plinth.training.parameters.guard import GuardParameters, Stopping
from plinth.training.parameters.initial import InitialWeights
from plinth.training.parameters.optimizers import Optimizer, RotaryChange
from plinth.training.parameters.parallel import Parallel
from plinth.training.parameters.run import Checkpoints, Recovery, ReplayChecks, Sinks, Telemetry, Training, Validation
from plinth.training.parameters.trainer import ExternalTrainer
from plinth.training.telemetry.timeline import of_history, timeline
from plinth_registry import trained

TRAINING = Training(
    model=Model(layers=1, dim=32, heads=2, kv_heads=1, ffn_dim=48),
    micro_batch_sequences=2,
    global_batch_sequences=4,
    checkpoints=Checkpoints(every_steps=4, audit_steps=3),
    supervision=Supervision(backoff_s=0.1, grace_s=300.0, hang_s=1800.0),
    launch=Launch(ranks=1),
)


@pytest.fixture
def ctx(tmp_path: Path) -> Context:
    return Context(Workspace(tmp_path / "workspace").ensure())


@pytest.fixture
def prepared(ctx: Context) -> Iterator[RunConfig]:
    mixed, sharded, trained = made_mixture(ctx)
    resolved = preparation.prepare(ctx, "demo", TRAINING, mixed, sharded, trained)
    yield resolved
    job.cancel(ctx, resolved)


def test_prepare_resolves_and_writes(ctx: Context, prepared: RunConfig) -> None:
    assert prepared.run_id == f"demo-{prepared.key[:12]}"
    assert (prepared.total_steps, prepared.accumulation(), prepared.step_tokens()) == (12, 2, 128)
    trained = ctx.refs.load(prepared.tokenizer).stats
    assert (prepared.vocab_size, prepared.end_of_text) == (trained["vocab_size"], 0)
    assert prepared.audit_step == 9
    assert [step for step in range(1, 13) if prepared.saves_at(step)] == [4, 8, 9, 12]
    assert config.load(ctx.workspace.runs / prepared.run_id / "config.json") == prepared
    taken = set(Training.model_fields) - {*preparation.RESOLVED, *hooks.HOOKS}
    assert prepared.model_dump(include=taken) == TRAINING.model_dump(include=taken)


def test_run_key_covers_what_decides_the_parameters_and_nothing_else(ctx: Context) -> None:
    key = config.run_key(TRAINING, "m", "t")
    placed: dict[str, Any] = {
        "launch": Launch(ranks=2),
        "parallel": Parallel(zero_stage=3),
        "micro_batch_sequences": 1,
        "supervision": Supervision(max_restarts=9),
        "checkpoints": Checkpoints(every_steps=1),
        "recovery": Recovery(copies_every=1),
        "replay_checks": ReplayChecks(share=0.5),
        "contract": "required",
        "amendments": (Amendment(from_step=3, global_batch_sequences=8, reason="noise"),),
        "reading": Reading(ahead=1),
        "stopping": Stopping(tokens=9),
        "telemetry": Telemetry(layers_every=3),
        "validation": Validation(),
        "sinks": Sinks(),
    }
    for name, value in placed.items():
        assert config.run_key(TRAINING.model_copy(update={name: value}), "m", "t") == key, name
    decisive: dict[str, Any] = {
        "seed": 2,
        "precision": "bf16",
        "global_batch_sequences": 8,
        "batch_schedule": (BatchChange(from_step=3, global_batch_sequences=8),),
        "length_schedule": (LengthChange(from_step=3, sequence_tokens=16),),
        "rotary_schedule": (RotaryChange(from_step=3, rope_theta=40000.0),),
        "model": Model(layers=2),
        "optimizer": Optimizer(lr=1e-4),
        "guard": GuardParameters(enabled=not TRAINING.guard.enabled),
        "deterministic": False,
        "fp32_matmul": "tf32",
        "float8": "rowwise",
        "deepspeed": {"zero_optimization": {"zero_quantized_gradients": True}},
        "initial": InitialWeights(folder="llama", licence="MIT", vocabulary="mean"),
        "trainer": ExternalTrainer(command=("train.py",)),
    }
    others = [config.run_key(TRAINING.model_copy(update={name: value}), "m", "t") for name, value in decisive.items()]
    others += [config.run_key(TRAINING, "n", "t"), config.run_key(TRAINING, "m", "u")]
    assert len({key, *others}) == len(others) + 1
    own = set(Training.model_fields) - set(hooks.HOOKS) - {"extensions"}  # which have tests of their own
    assert own == set(placed) | set(decisive) | {"changes"}  # how recipes write the schedules


def test_a_mixture_of_one_step_is_refused(ctx: Context) -> None:
    mixed, sharded, trained = made_mixture(ctx)
    greedy = TRAINING.model_copy(update={"global_batch_sequences": 48})
    with pytest.raises(TrainingError, match="too short to train on"):
        preparation.prepare(ctx, "demo", greedy, mixed, sharded, trained)


def test_batches_are_those_of_the_order_on_any_number_of_ranks(prepared: RunConfig) -> None:
    alone = list(open_batches(prepared, 0)(1))
    assert len(alone) == 12
    assert alone[0].shape == alone[0].expanded().segments.shape == (2, 2, 33)
    later, seventh = next(open_batches(prepared, 0)(7)).expanded().tokens, alone[6].expanded().tokens
    assert (later == seventh).all()
    pair = prepared.model_copy(update={"launch": Launch(ranks=2)})
    halves = [next(open_batches(pair, rank)(7)).expanded().tokens.reshape(-1, 33) for rank in range(2)]
    assert (seventh.reshape(-1, 33)[:2] == halves[0]).all()
    assert (seventh.reshape(-1, 33)[2:] == halves[1]).all()


@pytest.fixture
def importable(monkeypatch: pytest.MonkeyPatch, job_environment: Callable[..., dict[str, str]]) -> None:
    monkeypatch.setenv("PYTHONPATH", job_environment()["PYTHONPATH"])


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.usefixtures("importable")
def test_from_submission_to_checkpoint(ctx: Context, prepared: RunConfig) -> None:
    first = job.submit_or_find(ctx, prepared)
    assert job.submit_or_find(ctx, prepared) == first
    events: list[dict[str, Any]] = []
    result = job.follow(ctx, prepared, events.append)
    assert (result.status, result.step, result.restarts) == ("finished", 12, 0)
    kinds = [event["event"] for event in events]
    assert kinds[:4] == ["submitted", "job_started", "hosts_checked", "run_started"]
    assert kinds[-2:] == ["audited", "finished"]
    assert kinds.count("step") == 12

    assert job.submit_or_find(ctx, prepared) == first  # what has finished is not done again
    again: list[dict[str, Any]] = []
    job.follow(ctx, prepared, again.append)
    assert again == events

    run = manifests.run_manifest(ctx, prepared)
    assert (run.asset, run.stats["steps"], run.stats["tokens"]) == ("run", 12, 1536)
    table = read_table(ctx.store, run.parts[0])
    losses = [event["loss"] for event in events if event["event"] == "step"]
    assert table.column("loss").to_pylist() == losses
    assert run.stats["final_loss"] == losses[-1] < losses[0]
    assert run.stats["loss_curve"] == [[i + 1, loss] for i, loss in enumerate(losses)]

    edited = prepared.model_copy(update={"optimizer": prepared.optimizer.model_copy(update={"lr": 0.5})})
    with pytest.raises(ResumeError, match="has other settings than when it was prepared"):
        job.submit_or_find(ctx, edited)
    with pytest.raises(ResumeError, match="has other settings than step-"):
        manifests.run_manifest(ctx, edited)

    made = manifests.checkpoint_manifest(ctx, prepared, run)
    names = {part.name: part.blob for part in made.parts}
    assert set(names) == {"model.safetensors", "config.json", "state.json", "resume.json", "tokenizer.json"}
    assert made.stats["bit_exact_resume"] is True
    assert made.inputs["run"] == run.digest
    folder = ctx.workspace.tmp / "model"
    folder.mkdir()
    for name, blob in names.items():
        (folder / name).write_bytes(ctx.store.read_bytes(blob))
        assert str(ctx.workspace.root) not in (folder / name).read_bytes().decode(errors="ignore"), name
    assert load_model(folder).vocab_size == prepared.vocab_size
    assert json.loads((folder / "state.json").read_text())["step"] == 12

    files = {part.name: {"sha256": part.blob.sha256} for part in made.parts}
    account = {"files": files, "run": {"id": prepared.run_id, "key": prepared.key}}
    (stated,) = trained.proved(ctx, made, account | {"training": trained.gathered(ctx, made, prepared.run_id)})
    assert (stated.ranks, stated.nodes, stated.from_step) == (prepared.ranks, 1, 0)
    assert stated.hosts[0].code == code_digests()
    assert stated.config_sha256 == hashlib.sha256(prepared.directory.config.read_bytes()).hexdigest()
    replayed = attempts.stated(attempts.known(prepared.directory)[1], "the audit")
    assert (replayed.audit, replayed.number) == (True, 2)

    facts = manifests.facts(ctx, prepared)
    assert (facts["steps"], facts["restarts"], facts["attempts"]) == (12, 0, 1)
    figures = of_history(timeline(prepared.directory.events))
    assert figures.median_tokens_per_s is not None
    assert figures.median_tokens_per_s > 0

    weights = checkpoint.path(prepared.directory, 12) / "model/model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    with pytest.raises(CheckpointError, match=r"model/model\.safetensors has changed"):
        manifests.checkpoint_manifest(ctx, prepared, run)

    assert job.submit_or_find(ctx, prepared) != first  # damage undoes "finished": the end is trained again
    assert job.follow(ctx, prepared).status == "finished"
    assert manifests.checkpoint_manifest(ctx, prepared, run) == made
    assert timeline(prepared.directory.events).of("refused")[0]["step"] == 12


@pytest.mark.slow
@pytest.mark.usefixtures("importable")
def test_orchestrator_dies_then_supervisor_dies_then_sigterm(ctx: Context, prepared: RunConfig, tmp_path: Path) -> None:
    """Three deaths, each survived; the end is that of an undisturbed run. Its ranks have the recipe's environment."""
    launch = prepared.launch.model_copy(update={"environment": {"HELD": str(tmp_path)}})
    slow = prepared.model_copy(update={"batches": "held_ranks:open_batches", "launch": launch})
    config.write(slow)
    held_ranks.hold(tmp_path, 3)

    orchestrator = multiprocessing.get_context("fork").Process(target=orchestrate, args=(slow,))
    orchestrator.start()
    wait_for(lambda: held_ranks.waiting(tmp_path, 1), slow)
    orchestrator.kill()
    orchestrator.join()
    found = LocalLauncher().find(slow.directory.root)
    assert found is not None
    assert LocalLauncher().poll(found) is JobStatus.RUNNING
    assert job.submit_or_find(ctx, slow) == found

    held_ranks.hold(tmp_path, 7)
    wait_for(lambda: held_ranks.waiting(tmp_path, 1), slow)
    wait_for(lambda: checkpoint.committed(slow.directory), slow)
    os.kill(int(found.id), signal.SIGKILL)  # its ranks must go with it
    with pytest.raises(TrainingError, match="vanished, because its supervisor was killed"):
        job.follow(ctx, slow)

    held_ranks.hold(tmp_path, 6)
    second = job.submit_or_find(ctx, slow)
    assert second != found
    wait_for(lambda: held_ranks.waiting(tmp_path, 1), slow)
    os.kill(int(second.id), signal.SIGTERM)
    with pytest.raises(TrainingError, match=r"stopped at step 7"):
        job.follow(ctx, slow)
    assert max(checkpoint.committed(slow.directory)) == 7
    story = timeline(slow.directory.events)
    assert [event["step"] for event in story.of("signal")] == [7]
    assert max(story.steps) == 7  # nothing was lost

    held_ranks.let_go(tmp_path)
    slow.directory.evidence.write_text('{"to_step": 7}')  # as of an audit of the stopped run
    job.submit_or_find(ctx, slow)
    assert job.follow(ctx, slow).status == "finished"
    story = timeline(slow.directory.events)
    assert [event["step"] for event in story.of("resumed")] == [4, 7]
    assert list(story.steps) == list(range(1, 13))
    assert story.diverged == []
    assert story.redone == 2
    assert json.loads(slow.directory.evidence.read_bytes())["bit_exact"] is True


def orchestrate(run: RunConfig) -> None:
    ctx = Context(Workspace(Path(run.workspace)))
    job.submit_or_find(ctx, run)
    job.follow(ctx, run)


def wait_for(condition: Callable[[], object], run: RunConfig, seconds: float = 240.0) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, run.directory.log.read_text()[-2000:]
        time.sleep(0.05)
