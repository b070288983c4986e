"""A run with a teacher: two ranks train as one plain process does with all logits at once; a teacher of itself is 0."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import federated_sites
import pytest
import synthetic
import torch
from torch.nn import functional
from torch.nn.utils import clip_grad_norm_

from plinth.compute.context import Context
from plinth.model.decoder import Decoder, build
from plinth.model.hugging_face import hf_config
from plinth.model.parameters import Model
from plinth.storage.workspace import Workspace
from plinth.training import initial, manifests
from plinth.training.config import RunConfig, run_key
from plinth.training.engine.optimization import learning_rate
from plinth.training.parameters.initial import InitialWeights
from plinth.training.parameters.parallel import Parallel
from plinth.training.parameters.run import Training
from plinth.training.telemetry.timeline import timeline
from plinth_extras.distillation import Distillation, TeacherState
from tests.model_folder import byte_level, save_model
from tests.ranks import run_ranks

STEPS, VOCABULARY = 4, 64
TEACHER = Model(layers=1, dim=48, heads=4, kv_heads=4, ffn_dim=64, tied_embeddings=False)


def taught(make: Callable[..., RunConfig], tmp_path: Path, teacher: Decoder, share: float) -> RunConfig:
    """A run that learns from a model, whose files lie in its workspace."""
    plain, folder = make(), tmp_path / "teacher"
    save_model(folder, dict(teacher.named_parameters()), hf_config(teacher.config, VOCABULARY, 32, "float32", 0))
    byte_level(["a text"], 300).save(str(folder / "tokenizer.json"))
    ctx = Context(Workspace(Path(plain.workspace)).ensure())
    made = initial.of_folder(ctx, folder, "MIT", initial.TEACHER)
    ctx.refs.save(made)
    state = TeacherState(manifest=made.digest, share=share, temperature=2.0)
    return make(distillation=state, total_steps=STEPS, parallel=Parallel(zero_stage=1))


def plain_losses(config: RunConfig, teacher: Decoder, share: float) -> list[float]:
    """The same run in one process without DeepSpeed, with all logits of both held."""
    model, options = build(config.model, config.vocab_size, config.seed), config.optimizer
    groups = [[p for p in model.parameters() if (p.dim() >= 2) == matrix] for matrix in (True, False)]
    decays = [{"params": groups[0], "weight_decay": options.weight_decay}, {"params": groups[1], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(decays, betas=(options.beta1, options.beta2), eps=options.eps)
    losses = []
    for step in range(1, config.total_steps + 1):
        parts = [synthetic.batch_at(config, step, rank).expanded() for rank in range(config.ranks)]
        tokens = torch.cat([torch.from_numpy(part.tokens).long().flatten(0, 1) for part in parts])
        segments = torch.cat([torch.from_numpy(part.segments).flatten(0, 1) for part in parts])
        ours = model(tokens[:, :-1], segments[:, :-1]).flatten(0, 1)
        with torch.no_grad():
            theirs = teacher(tokens[:, :-1], segments[:, :-1]).flatten(0, 1)
        log_q, log_p = ((side / 2.0).log_softmax(-1) for side in (ours, theirs))
        gap = functional.kl_div(log_q, log_p, reduction="batchmean", log_target=True) * 4.0
        loss = (1 - share) * functional.cross_entropy(ours, tokens[:, 1:].flatten()) + share * gap
        loss.backward()
        clip_grad_norm_(model.parameters(), options.grad_clip)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(options, *config.progress(step))
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


@pytest.mark.exhaustive
@pytest.mark.slow
def test_ranks_learn_what_a_plain_process_learns(make: Callable[..., RunConfig], tmp_path: Path) -> None:
    teacher = build(TEACHER, VOCABULARY, 7)
    for parameter in teacher.parameters():
        parameter.data *= 3.0  # far from uniform
    config = taught(make, tmp_path, teacher, 0.5)
    assert run_ranks(2, federated_sites.train, config) == [True, True]
    steps = timeline(config.directory.events).steps
    expected = plain_losses(config, teacher, 0.5)
    assert [steps[n]["loss"] for n in range(1, STEPS + 1)] == pytest.approx(expected, abs=3e-6)
    assert manifests._inputs(config)["teacher"] == (config.distillation and config.distillation.manifest)


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_run_taught_by_its_own_beginning_has_nothing_to_learn(make: Callable[..., RunConfig], tmp_path: Path) -> None:
    plain = make()
    config = taught(make, tmp_path, build(plain.model, VOCABULARY, plain.seed), 1.0)
    assert run_ranks(2, federated_sites.train, config) == [True, True]
    first = timeline(config.directory.events).steps[1]
    assert (first["loss"], first["grad_norm"]) == (0.0, 0.0)


def test_the_teacher_is_in_the_key_by_its_content() -> None:
    plain = Training()
    given = {name: Training(distillation=Distillation(teacher=name)) for name in ("a@b", "c@d")}
    keys = {run_key(plain, "m", "t"), *(run_key(one, "m", "t", "", "1" * 64) for one in given.values())}
    assert len(keys) == 2  # a name is none of it
    warmer = Training(distillation=Distillation(teacher="a@b", temperature=2.0))
    assert run_key(warmer, "m", "t", "", "1" * 64) not in keys
    assert run_key(given["a@b"], "m", "t", "", "2" * 64) not in keys


@pytest.mark.parametrize("divided", ["tensor", "sequence", "pipeline"])
def test_what_divides_a_teachers_logits_is_refused(divided: str) -> None:
    with pytest.raises(ValueError, match=f"distillation does not support parallel.{divided} 2"):
        Training.model_validate({"parallel": {divided: 2}, "launch": {"ranks": 2}, "distillation": {"teacher": "a@b"}})


def test_a_teacher_is_named_as_what_a_run_begins_from() -> None:
    assert [Distillation(teacher=name).weights for name in ("a@b", "a/2", "demo-3fa9:400")] == [
        InitialWeights(release="a@b"), InitialWeights(release="a/2"), InitialWeights(checkpoint="demo-3fa9:400")
    ]  # fmt: skip
