"""Divisions ranked: all that are legal, each with bytes and seconds that can be checked by hand."""

from __future__ import annotations

import math
import time
from typing import Any

import pytest

from plinth.launch.devices import DEVICES
from plinth.model.parameters import Model
from plinth.operation.planning import interval, memory, ranking
from plinth.operation.planning.ranking import TrainingWork
from plinth.training.parallel.parameters import Parallel, problems

H100 = DEVICES["h100"]
TINY = TrainingWork(Model(layers=4, dim=64, heads=4, kv_heads=2, ffn_dim=160), 512, 64, 16)
LLAMA = TrainingWork(Model(preset="8b"), 128_256, 8192, 1024)


def test_legal_is_what_a_recipe_may_say() -> None:
    """The product of all degrees, by the recipe's own rules; each micro batch divides the batch."""
    found = {
        (b.tensor, b.pipeline, b.sequence, b.zero_stage, b.activation_checkpointing, m)
        for b, m in ranking.legal(TINY, 8)
    }
    wanted = set[tuple[int, ...]]()
    for code in range(4**3 * 4 * 2 * 4):
        tensor, pipeline, sequence = (2 ** (code // 4**n % 4) for n in range(3))
        stage, every, micro = code // 64 % 4, code // 256 % 2, 2 ** (code // 512)
        degrees = {"tensor": tensor, "pipeline": pipeline, "sequence": sequence, "zero_stage": stage}
        block = Parallel.model_validate({**degrees, "activation_checkpointing": every})
        if any(problems(block, TINY.model, ranks=8, sequence_tokens=64, precision="bf16")):
            continue
        if 16 % (block.data_ranks(8) * micro) == 0:
            wanted.add((tensor, pipeline, sequence, stage, every, micro))
    assert found == wanted
    assert len(found) > 50


def test_memory_is_the_planners() -> None:
    one = ranking.rank(TINY, 8, H100)[0]
    given = {name: getattr(one, name) for name in ("tensor", "pipeline", "sequence", "zero_stage")}
    block = Parallel.model_validate({**given, "activation_checkpointing": int(one.recomputed)})
    assert one.memory_bytes == memory.per_device(
        TINY.model, block, vocab_size=512, sequence_tokens=64, micro_batch=one.micro_batch,
        accumulation=one.accumulation, ranks=8, precision="bf16",
    ).total  # fmt: skip


def _sent(ranks: int, accumulation: int = 1, micro: int = 2, **block: Any) -> dict[str, float]:
    found = ranking.traffic(TINY, Parallel(**block), micro, ranks, accumulation)
    return {name: sent for name, sent in found.items() if sent}


def test_traffic_by_hand() -> None:
    own = memory.parameters_of_rank(TINY.model, 512, Parallel())
    assert _sent(1, zero_stage=0) == {}
    assert _sent(4, zero_stage=0) == {"gradients": 2 * 4 * own * 3 / 4}  # in FP32, as a ring's all-reduce
    assert _sent(4, 2, zero_stage=1) == {"gradients": 2 * 4 * own * 3 / 4, "parameters": 2 * own * 3 / 4}
    assert _sent(4, 2, zero_stage=2) == {"gradients": 2 * 4 * own * 2 * 3 / 4, "parameters": 2 * own * 3 / 4}
    assert _sent(4, 2, zero_stage=3) == {"gradients": 4 * own * 2 * 3 / 4, "parameters": 2 * own * 2 * 2 * 3 / 4}
    stream = 2 * 64 * 64 * 2
    assert _sent(2, 3, tensor=2)["tensor"] == 2 * 1 / 2 * 4 * 4 * stream * 3
    assert _sent(2, tensor=2, activation_checkpointing=1)["tensor"] == 2 * 1 / 2 * 6 * 4 * stream
    assert _sent(2, sequence=2)["sequence"] == 1 / 2 * 2 * 4 * (2 * 32) * (2 * 4 + 2 * 2) * 16 * 2
    assert _sent(2, 3, pipeline=2) == {"pipeline": 2 * stream * 3}


def test_time_by_hand() -> None:
    found = {one.division: one for one in ranking.rank(LLAMA, 8, H100)}
    one = found["data 1 x tensor 8 x pipeline 1 x sequence 1, ZeRO 1, micro batch 1, recomputed"]
    sums = 2 * 7 / 8 * 6 * 32 * 8192 * 4096 * 2 * 1024
    assert one.exposed_s["tensor"] == pytest.approx(sums / H100.within_bytes_per_s)
    piped = next(one for one in found.values() if one.pipeline == 8 and one.micro_batch == 1)
    assert piped.bubble_s / piped.compute_s == 7 / 1024
    assert piped.step_s == piped.compute_s + piped.bubble_s + sum(piped.exposed_s.values())
    wide = next(
        one for one in ranking.rank(LLAMA, 16, H100) if (one.tensor, one.data, one.zero_stage) == (8, 2, 0)
    )
    own = memory.parameters_of_rank(LLAMA.model, LLAMA.vocab_size, Parallel(tensor=8))
    assert wide.exposed_s["gradients"] == pytest.approx(4 * own / H100.between_bytes_per_s)  # and not hidden


def test_order_and_reasons() -> None:
    ranked = ranking.rank(LLAMA, 64, H100)
    fitting = [one for one in ranked if not one.over_bytes]
    assert ranked[: len(fitting)] == sorted(fitting, key=lambda one: one.step_s)
    assert "GB too much" in ranked[-1].reason
    assert ranked[-1].over_bytes == ranked[-1].memory_bytes - int(0.9 * 80e9)
    assert all("too much" not in one.reason for one in fitting)


def test_minimum_devices() -> None:
    """16 bytes a parameter and more: one H100 holds a 1B, an 8B needs several."""
    assert ranking.minimum_devices(TrainingWork(Model(preset="1b"), 128_256, 2048, 1024), H100) == 1
    few = ranking.minimum_devices(LLAMA, H100)
    assert few is not None
    assert 2 <= few <= 8
    assert ranking.rank(LLAMA, few, H100)[0].over_bytes == 0
    assert ranking.rank(LLAMA, few // 2, H100)[0].over_bytes > 0
    assert ranking.minimum_devices(LLAMA, H100, most=few // 2) is None


def test_a_thousand_devices_are_ranked_and_take_one_look_each() -> None:
    begun = time.process_time()
    ranked = ranking.rank(TrainingWork(Model(preset="70b"), 128_256, 8192, 2048), 1024, H100)
    print(len(ranked), time.process_time() - begun)  # no gate: docs/planning.md has the time
    assert ranked[0].over_bytes == 0
    assert len({one.division for one in ranked}) == len(ranked) > 100


def test_intervals() -> None:
    """Daly's example: a minute of stall, three hours between failures."""
    assert round(interval.young(60, 3 * 3600)) == 1138
    assert round(interval.daly(60, 3 * 3600)) == 1099
    assert interval.daly(60, 29) == 29
    best = interval.young(60, 3 * 3600)
    assert all(
        interval.waste(best, 60, 300, 10_800) < interval.waste(best * factor, 60, 300, 10_800) for factor in (0.9, 1.1)
    )
    assert round(interval.between_failures_s(16_384) / 3600, 2) == 3.09  # as published
    assert math.isclose(interval.between_failures_s(512), 32 * interval.between_failures_s(16_384))
