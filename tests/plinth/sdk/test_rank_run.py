"""Rules of a run on one rank: what a trainer may report and commit, and what a recipe may ask of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

import plinth.sdk
from plinth.compute.context import Context
from plinth.errors import CheckpointError, TrainingError
from plinth.model.decoder import Decoder
from plinth.model.parameters import Model, MuP
from plinth.sdk import Run, commit
from plinth.training import config as configuration
from plinth.training import job
from plinth.training.averaging import average
from plinth.training.checkpoint import checkpoint
from plinth.training.config import RunConfig, identity, run_key
from plinth.training.parameters.initial import InitialWeights
from plinth.training.parameters.run import Average, Checkpoints, Training, Validation
from plinth.training.parameters.trainer import FOLDER, ExternalTrainer
from plinth.training.telemetry.timeline import timeline
from tests.model_folder import save_model

Prepared = Callable[..., RunConfig]
OWN = {"trainer": ExternalTrainer(command=("train",))}


@pytest.fixture
def run(prepared: Prepared) -> Run:
    return Run(configuration.write(prepared()), {"RANK": "0", "WORLD_SIZE": "1"})


def test_a_process_outside_of_a_run_is_told_how_to_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PLINTH_RUN", raising=False)
    with pytest.raises(TrainingError, match="does not belong to a run"):
        plinth.sdk.run()


@pytest.mark.parametrize(
    ("reported", "words"),
    [
        ({"step": 2, "loss": 1.0}, "reported step 2"),
        ({"step": 1, "loss": float("nan")}, "step 1 is not finite"),
        ({"step": 1, "loss": 1.0, "tokens": 4 * 32 - 1}, "other batches"),
    ],
)
def test_a_report_that_the_run_contradicts_is_refused(run: Run, reported: dict[str, Any], words: str) -> None:
    with pytest.raises(TrainingError, match=words):
        run.step(reported.pop("step"), **reported)
    assert not timeline(run.directory.events).steps


def test_a_commit_of_another_step_is_refused(run: Run, tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="a commit of step 4"):
        run.commit(tmp_path, 4)


def test_several_ranks_need_a_process_group(prepared: Prepared) -> None:
    second = Run(configuration.write(prepared(ranks=2)), {"RANK": "1", "WORLD_SIZE": "2"})
    with pytest.raises(TrainingError, match="cannot agree when to stop"):
        second.step(1, loss=1.0)


@pytest.mark.parametrize("kind", ["link", "hard link", "empty", "absent", "folder that is a link"])
def test_a_folder_whose_bytes_may_be_elsewhere_is_not_committed(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "saved"
    if kind != "absent":
        folder.mkdir()
    if kind == "link":
        (folder / "weights").symlink_to("/etc/hostname")
    if kind == "hard link":
        (tmp_path / "elsewhere").write_bytes(b"x")
        (folder / "weights").hardlink_to(tmp_path / "elsewhere")
    if kind == "folder that is a link":
        (folder / "weights").write_bytes(b"x")
        (tmp_path / "link").symlink_to(folder)
        folder = tmp_path / "link"
    with pytest.raises(CheckpointError, match="cannot be committed"):
        commit._require_plain(folder)


def test_the_model_is_the_recipes(run: Run) -> None:
    assert (run.model["hidden_size"], run.model["num_hidden_layers"]) == (32, 1)
    assert run.model["vocab_size"] == run.config.vocab_size
    assert run.checkpoint is None
    assert not run.stopping


def test_it_saves_at_the_interval_and_at_the_end(run: Run) -> None:
    assert [step for step in range(1, 13) if run.saves_at(step)] == [4, 8, 12]
    run.done = 12
    assert run.stopping
    assert run.final


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("initial", InitialWeights(release="parent@champion")),
        ("validation", Validation()),
        ("checkpoints", Checkpoints(keep_last=3, average=Average(last=3))),
        ("deepspeed", {"wall_clock_breakdown": True}),
        ("model", Model(mup=MuP(base_dim=64))),
        ("changes", ({"from_step": 5, "sequence_tokens": 16},)),
        ("changes", ({"from_step": 5, "rope_theta": 1e6},)),
        ("privacy", {"epsilon": 8.0, "delta": 1e-5}),
    ],
)
def test_settings_that_the_trainer_would_ignore_are_refused(key: str, value: Any) -> None:
    more = {"guard": {"enabled": False}} if key == "privacy" else {}
    with pytest.raises(ValidationError, match=f"trainer cannot be combined with .*{'' if key == 'changes' else key}"):
        Training.model_validate({**OWN, **more, key: value})
    Training.model_validate(OWN)


def test_what_only_plinths_loop_can_prove_is_refused_by_name(ctx: Context, prepared: Prepared) -> None:
    config = prepared()
    with pytest.raises(TrainingError, match="not possible for a run of your own trainer"):
        average(ctx, config, [4], [1.0], ema=False)


def test_the_command_is_part_of_the_identity_and_of_the_job(prepared: Prepared) -> None:
    first, second = prepared(), prepared(("train", "--lr", "1e-3"))
    assert identity(first) != identity(second)
    assert job.command(first, 0)[:-1] == [*job.command(first, 0)[:-2], "--trainer"]
    assert job.command(first, 0)[-1] != job.command(second, 0)[-1]
    plain = Training()
    assert "trainer" not in plain.model_dump(mode="json")
    assert run_key(plain, "m" * 64, "t" * 64) != run_key(Training.model_validate(OWN), "m" * 64, "t" * 64)


def test_a_committed_checkpoint_and_a_folder_around_the_run_are_not_moved(run: Run, tmp_path: Path) -> None:
    run.done = 4
    (run.scratch / "first").mkdir(parents=True)
    (run.scratch / "first" / "state").write_bytes(b"x")
    run.commit(run.scratch / "first", 4)
    earlier = checkpoint.path(run.directory, 4) / FOLDER
    run.done = 8
    for folder in (earlier, checkpoint.path(run.directory, 4), run.directory.root, tmp_path):
        with pytest.raises(CheckpointError, match="cannot be committed"):
            run.commit(folder, 8)
    assert checkpoint.is_valid(run.directory, 4)


@pytest.mark.parametrize("place", ["hf", "."])
def test_the_model_may_be_in_the_committed_folder(run: Run, place: str) -> None:
    run.done, folder = 4, run.scratch / "saved"
    config = run.config
    model = Decoder(config.model, config.vocab_size)
    (folder / place).mkdir(parents=True)
    (folder / "state").write_bytes(b"x")
    save_model(folder / place, {name: one.detach() for name, one in model.named_parameters()}, run.model)
    run.commit(folder, 4, model=folder / place)
    committed = checkpoint.verify(run.directory, 4)
    names = {"config.json", "model.safetensors"}
    assert {path.name for path in (committed / "model").iterdir()} == names
    assert names < {path.name for path in (committed / FOLDER).rglob("*")}
