"""Logits of a teacher, stored once: the same bytes from any writer, and training on them equals training on the
teacher."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import trained_losses
from tiny_mixture import made_mixture
from torch.nn.utils import parameters_to_vector

from plinth.compute.context import Context
from plinth.compute.engine import LocalEngine
from plinth.errors import IntegrityError, MissingError, RecipeError, TrainingError
from plinth.launch.parameters import Launch
from plinth.model.decoder import Decoder, build
from plinth.model.hugging_face import TOKENIZER, hf_config
from plinth.model.parameters import Model
from plinth.records import Manifest
from plinth.storage.state import Refs
from plinth.storage.workspace import Workspace
from plinth.training import config, initial, manifests, preparation
from plinth.training.config import RunConfig
from plinth.training.data import open_batches
from plinth.training.engine.batches import expand_batch
from plinth.training.parameters.run import Training
from plinth_extras.distillation import Distillation, stored_logits
from plinth_extras.distillation import teacher as teacher_logits
from plinth_extras.distillation.stored_logits import StoredLogits
from plinth_extras.distillation.teacher import live_teacher, load_teacher, stored_teacher
from tests.model_folder import save_model

TEACHER = Model(layers=1, dim=48, heads=4, kv_heads=4, ffn_dim=64, tied_embeddings=False)
STUDENT = Model(layers=1, dim=32, heads=2, kv_heads=1, ffn_dim=48)
STEPS = 6
VOCABULARY = 275  # of the data

Line = tuple[Manifest, dict[str, Manifest], Manifest]


def told(**distillation: Any) -> Training:
    """Return a recipe's training that stores all logits in FP32 by default."""
    params = {"top_k": VOCABULARY, "stored": "fp32", "temperature": 2.0, **distillation}
    return Training(
        model=STUDENT,
        micro_batch_sequences=2,
        global_batch_sequences=4,
        precision="fp32",
        launch=Launch(ranks=1),
        distillation=Distillation(teacher="a@b", **params),
    )


@pytest.fixture
def ctx(tmp_path: Path) -> Context:
    return Context(Workspace(tmp_path / "workspace").ensure())


@pytest.fixture
def line(ctx: Context, monkeypatch: pytest.MonkeyPatch) -> Line:
    """Data of 24 sequences, whose stored logits are of several parts."""
    monkeypatch.setattr(stored_logits, "PART_BYTES", 10 * 32 * (VOCABULARY * 2 + (VOCABULARY + 1) * 4))
    return made_mixture(ctx, STEPS)


def teacher(ctx: Context, tokenizer: Manifest, model: Model = TEACHER) -> tuple[Decoder, Manifest]:
    """A teacher of the data's tokens, and its manifest."""
    made, folder = build(model, VOCABULARY, 7), ctx.workspace.root / "teacher"
    for parameter in made.parameters():
        parameter.data *= 3.0  # far from uniform
    save_model(folder, dict(made.named_parameters()), hf_config(model, VOCABULARY, 32, "float32", 0))
    (part,) = tokenizer.named(TOKENIZER)
    (folder / "tokenizer.json").write_bytes(ctx.store.read_bytes(part.blob))
    manifest = initial.of_folder(ctx, folder, "MIT", initial.TEACHER)
    ctx.refs.save(manifest)
    return made, manifest


def prepared(ctx: Context, line: Line, training: Training) -> tuple[RunConfig, Decoder]:
    mixed, sharded, trained = line
    model, manifest = teacher(ctx, trained)
    said = teacher_logits.run(ctx, training, mixed, sharded, trained, manifest)
    read = {"teacher": manifest, "teacher_logits": said}
    resolved = preparation.prepare(ctx, "demo", training, mixed, sharded, trained, read=read)
    return resolved, model


def test_the_whole_vocabulary_teaches_what_the_teacher_does(ctx: Context, line: Line) -> None:
    resolved, model = prepared(ctx, line, told())
    state, student = resolved.distillation, build(STUDENT, VOCABULARY, 1)
    assert state is not None
    beside = load_teacher(ctx.workspace, state.manifest, torch.device("cpu"), torch.float32)
    steps = list(open_batches(resolved, 0)(1))
    assert len(steps) == STEPS
    for batch in steps:
        for micro, said in zip(batch.micro, batch.beside["distillation"], strict=True):
            inputs = expand_batch(micro, 32, torch.device("cpu"), segments=True)
            stored = stored_teacher(said, state, torch.device("cpu"))
            losses, gradients = [], []
            for given in (live_teacher(beside, inputs, False, state), stored):
                student.zero_grad()
                loss = student(*inputs, teacher=given)
                loss.backward()
                losses.append(loss.item())
                gradients.append(parameters_to_vector(one.grad for one in student.parameters() if one.grad is not None))
            assert losses[0] == pytest.approx(losses[1], abs=1e-6)
            assert torch.allclose(*gradients, rtol=0, atol=1e-7)
            alone = stored._replace(share=1.0)
            assert model(*inputs, teacher=alone).item() == pytest.approx(0.0, abs=1e-6)
    whole = manifests._inputs(resolved)
    assert whole["teacher_logits"] == resolved.distillation.logits


def test_what_was_made_stays(ctx: Context, line: Line) -> None:
    mixed, sharded, trained = line
    _, manifest = teacher(ctx, trained)
    training = told(top_k=5, stored="fp16")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stored_logits, "PART_BYTES", 7 * 32 * (5 * 2 + 6 * 2))
        made = teacher_logits.run(ctx, training, mixed, sharded, trained, manifest)
        assert [part.rows for part in made.parts] == [7, 7, 7, 3]
        assert [part.blob.bytes for part in made.parts] == [rows * 32 * 22 for rows in (7, 7, 7, 3)]
        again = teacher_logits.run(ctx, training, mixed, sharded, trained, manifest)
        assert again.digest == made.digest
        assert ctx.costs[stored_logits.ASSET].spared == 4


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_run_learns_from_a_file_what_it_learns_from_the_teacher(
    ctx: Context, line: Line, job_environment: Callable[..., dict[str, str]]
) -> None:
    stored, _ = prepared(ctx, line, told())
    assert stored.distillation is not None
    beside = stored.distillation.model_copy(update={"logits": ""})
    twin = stored.model_copy(update={"distillation": beside, "run_id": f"{stored.run_id}-beside"})
    losses = []
    for run in (stored, twin):
        command = [sys.executable, str(Path(trained_losses.__file__)), str(config.write(run))]
        done = subprocess.run(command, env=job_environment(), capture_output=True, text=True, timeout=300, check=True)
        losses.append(json.loads(done.stdout.splitlines()[-1]))
    assert losses[0] == pytest.approx(losses[1], abs=1e-6)
    assert losses[0][0] > 1.05 * losses[0][-1]


@pytest.mark.exhaustive
@pytest.mark.slow
def test_the_bytes_depend_on_no_worker(ctx: Context, line: Line, tmp_path: Path) -> None:
    mixed, sharded, trained = line
    _, manifest = teacher(ctx, trained)
    first = teacher_logits.run(ctx, told(top_k=5), mixed, sharded, trained, manifest)
    shutil.copytree(ctx.workspace.root, tmp_path / "other", ignore=shutil.ignore_patterns("records"))
    with LocalEngine(2) as engine:
        afresh = Context(Workspace(tmp_path / "other").ensure(), engine)
        second = teacher_logits.run(afresh, told(top_k=5), mixed, sharded, trained, manifest)
    assert second.digest == first.digest
    assert afresh.costs[stored_logits.ASSET].spared == 0


def test_positions_are_read_by_span(ctx: Context, line: Line) -> None:
    mixed, sharded, trained = line
    _, manifest = teacher(ctx, trained)
    made = teacher_logits.run(ctx, told(top_k=4), mixed, sharded, trained, manifest)
    said = StoredLogits(ctx.store, made)
    whole = said.rows(0, 24)
    assert whole.ids.shape == (24, 32, 4)
    assert whole.log_p.shape == (24, 32, 5)
    assert np.allclose(np.exp(whole.log_p.astype(np.float64)).sum(-1), 1, atol=1e-6)
    assert (np.diff(whole.ids.astype(int), axis=-1) > 0).all()
    for first, stop in ((0, 1), (8, 13), (19, 24)):
        part = said.rows(first, stop)
        assert (part.ids == whole.ids[first:stop]).all()
        assert (part.log_p == whole.log_p[first:stop]).all()
    with pytest.raises(MissingError, match="stored logits of positions 23 to 25"):
        said.rows(23, 25)


def test_changed_logits_are_not_learnt(ctx: Context, line: Line) -> None:
    resolved, _ = prepared(ctx, line, told(top_k=4))
    assert resolved.distillation is not None
    made = Refs(ctx.workspace).load(resolved.distillation.logits)
    path = ctx.store.path(made.parts[0].blob)
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.chmod(0o600)
    path.write_bytes(bytes(data))
    with pytest.raises(IntegrityError):
        next(open_batches(resolved, 0)(1))


def test_ranks_and_later_steps_learn_from_their_own_rows(ctx: Context, line: Line) -> None:
    resolved, _ = prepared(ctx, line, told(top_k=3))
    steps = [batch.beside["distillation"] for batch in open_batches(resolved, 0)(1)]
    alone = [np.concatenate([one.ids for one in step]) for step in steps]
    later = next(open_batches(resolved, 0)(4)).beside["distillation"]
    assert (np.concatenate([one.ids for one in later]) == alone[3]).all()
    pair = resolved.model_copy(update={"launch": Launch(ranks=2)})
    halves = [next(open_batches(pair, rank)(2)).beside["distillation"] for rank in range(2)]
    assert (np.concatenate([one.ids for half in halves for one in half]) == alone[1]).all()


def test_what_cannot_be_stored_is_refused(ctx: Context, line: Line) -> None:
    mixed, sharded, trained = line
    _, manifest = teacher(ctx, trained)
    with pytest.raises(TrainingError, match="exceeds the size of the vocabulary"):
        teacher_logits.run(ctx, told(top_k=VOCABULARY + 1), mixed, sharded, trained, manifest)
    other = trained.model_copy(update={"stats": {**trained.stats, "vocab_size": VOCABULARY - 1}})
    with pytest.raises(RecipeError, match="tokenizer differs from the tokenizer of"):
        teacher_logits.run(ctx, told(top_k=3), mixed, sharded, other, manifest)
    with pytest.raises(ValueError, match="logits are stored for whole sequences"):
        Training.model_validate(
            {
                "distillation": {"teacher": "a@b", "top_k": 3},
                "changes": [{"from_step": 3, "sequence_tokens": 16}],
            }
        )


def test_the_stored_logits_are_in_the_key(ctx: Context, line: Line) -> None:
    keys = {prepared(ctx, line, told(**one))[0].key for one in ({"top_k": 3}, {"top_k": 4}, {"stored": "fp16"})}
    assert len(keys) == 3
