"""Mixtures of experts on ranks: every division against one plain process, resuming, and other numbers of ranks."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional

from plinth.launch.parameters import Launch
from plinth.model.experts import BIAS, Router, Routes
from plinth.model.parameters import Model
from plinth.model.sparsity import Experts
from plinth.training.config import RunConfig
from plinth.training.parameters.parallel import Parallel, problems
from tests.ranks import run_ranks

sys.path.insert(0, str(Path(__file__).parent))
import parallel_runs

#: A loss over whole rows is not the mean of losses over their parts, so data ranks train without it here.
ALONE = Experts(count=4, active=2, ffn_dim=32, auxiliary_coefficient=0.0, z_loss_coefficient=0.01)
LOSSES = ALONE.model_copy(update={"auxiliary_coefficient": 0.1})
SHARED = Experts(count=8, active=3, ffn_dim=16, shared=2, score="sigmoid", balancing="loss_free", bias_rate=0.01)

MODEL = Model(layers=3, dim=32, heads=4, kv_heads=2, ffn_dim=64, qk_norm=True, experts=ALONE)
OLMOE = {"architecture": "olmoe", "ffn_dim": 32, "experts": LOSSES}
LATE = {"experts": LOSSES.model_copy(update={"every": 2})}  # the first stage's balancing loss
FROZEN = {"experts": SHARED.model_copy(update={"bias_rate": 0.0, "dense_first": 1})}
MOVED = {"experts": SHARED}

Combination = tuple[str, dict[str, Any], dict[str, Any]]

TWO: list[Combination] = [
    ("tensor", {"tensor": 2}, {"model": {"experts": LOSSES}}),
    ("experts, zero 1, shared", {"zero_stage": 1, "expert": 2}, {"model": FROZEN}),
]

MORE: list[Combination] = [
    ("tensor, shared", {"tensor": 2}, {"model": FROZEN}),
    ("sequence", {"sequence": 2}, {"model": {"experts": LOSSES}}),
    ("pipeline", {"pipeline": 2}, {"model": LATE}),
    ("zero 3, recomputed", {"zero_stage": 3, "activation_checkpointing": 1}, {}),
    ("experts, zero 0", {"zero_stage": 0, "expert": 2}, {}),
    ("experts, zero 2, recomputed", {"zero_stage": 2, "expert": 2, "activation_checkpointing": 2}, {}),
    ("olmoe, tensor", {"tensor": 2, "zero_stage": 2}, {"model": OLMOE}),
    ("olmoe, pipeline, micro batches", {"pipeline": 2, "zero_stage": 0}, {"model": {**OLMOE, "experts": ALONE}}),
    ("bf16, experts, zero 0", {"zero_stage": 0, "expert": 2}, {"precision": "bf16"}),
    ("bf16, experts, zero 2", {"zero_stage": 2, "expert": 2}, {"precision": "bf16"}),
    ("bf16, zero 3", {"zero_stage": 3}, {"precision": "bf16"}),
]

FOUR: list[Combination] = [
    ("experts 4", {"expert": 4}, {}),
    ("experts 2, zero 0", {"expert": 2, "zero_stage": 0}, {"model": FROZEN}),
    ("experts 2, zero 2", {"expert": 2, "zero_stage": 2}, {}),
    ("experts 2, pipeline 2", {"expert": 2, "pipeline": 2}, {}),
    ("experts 2, sequence 2", {"expert": 2, "sequence": 2}, {}),
    ("tensor 2, pipeline 2", {"tensor": 2, "pipeline": 2}, {"model": FROZEN}),
]


def configured(make: Callable[..., RunConfig], ranks: int, table: list[Combination]) -> dict[str, RunConfig]:
    configs = {}
    for name, parallel, changes in table:
        block = Parallel(**parallel)
        rows = parallel_runs.ROWS // block.data_ranks(ranks)
        fields = {"micro_batch_sequences": rows, "global_batch_sequences": parallel_runs.ROWS, **changes}
        fields["model"] = MODEL.model_copy(update=changes.get("model", {}))
        configs[name] = make(parallel=block, launch=Launch(ranks=ranks), **fields)
    return configs


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ranks", "table"),
    [
        pytest.param(2, TWO, id="2 ranks"),
        pytest.param(2, MORE, id="2 ranks, more", marks=pytest.mark.exhaustive),
        pytest.param(4, FOUR, id="4 ranks", marks=pytest.mark.exhaustive),
    ],
)
def test_agrees_with_one_plain_process(make: Callable[..., RunConfig], ranks: int, table: list[Combination]) -> None:
    configs = configured(make, ranks, table)
    answers = run_ranks(ranks, parallel_runs.train_all, configs, timeout_s=parallel_runs.LONG_S)
    wrong, references = {}, {}
    for name, config in configs.items():
        if config.model not in references:
            references[config.model] = parallel_runs.plain_run(config)
        wrong[name] = parallel_runs.difference(config, answers, name, references[config.model]).beyond(config.precision)
    assert not {name: text for name, text in wrong.items() if text}


def crowded_routes(router: Router, x: torch.Tensor) -> Routes:
    """Send every token to the first experts, which the first rank has."""
    logits = functional.linear(x, router.weight).float()
    scores, active = logits.softmax(-1), router.experts.active
    kinds, order = torch.arange(active).repeat(len(x)).sort(stable=True)
    load = torch.bincount(kinds, minlength=router.experts.count)
    return Routes(scores[:, :active], scores, logits, order, load, True)


def train_crowded(configs: dict[str, RunConfig]) -> dict[str, parallel_runs.Trained]:
    Router.forward = crowded_routes  # type: ignore[method-assign]
    return parallel_runs.train_all(configs)


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_rank_that_no_token_reaches_takes_part(
    make: Callable[..., RunConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    table: list[Combination] = [
        (f"zero {stage}", {"expert": 2, "zero_stage": stage, "activation_checkpointing": 1}, {}) for stage in (0, 2)
    ]
    configs = configured(make, 2, table)
    answers = run_ranks(2, train_crowded, configs, timeout_s=parallel_runs.LONG_S)
    monkeypatch.setattr(Router, "forward", crowded_routes)
    for name, config in configs.items():
        plain = parallel_runs.plain_run(config)
        assert not parallel_runs.difference(config, answers, name, plain).beyond(config.precision), name


RESUMED: list[Combination] = [
    ("experts, zero 2, bf16", {"zero_stage": 2, "expert": 2}, {"model": MOVED, "precision": "bf16"}),
]

RESUMED_TOO: list[Combination] = [
    ("experts, zero 0", {"zero_stage": 0, "expert": 2}, {"model": MOVED}),
    ("tensor", {"tensor": 2}, {"model": MOVED}),
    ("zero 3", {"zero_stage": 3}, {"model": MOVED}),
    ("pipeline", {"pipeline": 2}, {"model": MOVED}),
]


@pytest.mark.slow
@pytest.mark.parametrize("table", [RESUMED, pytest.param(RESUMED_TOO, marks=pytest.mark.exhaustive)], ids=["", "more"])
def test_resumes_bit_for_bit_with_its_balancing(
    make: Callable[..., RunConfig], tmp_path: Path, table: list[Combination]
) -> None:
    configs = configured(make, 2, table)
    answers = run_ranks(2, parallel_runs.resume_all, configs, tmp_path, timeout_s=parallel_runs.LONG_S)
    for name in configs:
        for answer in answers:
            for what, (uninterrupted, resumed) in answer[name].items():
                assert uninterrupted == resumed, (name, what)


def saved(config: RunConfig, folder: Path) -> dict[str, str]:
    """On one rank: train, save the state; digests of whole parameters, and the biases of this rank's layers."""
    from plinth.training.checkpoint import sharded_state, snapshot, universal
    from plinth.training.engine import engine as engines
    from plinth.training.engine.pipeline import open_engine

    rank = engines.join(config)
    engine = open_engine(config, rank)
    for step in range(1, 4):
        engine.train_step(parallel_runs.batch_of(config, step, rank.index), parallel_runs.LR)
    sharded_state.write(universal.capture(engine), folder, rank.index)
    answer = {"parameters": snapshot.digests(engine)["parameters_sha256"]}
    answer |= {name: str(value.tolist()) for name, value in engine.module.named_buffers()}
    engines.leave()
    return answer


def restored(config: RunConfig, folder: Path, out: Path) -> str:
    """On one rank: load the state and save it again; the digest of whole parameters."""
    from plinth.training.checkpoint import sharded_state, snapshot, universal
    from plinth.training.engine import engine as engines
    from plinth.training.engine.pipeline import open_engine

    rank = engines.join(config)
    engine = open_engine(config, rank)
    universal.restore(engine, folder)
    sharded_state.write(universal.capture(engine), out, rank.index)
    digest: str = snapshot.digests(engine)["parameters_sha256"]
    engines.leave()
    return digest


def whole_state(folder: Path) -> dict[tuple[str, str], torch.Tensor]:
    from contextlib import ExitStack

    from plinth.training.checkpoint.sharded_state import ShardedState

    with ExitStack() as stack:
        state = ShardedState(stack, folder)
        return {(name, kind): state.whole(name, kind) for name in state.names for kind in state.kinds_of(name)}


OTHERS = [(1, {}), (2, {"zero_stage": 0, "expert": 2}), (2, {"tensor": 2}), (2, {"zero_stage": 3})]
FEWER = [(2, {"tensor": 2})]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ranks", "degree", "others"),
    [(2, 2, FEWER), *(pytest.param(ranks, ranks, OTHERS, marks=pytest.mark.exhaustive) for ranks in (2, 4))],
)
def test_a_checkpoint_fits_any_number_of_expert_ranks(
    make: Callable[..., RunConfig], tmp_path: Path, ranks: int, degree: int, others: list[tuple[int, dict[str, Any]]]
) -> None:
    of = configured(make, ranks, [("saved", {"expert": degree}, {"model": MOVED})])["saved"]
    answers = run_ranks(ranks, saved, of, tmp_path / "saved")
    assert all(answer == answers[0] for answer in answers)  # also the biases
    assert any(value.strip("[]0., ") for name, value in answers[0].items() if name.endswith(BIAS))
    state = whole_state(tmp_path / "saved")
    assert {kind for name, kind in state if name.endswith("experts.up_proj")} == {"master", "exp_avg", "exp_avg_sq"}
    for number, (world, block) in enumerate(others):
        config = configured(make, world, [("other", block, {"model": MOVED})])["other"]
        out = tmp_path / f"again-{number}"
        assert set(run_ranks(world, restored, config, tmp_path / "saved", out)) == {answers[0]["parameters"]}
        again = whole_state(out)
        assert again.keys() == state.keys()
        assert all(torch.equal(again[key], value) for key, value in state.items()), block


@pytest.mark.parametrize(
    ("block", "ranks", "found"),
    [
        ({"expert": 3}, 3, "expert: 3 ranks of 4 experts"),
        ({"expert": 4}, 2, "expert: 4 does not divide the 2 data-parallel ranks"),
        ({"expert": 2, "tensor": 2}, 4, "expert 2 with tensor > 1"),
        ({"expert": 2, "zero_stage": 3}, 2, "expert 2 with zero_stage 3"),
        ({"expert": 2, "offload": "optimizer"}, 2, "expert 2 with offload"),
        ({"tensor": 8}, 8, "8 does not divide model.experts.count = 4"),
    ],
)
def test_divisions_that_cannot_run_are_refused(block: dict[str, Any], ranks: int, found: str) -> None:
    refusals = problems(Parallel(**block), MODEL, ranks=ranks, sequence_tokens=32, precision="fp32")
    assert found in " | ".join(f"{key}: {text}" for key, text in refusals)


@pytest.mark.slow
@pytest.mark.exhaustive
def test_compiled_and_recomputed(make: Callable[..., RunConfig]) -> None:
    """The attention of a sparse layer is a graph, and its experts are not."""
    table = [("compiled", {"compile": True, "activation_checkpointing": 1}, {"model": LATE})]
    configs = configured(make, 1, table)
    answers = run_ranks(1, parallel_runs.train_all, configs, False, "aot_eager", timeout_s=parallel_runs.LONG_S)
    plain = parallel_runs.plain_run(configs["compiled"])
    assert not parallel_runs.difference(configs["compiled"], answers, "compiled", plain).beyond("fp32")
