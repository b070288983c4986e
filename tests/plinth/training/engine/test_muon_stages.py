"""Muon under every ZeRO stage and over sequence ranks: as on one rank, exact through a restart, kept back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import changed_layout
import pytest
import torch

from plinth.launch.parameters import Launch
from plinth.model.parameters import MuP
from plinth.model.sparsity import Experts
from plinth.training.config import RunConfig
from plinth.training.engine.optimization import Muon
from plinth.training.parameters.optimizers import MuonOptions, Optimizer
from plinth.training.parameters.parallel import Parallel
from tests.ranks import run_ranks

pytestmark = pytest.mark.slow

#: Nats over four steps: a difference in the last bit of FP32 may turn one in BF16, which the iteration begins with.
NOISE = 2e-4

Kinds = list[tuple[str, dict[str, Any]]]
SOME: Kinds = [("fp32", {"zero_stage": 1}), ("fp32", {"zero_stage": 3}), ("bf16", {"zero_stage": 1})]
SOME += [("fp32", {"zero_stage": 1, "pipeline": 2})]
OTHERS: Kinds = [("fp32", {"zero_stage": 0}), ("fp32", {"zero_stage": 2}), ("fp32", {"sequence": 2})]
OTHERS += [("bf16", {"zero_stage": stage}) for stage in (0, 2, 3)]
OTHERS += [("bf16", {"zero_stage": 0, "pipeline": 2}), ("fp32", {"zero_stage": 0, "pipeline": 2})]


def layout(make: Callable[..., RunConfig], ranks: int, precision: str, **parallel: Any) -> RunConfig:
    return make(
        launch=Launch(ranks=ranks),
        parallel=Parallel(**parallel),
        precision=precision,
        optimizer=Optimizer(kind="muon", warmup_fraction=0.2),
        batches="changed_layout:open_batches",
    )


@pytest.mark.exhaustive
@pytest.mark.parametrize("kinds", [SOME, OTHERS], ids=["some", "others"])
def test_stages_agree_with_one_rank_and_resume_bit_for_bit(
    kinds: Kinds, make: Callable[..., RunConfig], tmp_path: Path
) -> None:
    """The first two are also taken up by one rank."""
    legs = []
    for number, (precision, parallel) in enumerate(kinds):
        config, left = layout(make, 2, precision, **parallel), tmp_path / f"{number}"
        legs += [(config, None, 1, 4, tmp_path / f"{number}-whole"), (config, None, 1, 2, left)]
        legs += [(config, left, 3, 4, tmp_path / f"{number}-resumed")]
    ranks = run_ranks(2, changed_layout.journey, legs, timeout_s=400)
    one = layout(make, 1, "fp32")
    alone: list[Any] = [(one, None, 1, 4, tmp_path / "one")]
    alone += [(one, tmp_path / f"{n}", 3, 4, tmp_path / f"{n}-one") for n in (0, 1)]
    (reference, *taken_up) = run_ranks(1, changed_layout.journey, alone, timeout_s=400)[0]
    for rank in ranks:
        for number, kind in enumerate(kinds):
            through, first, second = rank[3 * number : 3 * number + 3]
            assert second["before"]["optimizer_sha256"] == first["after"]["optimizer_sha256"], kind
            for name in ("loss", "grad_norm", "batch"):
                assert second[name] == through[name][2:], (kind, name)
            assert second["after"]["parameters_sha256"] == through["after"]["parameters_sha256"], kind
            assert second["after"]["optimizer_sha256"] == through["after"]["optimizer_sha256"], kind
            assert through["loss"] == pytest.approx(reference["loss"], abs=NOISE if kind[0] == "fp32" else 0.03), kind
    for number, found in zip((0, 1), taken_up, strict=True):  # the same bits on one rank, then the same curve
        left = changed_layout.whole_state(tmp_path / f"{number}")
        assert changed_layout.same(left, changed_layout.whole_state(tmp_path / f"{number}-one-before"))
        assert {kind for name, kind in left if name == "layers.0.mlp.up_proj.weight"} == {"master", "momentum_buffer"}
        assert found["loss"] == pytest.approx(reference["loss"][2:], abs=NOISE)


@pytest.mark.exhaustive
def test_mup_over_a_pipeline_is_as_on_one_rank(make: Callable[..., RunConfig], tmp_path: Path) -> None:
    """Its stages have not the same groups of parameters: the norm is one sum over ranks, whatever groups there are."""
    fields: dict[str, Any] = {"model": make().model.model_copy(update={"mup": MuP(base_dim=16)})}
    two = make(parallel=Parallel(pipeline=2), batches="changed_layout:open_batches", **fields)
    one = make(launch=Launch(ranks=1), batches="changed_layout:open_batches", **fields)
    (divided, _) = run_ranks(2, changed_layout.journey, [(two, None, 1, 4, tmp_path / "two")], timeout_s=200)
    ((alone,),) = run_ranks(1, changed_layout.journey, [(one, None, 1, 4, tmp_path / "one")], timeout_s=200)
    assert divided[0]["loss"] == pytest.approx(alone["loss"], abs=2e-6)
    assert divided[0]["grad_norm"] == pytest.approx(alone["grad_norm"], rel=2e-5)


def kept_back(configs: list[RunConfig]) -> list[tuple[list[bool], list[dict[str, Any]]]]:
    """On one rank, of each run: whether the updates of three steps were kept back, and digests after each."""
    from plinth.training.checkpoint import snapshot
    from plinth.training.engine.engine import join, leave
    from plinth.training.guard.rules import Limits
    from plinth.training.trainer import Trainer

    rank, found = join(configs[0]), []
    for config in configs:
        trainer = Trainer(config, rank)
        trainer.guard.update_limits = lambda step, *rest: Limits(loss=0.0 if step == 2 else 1e9)  # type: ignore[method-assign]
        stream = trainer.batches(1)
        vetoed, digests = [], []
        for step in (1, 2, 3):
            vetoed.append(trainer.launch(stream, step).read().vetoed)
            digests.append(snapshot.digests(trainer.engine))
        found.append((vetoed, digests))
        trainer.engine.deepspeed.destroy()
    leave()
    return found


@pytest.mark.exhaustive
def test_an_update_kept_back_changes_no_stage(make: Callable[..., RunConfig]) -> None:
    configs = [layout(make, 2, "fp32", zero_stage=stage) for stage in (1, 3)]
    for rank in run_ranks(2, kept_back, configs, timeout_s=200):
        for vetoed, (first, second, third) in rank:
            assert vetoed == [False, True, False]
            for part in ("parameters_sha256", "optimizer_sha256"):
                assert first[part] == second[part] != third[part], part


@pytest.mark.exhaustive
def test_each_expert_is_a_matrix_of_its_own(make: Callable[..., RunConfig], tmp_path: Path) -> None:
    """A border between two ranks cuts an expert, or a stack of them, in ZeRO-1 to 3."""
    experts = Experts(count=4, active=2, ffn_dim=24, auxiliary_coefficient=0.0)
    model = make().model.model_copy(update={"qk_norm": True, "experts": experts})
    blocks = [{"zero_stage": stage} for stage in (0, 1, 2, 3)] + [
        {"zero_stage": stage, "expert": 2} for stage in (0, 1)
    ]
    divided = [layout(make, 2, "fp32", **block).model_copy(update={"model": model}) for block in blocks]
    ranks = run_ranks(
        2,
        changed_layout.journey,
        [(one, None, 1, 4, tmp_path / f"{n}") for n, one in enumerate(divided)],
        timeout_s=400,
    )
    alone = layout(make, 1, "fp32").model_copy(update={"model": model})
    (reference,) = run_ranks(1, changed_layout.journey, [(alone, None, 1, 4, tmp_path / "one")], timeout_s=400)[0]
    for block, found in zip(blocks, ranks[0], strict=True):
        assert found["loss"] == pytest.approx(reference["loss"], abs=NOISE), block


def test_an_expert_is_updated_as_the_same_matrix_outside_a_stack() -> None:
    stack = torch.nn.Parameter(torch.randn(3, 8, 6, generator=torch.Generator().manual_seed(1)))
    lone = [torch.nn.Parameter(one.detach().clone()) for one in stack]
    groups = [{"params": [stack]}, {"params": lone}]
    fields = {"lr": 0.1, "weight_decay": 0.1, "hidden_matrices": True}
    muon = Muon([group | fields for group in groups], MuonOptions())
    stack.grad = torch.randn(3, 8, 6, generator=torch.Generator().manual_seed(2))
    for one, gradient in zip(lone, stack.grad, strict=True):
        one.grad = gradient.clone()
    muon.step()
    assert torch.equal(stack, torch.stack(lone))
