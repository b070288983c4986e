"""A team's own trainer as a job: submitted, followed, killed, stopped and restarted like a run of Plinth's loop."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from plinth.compute.context import Context
from plinth.errors import CheckpointError, StoppedRunError, TrainingError
from plinth.model.folder import load_model
from plinth.training import attempts, job, manifests
from plinth.training import config as configuration
from plinth.training.checkpoint import checkpoint
from plinth.training.config import RunConfig
from plinth.training.forensics.order_proof import order_proof
from plinth.training.parameters.guard import Stopping
from plinth.training.parameters.trainer import ExternalTrainer
from plinth.training.run_state import run_state
from plinth.training.telemetry.timeline import timeline

STEPS = 12
Prepared = Callable[..., RunConfig]
Submitted = Callable[..., Any]


def losses(config: RunConfig) -> dict[int, float]:
    return {step: event["loss"] for step, event in timeline(config.directory.events).steps.items()}


#: What is lost of 12 steps with a commit every 4: the steps that are taken again.
INSTANTS = {"step": [5, 6], "save": [5, 6, 7, 8], "renamed": [5, 6, 7, 8], "recorded": []}


def require_continued(config: RunConfig, result: Any, at: str) -> None:
    """The run lost rank 0 once and continued from the last commit."""
    assert (result.status, result.restarts) == ("finished", 1)
    story = timeline(config.directory.events)
    (restart,) = story.of("restart")
    assert restart["reason"] == "rank 0 was killed by SIGKILL"
    assert restart["from_step"] == (8 if at == "recorded" else 4)
    assert [event["step"] for event in story.of("resumed")] == [restart["from_step"]]
    assert [event["attempt"] for event in story.of("run_started")] == [1, restart["attempt"]] == [1, 2]
    assert attempts.known(config.directory)[2:]  # the third is of the replay
    assert story.redone == len(INSTANTS[at])
    assert story.diverged == []
    assert list(story.steps) == list(range(1, STEPS + 1))
    checkpoint.verify(config.directory, STEPS)


def test_a_run_of_two_ranks_that_loses_one_is_committed_and_has_manifests(
    ctx: Context, prepared: Prepared, submitted: Submitted
) -> None:
    config = prepared(ranks=2)
    require_continued(config, submitted(config, at="renamed", step=8), "renamed")
    story = timeline(config.directory.events)
    assert [event["step"] for event in story.of("checkpoint")] == [4, 8, 12]
    assert checkpoint.committed(config.directory) == [4, 8, 12]  # the last two, and those for the replay of the order
    assert not list(config.directory.staging.glob("*/*"))

    state = checkpoint.read_state(config.directory, STEPS)
    assert state["trainer"]["command"] == list(config.trainer.command)
    assert set(state["trainer"]["packages"]) == {"torch", "plinth", "numpy"}
    assert all(state["trainer"]["packages"].values())
    files = checkpoint.path(config.directory, STEPS)
    assert {path.name for path in (files / "trainer").iterdir()} == {
        "state-0.pt", "state-1.pt", "config.json", "model.safetensors"
    }  # fmt: skip
    assert (files / "model" / "model.safetensors").samefile(files / "trainer" / "model.safetensors")
    load_model(files / "model")

    run = manifests.run_manifest(ctx, config)
    ctx.refs.save(run)
    made = manifests.checkpoint_manifest(ctx, config, run)
    assert made.stats["resume_proof"] == "not proved by this trainer"
    assert (made.stats["bit_exact_resume"], made.stats["compared_steps"]) == (False, 0)
    assert sorted(part.name for part in made.parts) == [
        "config.json", "model.safetensors", "resume.json", "state.json", "tokenizer.json"
    ]  # fmt: skip
    shown = order_proof(json.loads(config.directory.evidence.read_bytes()), made.stats["parameters_sha256"])
    assert (shown.steps, shown.holds()) == (2, False)  # its loss is not that of the model that it commits
    assert not run.params.keys() & {"optimizer", "precision", "seed"}  # the trainer's, which nothing checks
    assert run.params["trainer"] == {"command": list(config.trainer.command)}


@pytest.mark.exhaustive
@pytest.mark.parametrize("at", INSTANTS)
def test_a_killed_rank_continues_from_the_last_commit(prepared: Prepared, submitted: Submitted, at: str) -> None:
    """In a step, in a save, after the files of a commit are in place but not its record, and before it is reported."""
    config = prepared()
    require_continued(config, submitted(config, at=at, step=7 if at == "step" else 8), at)


@pytest.mark.exhaustive
def test_the_losses_after_kills_are_those_of_an_undisturbed_run(
    ctx: Context, data: Any, prepared: Prepared, submitted: Submitted
) -> None:
    config = prepared(ranks=2)
    submitted(config, at="save", step=8)
    disturbed, weights = losses(config), checkpoint.path(config.directory, STEPS) / "model" / "model.safetensors"
    alone = prepared((*config.trainer.command, "again"), ranks=1)
    assert alone.run_id != config.run_id  # the command is part of the identity
    submitted(alone)
    assert losses(alone) == pytest.approx(disturbed, abs=1e-12)
    again = load_file(checkpoint.path(alone.directory, STEPS) / "model" / "model.safetensors")
    assert all(again[name].allclose(value) for name, value in load_file(weights).items())


@pytest.mark.exhaustive
def test_a_stop_is_committed_and_the_next_job_continues(ctx: Context, prepared: Prepared, submitted: Submitted) -> None:
    config = prepared()
    with pytest.raises(StoppedRunError, match="SIGTERM was received"):
        submitted(config, at="step", step=6, signal=int(signal.SIGTERM))
    (stopped,) = checkpoint.committed(config.directory)[-1:]
    assert 6 <= stopped < STEPS
    assert run_state(config) == "stopped"
    assert submitted(config).status == "finished"
    story = timeline(config.directory.events)
    assert [event["step"] for event in story.of("signal")] == [stopped]
    assert story.redone == 0


@pytest.mark.exhaustive
def test_a_stopping_rule_ends_the_run_on_all_ranks(ctx: Context, prepared: Prepared, submitted: Submitted) -> None:
    config = prepared(ranks=2, stopping=Stopping(tokens=5 * 4 * 32, every_steps=1))
    assert submitted(config).status == "finished"
    (event,) = timeline(config.directory.events).of("stopped_by_rule")
    assert event["step"] == 6  # one step after the verdict, which the ranks share without waiting
    run = manifests.run_manifest(ctx, config)
    assert (run.stats["steps"], run.stats["stopped_by_rule"]) == (6, event["reasons"])


@pytest.mark.parametrize(
    ("fault", "error", "words"),
    [
        ("no_model", CheckpointError, "no model in Hugging Face's layout"),
        ("other_model", CheckpointError, "not the recipe's model"),
        ("tokens", TrainingError, "trained on other batches"),
    ],
)
@pytest.mark.exhaustive
def test_what_the_trainer_may_not_claim_fails_the_run_by_name(
    prepared: Prepared, submitted: Submitted, fault: str, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        submitted(prepared(), at=fault)


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_run_whose_replay_fails_has_finished(
    ctx: Context, prepared: Prepared, submitted: Submitted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trainer has trained; what was not replayed is not proved."""
    config = prepared()
    result = submitted(config, at="damage")
    assert (result.status, result.failure) == ("finished", None)
    shown = order_proof(json.loads(config.directory.evidence.read_bytes()))
    assert (shown.steps, "CheckpointError" in shown.fault) == (0, True)


def test_evidence_that_the_trainer_wrote_is_replaced(
    prepared: Prepared, submitted: Submitted, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PLINTH_KEY_EVALUATOR", str(tmp_path / "key"))  # with which it could sign, and does not get
    config = prepared()
    submitted(config, at="forge")
    assert order_proof(json.loads(config.directory.evidence.read_bytes())).steps == 2


def test_a_program_that_commits_nothing_has_not_finished(prepared: Prepared, submitted: Submitted) -> None:
    with pytest.raises(TrainingError, match="did not commit the last step") as caught:
        submitted(prepared(("/bin/true",)))
    assert caught.value.remedy is not None
    assert "no checkpoint was committed" in caught.value.remedy


def test_a_command_that_was_changed_in_the_workspace_is_not_started(
    ctx: Context, prepared: Prepared, submitted: Submitted, tmp_path: Path
) -> None:
    """A writer of the workspace replaces the command while the job waits for its machines."""
    config = prepared(("/bin/true",))
    submitted_with = job.command(config, 0)
    planted = config.model_copy(update={"trainer": ExternalTrainer(command=("/usr/bin/touch", str(tmp_path / "ran")))})
    configuration.write(planted)
    for words in (submitted_with, submitted_with[:-2]):  # a run with Plinth's own loop has no digest
        from plinth import processes

        done = processes.run(words, *processes.JOB, capture_output=True, text=True)
        assert done.returncode == TrainingError.exit_code
        assert "the trainer's command was changed after the job was submitted" in done.stderr
    assert not (tmp_path / "ran").exists()
    assert json.loads(config.directory.config.read_bytes())["trainer"]["command"][0] == "/usr/bin/touch"
