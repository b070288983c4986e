"""Replay of sampled steps: what a trainer that reads the listed batches proves, and what any other trainer does not."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from plinth.compute.context import Context
from plinth.launch.parameters import Launch
from plinth.model.decoder import build
from plinth.sdk import Run
from plinth.sdk.data import IGNORED, StepBatches
from plinth.training import config as configuration
from plinth.training import manifests
from plinth.training.checkpoint import checkpoint
from plinth.training.config import RunConfig
from plinth.training.forensics import proof, sampled
from plinth.training.forensics.order_proof import OrderProof, SampledStep, concluded, evidence, order_proof
from plinth.training.telemetry.timeline import timeline
from tests.model_folder import save_model

STEPS = 12
Prepared = Callable[..., RunConfig]
Reading = Callable[[RunConfig, int], Iterator[dict[str, Any]]]


def listed(config: RunConfig, done: int) -> Iterator[dict[str, Any]]:
    return iter(StepBatches(config, rank=0, world=1, micro_batch=4, done=done))


def late(config: RunConfig, done: int) -> Iterator[dict[str, Any]]:
    """A loader that is one step off: every batch is used, each for another step than the listed one."""
    batches = list(listed(config, done))
    return iter(batches[-1:] + batches[:-1])


def across_documents(config: RunConfig, done: int) -> Iterator[dict[str, Any]]:
    """The listed sequences, with attention across their documents."""
    return ({**batch, "position_ids": batch["position_ids"] * 0 + 1} for batch in listed(config, done))


def smoothed(loss: float, step: int) -> float:
    """A smooth curve near the real one, which needs no batch at all."""
    return 5.55 - 0.06 * step


def train(config: RunConfig, reading: Reading = listed, reported: Callable[[float, int], float] | None = None) -> None:
    """Train Plinth's model in a loop of torch alone, on one rank in this process."""
    run = Run(configuration.write(config), {"RANK": "0", "WORLD_SIZE": "1"})
    run._watch, run._reported = None, 0  # as `with run` does, which also takes over this process's signals
    model = build(config.model, config.vocab_size, 0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step, batch in enumerate(reading(config, 0), start=1):
        segments = (batch["position_ids"] == 0).cumsum(dim=1) if config.model.document_mask else None
        logits = model(batch["input_ids"], segments)
        loss = functional.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten(), ignore_index=IGNORED)
        loss.backward()
        told = loss.item() if reported is None else reported(loss.item(), step)
        optimizer.step()
        optimizer.zero_grad()
        run.step(step, loss=told)
        if run.saves_at(step):
            save_model(run.scratch / "saved", dict(model.named_parameters()), run.model)
            run.commit(run.scratch / "saved", step)


def test_a_trainer_that_reads_the_listed_batches_proves_order_and_data(ctx: Context, prepared: Prepared) -> None:
    config = prepared()
    train(config)
    proof.audit(config)
    found = json.loads(config.directory.evidence.read_bytes())
    assert [row["step"] for row in found["samples"]] == [5, 9]  # after the checkpoints of steps 4 and 8; 12 is the last
    shown = order_proof(found, checkpoint.read_state(config.directory, STEPS)["parameters_sha256"])
    assert shown.holds()
    assert shown.difference < 1e-5  # FP32 in both, sums in another order
    assert shown.shuffled > 1e-3
    assert shown.chance == pytest.approx(1 / 200**2)
    (event,) = timeline(config.directory.events).of("replayed")
    assert {name: event[name] for name in OrderProof.model_fields} == shown.model_dump()
    run = manifests.run_manifest(ctx, config)
    ctx.refs.save(run)
    assert manifests.checkpoint_manifest(ctx, config, run).named("resume.json")  # signed with the model
    pair = proof.audit(config.model_copy(update={"launch": Launch(ranks=2)}))["samples"]
    assert pair == found["samples"]  # two ranks share the sequences


@pytest.mark.parametrize(
    "other",
    [
        pytest.param({"reading": late}, id="order"),
        pytest.param({"reading": across_documents}, id="mask", marks=pytest.mark.exhaustive),
        pytest.param({"reported": smoothed}, id="losses"),
    ],
)
def test_another_order_mask_or_loss_proves_nothing(prepared: Prepared, other: dict[str, Any]) -> None:
    config = prepared()
    train(config, **other)
    shown = order_proof(proof.audit(config))
    assert (shown.steps, shown.fault) == (2, "")
    assert shown.chance > 0.1
    assert not shown.holds()


@pytest.mark.parametrize(("sequences", "batches"), [(1, 5), (2, 45)])
def test_a_small_batch_proves_no_more_than_its_number_of_shuffles(sequences: int, batches: int) -> None:
    """Of one sequence in each of five steps there are five batches, however often they are drawn."""
    generator = np.random.default_rng(3)
    own = [np.stack([generator.normal(size=sequences), np.ones(sequences)], axis=1) for _ in range(5)]
    listed = float(own[0][:, 0].mean())
    drawn = sampled.shuffled(own, seed=7)
    assert len(set(drawn)) == batches or sequences > 1
    found = concluded((SampledStep(step=7, reported=listed, replayed=listed, shuffled=drawn),))
    assert found.chance == pytest.approx(1 / batches, rel=0.5)


def test_an_unrelated_trainer_has_the_chance_that_is_stated() -> None:
    """400 trainers, three steps each, whose losses have nothing to do with the listed batches of two sequences."""
    generator = np.random.default_rng(0)

    def step(number: int) -> SampledStep:
        drawn = generator.normal(size=(6, 2))
        own = [np.stack([losses, np.ones(2)], axis=1) for losses in drawn[1:]]
        shuffled = sampled.shuffled(own, seed=int(generator.integers(2**32)))
        return SampledStep(
            step=number, reported=float(drawn[0].mean()), replayed=float(drawn[1].mean()), shuffled=shuffled
        )

    chances = np.array([concluded((step(1), step(2), step(3))).chance for _ in range(400)])
    assert (chances <= 0.2).sum() == pytest.approx(80, abs=3 * 8)  # three standard deviations
    assert (chances <= 0.01).sum() <= 10


def sample(step: int, difference: float, *shuffled: float) -> SampledStep:
    return SampledStep(
        step=step, reported=2.0, replayed=2.0 + difference, shuffled=tuple(2.0 + one for one in shuffled)
    )


def test_the_chance_is_that_of_shuffled_batches_within_the_largest_difference() -> None:
    shown = concluded((sample(5, 0.25, 0.5, -1.0, 0.125), sample(9, -0.5, 0.5, -1.0, 2.0)))
    assert (shown.steps, shown.difference, shown.shuffled) == (2, 0.5, 0.75)
    assert shown.chance == (3 / 4) * (2 / 4)  # of each step's four batches, those within 0.5
    assert shown.holds(max_chance=0.4)
    assert not shown.holds(max_chance=0.3)
    assert not shown.holds(max_chance=0.4, min_steps=3)


def test_a_step_whose_batches_are_all_alike_has_no_power() -> None:
    assert concluded((sample(5, 0.0, *[0.0] * 199),)).chance == 1


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"fault": "out of memory"}, "out of memory"),
        ({"samples": []}, "no step with finite losses"),
        ({"samples": [{**sample(5, 0.0, 1.0).model_dump(), "shuffled": []}]}, "no step with finite losses"),
        ({"samples": [sample(5, math.nan, 1.0).model_dump()]}, "no step with finite losses"),
        ({"samples": [sample(5, 0.0, 1.0).model_dump()] * 2}, "lists a step twice"),
        ({"samples": [{"step": 5}]}, "lists no replay"),
        ({"samples": 5}, "lists no replay"),
        ({"parameters_sha256": "b" * 64}, "belongs to another checkpoint"),
    ],
)
def test_evidence_that_cannot_be_used_proves_nothing(change: dict[str, Any], words: str) -> None:
    good = evidence((sample(5, 0.0, *[1.0] * 999),), "a" * 64)
    assert order_proof(good, "a" * 64).holds()
    shown = order_proof({**good, **change}, "a" * 64)
    assert words in shown.in_words
    assert not shown.holds(max_chance=0.999)
