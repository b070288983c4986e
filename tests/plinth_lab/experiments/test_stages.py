"""Which failures are results of an arm; how often sources are looked at that all arms read."""

import json
from pathlib import Path

import pytest

from plinth import errors
from plinth.compute.context import Context
from plinth.storage import listing
from plinth.storage.workspace import Workspace
from plinth_jobs.recipes import FOLDER
from plinth_lab.experiments import arms
from plinth_lab.experiments import stages as experiment
from plinth_lab.experiments.pipeline import NOT_OF_THE_ARM, OF_THE_ARM

FILE = """
name: words
question: Which words help?
recipe: tiny
base: plain
test: {prose: {path: test.jsonl}}
common:
  corpus:
    buckets: {web: null, code: null, prose: {sources: [%s]}}
  mixture: {phases: [{name: all, fraction: 1, weights: {prose: 1}}]}
arms:
  plain: {}
  short: {mixture: {total_tokens: 10240}}
  other:
    corpus: {buckets: {prose: {sources: [%s]}}}
seeds: [3, 5]
"""
SOURCE = (
    "{kind: jsonl, path: %s.jsonl, licence: MIT, domain: d, snapshot: s, "
    "terms: {train: true, redistribute: true, commercial: true}}"
)
QUESTION = """
name: value-one
question: Is it worth its price?
recipe: tiny
test: {prose: {path: test.jsonl}}
common:
  corpus:
    buckets: {web: null, code: null, prose: {sources: [%s]}}
  mixture: {phases: [{name: all, fraction: 1, weights: {prose: 1}}]}
source: {price: 10, share: 0.5, %s
seeds: [3]
"""


@pytest.mark.parametrize(
    ("kind", "is_result"),
    [
        (errors.CheckFailedError, True),
        (errors.StageError, True),
        (errors.TrainingError, True),
        (errors.RecipeError, True),
        (errors.BudgetError, False),
        (errors.StoppedRunError, False),
        (errors.LaunchError, False),
        (errors.CheckpointError, False),
        (errors.WorkerError, False),
        (errors.DiskFullError, False),
        (errors.SignatureError, False),
    ],
)
def test_outages_are_no_results(kind: type[errors.PlinthError], is_result: bool) -> None:
    assert (issubclass(kind, OF_THE_ARM) and not issubclass(kind, NOT_OF_THE_ARM)) == is_result


@pytest.fixture
def runs(tmp_path: Path) -> tuple[Context, arms.Experiment, tuple[arms.Arm, ...]]:
    ctx = Context(Workspace(tmp_path / "workspace").ensure())
    for name in ("test", "one", "two"):
        (ctx.workspace.root / "input" / f"{name}.jsonl").write_text(json.dumps({"text": name}))
    path = tmp_path / "words.yaml"
    path.write_text(FILE % (SOURCE % "one", SOURCE % "two"))
    return ctx, *arms.load(path, FOLDER)


def test_one_decision_looks_once_at_sources_that_runs_share(
    runs: tuple[Context, arms.Experiment, tuple[arms.Arm, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    ctx, asked, made = runs
    looks: list[str] = []
    survey = listing.survey  # what `inventory` calls, too

    def counted(location: str, *args: object, **options: object) -> object:
        looks.append(location)
        return survey(location, *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(listing, "survey", counted)

    def identities(**how: bool) -> list[str | None]:
        looks.clear()
        return [stage.outside(ctx) for stage in experiment.of(asked, made, **how) if stage.outside]

    each = identities()
    assert sorted(looks) == sorted(["test.jsonl"] * 6 + ["one.jsonl"] * 4 + ["two.jsonl"] * 2)
    assert identities(for_one_decision=True) == each
    assert sorted(looks) == ["one.jsonl", "test.jsonl", "two.jsonl"]
    assert len(set(each)) == 2
    (ctx.workspace.root / "input" / "one.jsonl").write_text('{"text": "another"}\n')
    again = identities(for_one_decision=True)
    assert [one == other for one, other in zip(each, again, strict=True)] == [False, False, True] * 2


def test_the_sample_of_a_source_is_another_when_its_files_are(
    runs: tuple[Context, arms.Experiment, tuple[arms.Arm, ...]], tmp_path: Path
) -> None:
    ctx, path = runs[0], tmp_path / "value.yaml"
    path.write_text(QUESTION % (SOURCE % "two", (SOURCE % "one").removeprefix("{")))

    def identity() -> str | None:
        sample = experiment.of(*arms.load(path, FOLDER), for_one_decision=True)[0]
        assert sample.asset == "experiment/value-one/sample"
        assert sample.outside
        return sample.outside(ctx)

    before = identity()
    (ctx.workspace.root / "input" / "one.jsonl").write_text('{"text": "another"}\n')
    assert identity() != before
