"""Runs that are divided in many ways on one set of ranks, and one plain process on the same batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from plinth.model.decoder import Decoder
from plinth.training.config import RunConfig
from plinth.training.data import StepBatch
from plinth.training.parallel.topology import place_of
from tests.plinth.training import plain_training

STEPS, ROWS = 4, 8
LR = 3e-3

#: Timeout in seconds for all runs of the ranks, including first compilations on a busy machine.
LONG_S = 1800.0

#: Largest difference in loss (nats) and, relative, in the gradient norm. BF16 and FP16 have 8 and 11 bits.
BOUNDS = {"fp32": (2e-6, 2e-5), "bf16": (0.003, 0.04), "fp16": (0.002, 0.01)}

#: Losses, gradient norms, and whole parameters by name.
Trained = tuple[list[float], list[float], dict[str, Any]]


class Difference(NamedTuple):
    """The difference between a divided run and one plain process."""

    loss: float  # nats, the largest of any step
    norm: float  # relative, the largest of any step and rank
    parameters: Sequence[str] = ()  # in FP32: those that are not the same within 1e-3

    def beyond(self, precision: str) -> str:
        """The differences that the precision does not explain; empty when there are none. NaN is one."""
        loss, norm = BOUNDS[precision]
        if self.loss <= loss and self.norm <= norm and not self.parameters:
            return ""
        others = f", parameters {', '.join(self.parameters)}" if self.parameters else ""
        return f"loss off by {self.loss:.2g} (at most {loss:g}), norm by {self.norm:.2g}{others}"


def difference(config: RunConfig, answers: list[dict[str, Trained]], name: str, plain: Trained) -> Difference:
    """Return the difference between the results of `train_all` on every rank under `name` and those of `plain_run`."""
    losses, norms, parameters = plain
    ours = np.mean([answer[name][0] for answer in answers], axis=0)
    relative = [np.abs(np.divide(answer[name][1], norms) - 1).max() for answer in answers]
    found = answers[0][name][2]
    assert {key: value.shape for key, value in found.items()} == {k: tuple(v.shape) for k, v in parameters.items()}
    assert list(found) == list(parameters), name
    far = [key for key, value in parameters.items() if not np.allclose(found[key], value.numpy(), atol=1e-3)]
    loss = float(np.abs(ours - losses).max())
    return Difference(loss, float(np.max(relative)), far if config.precision == "fp32" else [])


def rows_of(config: RunConfig, step: int) -> StepBatch:
    """The global batch of a step in one array: [1, rows, S + 1], documents of uneven lengths; whole rows, also where
    the run trains shorter ones."""
    random = np.random.default_rng(step)
    shape = (1, config.steps.batch(step - 1), config.sequence_tokens + 1)
    start, stride = random.integers(0, config.vocab_size, (2, *shape[:2], 1))
    tokens = ((start + stride % 5 * np.arange(shape[2])) % config.vocab_size).astype(np.int32)
    ends = random.random(shape) < 0.1
    return StepBatch.of(tokens, np.cumsum(ends, axis=-1).astype(np.int32))


def batch_of(config: RunConfig, step: int, rank: int) -> StepBatch:
    """One rank's share of it: the rows of its data rank, in micro batches."""
    whole, place = rows_of(config, step).expanded(), place_of(config.parallel, config.ranks, rank)
    shape = (config.data_ranks, -1, config.micro_batch_sequences, config.sequence_tokens + 1)
    mine = StepBatch.of(whole.tokens.reshape(shape)[place.data], whole.segments.reshape(shape)[place.data])
    return replace(mine, length=config.steps.length(step - 1))


def plain_run(config: RunConfig) -> Trained:
    """Losses, gradient norms and parameters of one FP32 process without DeepSpeed."""

    def loss_of(model: Decoder, step: int) -> Tensor:
        batch = replace(rows_of(config, step), length=config.steps.length(step - 1)).expanded()
        tokens, segments = torch.from_numpy(batch.tokens[0]).long(), torch.from_numpy(batch.segments[0])
        mask = segments[:, :-1] if config.model.document_mask else None
        loss: Tensor = model(tokens[:, :-1], mask, tokens[:, 1:])
        return loss

    losses, norms, model = plain_training.plain_run(config, STEPS, loss_of, lambda step: LR)
    return losses, norms, {name: p.detach() for name, p in model.named_parameters()}


def train_all(
    configs: dict[str, RunConfig], emulate_fp16: bool = False, backend: str = "inductor"
) -> dict[str, Trained]:
    """On one rank: train each configuration in turn; losses, norms, and the leader's whole parameters.

    Args:
        backend: of `torch.compile`; `aot_eager` captures and differentiates the same graphs and writes no C++ for them.
    """
    from deepspeed.accelerator import get_accelerator

    from plinth.training.engine import engine as engines

    rank, answers = engines.join(next(iter(configs.values()))), {}
    if emulate_fp16:  # PyTorch computes it on any CPU, slowly; DeepSpeed refuses for the slowness
        type(get_accelerator()).is_fp16_supported = lambda self: True
    torch._dynamo.config.fail_on_recompile_limit_hit = True  # rather than go on without compiling
    torch.compile = partial(torch.compile, backend=backend)
    for name, config in configs.items():
        try:
            answers[name] = train_one(config, rank)
        except Exception as error:
            raise AssertionError(f"{name}: {type(error).__name__}: {error}") from error
    engines.leave()
    return answers


def train_one(config: RunConfig, rank: Any) -> Trained:
    from plinth.training.engine.pipeline import open_engine

    torch._dynamo.reset()  # every run compiles its own blocks
    engine = open_engine(config, rank)
    losses, norms = [], []
    for step in range(1, STEPS + 1):
        loss, norm = engine.train_step(batch_of(config, step, rank.index), LR)
        losses.append(float(loss))
        norms.append(float(norm))
    parameters = {name: tensor.float().numpy() for name, tensor in engine.parameters()}
    engine.deepspeed.destroy()
    return losses, norms, parameters if rank.leads else {}


def resume_all(configs: dict[str, RunConfig], folder: Path) -> dict[str, Any]:
    """On one rank: train each configuration, save its state half-way, restore it in a new engine, train on."""
    from deepspeed.accelerator import get_accelerator

    from plinth.training.engine import engine as engines

    rank = engines.join(next(iter(configs.values())))
    type(get_accelerator()).is_fp16_supported = lambda self: True
    answers = {name: _resumed(config, rank, folder / str(n)) for n, (name, config) in enumerate(configs.items())}
    engines.leave()
    return answers


def _resumed(config: RunConfig, rank: Any, folder: Path) -> dict[str, Any]:
    from plinth.training.checkpoint import sharded_state, universal
    from plinth.training.engine.pipeline import open_engine

    first, second = open_engine(config, rank), open_engine(config, rank)
    _steps(first, range(1, STEPS + 1))
    sharded_state.write(universal.capture(first), folder, rank.index)
    torch.distributed.barrier()
    universal.restore(second, folder)
    answer = {"state": (_state(first), _state(second))}
    last = range(STEPS + 1, 2 * STEPS + 1)
    answer["steps"] = (_steps(first, last), _steps(second, last))
    answer["end"] = (_state(first), _state(second))
    return answer


def _steps(engine: Any, steps: range) -> list[tuple[float, ...]]:
    made = [engine.train_step(batch_of(engine.config, step, engine.rank.index), LR) for step in steps]
    return [(float(loss), float(norm)) for loss, norm in made]


def _state(engine: Any) -> tuple[Any, ...]:
    """Digests of whole parameters and of this rank's optimizer state, and the factor of the loss."""
    from plinth.training.checkpoint import snapshot

    found = snapshot.digests(engine)
    return found["parameters_sha256"], found["optimizer_sha256"], getattr(engine.deepspeed.optimizer, "loss_scale", 1.0)
