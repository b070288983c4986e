"""Probes while a run trains: the offline score bit for bit, the same on any ranks, and no trace in what is learned."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import heldout_text
import probed
import pytest

from plinth.compute.context import Context
from plinth.evaluation.engine.client import ModelEngine
from plinth.evaluation.engine.records import Request
from plinth.evaluation.probes import scoring
from plinth.evaluation.probes.noise import LAST
from plinth.launch.parameters import Launch
from plinth.model.parameters import Model
from plinth.storage.state import checkout
from plinth.storage.workspace import Workspace
from plinth.training.checkpoint import checkpoint, snapshot
from plinth.training.config import RunConfig, identity, run_key
from plinth.training.parameters.guard import Regression, Stopping
from plinth.training.parameters.parallel import Parallel
from plinth.training.parameters.run import Checkpoints, Training, Validation
from plinth.training.telemetry.timeline import timeline
from plinth.training.validation import heldout, probe_curves
from plinth.training.validation.probe_curves import LOOKS, curves
from plinth.training.validation.validation import ProbeResult, ValidationResult, Validator
from tests.ranks import RankFailed, run_ranks

Make = Callable[..., RunConfig]
LOOK = Validation(bytes_per_slice=400, every_steps=1)

#: Rounding tolerance of divided kernels, relative to the bits of an answer.
ROUNDING = 1e-5


@pytest.fixture
def ctx(tmp_path: Path) -> Context:
    return Context(Workspace(tmp_path).ensure())


@pytest.fixture
def run(ctx: Context, make: Make) -> Make:
    """A tiny run with held-out text and probes."""
    curated, trained = heldout_text.corpus(ctx)
    made, probes = heldout.prepare(ctx, LOOK, curated, trained), probed.prepared(ctx)

    def configured(**changes: object) -> RunConfig:
        fields = {"validation": LOOK, "heldout": made.digest, "probes": probes.digest, "vocab_size": 320, **changes}
        return make(**fields)

    return configured


def same(found: list[Any], wanted: list[Any], rounding: float) -> bool:
    """Return True if scores of items are equal, to the bit where no rounding is allowed."""
    pairs = [(a, b) for one, other in zip(found, wanted, strict=True) for a, b in zip(one, other, strict=True)]
    return all(
        (math.isnan(a) and math.isnan(b)) or math.isclose(a, b, rel_tol=rounding, abs_tol=rounding) for a, b in pairs
    )


@pytest.mark.exhaustive
@pytest.mark.slow
def test_the_same_scores_on_any_ranks_and_no_trace_in_the_run(run: Make) -> None:
    untied = Model(layers=2, dim=32, heads=4, kv_heads=2, ffn_dim=64, tied_embeddings=False)
    kinds = {
        "ZeRO-1": ({"zero_stage": 1}, 0.0),
        "ZeRO-3": ({"zero_stage": 3}, 0.0),
        "pipeline": ({"pipeline": 2}, 0.0),
        "tensor": ({"tensor": 2}, ROUNDING),
        "sequence": ({"sequence": 2}, ROUNDING),
    }
    two = {name: run(parallel=Parallel(**division)) for name, (division, _) in kinds.items()}
    ranks = run_ranks(2, probed.look_all, two | {"untied": run(parallel=Parallel(pipeline=2), model=untied)})
    alone = run_ranks(1, probed.look_all, {"tied": run(launch=Launch(ranks=1))})[0]["tied"]
    assert alone["with"] == alone["without"]
    assert len(alone["found"][0]) == len(probed.fitting())
    for name, (_, rounding) in kinds.items():
        answer = ranks[0][name]
        assert answer["with"] == answer["without"], name
        assert str(answer["found"]) == str(ranks[1][name]["found"]), name
        assert same(answer["found"][0], alone["found"][0], rounding), name
        assert same(answer["found"][2], alone["found"][2], 1e-3), name  # gradients are added in another order
        assert not same(answer["found"][2], answer["found"][0], 1e-3), name
    assert ranks[0]["untied"]["with"] == ranks[0]["untied"]["without"]


@pytest.fixture
def offline(ctx: Context, tmp_path: Path) -> Callable[[RunConfig, int], dict[str, scoring.ProbeScore]]:
    """Probes of a committed checkpoint, by the child process that scores checkpoints."""

    def score(config: RunConfig, step: int) -> dict[str, scoring.ProbeScore]:
        folder = tmp_path / f"offline-{config.run_id}-{step}"
        shutil.copytree(checkpoint.verify(config.directory, step) / "model", folder)
        (file,) = heldout_text.corpus(ctx)[1].named("tokenizer.json")
        checkout(ctx.store, [file], folder)
        items = probed.fitting()
        with ModelEngine.of_folder(ctx, folder) as engine:
            found = engine.likelihoods([Request(*pair) for pair in scoring.requests(items)])
        return scoring.by_probe(items, scoring.scored(items, found.bits.tolist()))

    return score


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_run_is_scored_as_its_checkpoints_are_and_a_kill_changes_nothing(
    run: Make, offline: Callable[[RunConfig, int], dict[str, scoring.ProbeScore]]
) -> None:
    saves = Checkpoints(every_steps=3, audit_steps=1, keep_last=9)
    fields = {"launch": Launch(ranks=1), "total_steps": 6, "checkpoints": saves, "batches": "probed:dying"}
    looks, blind, dies = (
        run(run_id=f"{name}-000000000000", **fields, **changes)
        for name, changes in (("looks", {}), ("blind", {"validation": None, "probes": "", "heldout": ""}), ("dies", {}))
    )
    run_ranks(1, heldout_text.train, looks, blind)
    with pytest.raises(RankFailed, match="ended without an answer"):
        run_ranks(1, heldout_text.train, dies)
    run_ranks(1, heldout_text.train, dies)

    ends = [snapshot.recorded_digests(config.directory, 6) for config in (looks, blind, dies)]
    assert ends[0] == ends[1] == ends[2]
    told, again = (timeline(config.directory.events).of("evaluated") for config in (looks, dies))
    assert [event["step"] for event in told] == [1, 2, 3, 4, 5, 6]
    assert [event["step"] for event in again] == [1, 2, 3, 4, 4, 5, 6]  # killed before 5, resumed from 3
    for config in (looks, dies):
        committed = (checkpoint.path(config.directory, 6) / LOOKS).read_bytes()
        newest = {name: own[-LAST:] for name, own in curves(told).items()}
        assert probe_curves.read(committed) == newest
    scores = {event["step"]: event["probes"] for event in told}
    assert all(event["probes"] == scores[event["step"]] for event in again)
    assert timeline(blind.directory.events).of("evaluated") == []
    for event in told:
        assert set(event["probes"]) == {"animals", "loops"}
        assert set(event["probes"]["loops"]) == {"score", "control", "items"}  # nothing to choose from
        assert event["seconds"] > event["probe_seconds"] > 0
    for name, score in offline(looks, 6).items():
        inside = scores[6][name]
        assert inside["score"] == score.bits_per_byte, name
        assert inside["control"] == score.bits_per_byte + score.signal, name
        assert inside["items"] == score.items, name
        for key in ("margin", "accuracy"):
            assert inside.get(key, math.nan) == pytest.approx(getattr(score, key), abs=0, nan_ok=True), name


def test_probes_are_scored_at_every_so_many_looks_and_at_the_last(ctx: Context, run: Make) -> None:
    look = probed.prepared(ctx, looks=12, share=100.0).stats["tokens"] / 3 / 20_000  # its share of the run
    for paid, steps in ((12, list(range(1, 13))), (8, [2, 4, 6, 8, 10, 12])):
        validator = Validator(run(probes=probed.prepared(ctx, looks=12, share=(paid + 0.5) * look).digest))
        assert len(validator.probes.items) == len(probed.fitting())
        assert [step for step in range(1, 13) if validator.probes.due(step)] == steps
    blind = Validator(run(probes=""))
    assert not any(blind.probes.due(step) for step in range(1, 13))


def test_scoring_is_no_part_of_the_identity(run: Make) -> None:
    assert identity(run()) == identity(run(probes=""))
    assert run_key(Training(validation=Validation(probes_share=0.1)), "m", "t") == run_key(Training(), "m", "t")


def test_a_model_that_has_diverged_is_named() -> None:
    lost = ProbeResult([], {}, "a", ["probe maths"], 0.25)
    event = ValidationResult({"web": float("nan")}, 0.5, lost).event()
    assert (event["not_finite"], event["probes"], event["seconds"]) == (["web", "probe maths"], {}, 0.75)


def test_a_regression_waits_for_probes_that_the_run_scores() -> None:
    rule = Stopping(regression=Regression(bits_per_byte=0.1))
    for validation in (None, Validation(probes_share=0.0)):
        with pytest.raises(ValueError, match=r"needs probes, which training\.validation does not score"):
            Training(stopping=rule, validation=validation)
    Training(stopping=rule, validation=Validation())
