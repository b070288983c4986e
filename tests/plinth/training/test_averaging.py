"""The mean of committed checkpoints: exact, with a name for every parent, and refused for what does not verify."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from plinth.compute.context import Context
from plinth.errors import CheckpointError, LineageError, MissingError
from plinth.model.decoder import build
from plinth.model.folder import load_model
from plinth.model.hugging_face import CONFIG, WEIGHTS, config_text, hf_config, hf_name
from plinth.records import Manifest, Part
from plinth.storage.workspace import Workspace
from plinth.training.averaging import asked, average
from plinth.training.checkpoint import checkpoint, mean_record
from plinth.training.checkpoint.sharded_state import WHOLE, Captured, Share, key_of, write
from plinth.training.config import RunConfig
from plinth.training.parameters.initial import InitialWeights
from plinth.training.parameters.optimizers import Optimizer
from plinth.training.parameters.run import Average, Checkpoints, Training
from plinth_assets import initial
from tests.plinth.training.counted_tensors import Live

STEPS = (3, 6, 9)


def weights_at(config: RunConfig, step: int) -> dict[str, Tensor]:
    named = build(config.model, config.vocab_size, step).named_parameters()
    return {name: parameter.detach() for name, parameter in named}


@pytest.fixture
def run(make: Callable[..., RunConfig], tmp_path: Path) -> tuple[Context, RunConfig]:
    """Three committed checkpoints, each written by two ranks; the last two keep a mean of their weights."""
    ctx = Context(Workspace(tmp_path).ensure())
    tokenizer = Manifest(
        asset="tokenizer", step="tokenizer", version="1", params={}, inputs={},
        parts=(Part(name="tokenizer.json", blob=ctx.store.put_bytes(b"{}"), rows=0),), stats={},
    )  # fmt: skip
    ctx.refs.save(tokenizer)
    config = make(workspace=tmp_path, tokenizer=tokenizer.digest, optimizer=Optimizer(ema_decay=0.5))
    for step in STEPS:
        folder = checkpoint.stage(config.directory, step)
        state = {"step": step, "parameters_sha256": "", "monitor": {"loss_ema": 1.0}}
        (folder / "state.json").write_text(json.dumps(state))
        held = weights_at(config, step)
        for rank in (0, 1):
            tensors, shapes = {}, {}
            for name, values in held.items():
                flat, half = values.reshape(-1), values.numel() // 2
                start, part = (0, flat[:half]) if rank == 0 else (half, flat[half:])
                share = Share(name, tuple(values.shape), WHOLE, start, {})
                tensors[key_of(share, "master", start)] = part
                if step > STEPS[0]:
                    tensors[key_of(share, "ema", start)] = part / 2
                shapes[name] = list(values.shape)
            write(Captured(tensors, {"shapes": shapes}), folder / "engine", rank)
        (folder / "model").mkdir()
        save_file({hf_name(name): values for name, values in held.items()}, folder / "model" / WEIGHTS)
        fields = hf_config(config.model, config.vocab_size, config.sequence_tokens, "float32", config.end_of_text)
        (folder / "model" / CONFIG).write_text(config_text(fields))
        checkpoint.commit(config.directory, step)
    return ctx, config


def written(ctx: Context, made: Manifest) -> dict[str, Tensor]:
    (part,) = made.named(WEIGHTS)
    return load_file(ctx.store.open_path(part.blob))


def test_a_weighted_mean_in_fp64_rounded_once(run: tuple[Context, RunConfig]) -> None:
    ctx, config = run
    made = average(ctx, config, STEPS, (1.0, 2.0, 5.0), ema=False)
    parents = [weights_at(config, step) for step in STEPS]
    for name, values in written(ctx, made).items():
        ours = next(one for one in parents[0] if hf_name(one) == name)
        total = sum(share * held[ours].double() for share, held in zip((1.0, 2.0, 5.0), parents, strict=True))
        assert values.dtype == torch.float32
        assert torch.equal(values, (total / 8.0).float()), name
    assert len(written(ctx, made)) == len(parents[0])


def test_memory_is_that_of_the_largest_parameter(run: tuple[Context, RunConfig]) -> None:
    """Two of it in FP64, and two in FP32, which are read and written, for any number of checkpoints and parameters."""
    ctx, config = run
    with Live() as live:
        average(ctx, config, STEPS, (1.0, 1.0, 1.0), ema=False)
    largest = max(values.numel() for values in weights_at(config, 3).values())
    assert 16 * largest < live.peak <= (8 + 8 + 4 + 4) * largest


def test_one_checkpoint_is_its_own_mean_and_a_mean_can_be_averaged(run: tuple[Context, RunConfig]) -> None:
    ctx, config = run
    for name, values in written(ctx, average(ctx, config, (6,), (0.3,), ema=False)).items():
        assert torch.equal(values, load_file(checkpoint.path(config.directory, 6) / "model" / WEIGHTS)[name])
    halves = written(ctx, average(ctx, config, (6,), (1.0,), ema=True))
    assert torch.equal(halves["model.norm.weight"] * 2, weights_at(config, 6)["norm.weight"])
    with pytest.raises(CheckpointError, match="has no ema of"):
        average(ctx, config, STEPS, (1.0,) * 3, ema=True)


def test_the_result_is_a_model_that_names_its_parents(run: tuple[Context, RunConfig], tmp_path: Path) -> None:
    ctx, config = run
    made = average(ctx, config, (3, 9), (1.0, 1.0), ema=False)
    assert made.asset == "checkpoint"
    for step in (3, 9):
        parent = ctx.refs.load(made.inputs[f"checkpoint/{step}"])
        assert (parent.asset, parent.stats["step"]) == ("checkpoint", step)
    assert made.inputs["tokenizer"] == config.tokenizer
    assert made.digest == average(ctx, config, (3, 9), (1.0, 1.0), ema=False).digest
    assert made.digest != average(ctx, config, (3, 9), (1.0, 2.0), ema=False).digest
    for part in made.parts:
        (tmp_path / "model").mkdir(exist_ok=True)
        (tmp_path / "model" / part.name).write_bytes(ctx.store.open_path(part.blob).read_bytes())
    loaded = dict(load_model(tmp_path / "model").named_parameters())
    assert torch.equal(loaded["norm.weight"], torch.ones_like(loaded["norm.weight"]))


def test_what_cannot_be_averaged_is_refused(run: tuple[Context, RunConfig]) -> None:
    ctx, config = run
    for steps, weights in (((3, 3), (1.0, 1.0)), ((3, 6), (1.0,)), ((3, 6), (1.0, 0.0)), ((), ())):
        with pytest.raises(CheckpointError, match=r"to average|needs one positive weight"):
            average(ctx, config, steps, weights, ema=False)
    plain = config.model_copy(update={"optimizer": Optimizer()})
    with pytest.raises(CheckpointError, match=f"run {plain.run_id} has no weight average"):
        average(ctx, plain, (6,), (1.0,), ema=True)
    with pytest.raises(MissingError, match="has no checkpoint 4"):
        average(ctx, config, (3, 4), (1.0, 1.0), ema=False)
    file = checkpoint.path(config.directory, 3) / "engine" / "rank-00001.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"\x01")
    with pytest.raises(CheckpointError, match="has changed"):
        average(ctx, config, (3, 6), (1.0, 1.0), ema=False)


def test_a_run_begins_from_a_mean_that_its_trainer_signed(run: tuple[Context, RunConfig]) -> None:
    """A manifest that names the parents of a mean and holds other weights is refused, signed for another or not."""
    ctx, config = run
    made = average(ctx, config, (3, 9), (1.0, 3.0), ema=False)
    assert initial._checkpoint(ctx, made.digest[:12]) == made
    assert initial._meant(InitialWeights(checkpoint=made.digest), ctx) == made.digest
    other = average(ctx, config, (6,), (1.0,), ema=False)
    forged = Manifest.model_validate(made.model_dump() | {"parts": other.parts})
    ctx.refs.save(forged)
    for statement in (None, made, other):
        if statement is not None:
            content = mean_record.path(config.directory, statement.digest).read_bytes()
            mean_record.path(config.directory, forged.digest).write_bytes(content)
        with pytest.raises(LineageError, match="is not verified as an average"):
            initial._checkpoint(ctx, forged.digest)


def test_the_mean_that_a_recipe_asks_for(run: tuple[Context, RunConfig]) -> None:
    ctx, config = run
    assert asked(ctx, config, Average(last=2)).params["steps"] == [6, 9]
    alike = average(ctx, config, (3, 9), (1.0, 1.0), ema=False)
    assert asked(ctx, config, Average(steps=(3, 9))) == alike
    assert mean_record.in_words(asked(ctx, config, Average(ema=True))) == (
        "exponential moving average (EMA) of the weights at step 9"
    )
    for params in (Average(last=4), Average(steps=(3, 7))):
        with pytest.raises(CheckpointError, match="too few checkpoints"):
            asked(ctx, config, params)
    with pytest.raises(ValueError, match="keep_last 2"):
        Checkpoints(average=Average(last=3))
    with pytest.raises(ValueError, match="ema_decay"):
        Training(checkpoints=Checkpoints(average=Average(ema=True)))
