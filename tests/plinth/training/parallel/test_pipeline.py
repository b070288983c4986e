"""Layers divided over stages train as one plain process does."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from plinth.launch.parameters import Launch
from plinth.model.division import PipelineStage
from plinth.model.parameters import Model
from plinth.training.config import RunConfig
from plinth.training.parameters.parallel import LossScale, Parallel
from tests.ranks import run_ranks

sys.path.insert(0, str(Path(__file__).parent))
import parallel_runs

MODEL = Model(layers=5, dim=32, heads=4, kv_heads=2, ffn_dim=64, qk_norm=True)

Combination = tuple[dict[str, Any], dict[str, Any]]

TWO: dict[str, Combination] = {
    "zero 0, four micro batches": ({"zero_stage": 0}, {"micro_batch_sequences": 2}),
    "zero 1, untied": ({}, {"micro_batch_sequences": 2, "model": {"tied_embeddings": False, "z_loss": 1e-2}}),
    "zero 1, recomputed, no mask": (
        {"activation_checkpointing": 2},
        {"micro_batch_sequences": 4, "model": {"document_mask": False}},
    ),
    "bf16, zero 0": ({"zero_stage": 0}, {"precision": "bf16", "micro_batch_sequences": 2}),
    "fp16, zero 1": ({"loss_scale": LossScale(initial_power=30)}, {"precision": "fp16", "micro_batch_sequences": 2}),
}

FOUR: dict[str, Combination] = {
    "four stages": ({"pipeline": 4}, {"micro_batch_sequences": 1}),
    "four stages, fewer micro batches than stages": ({"pipeline": 4, "zero_stage": 0}, {"micro_batch_sequences": 4}),
    "data 2": ({}, {"micro_batch_sequences": 1}),
    "data 2, zero 0": ({"zero_stage": 0}, {"micro_batch_sequences": 2}),
    "tensor 2": ({"tensor": 2}, {"micro_batch_sequences": 2}),
    "tensor 2, zero 0": ({"tensor": 2, "zero_stage": 0}, {"micro_batch_sequences": 2}),
}


@pytest.mark.parametrize(
    ("count", "expected"), [(1, [5]), (2, [3, 2]), (3, [2, 2, 1]), (4, [2, 1, 1, 1]), (5, [1] * 5)]
)
def test_layers_are_divided_evenly_and_once(count: int, expected: list[int]) -> None:
    spans = [PipelineStage(index, count).layers(5) for index in range(count)]
    assert [len(span) for span in spans] == expected
    assert [layer for span in spans for layer in span] == list(range(5))


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.parametrize(("ranks", "table"), [(2, TWO), (4, FOUR)], ids=["2 ranks", "4 ranks"])
def test_stages_agree_with_one_plain_process(
    make: Callable[..., RunConfig], ranks: int, table: dict[str, Combination]
) -> None:
    configs = {}
    for name, (parallel, changes) in table.items():
        block = Parallel(**{"pipeline": 2, **parallel})
        fields = {"micro_batch_sequences": parallel_runs.ROWS, "global_batch_sequences": parallel_runs.ROWS, **changes}
        fields["model"] = MODEL.model_copy(update=changes.get("model", {}))
        configs[name] = make(parallel=block, launch=Launch(ranks=ranks), **fields)
    answers = run_ranks(ranks, parallel_runs.train_all, configs, True, timeout_s=parallel_runs.LONG_S)
    wrong = {}
    for name, config in configs.items():
        plain = parallel_runs.plain_run(config)
        wrong[name] = parallel_runs.difference(config, answers, name, plain).beyond(config.precision)
    assert not {name: text for name, text in wrong.items() if text}
