"""Every way to divide a run that a CPU can take trains as one plain process does."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from plinth.recipe.parallel import LossScale, Parallel
from plinth.recipe.training import Launch, Model
from plinth.training.config import RunConfig
from tests.ranks import run_ranks

sys.path.insert(0, str(Path(__file__).parent))
import together

MODEL = Model(layers=2, dim=32, heads=4, kv_heads=2, ffn_dim=64, qk_norm=True)

#: Largest difference in loss (nats) and, relative, in the gradient norm. BF16 and FP16 have 8 and 11 bits.
BOUNDS = {"fp32": (2e-6, 2e-5), "bf16": (0.03, 0.05), "fp16": (0.005, 0.02)}

Combination = tuple[str, dict[str, Any], dict[str, Any]]

TWO: list[Combination] = [
    ("zero 0", {"zero_stage": 0}, {}),
    ("zero 1", {"zero_stage": 1}, {}),
    ("zero 2", {"zero_stage": 2}, {}),
    ("zero 3", {"zero_stage": 3}, {}),
    ("zero 1, accumulation", {"zero_stage": 1}, {"micro_batch_sequences": 1}),
    ("zero 3, accumulation", {"zero_stage": 3}, {"micro_batch_sequences": 1}),
    ("zero 1, optimizer offloaded", {"zero_stage": 1, "offload": "optimizer"}, {}),
    ("zero 2, optimizer offloaded", {"zero_stage": 2, "offload": "optimizer"}, {"micro_batch_sequences": 1}),
    ("zero 3, parameters offloaded", {"zero_stage": 3, "offload": "parameters"}, {}),
    ("zero 1, recomputed", {"zero_stage": 1, "activation_checkpointing": 1}, {}),
    ("zero 3, recomputed", {"zero_stage": 3, "activation_checkpointing": 2}, {}),
    ("tensor, zero 0", {"zero_stage": 0, "tensor": 2}, {}),
    ("tensor, zero 1", {"zero_stage": 1, "tensor": 2}, {"micro_batch_sequences": 2}),
    ("tensor, zero 2, recomputed", {"zero_stage": 2, "tensor": 2, "activation_checkpointing": 1}, {}),
    ("tensor, odd vocabulary", {"zero_stage": 1, "tensor": 2}, {"vocab_size": 61}),
    ("tensor, untied, z-loss", {"zero_stage": 1, "tensor": 2}, {"model": {"tied_embeddings": False, "z_loss": 1e-2}}),
    ("sequence, zero 0", {"zero_stage": 0, "sequence": 2}, {}),
    ("sequence, zero 1, z-loss", {"zero_stage": 1, "sequence": 2}, {"model": {"z_loss": 1e-2}}),
    ("sequence, zero 2, accumulation", {"zero_stage": 2, "sequence": 2}, {"micro_batch_sequences": 2}),
    ("sequence, zero 3, recomputed", {"zero_stage": 3, "sequence": 2, "activation_checkpointing": 1}, {}),
    ("sequence, one key/value head", {"zero_stage": 1, "sequence": 2}, {"model": {"kv_heads": 1}}),
    ("sequence, no document mask", {"zero_stage": 1, "sequence": 2}, {"model": {"document_mask": False}}),
    ("bf16, zero 0", {"zero_stage": 0}, {"precision": "bf16"}),
    ("bf16, zero 1", {"zero_stage": 1}, {"precision": "bf16", "micro_batch_sequences": 1}),
    ("bf16, zero 2, optimizer offloaded", {"zero_stage": 2, "offload": "optimizer"}, {"precision": "bf16"}),
    ("bf16, zero 3", {"zero_stage": 3}, {"precision": "bf16"}),
    ("bf16, tensor", {"zero_stage": 1, "tensor": 2}, {"precision": "bf16"}),
    ("bf16, sequence", {"zero_stage": 2, "sequence": 2}, {"precision": "bf16"}),
    ("fp16, zero 1", {"zero_stage": 1, "loss_scale": LossScale(initial_power=30)}, {"precision": "fp16"}),
    ("fp16, zero 2", {"zero_stage": 2, "loss_scale": LossScale(static=128)}, {"precision": "fp16"}),
    ("fp16, zero 3", {"zero_stage": 3}, {"precision": "fp16"}),
    ("fp16, sequence", {"zero_stage": 1, "sequence": 2}, {"precision": "fp16"}),
]

FOUR: list[Combination] = [
    ("data 2, tensor 2", {"zero_stage": 1, "tensor": 2}, {}),
    ("data 2, sequence 2", {"zero_stage": 2, "sequence": 2}, {}),
    ("tensor 2, sequence 2", {"zero_stage": 1, "tensor": 2, "sequence": 2}, {}),
    ("sequence 4, fewer key/value heads", {"zero_stage": 3, "sequence": 4}, {}),
    ("tensor 4", {"zero_stage": 2, "tensor": 4}, {"model": {"kv_heads": 4}}),
]


def configured(make: Callable[..., RunConfig], ranks: int, table: list[Combination]) -> dict[str, RunConfig]:
    configs = {}
    for name, parallel, changes in table:
        block = Parallel(**parallel)
        data = ranks // block.model_ranks
        fields = {"micro_batch_sequences": together.ROWS // data, "global_batch_sequences": together.ROWS, **changes}
        fields["model"] = MODEL.model_copy(update=changes.get("model", {}))
        configs[name] = make(parallel=block, launch=Launch(ranks=ranks), **fields)
    return configs


@pytest.mark.slow
@pytest.mark.parametrize(("ranks", "table"), [(2, TWO), (4, FOUR)], ids=["2 ranks", "4 ranks"])
def test_every_combination_agrees_with_one_plain_process(
    make: Callable[..., RunConfig], ranks: int, table: list[Combination]
) -> None:
    configs = configured(make, ranks, table)
    answers = run_ranks(ranks, together.train_all, configs, True)
    wrong, references = [], {}
    for name, config in configs.items():
        what = (config.model, config.vocab_size)
        if what not in references:
            references[what] = together.plain_run(config)
        losses, norms, parameters = references[what]
        ours = np.mean([answer[name][0] for answer in answers], axis=0)
        loss_bound, norm_bound = BOUNDS[config.precision]
        off = float(np.abs(ours - losses).max())
        relative = max(float(np.abs(np.divide(answer[name][1], norms) - 1).max()) for answer in answers)
        if not (off <= loss_bound and relative <= norm_bound):
            wrong.append(f"{name}: loss off by {off:.2g} (at most {loss_bound:g}), norm by {relative:.2g}")
        found = answers[0][name][2]
        assert {key: value.shape for key, value in found.items()} == {k: tuple(v.shape) for k, v in parameters.items()}
        if config.precision == "fp32":
            far = [
                key
                for key, value in parameters.items()
                if not torch.allclose(torch.from_numpy(found[key]), value, atol=1e-3)
            ]
            wrong += [f"{name}: parameters {far}"] if far else []
    assert not wrong, "\n".join(wrong)


RESUMED: list[Combination] = [
    ("tensor, zero 0", {"zero_stage": 0, "tensor": 2}, {}),
    ("tensor, zero 2, bf16", {"zero_stage": 2, "tensor": 2}, {"precision": "bf16"}),
    ("sequence, zero 1", {"zero_stage": 1, "sequence": 2}, {}),
    ("sequence, zero 3", {"zero_stage": 3, "sequence": 2, "activation_checkpointing": 1}, {}),
    ("zero 2, optimizer offloaded", {"zero_stage": 2, "offload": "optimizer"}, {}),
    ("zero 3, parameters offloaded", {"zero_stage": 3, "offload": "parameters"}, {}),
    ("fp16, zero 1", {"zero_stage": 1, "loss_scale": LossScale(initial_power=24, window=3)}, {"precision": "fp16"}),
    ("fp16, zero 3", {"zero_stage": 3, "loss_scale": LossScale(window=3)}, {"precision": "fp16"}),
]


@pytest.mark.slow
def test_resumes_bit_for_bit_on_the_same_layout(make: Callable[..., RunConfig], tmp_path: Path) -> None:
    answers = run_ranks(2, together.resume_all, configured(make, 2, RESUMED), tmp_path)
    for name, _, _ in RESUMED:
        for answer in answers:
            for what, (uninterrupted, resumed) in answer[name].items():
                assert uninterrupted == resumed, (name, what)
    scaled = {name: config["loss_scale"] for name, config, _ in RESUMED if "loss_scale" in config}
    for name, scale in scaled.items():
        _, _, factor = answers[0][name]["state"][1]
        assert factor != 2.0**scale.initial_power, f"{name}: the factor never changed, so that nothing was restored"


@pytest.mark.slow
def test_compiled_blocks_train_alike(make: Callable[..., RunConfig]) -> None:
    """One layer on one rank: compiling is what costs time here."""
    model = {"layers": 1, "document_mask": False}
    table = [("compiled, recomputed", {"compile": True, "activation_checkpointing": 1}, {"model": model})]
    (config,) = configured(make, 1, table).values()
    ((losses, norms, _),) = (
        answer["compiled, recomputed"] for answer in run_ranks(1, together.train_all, {table[0][0]: config})
    )
    expected_losses, expected_norms, _ = together.plain_run(config)
    assert losses == pytest.approx(expected_losses, abs=2e-6)
    assert norms == pytest.approx(expected_norms, rel=2e-5)
