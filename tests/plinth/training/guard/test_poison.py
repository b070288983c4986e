"""A bucket of noise spoils a run, and the guard fixes it: the whole way, on two ranks, from shards to blame."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import poisoned_corpus
import pytest

from plinth.training.checkpoint import checkpoint
from plinth.training.config import RunConfig
from plinth.training.parameters.guard import GuardParameters
from plinth.training.telemetry.timeline import History, timeline
from plinth_jobs.cli import call
from tests.ranks import run_ranks

pytestmark = pytest.mark.slow


def trained(config: RunConfig) -> bool:
    """Train to the end, as one rank of the run."""
    import torch

    from plinth.training import loop
    from plinth.training.engine import engine

    rank = engine.join(config)
    torch.set_num_threads(1)  # two that wait for each other are slower on so small a model
    done = loop.train(config, rank, 0)
    engine.leave()
    return done


def audited(config: RunConfig, start: int) -> None:
    """Replay from the checkpoint at `start`, as one rank of the run."""
    from plinth.training.engine import engine
    from plinth.training.forensics import audit

    audit.replay(config, engine.join(config), start)
    engine.leave()


def final_loss(config: RunConfig) -> float:
    """Mean loss of the final parameters over batches that every run has trained on early."""
    from plinth.training.forensics import replay as losses

    model = losses.load(config, config.total_steps)
    rows = [row for step in range(1, 16) for row in losses.rows(model, losses.batch_of(config, step))]
    return float(np.mean([row.losses.mean() for row in rows]))


def run(root: Path, ranks: int, **changes: Any) -> tuple[RunConfig, History]:
    config = poisoned_corpus.make(root, ranks, **changes)
    assert run_ranks(ranks, trained, config) == [True] * ranks
    return config, timeline(config.directory.events)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunConfig, History]:
    return run(tmp_path_factory.mktemp("guarded"), ranks=2)


def test_poison_is_rolled_back_left_out_and_named(guarded: tuple[RunConfig, History]) -> None:
    config, story = guarded
    first, last = poisoned_corpus.POISON.start, poisoned_corpus.POISON.stop - 1
    interventions = [event for event in story.of("intervention") if event["action"] != "warn"]
    (rollback,) = [event for event in interventions if event["action"] == "rollback"]
    assert (rollback["rule"], rollback["window"]) == ("loss_spike", [first, first + 1])
    assert rollback["value"] > rollback["threshold"]
    (back,) = story.of("rolled_back")
    assert back["step"] == max(step for step in range(first) if config.saves_at(step))
    kept_back = [step for step, event in story.steps.items() if event.get("vetoed")]
    assert sorted(story.skipped) + kept_back == list(range(first, last + 1))  # exactly the poison, nothing else
    assert [event["step"] for event in interventions if event["action"] == "skip"] == kept_back
    assert max(story.steps) == config.total_steps
    assert story.diverged == []

    named = story.of("documents")
    assert [event["window"] for event in named] == [event["window"] for event in interventions]
    for event in named:
        assert (event["sources"][0]["bucket"], event["sources"][0]["source"]) == ("dump", "scraped.example")
        assert event["sources"][0]["share"] > event["sources"][0]["share_before"]
        assert event["documents"][0]["uri"].startswith("https://scraped.example/")


@pytest.mark.exhaustive
def test_the_run_ends_as_the_clean_one_does_and_without_the_guard_it_does_not(
    guarded: tuple[RunConfig, History], tmp_path: Path
) -> None:
    clean, _ = run(tmp_path / "clean", 1, poison=False)
    spoiled, story = run(tmp_path / "spoilt", 1, guard=GuardParameters(enabled=False))
    assert max(story.steps[step]["loss"] for step in poisoned_corpus.POISON) > 5
    expected = final_loss(clean)
    assert final_loss(guarded[0]) < 1.01 * expected
    assert final_loss(spoiled) > 1.01 * expected


def test_audit_replays_windows_left_out_and_updates_kept_back(guarded: tuple[RunConfig, History]) -> None:
    config, _ = guarded
    back = max(step for step in checkpoint.committed(config.directory) if step < poisoned_corpus.POISON.start)
    run_ranks(config.ranks, audited, config, back)
    evidence = json.loads(config.directory.evidence.read_bytes())
    assert evidence["bit_exact"] is True, evidence["equal"]
    assert evidence["skipped_steps"]["replayed"] == list(poisoned_corpus.POISON)[:2]
    assert len(evidence["interventions"]["replayed"]) >= 1
    assert [commit["step"] for commit in evidence["commits"]][-1] == config.total_steps
    assert evidence["compared_steps"] == config.total_steps - back - 2
    assert [path.name for path in config.directory.audits.iterdir()] == ["0001.json"]


def test_blame_finds_the_source_and_the_documents(guarded: tuple[RunConfig, History]) -> None:
    from plinth.training.forensics import replay

    config, story = guarded
    step = poisoned_corpus.POISON.start
    found = replay.blame(config, step)
    (undone,) = [event for event in story.undone if event["step"] == step]
    assert found["checkpoint"] == step - 1  # a checkpoint is just before it, so its losses are those of the step
    assert found["loss"] == pytest.approx(undone["loss"], abs=1e-5)
    assert found["trained"] is False
    worst, other = found["sources"]
    assert (worst["bucket"], worst["source"]) == ("dump", "scraped.example")
    assert worst["excess"] > 0.95 * found["excess"]
    assert abs(other["excess"]) < 0.05 * found["excess"]
    assert sum(row["excess"] for row in found["sources"]) == pytest.approx(found["excess"], abs=1e-5)
    top = found["documents"][: worst["documents"] // 2]
    assert {row["source"] for row in top} == {"scraped.example"}
    text = top[0]["spans"][0]["text"]
    assert set(text) <= set("0123456789ABCDEF#")
    assert len(text) >= 4

    again = replay.replay(config, step)
    assert again["loss"] == found["loss"]
    losses = [row["loss"] for row in again["documents"]]
    assert losses == sorted(losses, reverse=True)
    assert again["documents"][0]["source"] == "scraped.example"


@pytest.mark.exhaustive
def test_the_commands_tell_the_same(guarded: tuple[RunConfig, History], capsys: pytest.CaptureFixture[str]) -> None:
    """`plinth run blame`, `plinth run replay` and `plinth run audit resume`, as a person calls them."""
    config, _ = guarded
    step, where = str(poisoned_corpus.POISON.start), ["-w", config.workspace]

    def said(*arguments: str, code: int = 0) -> str:
        assert call([*arguments, *where]) == code
        heard = capsys.readouterr()
        return heard.out if "--json" in arguments else "".join(heard)

    page = said("run", "blame", config.run_id, step)
    assert "not trained" in page
    assert page.index("scraped.example") < page.index("orderly.example")
    found = json.loads(said("run", "replay", "latest", step, "--checkpoint", "112", "--json"))
    assert (found["checkpoint"], found["documents"][0]["source"]) == (112, "scraped.example")
    assert "has no step 121" in said("run", "replay", "latest", "121", code=3)
    assert "nothing to replay from step 3" in said("run", "audit", "resume", "latest", "--from", "3", code=3)
    page = said("run", "audit", "resume", "latest")
    assert "bit-exact" in page
    assert sorted(path.name for path in config.directory.audits.iterdir())[-1] >= "0001.json"
