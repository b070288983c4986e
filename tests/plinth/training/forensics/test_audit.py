"""A replay equals the run in every ZeRO stage, across windows left out and changes of the batch; and a run that
was tampered with does not pass."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import synthetic

from plinth.errors import MissingError
from plinth.launch.parameters import Launch
from plinth.tokens.order.steps import BatchChange
from plinth.training.checkpoint import checkpoint
from plinth.training.config import RunConfig
from plinth.training.data import Batches, StepBatch
from plinth.training.forensics.proof import span
from plinth.training.parameters.guard import GuardParameters, LossSpike
from plinth.training.parameters.optimizers import Optimizer
from plinth.training.parameters.parallel import Parallel
from plinth.training.parameters.run import Checkpoints
from plinth.training.telemetry.timeline import timeline
from tests.ranks import run_ranks

Make = Callable[..., RunConfig]

STEPS, CHANGE, NOISE = 20, 10, (14, 15, 16)


def noisy(config: RunConfig, rank: int) -> Batches:
    """Patterns, and at some steps noise; the batch doubles at a boundary."""

    def stream(first: int) -> Iterator[StepBatch]:
        for step in range(first, config.total_steps + 1):
            batch = synthetic.batch_at(config, step, rank)
            if step in NOISE:
                tokens, segments, _ = batch.expanded()
                tokens[..., ::2] = (7 * tokens[..., ::2] + 3 * step) % config.vocab_size
                batch = StepBatch.of(tokens, segments)
            yield batch

    return stream


def train_then_audit(config: RunConfig, start: int) -> None:
    """Both in one process, each with an engine of its own."""
    from plinth.training import loop, trainer
    from plinth.training.engine import engine
    from plinth.training.forensics import audit

    trainer.batches_of = noisy
    rank = engine.join(config)
    assert loop.train(config, rank, 0)
    audit.replay(config, rank, start)
    engine.leave()


def configured(make: Make, root: Path, stage: int) -> RunConfig:
    return make(
        workspace=root,
        total_steps=STEPS,
        parallel=Parallel(zero_stage=stage),
        launch=Launch(ranks=2),
        sequences=8 * (CHANGE - 1) + 16 * (STEPS - CHANGE + 1),
        batch_schedule=(BatchChange(from_step=CHANGE, global_batch_sequences=16),),
        checkpoints=Checkpoints(every_steps=4, keep_last=5, audit_steps=4),
        optimizer=Optimizer(lr=1e-2),
        guard=GuardParameters(min_steps=6, window_steps=12, loss_spike=LossSpike(sigmas=1.0, min_rise=0.05)),
    )


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.parametrize("stage", range(4))
def test_a_replay_is_bit_exact_across_windows_and_batch_changes(stage: int, make: Make, tmp_path: Path) -> None:
    config = configured(make, tmp_path, stage)
    run_ranks(2, train_then_audit, config, 8)
    story = timeline(config.directory.events)
    assert story.skipped, "the noise was not left out, so nothing is proved about windows"
    evidence = json.loads(config.directory.evidence.read_bytes())
    assert evidence["equal"] == {"steps": True, "skipped": True, "interventions": True, "states": True}
    assert evidence["bit_exact"] is True
    assert evidence["max_abs_difference"] == {"loss": 0.0, "grad_norm": 0.0, "parameters": 0.0}
    assert (evidence["from_step"], evidence["to_step"], evidence["zero_stage"]) == (8, STEPS, stage)
    assert evidence["skipped_steps"]["replayed"] == sorted(story.skipped)
    assert evidence["compared_steps"] == STEPS - 8 - len(story.skipped)
    assert len(evidence["digests"]["optimizer_sha256"]["replayed"]) == 2
    (audited,) = story.of("audited")
    assert (audited["from_step"], audited["bit_exact"], audited["number"]) == (8, True, 1)


def test_span_of_a_replay(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    config = make()
    monkeypatch.setattr(checkpoint, "committed", lambda run: [3, 8, 12])
    assert span(config, 8) == (8, [12])
    assert span(config, 7) == (3, [8, 12])
    for step in (2, 12, 99):
        with pytest.raises(MissingError, match=f"nothing to replay from step {step}"):
            span(config, step)


def test_evidence_tells_what_differs(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """One wrong number anywhere is evidence against, and is found where it is."""
    from plinth.training.forensics import audit
    from plinth.training.telemetry.timeline import Timeline

    config = make(total_steps=4)
    events = Timeline(config.directory.events)
    window = {"rule": "loss_spike", "value": 9.0, "threshold": 3.0, "number": 1, "factor": 1.0}
    for step in (1, 2, 3):
        events.append("step", step=step, loss=1.0, grad_norm=2.0, lr=0.1, loss_ema=1.0, batch="b")
    events.append("intervention", step=3, action="rollback", window=[3, 3], **window)
    events.append("skipped", step=3, rule="loss_spike", window=[3, 3])
    events.append("step", step=4, loss=1.5, grad_norm=2.0, lr=0.1, loss_ema=1.0, batch="b", vetoed=True)
    events.append("intervention", step=4, action="skip", window=[4, 4], **window)
    guard: dict[str, Any] = {"losses": [1.0], "rollbacks": [{"window": [3, 3]}]}
    state: dict[str, Any] = {
        "parameters_sha256": "p",
        "optimizer_sha256": ["o"],
        "monitor": {"loss_ema": 1.0, "guard": guard},
    }
    proof, state = state, {**state, "layout": {"ranks": 2}}
    monkeypatch.setattr(checkpoint, "read_state", lambda run, step: state)
    row = {"loss": 1.5, "grad_norm": 2.0, "lr": 0.1, "loss_ema": 1.0, "batch": "b", "vetoed": True}
    again = {"step": 4, "action": "skip", "window": [4, 4], **window}

    def found(**changes: Any) -> dict[str, Any]:
        replayed = audit.Replayed({4: row}, [3], [again], {4: proof})
        for name, value in changes.items():
            setattr(replayed, name, value)
        return audit.compare(config, 2, replayed)

    assert found()["bit_exact"] is True
    for part, changes in {
        "steps": {"steps": {4: {**row, "loss": 1.75}}},
        "skipped": {"skipped": []},
        "interventions": {"interventions": []},
        "states": {"states": {4: {**proof, "monitor": {"loss_ema": 1.0, "guard": {**guard, "losses": [2.0]}}}}},
    }.items():
        evidence = found(**changes)
        assert evidence["bit_exact"] is False, part
        assert [name for name, equal in evidence["equal"].items() if not equal] == [part]
    assert found(steps={4: {**row, "loss": 1.75}})["max_abs_difference"]["loss"] == 0.25
    assert found(steps={4: {**row, "vetoed": False}})["bit_exact"] is False
