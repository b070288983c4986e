"""Initial weights on ranks: the same however the model is divided, and never whole where a part is held."""

from __future__ import annotations

from collections.abc import Callable

import counted_tensors
import pytest

from plinth.model.decoder import build
from plinth.model.parameters import PRESETS, Model
from plinth.operation.memory import parameters_of_rank
from plinth.training.checkpoint.snapshot import parameters_digest
from plinth.training.config import RunConfig
from plinth.training.engine.ranks import DTYPES
from plinth.training.parameters.parallel import Parallel
from tests.ranks import run_ranks

TIED = Model(layers=6, dim=64, heads=4, kv_heads=2, ffn_dim=192)
UNTIED = TIED.model_copy(update={"tied_embeddings": False, "qk_norm": True})
OLMO2 = UNTIED.model_copy(update={"architecture": "olmo2"})

DIVISIONS: dict[str, tuple[str, Model, Parallel]] = {
    "one": ("fp32", TIED, Parallel(zero_stage=0)),
    "zero 3": ("fp32", TIED, Parallel(zero_stage=3)),
    "tensor": ("fp32", TIED, Parallel(tensor=2)),
    "pipeline": ("fp32", TIED, Parallel(pipeline=2)),
    "tensor, untied": ("fp32", UNTIED, Parallel(tensor=2)),
    "pipeline, untied, bf16": ("bf16", UNTIED, Parallel(pipeline=2)),
    "tensor, olmo2": ("fp32", OLMO2, Parallel(tensor=2)),
    "zero 2, bf16": ("bf16", TIED, Parallel(zero_stage=2)),
    "zero 3, untied, bf16, offloaded": ("bf16", UNTIED, Parallel(zero_stage=3, offload="parameters")),
}


@pytest.mark.exhaustive
@pytest.mark.slow
def test_engines_of_any_division_begin_alike_and_make_no_more_than_their_share(
    make: Callable[..., RunConfig],
) -> None:
    """Bits equal those of one process; what is made before DeepSpeed begins is a rank's share and one parameter."""
    configs = {
        name: make(model=model, parallel=parallel, precision=precision, vocab_size=99)
        for name, (precision, model, parallel) in DIVISIONS.items()
    }
    found = run_ranks(2, counted_tensors.open_all, configs)
    for key, config in configs.items():
        dtype = DTYPES[config.precision]
        model = build(config.model, config.vocab_size, config.seed).to(dtype)
        digest = parameters_digest(model.named_parameters())
        sizes = [parameter.numel() for parameter in model.parameters()]
        norms = sum(parameter.numel() for parameter in model.parameters() if parameter.dim() == 1)
        divisor = 2 if config.parallel.zero_stage == 3 or config.parallel.model_ranks > 1 else 1
        end = max(sizes) if config.parallel.pipeline > 1 else 0  # stages are not of one size
        share = (sum(sizes) / divisor + norms + end) * dtype.itemsize
        scratch = max(sizes) * (dtype.itemsize + 4) + 8192  # one parameter, and a tile of FP32; the rest is counters
        assert share + scratch < 0.8 * sum(sizes) * dtype.itemsize or divisor == 1  # or the bound would say nothing
        for digest_there, peak in (answer[key] for answer in found):
            assert digest_there == digest, key
            assert peak <= share + scratch, key


def test_no_rank_of_a_70b_model_makes_more_than_its_share() -> None:
    model, vocabulary = Model(preset="70b"), PRESETS["70b"].vocab_size
    layouts = {
        "tensor 8, pipeline 4": (Parallel(tensor=8, pipeline=4), 32, [0, 31]),
        "tensor 8": (Parallel(tensor=8, zero_stage=1), 8, [7]),
        "zero 3 over 64": (Parallel(zero_stage=3), 64, [63]),
    }
    (found,) = run_ranks(1, counted_tensors.plan_all, model, vocabulary, layouts)
    total, block = 70_553_706_496, 128_256 * 8_192
    for (name, index), (elements, empty_bytes, written) in found.items():
        parallel, world, _ = layouts[name]
        assert empty_bytes < 100_000, (name, index)  # a few bytes per parameter, whatever its size
        if parallel.zero_stage == 3:
            assert elements == total
            rows = sum(28_672 for _ in written) * 2  # a range begins and ends within rows
            assert sum(written.values()) / 2 <= total / world + rows
        else:
            assert sum(written.values()) == 2 * elements
            planned = parameters_of_rank(model, vocabulary, parallel)
            assert elements <= planned + model.dim <= 1.05 * total / world + block / 8  # the last stage has a norm more
        assert max(written.values()) <= 2 * block
