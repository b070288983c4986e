"""Load, entropy and buckets of experts over ranks against counts by hand; biases; the guard's rule."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from plinth.launch.parameters import Launch
from plinth.model.experts import LayerRouting, Router, measured
from plinth.model.parameters import Model
from plinth.model.sparsity import Experts
from plinth.tokens.reading.compact_batch import CompactBatch
from plinth.tokens.reading.loader import RankBatch
from plinth.training.config import RunConfig
from plinth.training.data import StepBatch
from plinth.training.engine.expert_balance import ExpertStatistics
from plinth.training.guard.rules import TrainedStep, judge_experts
from plinth.training.guard.state_machine import Guard
from plinth.training.parameters.guard import GuardParameters, IdleExperts
from plinth.training.parameters.parallel import Parallel
from tests.ranks import run_ranks

EXPERTS = Experts(count=4, active=2, ffn_dim=16, shared=1, score="sigmoid", balancing="loss_free", bias_rate=0.5)
MODEL = Model(layers=3, dim=32, heads=4, kv_heads=2, ffn_dim=64, experts=EXPERTS.model_copy(update={"dense_first": 1}))

NAMES = ("web", "code", "unused")
TOKENS, ROWS = 32, 2


def batch_of(rank: int) -> StepBatch:
    """Two micro batches of two sequences each; the first sequence is `web`, the second `code`."""
    random = np.random.default_rng(rank)
    micro = []
    for _ in range(2):
        rows = CompactBatch.of(random.integers(0, 64, (ROWS, TOKENS + 1)).astype(np.int32), None, None)
        micro.append(RankBatch(*rows.part(0, ROWS), 0, np.array([0, 1], np.int16), ROWS * TOKENS))
    return StepBatch(tuple(micro), TOKENS, streams=NAMES)


def trained(config: RunConfig) -> dict[str, Any]:
    """On one rank: a step that is measured and one that is not; own counts of the first, and the event."""
    from plinth.training.engine import engine as engines
    from plinth.training.engine.pipeline import open_engine

    rank = engines.join(config)
    engine = open_engine(config, rank)
    assert engine.balance is not None
    counts: dict[str, list[Any]] = {}
    for name, part in engine.module.named_modules():
        if name.endswith("mlp.gate"):
            hook = lambda m, i, routes, name=name: counts.setdefault(name, []).append(routes)  # noqa: E731
            part.register_forward_hook(hook)
    events = []
    for step in (2, 3):
        engine.stats.begin(step)
        engine.balance.begin(step, NAMES)
        engine.train_step(batch_of(rank.index), 1e-3)
        events.append(engine.balance.at(step))
    found = {name: [_by_row(routes) for routes in some[:2]] for name, some in counts.items()}
    entropy = {name: np.mean([_entropy(routes) for routes in some[:2]]) for name, some in counts.items()}
    biases = {name: value.tolist() for name, value in engine.module.named_buffers()}
    engines.leave()
    return {"counts": found, "entropy": entropy, "events": events, "biases": biases}


def _by_row(routes: Any) -> Any:
    rows, kinds = torch.zeros(ROWS, 4, dtype=torch.int64), torch.arange(4).repeat_interleave(routes.load)
    for assignment, expert in zip(routes.order.tolist(), kinds.tolist(), strict=True):
        rows[assignment // (TOKENS * 2), expert] += 1
    return rows.numpy()


def _entropy(routes: Any) -> float:
    p = routes.scores.double() / routes.scores.double().sum(-1, keepdim=True)
    return float(-(p * p.log()).sum(-1).mean())


@pytest.mark.parametrize(
    "block",
    [
        pytest.param({"expert": 2}, id="experts"),
        pytest.param({}, id="data", marks=pytest.mark.exhaustive),
        pytest.param({"pipeline": 2}, id="pipeline", marks=pytest.mark.exhaustive),
    ],
)
def test_measured_over_all_ranks(make: Callable[..., RunConfig], block: dict[str, int]) -> None:
    parallel = Parallel(**block)
    config = make(
        model=MODEL,
        parallel=parallel,
        launch=Launch(ranks=2),
        micro_batch_sequences=ROWS,
        global_batch_sequences=2 * ROWS * parallel.data_ranks(2),
        telemetry={"layers_every": 2},
    )
    answers = run_ranks(2, trained, config)
    found, unmeasured = answers[0]["events"]
    assert isinstance(found, ExpertStatistics)
    assert unmeasured is None
    assert found.layers == (1, 2)
    for row, layer in enumerate(found.layers):
        name = f"layers.{layer}.mlp.gate"
        micro = [rows for answer in answers for rows in answer["counts"].get(name, [])]
        assert len(micro) == (2 if block.get("pipeline") else 4)
        total = np.sum(micro, axis=(0, 1))
        assert total.sum() == len(micro) * ROWS * TOKENS * 2
        assert np.allclose(found.load[row], total / total.mean())
        for place, bucket in enumerate(("web", "code")):
            own = np.sum([rows[place] for rows in micro], axis=0)
            assert np.allclose(found.buckets[bucket][row], own / own.sum())
        entropies = [answer["entropy"][name] for answer in answers if name in answer["entropy"]]
        assert found.entropy[row] == pytest.approx(np.mean(entropies), abs=1e-5)
        every = [answer["biases"].get(f"{name}.e_score_correction_bias") for answer in answers]
        biases = [bias for bias in every if bias is not None]  # a stage has those of its own layers
        assert all(bias == biases[-1] for bias in biases)
        assert set(np.abs(biases[-1])) <= {0.0, 0.5, 1.0}  # two steps
    assert "unused" not in found.buckets
    event = found.event()
    assert event["most"] == pytest.approx(found.load.max(), abs=1e-4)
    assert event["buckets"]["web"].keys() == {"1", "2"}


def test_a_bias_moves_against_the_load(make: Callable[..., RunConfig]) -> None:
    config = make(model=MODEL, launch=Launch(ranks=1), micro_batch_sequences=ROWS, global_batch_sequences=2 * ROWS)
    answer = run_ranks(1, first_step, config)[0]
    for load, bias in answer["moved"]:
        assert bias == [0.5 * np.sign(np.mean(load) - one) for one in load]
    assert answer["kept"]  # an update that was skipped moves nothing


def first_step(config: RunConfig) -> dict[str, Any]:
    from plinth.training.engine import engine as engines
    from plinth.training.engine.pipeline import open_engine

    rank = engines.join(config)
    engine = open_engine(config, rank)
    loads = dict[str, Any]()
    for name, part in engine.module.named_modules():
        if name.endswith("mlp.gate"):
            add = lambda m, i, routes, name=name: loads.update({name: loads.get(name, 0) + routes.load})  # noqa: E731
            part.register_forward_hook(add)
    engine.train_step(batch_of(0), 1e-3)
    moved = [
        (load.tolist(), dict(engine.module.named_buffers())[f"{name}.e_score_correction_bias"].tolist())
        for name, load in loads.items()
    ]
    before = [one.clone() for one in engine.module.buffers()]
    assert engine.balance is not None
    engine.balance._loads += torch.tensor([1, 2, 3, 4])
    engine.balance.update(torch.tensor(1.0))
    kept = all(torch.equal(one, other) for one, other in zip(before, engine.module.buffers(), strict=True))
    engines.leave()
    return {"moved": moved, "kept": kept}


def test_after_a_rollback_a_step_has_its_new_measurement(make: Callable[..., RunConfig]) -> None:
    config = make(
        model=MODEL.model_copy(update={"experts": EXPERTS.model_copy(update={"bias_rate": 0.0})}),
        launch=Launch(ranks=1), micro_batch_sequences=ROWS, global_batch_sequences=2 * ROWS,
        telemetry={"layers_every": 2},
    )  # fmt: skip
    before, again, layers = run_ranks(1, undone, config)[0]
    assert before != again
    assert layers


def undone(config: RunConfig) -> tuple[Any, Any, bool]:
    """Loads of step 2 with one batch, and with another after steps 2 and 4 were undone before they were read; True if
    the layers of the latter are measured anew, too."""
    from plinth.training.engine import engine as engines
    from plinth.training.engine.pipeline import open_engine

    rank = engines.join(config)
    engine = open_engine(config, rank)
    assert engine.balance is not None

    def launch(step: int, seed: int) -> None:
        engine.stats.begin(step)
        engine.balance.begin(step, NAMES)
        engine.train_step(batch_of(seed), 0.0)

    launch(2, 0)
    first, layers = engine.balance.at(2), engine.stats.at(2)
    for step, seed in ((2, 0), (4, 0), (2, 1)):
        launch(step, seed)
    second, others = engine.balance.at(2), engine.stats.at(2)
    assert first is not None
    assert second is not None
    assert layers is not None
    assert others is not None
    changed = layers.event() != others.event()
    engines.leave()
    return first.load.tolist(), second.load.tolist(), changed


def test_an_event_of_a_diverged_router_is_json() -> None:
    """Load is finite even then. The timeline refuses NaN, and the guard decides what happens."""
    router = Router(8, EXPERTS)
    router.weight.data.fill_(math.nan)
    routes = router(torch.ones(6, 8))
    assert routes.load.sum() == 12
    measures = measured(LayerRouting(routes.load, torch.zeros(())), routes, 2)
    assert measures.entropy is not None
    entropy = np.array([float(measures.entropy), 0.5])
    found = ExpertStatistics(10, (0, 1), np.ones((2, 4)), entropy, {}, listed=True).event()
    assert json.loads(json.dumps(found, allow_nan=False))["by_layer"]["entropy"] == [None, 0.5]
    assert found["entropy"] is None


def seen(step: int, idle: dict[str, float] | None) -> TrainedStep:
    return TrainedStep(step=step, loss=2.0, grad_norm=1.0, idle_experts=idle)


def test_the_guard_warns_of_idle_experts_once() -> None:
    assert judge_experts(IdleExperts(), {"1": 0.05, "3": 0.1}) is None
    guard, made = Guard(GuardParameters()), []
    for step in range(1, 200):  # measured every tenth step
        made += guard.record(seen(step, {"1": 0.05, "3": 0.25} if step % 10 == 0 else None))
    (warning,) = made
    assert (warning.rule, warning.action, warning.layer, warning.step) == ("idle_experts", "warn", "3", 50)
    assert (warning.value, warning.threshold) == (0.25, 0.1)


def test_the_rule_is_in_no_dump_unless_it_is_set() -> None:
    assert "idle_experts" not in GuardParameters().model_dump()
    stops = GuardParameters.model_validate({"idle_experts": {"action": "stop", "share": 0.5}})
    assert GuardParameters.model_validate_json(stops.model_dump_json()) == stops
