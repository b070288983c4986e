"""Combinations in addition to the covered cases: other models, stages, loss factors, several divisions at once on four
ranks, resuming."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from plinth.launch.parameters import Launch
from plinth.model.parameters import Model, SlidingWindow
from plinth.training.config import RunConfig
from plinth.training.parameters.parallel import LossScale, Parallel
from tests.ranks import run_ranks

sys.path.insert(0, str(Path(__file__).parent))
import parallel_runs

MODEL = Model(layers=2, dim=32, heads=4, kv_heads=2, ffn_dim=64, qk_norm=True)

OLMO2 = {"architecture": "olmo2"}
UNTIED = {"tied_embeddings": False}
OLMO3 = OLMO2 | {"window": SlidingWindow(tokens=5, layers=("sliding", "full"), rope_theta=500.0)}
PHI3 = {"qk_norm": False, "rotary_fraction": 0.5}
SINKS = {"qk_norm": False, "sinks": True, "window": SlidingWindow(tokens=5, layers=("sliding", "full"))}
UNEVEN = {"layers": 5}  # over two stages, and over four

Combination = tuple[str, dict[str, Any], dict[str, Any]]

TWO: list[Combination] = [
    ("tensor, odd vocabulary", {"zero_stage": 1, "tensor": 2}, {"vocab_size": 61}),
    ("tensor, untied, z-loss", {"zero_stage": 1, "tensor": 2}, {"model": {"tied_embeddings": False, "z_loss": 1e-2}}),
    ("sequence, zero 1, z-loss", {"zero_stage": 1, "sequence": 2}, {"model": {"z_loss": 1e-2}}),
    ("sequence, one key/value head", {"zero_stage": 1, "sequence": 2}, {"model": {"kv_heads": 1}}),
    ("sequence, no document mask", {"zero_stage": 1, "sequence": 2}, {"model": {"document_mask": False}}),
    ("zero 3, every second recomputed", {"zero_stage": 3, "activation_checkpointing": 2}, {}),
    ("olmo2, tensor", {"zero_stage": 0, "tensor": 2}, {"model": OLMO2}),
    ("olmo2, tensor, bf16", {"zero_stage": 1, "tensor": 2}, {"model": OLMO2, "precision": "bf16"}),
    ("olmo2, tensor, untied, recomputed", {"tensor": 2, "activation_checkpointing": 1}, {"model": OLMO2 | UNTIED}),
    ("olmo2, sequence", {"zero_stage": 1, "sequence": 2}, {"model": OLMO2}),
    ("olmo2, pipeline", {"zero_stage": 1, "pipeline": 2}, {"model": OLMO2}),
    ("olmo2, zero 3", {"zero_stage": 3}, {"model": OLMO2 | UNTIED}),
    ("olmo3, tensor", {"zero_stage": 1, "tensor": 2}, {"model": OLMO3}),
    ("olmo3, sequence", {"zero_stage": 1, "sequence": 2}, {"model": OLMO3}),
    (
        "olmo3, sequence, no document mask",
        {"zero_stage": 2, "sequence": 2},
        {"model": OLMO3 | {"document_mask": False}},
    ),
    ("olmo3, pipeline", {"zero_stage": 1, "pipeline": 2}, {"model": OLMO3 | {"layers": 3}}),
    ("olmo3, zero 3, recomputed", {"zero_stage": 3, "activation_checkpointing": 1}, {"model": OLMO3 | UNTIED}),
    ("phi3, tensor", {"zero_stage": 1, "tensor": 2}, {"model": PHI3}),
    ("phi3, sequence", {"zero_stage": 1, "sequence": 2}, {"model": PHI3}),
    ("phi3, pipeline", {"zero_stage": 1, "pipeline": 2}, {"model": PHI3}),
    ("sinks, tensor", {"zero_stage": 1, "tensor": 2}, {"model": SINKS}),
    ("sinks, sequence", {"zero_stage": 1, "sequence": 2}, {"model": SINKS}),
    ("sinks, pipeline", {"zero_stage": 1, "pipeline": 2}, {"model": SINKS}),
    ("sinks, zero 3, recomputed", {"zero_stage": 3, "activation_checkpointing": 1}, {"model": SINKS}),
    ("qwen2, tensor", {"zero_stage": 1, "tensor": 2}, {"model": {"qk_norm": False, "qkv_bias": True}}),
    ("fp16, zero 1", {"zero_stage": 1, "loss_scale": LossScale(initial_power=30)}, {"precision": "fp16"}),
    ("fp16, zero 2", {"zero_stage": 2, "loss_scale": LossScale(static=128)}, {"precision": "fp16"}),
    ("fp16, zero 3", {"zero_stage": 3, "loss_scale": LossScale(initial_power=30)}, {"precision": "fp16"}),
    ("stages, zero 0, micro batches", {"pipeline": 2, "zero_stage": 0}, {"micro_batch_sequences": 2, "model": UNEVEN}),
    ("stages, untied", {"pipeline": 2}, {"micro_batch_sequences": 2, "model": UNEVEN | UNTIED | {"z_loss": 1e-2}}),
    (
        "stages, recomputed, no mask",
        {"pipeline": 2, "activation_checkpointing": 2},
        {"micro_batch_sequences": 4, "model": UNEVEN | {"document_mask": False}},
    ),
    (
        "stages, bf16, zero 0",
        {"pipeline": 2, "zero_stage": 0},
        {"precision": "bf16", "micro_batch_sequences": 2, "model": UNEVEN},
    ),
    (
        "stages, fp16, zero 1",
        {"pipeline": 2, "loss_scale": LossScale(initial_power=30)},
        {"precision": "fp16", "micro_batch_sequences": 2, "model": UNEVEN},
    ),
]

FOUR: list[Combination] = [
    ("data 2, tensor 2", {"zero_stage": 1, "tensor": 2}, {}),
    ("data 2, sequence 2", {"zero_stage": 2, "sequence": 2}, {}),
    ("tensor 2, sequence 2", {"zero_stage": 1, "tensor": 2, "sequence": 2}, {}),
    ("sequence 4, fewer key/value heads", {"zero_stage": 3, "sequence": 4}, {}),
    ("tensor 4", {"zero_stage": 2, "tensor": 4}, {"model": {"kv_heads": 4}}),
    ("olmo2, tensor 4", {"zero_stage": 2, "tensor": 4}, {"model": OLMO2 | {"kv_heads": 4}}),
    ("olmo2, tensor 2, sequence 2", {"zero_stage": 1, "tensor": 2, "sequence": 2}, {"model": OLMO2 | UNTIED}),
    ("olmo2, tensor 2, pipeline 2", {"zero_stage": 1, "tensor": 2, "pipeline": 2}, {"model": OLMO2}),
    ("four stages", {"pipeline": 4}, {"micro_batch_sequences": 1, "model": UNEVEN}),
    ("more stages than micro batches", {"pipeline": 4, "zero_stage": 0}, {"micro_batch_sequences": 4, "model": UNEVEN}),
    ("stages, data 2", {"pipeline": 2}, {"micro_batch_sequences": 1, "model": UNEVEN}),
    ("stages, data 2, zero 0", {"pipeline": 2, "zero_stage": 0}, {"micro_batch_sequences": 2, "model": UNEVEN}),
    ("stages, tensor 2", {"pipeline": 2, "tensor": 2}, {"micro_batch_sequences": 2, "model": UNEVEN}),
    (
        "stages, tensor 2, zero 0",
        {"pipeline": 2, "tensor": 2, "zero_stage": 0},
        {"micro_batch_sequences": 2, "model": UNEVEN},
    ),
]


def configured(make: Callable[..., RunConfig], ranks: int, table: list[Combination]) -> dict[str, RunConfig]:
    configs = {}
    for name, parallel, changes in table:
        block = Parallel(**parallel)
        data = ranks // block.model_ranks
        fields = {
            "micro_batch_sequences": parallel_runs.ROWS // data,
            "global_batch_sequences": parallel_runs.ROWS,
            **changes,
        }
        fields["model"] = MODEL.model_copy(update=changes.get("model", {}))
        configs[name] = make(parallel=block, launch=Launch(ranks=ranks), **fields)
    return configs


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.parametrize(
    ("ranks", "table"),
    [pytest.param(2, TWO, id="2 ranks"), pytest.param(4, FOUR, id="4 ranks")],
)
def test_agrees_with_one_plain_process(make: Callable[..., RunConfig], ranks: int, table: list[Combination]) -> None:
    configs = configured(make, ranks, table)
    answers = run_ranks(ranks, parallel_runs.train_all, configs, True, timeout_s=parallel_runs.LONG_S)
    wrong, references = {}, {}
    for name, config in configs.items():
        what = (config.model, config.vocab_size)
        if what not in references:
            references[what] = parallel_runs.plain_run(config)
        wrong[name] = parallel_runs.difference(config, answers, name, references[what]).beyond(config.precision)
    assert not {name: text for name, text in wrong.items() if text}


RESUMED: list[Combination] = [
    ("tensor, zero 0", {"zero_stage": 0, "tensor": 2}, {}),
    ("tensor, zero 2, bf16", {"zero_stage": 2, "tensor": 2}, {"precision": "bf16"}),
    ("sequence, zero 1", {"zero_stage": 1, "sequence": 2}, {}),
    ("sequence, zero 3", {"zero_stage": 3, "sequence": 2, "activation_checkpointing": 1}, {}),
    ("zero 2, optimizer offloaded", {"zero_stage": 2, "offload": "optimizer"}, {}),
    ("zero 3, parameters offloaded", {"zero_stage": 3, "offload": "parameters"}, {}),
    ("pipeline, optimizer offloaded", {"pipeline": 2, "offload": "optimizer"}, {"micro_batch_sequences": 2}),
    ("olmo2, tensor, zero 1", {"zero_stage": 1, "tensor": 2}, {"model": OLMO2}),
    ("fp16, zero 1", {"zero_stage": 1, "loss_scale": LossScale(initial_power=24, window=3)}, {"precision": "fp16"}),
    ("fp16, zero 3", {"zero_stage": 3, "loss_scale": LossScale(window=3)}, {"precision": "fp16"}),
]


@pytest.mark.exhaustive
@pytest.mark.slow
def test_resumes_bit_for_bit_on_the_same_layout(make: Callable[..., RunConfig], tmp_path: Path) -> None:
    answers = run_ranks(
        2, parallel_runs.resume_all, configured(make, 2, RESUMED), tmp_path, timeout_s=parallel_runs.LONG_S
    )
    for name, _, _ in RESUMED:
        for answer in answers:
            for what, (uninterrupted, resumed) in answer[name].items():
                assert uninterrupted == resumed, (name, what)
    scaled = {name: config["loss_scale"] for name, config, _ in RESUMED if "loss_scale" in config}
    for name, scale in scaled.items():
        _, _, factor = answers[0][name]["state"][1]
        assert factor != 2.0**scale.initial_power, f"{name}: the factor never changed, so that nothing was restored"


@pytest.mark.exhaustive
@pytest.mark.slow
def test_compiled_blocks_train_alike(make: Callable[..., RunConfig]) -> None:
    """With the compiler that a run uses. One layer on one rank: compiling is what costs time here."""
    model = {"layers": 1, "document_mask": False}
    name = "compiled, recomputed"
    table = [(name, {"compile": True, "activation_checkpointing": 1}, {"model": model})]
    configs = configured(make, 1, table)
    answers = run_ranks(1, parallel_runs.train_all, configs, timeout_s=parallel_runs.LONG_S)
    assert not parallel_runs.difference(configs[name], answers, name, parallel_runs.plain_run(configs[name])).beyond(
        "fp32"
    )
