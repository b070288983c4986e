"""Compare a proposal with new runs of it and its prior: holds, not confirmed, refuted, by intervals; and its signer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import yaml

from plinth.compute import context
from plinth.compute.context import Context
from plinth.errors import RecipeError, StageError
from plinth.records import Manifest, Step
from plinth.storage.parts import write_table
from plinth.storage.workspace import Workspace
from plinth_jobs.recipes import FOLDER
from plinth_lab.experiments import answer, arms, measure
from plinth_lab.experiments.arms import Arm, Experiment
from plinth_lab.mixture import HOLDS, NOT_CONFIRMED, PROPOSED, REFUTED, ConfirmationOutcome, proposals
from plinth_lab.mixture.proposals import MixtureProposal

STREAMS = ("web", "prose", "code")
SWARM = {
    "name": "planted",
    "question": "Which mixture?",
    "recipe": "tiny",
    "test": {"prose": {"path": "test/prose.jsonl"}},
    "common": {"mixture": {"total_tokens": 10240}},
    "swarm": {"prior": dict.fromkeys(STREAMS, 1), "count": 8},
    "seeds": [1],
}
DOCUMENTS = 30
#: Bits per byte that a run reaches at its shares.
Law = Callable[[dict[str, float]], float]
#: Standard deviation of training noise of a run, in bits per byte.
NOISE = 0.005


def planted(shares: dict[str, float]) -> float:
    """Prose is worth most, and the other two nothing."""
    return 2.5 - 0.3 * shares["prose"]


def run(ctx: Context, arm: Arm, law: Law, noise: float = NOISE) -> Manifest:
    """A run that finished, with the mixture that its recipe asks for and the loss of the law."""
    weights = dict(arm.recipe.required_mixture().phases[0].weights or {})
    counts = {name: round(10_000 * weights.get(name, 0)) for name in STREAMS}
    streams = {name: {"max_epochs": 4, "sequences": 1000} for name in STREAMS}
    stats = {"tokens": 10240, "sequence_tokens": 256, "buckets": streams, "phases": [{"counts": counts}]}
    mixture = context.manifest("mixture", Step(name="m", version="1"), {}, [], stats)
    trained = context.manifest("run", Step(name="r", version="1"), {"mixture": mixture}, [], {"run_id": "elsewhere"})
    whole = sum(counts.values())
    picks = np.random.default_rng([arm.seed, *counts.values()])
    level = law({name: count / whole for name, count in counts.items()}) + noise * picks.normal()
    bits = level + np.random.default_rng(7).normal(0, 0.1, DOCUMENTS) + picks.normal(0, 0.002, DOCUMENTS)
    rows = {
        "document": [f"{at:032x}" for at in range(DOCUMENTS)], "slice": ["prose"] * DOCUMENTS,
        "item": [str(at) for at in range(DOCUMENTS)], "bytes": [100] * DOCUMENTS, "bits": (100 * bits).tolist(),
    }  # fmt: skip
    part = write_table(ctx.store, measure.SCORES, pa.table(rows, schema=measure.COLUMNS))
    made = measure.kept(
        arm, "finished", "", {"run": trained}, [part], tokens=arm.tokens, curve=[], unsure=[], noise=None
    )
    for one in (mixture, trained, made):
        ctx.refs.save(one)
    return made


Swarm = tuple[Path, Experiment, tuple[Arm, ...], Manifest, MixtureProposal]


@pytest.fixture(scope="module")
def ctx(tmp_path_factory: pytest.TempPathFactory) -> Context:
    return Context(Workspace(tmp_path_factory.mktemp("confirm") / "workspace").ensure())


@pytest.fixture(scope="module")
def swarm(ctx: Context) -> Swarm:
    """A swarm whose runs propose prose; its surrogate takes seconds."""
    path = ctx.workspace.root.parent / "planted.yaml"
    path.write_text(yaml.safe_dump(SWARM))
    experiment, runs = arms.load(path, FOLDER)
    made = answer.of(ctx, experiment, runs, [run(ctx, one, planted) for one in runs])
    ctx.refs.publish(made, "swarm")
    proposal = proposals.required("planted", MixtureProposal.model_validate(made.stats["proposal"]))
    assert max(proposal.shares, key=proposal.shares.__getitem__) == "prose"
    return path, experiment, runs, made, proposal


def asked(swarm: Swarm, **changed: object) -> tuple[Experiment, tuple[Arm, ...]]:
    """Return the confirmation as written, or with changes that a user may make to its file."""
    path, experiment, _, made, proposal = swarm
    data = yaml.safe_load(proposals.confirmation(experiment, path, proposal, made.digest))
    file = path.parent / "confirm.yaml"
    file.write_text(yaml.safe_dump({**data, **changed}))
    return arms.load(file, FOLDER)


def confirmed(
    ctx: Context, of: tuple[Experiment, tuple[Arm, ...]], law: Law, noise: float = NOISE
) -> ConfirmationOutcome:
    made = answer.of(ctx, *of, [run(ctx, one, law, noise) for one in of[1]])
    ctx.refs.publish(made, "confirmation")
    return ConfirmationOutcome.model_validate(made.stats["confirmation"])


def test_a_planted_gain_holds_and_both_pages_say_so(ctx: Context, swarm: Swarm) -> None:
    path, experiment, runs, made, proposal = swarm
    own = asked(swarm)
    assert [(one.arm, one.seed) for one in own[1][:2]] == [("prior", 2), (PROPOSED, 2)]
    assert {one.tokens for one in own[1]} == {10240}
    found = confirmed(ctx, own, planted)
    truth = planted(proposal.prior) - planted(proposal.shares)
    assert (found.status, found.seeds, found.documents) == (HOLDS, (2, 3, 4), DOCUMENTS)
    assert found.gain is not None
    assert found.low is not None
    assert 0 < found.low < found.gain == pytest.approx(truth, abs=0.02)
    assert found.trained == pytest.approx(proposal.shares, abs=1e-4)
    assert f"predicted {proposal.gain:+.3g}" in found.reason
    page = answer.page(ctx, *own, ctx.refs.current("experiment/planted-confirm/effects"))
    assert 'Proposal: <span class="better">holds</span>' in page
    assert 'Proposal: <span class="better">holds</span>' in answer.page(ctx, experiment, runs, made)
    assert "# Proposed by experiment planted: confirmed by new runs: the proposal gained +" in proposals.recipe(
        experiment, path, proposal, answer.confirmation_of(ctx, experiment, made)
    )


def test_a_gain_that_new_runs_do_not_show_is_marked_and_not_written(ctx: Context, swarm: Swarm) -> None:
    path, experiment, runs, made, proposal = swarm
    found = confirmed(ctx, asked(swarm), lambda _: 2.5)
    assert found.status == NOT_CONFIRMED
    assert found.reason.startswith("the interval of the proposal's gain includes 0 (minimum detectable effect ")
    assert "minimum detectable effect" in found.reason
    page = answer.page(ctx, experiment, runs, made)
    assert 'confirmation runs: <span class="">not confirmed</span>' in page
    outcome = answer.confirmation_of(ctx, experiment, made)
    with pytest.raises(StageError, match="the proposal of planted is not confirmed"):
        proposals.recipe(experiment, path, proposal, outcome)


def test_a_proposal_that_is_worse_is_refuted(ctx: Context, swarm: Swarm) -> None:
    found = confirmed(ctx, asked(swarm), lambda shares: 5 - planted(shares))
    assert found.status == REFUTED
    assert found.high is not None
    assert found.high < 0
    assert found.reason.startswith("the prior is better: the proposal gained -")


def test_one_seed_and_a_failed_run_confirm_nothing(ctx: Context, swarm: Swarm) -> None:
    assert "training noise cannot be estimated from one seed" in confirmed(ctx, asked(swarm, seeds=[9]), planted).reason
    own = asked(swarm)
    runs = [run(ctx, one, planted) for one in own[1]]
    runs[-1] = measure.kept(own[1][-1], "failed", "diverged at step 3", {}, [])
    found = answer.of(ctx, *own, runs).stats["confirmation"]
    assert found["status"] == NOT_CONFIRMED
    lost = "some runs have no scores (proposed, seed 4: failed: diverged at step 3)"
    assert found["reason"].startswith(f"{lost}: the proposal gained +")
    none = [measure.kept(one, "failed", "no disk", {}, []) for one in own[1]]
    found = answer.of(ctx, *own, none).stats["confirmation"]
    assert (found["status"], found["gain"], found["trained"]) == (NOT_CONFIRMED, None, {})


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"seeds": [1, 2, 3]}, "for the proposal; expected other seeds"),
        ({"arms": {"prior": {}, "proposed": {}}}, "`confirms` already defines the arms"),
    ],
)
def test_a_file_that_would_confirm_by_itself_is_refused(swarm: Swarm, changed: dict[str, object], said: str) -> None:
    with pytest.raises(RecipeError, match=said):
        asked(swarm, **changed)


@pytest.mark.parametrize(
    ("key", "given"),
    [
        ("shares", {"web": 0.1, "prose": 0.9, "code": 0.0}),
        ("prior", {"web": 1.0, "prose": 0.0, "code": 0.0}),
        ("answer", "0" * 64),
        ("seeds", [8]),
    ],
)
def test_runs_of_another_question_confirm_nothing(ctx: Context, swarm: Swarm, key: str, given: object) -> None:
    path, experiment, runs, made, proposal = swarm
    data = yaml.safe_load(proposals.confirmation(experiment, path, proposal, made.digest))
    other = asked(swarm, confirms=data["confirms"] | {key: given}, seeds=[2, 3, 4])
    assert confirmed(ctx, other, planted).status == HOLDS
    assert answer.confirmation_of(ctx, experiment, made) is None
    if key == "answer":
        assert "No run has confirmed the prediction yet." in answer.page(ctx, experiment, runs, made)


def test_the_name_of_a_confirmation_is_never_that_of_its_swarm() -> None:
    for name in ("words", "a" * 24, "mixtures-of-one-day-2026"):
        assert proposals.name_of(name) != name
        assert len(proposals.name_of(name)) <= 24
        assert proposals.name_of(name).endswith("-confirm")


def test_noise_alone_is_confirmed_in_few_experiments(ctx: Context, swarm: Swarm) -> None:
    """Nothing is gained: 95% two-sided intervals find a gain in 2.5% of experiments, here in at most 2 of 20."""
    held, (experiment, runs) = 0, asked(swarm)
    for at in range(100, 160, 3):
        own = experiment.model_copy(update={"seeds": (at, at + 1, at + 2)})
        seeded = tuple(replace(one, seed=at + one.seed - 2) for one in runs)
        held += confirmed(ctx, (own, seeded), lambda _: 2.5, noise=0.02).status == HOLDS
    assert held <= 2
