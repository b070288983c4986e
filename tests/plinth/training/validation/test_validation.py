"""Held-out slices while a run trains: the final evaluation's numbers on any ranks, and no trace in what is learned."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import heldout_text
import numpy as np
import pytest

from plinth.compute.context import Context
from plinth.errors import RecipeError, StageError, TrainingError
from plinth.evaluation.engine.checkpoint import Checkpoint
from plinth.evaluation.slices.choice import choose_documents
from plinth.launch.parameters import Launch
from plinth.model.decoder import build
from plinth.records import Manifest
from plinth.storage.workspace import Workspace
from plinth.tokens.tokenizer import encode
from plinth.training import stopping
from plinth.training.checkpoint import checkpoint, snapshot
from plinth.training.config import RunConfig, identity, run_key
from plinth.training.parameters.guard import Plateau, Stopping
from plinth.training.parameters.parallel import Parallel
from plinth.training.parameters.run import Checkpoints, Training, Validation
from plinth.training.telemetry.timeline import read_events, timeline
from plinth.training.validation import heldout
from plinth.training.validation.validation import ValidationResult, Validator
from tests.ranks import run_ranks

Make = Callable[..., RunConfig]
LOOK = Validation(bytes_per_slice=400)


@pytest.fixture
def ctx(tmp_path: Path) -> Context:
    return Context(Workspace(tmp_path).ensure())


@pytest.fixture
def run(ctx: Context, make: Make) -> Make:
    """A tiny run with held-out text."""
    curated, trained = heldout_text.corpus(ctx)
    made = heldout.prepare(ctx, LOOK, curated, trained)

    def configured(**changes: object) -> RunConfig:
        fields = {"validation": LOOK, "heldout": made.digest, "vocab_size": 320, **changes}
        return make(**fields)

    return configured


def expected(ctx: Context, config: RunConfig, curated: dict[str, Manifest], trained: Manifest) -> dict[str, float]:
    """Bits per byte of the run's initial weights, by `plinth.evaluation`."""
    (file,) = trained.named("tokenizer.json")
    model = build(config.model, config.vocab_size, config.seed).eval()
    end, tokenizer = config.end_of_text, encode.load(ctx.store, file.blob)
    whole = Checkpoint(model, tokenizer, end, (end,), config.sequence_tokens)
    found = {}
    for name in curated:
        chosen = choose_documents(ctx.store, {name: curated[name]}, LOOK.bytes_per_slice)
        bits = whole.documents([each.text for each in chosen]).bits
        found[name] = float(bits.sum() / sum(len(each.data) for each in chosen))
    return found


KINDS = {
    "pipeline": Parallel(pipeline=2),
    "ZeRO-1": Parallel(zero_stage=1),
    "ZeRO-3": Parallel(zero_stage=3),
    "tensor": Parallel(tensor=2),
    "sequence": Parallel(sequence=2),
}


@pytest.mark.slow
@pytest.mark.parametrize("kinds", [["ZeRO-1"], pytest.param(list(KINDS), marks=pytest.mark.exhaustive)])
def test_numbers_of_the_final_evaluation_on_any_ranks_and_no_trace_in_the_run(
    ctx: Context, run: Make, kinds: list[str]
) -> None:
    two = {name: run(parallel=KINDS[name]) for name in kinds}
    one = {"alone": run(launch=Launch(ranks=1))}
    ranks = run_ranks(2, heldout_text.look_all, two)
    answers = {**ranks[0], **run_ranks(1, heldout_text.look_all, one)[0]}
    wanted = expected(ctx, one["alone"], *heldout_text.corpus(ctx))
    assert set(wanted) == {"code", "web"}
    for name, answer in answers.items():
        before, _, after = answer["found"]
        assert before == pytest.approx(wanted, rel=1e-5), name
        assert answer["with"] == answer["without"], name
        assert after == pytest.approx(answers["alone"]["found"][2], rel=1e-5), name
        assert abs(after["web"] - before["web"]) > 1e-3, name
    for name, answer in ranks[0].items():
        assert answer["found"] == ranks[1][name]["found"], name


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_run_that_looks_is_the_run_that_does_not(run: Make, tmp_path: Path) -> None:
    every_two = LOOK.model_copy(update={"every_steps": 2})
    fields = {"launch": Launch(ranks=1), "total_steps": 5}
    saves = Checkpoints(every_steps=2, audit_steps=1, keep_last=1, keep_best=1)
    looks = run(validation=every_two, checkpoints=saves, **fields)
    blind = run(validation=None, heldout="", checkpoints=saves, run_id="blind-000000000000", **fields)
    run_ranks(1, heldout_text.train, looks, blind)

    story = timeline(looks.directory.events)
    told = story.of("evaluated")
    assert [event["step"] for event in told] == [2, 4, 5]
    assert [event["tokens"] for event in told] == [looks.tokens_through(step) for step in (2, 4, 5)]
    for event in told:
        assert set(event["slices"]) == {"code", "web"}
        assert all(1 < value < 9 for value in event["slices"].values())
        assert (event["probes"], event["seconds"] > 0) == ({}, True)
        assert event["seconds"] < 60
    assert timeline(blind.directory.events).of("evaluated") == []
    ends = [snapshot.recorded_digests(config.directory, 5) for config in (looks, blind)]
    assert ends[0] == ends[1]
    losses = [[e["loss"] for e in timeline(c.directory.events).steps.values()] for c in (looks, blind)]
    assert losses[0] == losses[1]

    state = checkpoint.read_state(looks.directory, 5)
    assert state["monitor"]["slices"] == pytest.approx(told[-1]["slices"], abs=1e-6)
    gatherer = stopping.Gatherer()
    for event in read_events(looks.directory.events):
        gatherer.add(event)
    points = gatherer.signals.slices["web"]
    assert [point.value for point in points] == [event["slices"]["web"] for event in told]
    spent = sum(e["step_s"] for e in story.steps.values()) + sum(e["seconds"] for e in told)
    assert gatherer.signals.seconds >= spent


def test_what_is_tokenised_is_what_the_evaluation_chooses(ctx: Context) -> None:
    curated, trained = heldout_text.corpus(ctx)
    made = heldout.prepare(ctx, LOOK, curated, trained)
    assert heldout.prepare(ctx, LOOK, curated, trained) == made
    (file,) = trained.named("tokenizer.json")
    model = encode.load(ctx.store, file.blob)
    for one in heldout.load(ctx.store, ctx.refs.load(made.digest)):
        chosen = choose_documents(ctx.store, {one.name: curated[one.name]}, LOOK.bytes_per_slice)
        assert [model.decode(stream[1:].tolist()) for stream in one.streams] == [each.text for each in chosen]
        assert {int(stream[0]) for stream in one.streams} == {trained.stats["end_of_text"]}
        assert one.bytes == sum(len(each.data) for each in chosen) == made.stats["slices"][one.name]["bytes"]
    assert made.stats["slices"]["web"]["bytes"] == LOOK.bytes_per_slice  # the last document is cut
    more = heldout.prepare(ctx, Validation(bytes_per_slice=10**6, slices=("web",)), curated, trained)
    assert list(more.stats["slices"]) == ["web"]
    assert more.stats["slices"]["web"]["documents"] == len(heldout_text.HELD_OUT["web"])


def test_a_bucket_without_held_out_text_is_left_out_unless_it_is_named(ctx: Context) -> None:
    curated, trained = heldout_text.corpus(ctx, {**heldout_text.HELD_OUT, "new": []})
    made = heldout.prepare(ctx, LOOK, curated, trained)
    assert (list(made.stats["slices"]), made.stats["without_text"]) == (["code", "web"], ["new"])
    with pytest.raises(StageError, match="bucket new has no held-out text"):
        heldout.prepare(ctx, LOOK.model_copy(update={"slices": ("new",)}), curated, trained)
    with pytest.raises(StageError, match="no bucket has held-out text"):
        heldout.prepare(ctx, LOOK, {"new": curated["new"]}, trained)
    with pytest.raises(RecipeError, match="buckets that do not exist") as caught:
        heldout.prepare(ctx, LOOK.model_copy(update={"slices": ("wbe",)}), curated, trained)
    assert caught.value.found == "wbe"


def test_every_held_out_token_is_scored_once_whatever_the_micro_batch(run: Make) -> None:
    for rows, sequence in ((1, 32), (2, 32), (3, 8), (4, 7)):
        validator = Validator(run(micro_batch_sequences=rows, sequence_tokens=sequence))
        wanted = sorted(token for one in validator.slices for stream in one.streams for token in stream[1:].tolist())
        seen: list[int] = []
        for index in range(len(validator._micros)):
            tokens, scored = validator._arrays(index)
            assert tokens.shape == (rows, scored.shape[1] + 1)
            assert scored.shape[1] <= sequence
            seen += tokens[:, 1:][scored].tolist()
        assert sorted(seen) == wanted
        _, nothing = validator._arrays(None)
        assert not np.any(nothing)


def test_when_to_look(run: Make) -> None:
    saves = Checkpoints(every_steps=5, audit_steps=3)
    asked = {0: [5, 9, 10, 12], 4: [4, 8, 12], 7: [7, 12]}
    for every, steps in asked.items():
        config = run(validation=LOOK.model_copy(update={"every_steps": every}), checkpoints=saves)
        validator = Validator(config)
        assert [step for step in range(1, 13) if validator.due(step)] == steps
    blind = Validator(run(validation=None))
    assert not any(blind.due(step) for step in range(1, 13))
    assert blind.state(5) == {}


def test_looking_is_no_part_of_the_identity(run: Make) -> None:
    assert identity(run()) == identity(run(validation=None, heldout=""))
    assert run_key(Training(validation=LOOK), "m", "t") == run_key(Training(), "m", "t")
    with pytest.raises(TrainingError, match="has validation but no held-out text"):
        Validator(run(heldout=""))


def test_a_plateau_waits_for_slices_that_validation_measures() -> None:
    rule = Stopping(plateau=Plateau(window_tokens=1000, slices=("web",)))
    for validation in (None, Validation(slices=("code",))):
        with pytest.raises(ValueError, match=r"needs web, which training\.validation does not evaluate"):
            Training(stopping=rule, validation=validation)
    Training(stopping=rule, validation=Validation())


def test_a_model_that_has_diverged_is_named() -> None:
    event = ValidationResult({"web": float("nan"), "code": 1.25}, 0.5).event()
    assert event == {"slices": {"code": 1.25}, "probes": {}, "seconds": 0.5, "not_finite": ["web"]}
