"""Noise at known steps is screened out of a run: alike on one rank and two, with a step in flight, after a resume."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import poisoned_corpus
import pytest

from plinth.training.config import RunConfig
from plinth.training.guard.rules import Limits
from plinth.training.guard.state_machine import Guard
from plinth.training.parameters.guard import BatchScreening, GradientSpike, GuardParameters
from plinth.training.parameters.run import Checkpoints
from plinth.training.step_documents import StepDocuments
from plinth.training.telemetry.timeline import History, timeline
from tests.ranks import RankFailed, run_ranks

pytestmark = pytest.mark.slow

NOISE, STEPS = range(13, 17), 20


def trained(config: RunConfig, lag: int, dies_at: int) -> str:
    """Train to the end with this many steps in flight; what the parameters became."""
    import torch

    from plinth.training import loop
    from plinth.training.checkpoint import snapshot
    from plinth.training.engine import engine

    opened, record, limits = loop.TrainingRun.__init__, loop.TrainingRun._record, Guard.update_limits
    kept: list[Any] = []
    in_flight: set[int] = set()

    def flying(self: Any, *given: Any) -> None:
        opened(self, *given)
        self._lag = lag
        kept.append(self)

    def dying(self: Any, measured: Any) -> Any:
        if measured.step == dies_at:
            raise KeyboardInterrupt
        return record(self, measured)

    def limited(self: Guard, step: int, flying: int, rows: int) -> Limits:
        in_flight.add(flying)
        return limits(self, step, flying, rows)

    Guard.update_limits = limited  # type: ignore[assignment, method-assign]
    loop.TrainingRun.__init__, loop.TrainingRun._record = flying, dying
    rank = engine.join(config)
    torch.set_num_threads(1)
    assert loop.train(config, rank, 0)
    assert in_flight == {0, lag}  # the device meets the limits that the host judges by
    digest: str = snapshot.digests(kept[-1].trainer.engine)["parameters_sha256"]
    engine.leave()
    return digest


def made(root: Path, ranks: int, monkeypatch: pytest.MonkeyPatch) -> RunConfig:
    monkeypatch.setattr(poisoned_corpus, "STEPS", STEPS)
    monkeypatch.setattr(poisoned_corpus, "POISON", NOISE)
    return poisoned_corpus.make(
        root,
        ranks,
        guard=GuardParameters(
            min_steps=4,
            window_steps=8,
            gradient_spike=GradientSpike(action="skip", sigmas=0.1, min_ratio=1.0),  # often, by limits that move
            screening=BatchScreening(entropy=1.0, streams=("dump",)),
        ),
        checkpoints=Checkpoints(every_steps=7, keep_last=3, audit_steps=8, mode="sync"),
    )


def acts(story: History, rule: str = "") -> list[tuple[Any, ...]]:
    """The interventions of a rule, or of all; numbers count what other rules did too."""
    names = ("step", "rule", "action", "value", "threshold", "bound", "window", *([] if rule else ["number"]))
    found = (event for event in story.of("intervention") if rule in ("", event["rule"]))
    return [tuple(str(event[name]) for name in names) for event in found]


@pytest.mark.exhaustive
def test_noise_is_kept_back_the_same_everywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = made(tmp_path / "one", 1, monkeypatch)
    (digest,) = run_ranks(1, trained, config, 0, 0)
    story = timeline(config.directory.events)
    kept_back = {step for step, event in story.steps.items() if event.get("vetoed")}
    assert kept_back > set(NOISE)
    found = [event for event in story.of("intervention") if event["rule"] == "streams"]
    assert [(event["step"], event["action"], event["threshold"]) for event in found] == [
        (step, "skip", 0.25) for step in NOISE
    ]
    assert story.of("rolled_back") == []  # four steps of noise in a row, and no spike is confirmed
    averages = {story.steps[step]["loss_ema"] for step in (NOISE.start - 1, *NOISE)}
    assert len(averages) == 1

    named = [event for event in story.of("documents") if event["rule"] == "streams"]
    documents = StepDocuments(config)
    assert [event["window"] for event in named] == [[step, step] for step in NOISE]
    for event, act in zip(named, found, strict=True):
        inside = documents.of_step(event["window"][0])
        rows = {seen.row for seen in inside if seen.bucket == "dump"}
        assert {row["row"] for row in event["rows"]} == rows
        assert event["rows_count"] == len(rows) == act["value"] * 8
        for row in event["rows"]:
            assert row["documents"] == [seen.id for seen in inside if seen.row == row["row"]]

    two = made(tmp_path / "two", 2, monkeypatch)
    run_ranks(2, trained, two, 0, 0)
    assert acts(timeline(two.directory.events), "streams") == acts(story, "streams")
    flying = made(tmp_path / "flying", 1, monkeypatch)
    with pytest.raises(RankFailed):
        run_ranks(1, trained, flying, 1, NOISE.start + 2)
    (again,) = run_ranks(1, trained, flying, 1, 0)
    assert again == digest
    assert acts(timeline(flying.directory.events)) == acts(story)
