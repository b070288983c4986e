"""Divisions ranked: all that are legal, each with bytes and seconds that can be checked by hand."""

from __future__ import annotations

import itertools
import math
import time
from typing import Any

import pytest
from pydantic import ValidationError

from plinth.launch.devices import DEVICES
from plinth.model.parameters import Model
from plinth.model.sparsity import Experts
from plinth.operation import memory, ranking, spending
from plinth.operation.ranking import TrainingWork
from plinth.training import hooks
from plinth.training.parameters.optimizers import problems_with_division
from plinth.training.parameters.parallel import Parallel, problems
from plinth.training.parameters.run import Training

H100 = DEVICES["h100"]
TINY = TrainingWork(Model(layers=4, dim=64, heads=4, kv_heads=2, ffn_dim=160), 512, 64, 16)
LLAMA = TrainingWork(Model(preset="8b"), 128_256, 8192, 1024)


QUIET = {"guard": {"enabled": False}, "model": TINY.model, "precision": "bf16"}

#: Settings of a recipe that some divisions do not go with.
KINDS: dict[str, dict[str, Any]] = {
    "adamw": {},
    "compiled, every other block recomputed": {"parallel": {"compile": True, "activation_checkpointing": 2}},
    "muon": {"optimizer": {"kind": "muon"}},
    "float8": {"float8": "tensorwise"},
}
#: Those of training hooks, by the hook.
OF_HOOKS: dict[str, tuple[str, dict[str, Any]]] = {
    "privacy": ("private", {"epsilon": 8, "delta": 1e-6}),
    "distillation": ("distilled", {"teacher": "large@1"}),
}
KINDS |= {kind: {name: given} for name, (kind, given) in OF_HOOKS.items() if name in hooks.HOOKS}


def _work(training: Training) -> TrainingWork:
    return TrainingWork(
        training.model, 512, 64, training.global_batch_sequences, "bf16", training.parallel, training.optimizer,
        private=hooks.one_by_one(training), float8=training.float8 != "none",
        undivided=frozenset(hooks.undivided(training)),
    )  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_legal_is_what_a_recipe_may_say(kind: str) -> None:
    """The product of all degrees, stages, recomputations and offloads, by the recipe's own rules."""
    training, given = Training(**QUIET, **KINDS[kind]), KINDS[kind]
    names = ("tensor", "pipeline", "sequence", "zero_stage", "activation_checkpointing", "offload", "compile")
    found = {(*(getattr(b, n) for n in names), m) for b, m in ranking.legal(_work(training), 4)}
    own = given.get("parallel", {})
    every, compiled = {0, 1, own.get("activation_checkpointing", 0)}, own.get("compile", False)
    wanted = set[tuple[Any, ...]]()
    for values in itertools.product(*[(1, 2, 4)] * 3, range(4), every, ranking.OFFLOADS):
        for compile_ in (True, False) if compiled else (False,):
            block = dict(zip(names, (*values, compile_), strict=True))
            try:
                said = Training(**{**QUIET, **given, "parallel": block})
            except ValidationError:
                continue
            if any(problems(said.parallel, TINY.model, ranks=4, sequence_tokens=64, precision="bf16")):
                continue
            if any(problems_with_division(said.optimizer, said.parallel, TINY.model, "bf16")):
                continue
            micros = (1,) if hooks.one_by_one(said) else (1, 2, 4, 8)
            data = said.parallel.data_ranks(4)
            wanted |= {(*block.values(), micro) for micro in micros if 16 % (data * micro) == 0}
            break  # compiled, if it may be
    assert found == wanted
    offloads = {"muon": 1, "private": 1, "float8": 2}.get(kind, 3)  # parameters leave the device in ZeRO-3 alone
    assert len({one[5] for one in found}) == offloads


EXPERTS = Experts(count=4, active=2, ffn_dim=32, every=2)
MIXED = TINY._replace(model=TINY.model.model_copy(update={"qk_norm": True, "experts": EXPERTS}))


def test_experts_are_divided_over_every_number_of_data_ranks_that_fits() -> None:
    degrees = {(block.data_ranks(4), block.expert) for block, _ in ranking.legal(MIXED, 4)}
    assert degrees == {(1, 1), (2, 1), (2, 2), (4, 1), (4, 2), (4, 4)}
    assert {block.expert for block, _ in ranking.legal(TINY, 4)} == {1}


def test_rows_of_experts_are_sent_by_hand() -> None:
    block = Parallel(expert=2, zero_stage=1)
    sent = ranking.traffic(MIXED, block, 2, 4, 2)
    rows = (
        2 * 64 * 2
    )  # of 64 numbers each, in BF16, in 2 sparse layers; there, back, and both gradients; 2 micro batches
    assert sent["experts"] == rows * 64 * 2 * 2 * 4 * 2 / 2
    experts = 3 * 64 * 32 * 4 * 2  # half of them on each of two ranks, which sum them with one other
    others = memory.parameters_of_rank(MIXED.model, 512, block) - experts / 2
    assert sent["gradients"] == pytest.approx(2 * 4 * (others * 3 / 4 + experts / 2 / 2))
    alone = ranking.traffic(MIXED, Parallel(zero_stage=1), 2, 4, 2)
    assert "experts" not in alone
    assert alone["gradients"] == pytest.approx(2 * 4 * (others + experts) * 3 / 4)
    found = ranking.of_block(MIXED, block, 2, 4, H100, 0.5)
    assert found.exposed_s["experts"] == sent["experts"] / H100.within_bytes_per_s
    assert "sequence 1, experts over 2, ZeRO 1" in found.division


@pytest.mark.parametrize(
    "kind", [*KINDS.values(), {"optimizer": {"kind": "muon", "ema_decay": 0.9}}], ids=[*KINDS, "muon, a mean"]
)
def test_memory_is_the_planners(kind: dict[str, Any]) -> None:
    """Check every division, with its optimizer, its mean of weights, its offload and its privacy."""
    training = Training(**QUIET, **kind)
    for one in ranking.rank(_work(training), 4, H100):
        names = ("tensor", "pipeline", "sequence", "zero_stage", "activation_checkpointing", "offload", "compile")
        block = training.parallel.model_copy(update={name: getattr(one, name) for name in names})
        used = memory.per_device(
            TINY.model, block, vocab_size=512, sequence_tokens=64, micro_batch=one.micro_batch,
            accumulation=one.accumulation, ranks=4, precision="bf16", optimizer=training.optimizer,
            private=hooks.one_by_one(training),
        )  # fmt: skip
        assert (one.memory_bytes, one.host_bytes) == (used.total, used.host)


def test_states_by_hand() -> None:
    """On one rank without ZeRO, in BF16: Adam's two moments and masters take 12 bytes per parameter, Muon's momentum of
    a matrix saves 4 of them, a mean takes 4."""

    def used(**optimizer: Any) -> int:
        training = Training(**QUIET, optimizer=optimizer)
        return min(one.memory_bytes for one in ranking.rank(_work(training), 1, H100) if one.zero_stage == 0)

    matrices = 4 * (2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 160)
    parameters = 512 * 64 + matrices + 4 * 2 * 64 + 64
    assert memory.parameters_of_rank(TINY.model, 512, Parallel()) == parameters
    assert used(ema_decay=0.9) - used() == 4 * parameters
    assert used() - used(kind="muon") == 4 * matrices


def test_a_host_without_room_is_no_help() -> None:
    """An 8B's states take 16 bytes per parameter: one H100 and 256 GB of its machine hold them, 64 GB do not."""
    assert ranking.minimum_devices(LLAMA, H100) == 4
    assert ranking.minimum_devices(LLAMA, H100, offloaded=True) == 1
    poor = H100.model_copy(update={"host_memory_bytes": 64 * 10**9})
    assert ranking.minimum_devices(LLAMA, poor, offloaded=True) == 4
    least = min(one.host_bytes for one in ranking.rank(LLAMA, 2, poor) if one.offload != "none")
    without = min(one.memory_bytes for one in ranking.rank(LLAMA, 2, poor) if one.offload == "none")
    assert least > 0.9 * 64e9
    assert without > 0.9 * 80e9


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
    assert _sent(2, tensor=2, activation_checkpointing=2)["tensor"] == 2 * 1 / 2 * 5 * 4 * stream


def test_traffic_with_the_host_by_hand() -> None:
    """Traffic of half the parameters: FP32 gradients down, seven numbers for AdamW's update, BF16 parameters up."""
    half = memory.parameters_of_rank(TINY.model, 512, Parallel()) / 2
    assert _sent(2, 3, zero_stage=1, offload="optimizer")["host"] == half * (4 + 28 + 2)
    assert _sent(2, 3, zero_stage=3, offload="optimizer")["host"] == half * (5 * 4 + 28 + 2)
    assert _sent(2, 3, zero_stage=3, offload="parameters")["host"] == half * (5 * 4 + 28 + 2 * 3 * 2)
    one = next(one for one in ranking.rank(TINY, 2, H100) if one.offload == "optimizer" and one.zero_stage == 1)
    own = memory.parameters_of_rank(TINY.model, 512, Parallel(tensor=one.tensor, pipeline=one.pipeline))
    divided = one.data * one.sequence
    assert one.exposed_s["host"] == pytest.approx(own / divided * 34 / H100.host_bytes_per_s)


def test_a_private_sum_is_reduced_when_all_sequences_are_done() -> None:
    block, kinds = Parallel(zero_stage=1), (TINY, TINY._replace(private=True))
    hidden, exposed = (ranking.of_block(work, block, 1, 4, H100, 0.5).exposed_s["gradients"] for work in kinds)
    own = memory.parameters_of_rank(TINY.model, 512, block)
    assert exposed == pytest.approx(2 * 4 * own * 3 / 4 / H100.within_bytes_per_s)
    assert 0 <= hidden < exposed


def test_time_by_hand() -> None:
    found = {one.division: one for one in ranking.rank(LLAMA, 8, H100)}
    one = found["data 1 x tensor 8 x pipeline 1 x sequence 1, ZeRO 1, micro batch 1, recomputed"]
    sums = 2 * 7 / 8 * 6 * 32 * 8192 * 4096 * 2 * 1024
    assert one.exposed_s["tensor"] == pytest.approx(sums / H100.within_bytes_per_s)
    piped = next(one for one in found.values() if one.pipeline == 8 and one.micro_batch == 1)
    assert piped.bubble_s / piped.compute_s == 7 / 1024
    assert piped.step_s == piped.compute_s + piped.bubble_s + sum(piped.exposed_s.values())
    wide = next(one for one in ranking.rank(LLAMA, 16, H100) if (one.tensor, one.data, one.zero_stage) == (8, 2, 0))
    own = memory.parameters_of_rank(LLAMA.model, LLAMA.vocab_size, Parallel(tensor=8))
    assert wide.exposed_s["gradients"] == pytest.approx(4 * own / H100.between_bytes_per_s)  # and not hidden


def test_order_and_reasons() -> None:
    ranked = ranking.rank(LLAMA, 64, H100)
    fitting = [one for one in ranked if not one.over_bytes]
    assert ranked[: len(fitting)] == sorted(fitting, key=lambda one: one.step_s)
    assert "GB above the memory of the device" in ranked[-1].reason
    assert ranked[-1].over_bytes == ranked[-1].memory_bytes - int(0.9 * 80e9)
    assert all("too much" not in one.reason for one in fitting)


def test_minimum_devices() -> None:
    """At least 16 bytes per parameter: one H100 holds a 1B, an 8B needs several."""
    assert ranking.minimum_devices(TrainingWork(Model(preset="1b"), 128_256, 2048, 1024), H100) == 1
    few = ranking.minimum_devices(LLAMA, H100)
    assert few is not None
    assert 2 <= few <= 8
    assert ranking.rank(LLAMA, few, H100)[0].over_bytes == 0
    assert all(one.over_bytes > 0 for one in ranking.rank(LLAMA, few // 2, H100) if one.offload == "none")
    assert ranking.minimum_devices(LLAMA, H100, most=few // 2) is None


def test_a_thousand_devices_are_ranked_and_take_one_look_each() -> None:
    begun = time.process_time()
    ranked = ranking.rank(TrainingWork(Model(preset="70b"), 128_256, 8192, 2048), 1024, H100)
    print(len(ranked), time.process_time() - begun)  # no gate: docs/planning.md has the time
    assert ranked[0].over_bytes == 0
    assert len({one.division for one in ranked}) == len(ranked) > 100


def test_intervals() -> None:
    """Daly's example: a minute of stall, three hours between failures."""
    assert round(spending.young(60, 3 * 3600)) == 1138
    assert round(spending.daly(60, 3 * 3600)) == 1099
    assert spending.daly(60, 29) == 29
    best = spending.young(60, 3 * 3600)
    assert all(
        spending.waste(best, 60, 300, 10_800) < spending.waste(best * factor, 60, 300, 10_800) for factor in (0.9, 1.1)
    )
    assert round(spending.between_failures_s(16_384) / 3600, 2) == 3.09  # as published
    assert math.isclose(spending.between_failures_s(512), 32 * spending.between_failures_s(16_384))
