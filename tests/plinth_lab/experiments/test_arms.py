"""The file of an experiment as recipes."""

from pathlib import Path

import pytest

from plinth.errors import BudgetError, RecipeError
from plinth_jobs.recipes import FOLDER
from plinth_lab.experiments import arms, run

FILE = """
name: words
question: Which words help?
recipe: tiny
base: plain
test:
  prose: {path: test/prose.jsonl}
common:
  mixture: {total_tokens: 10240}
arms:
  plain: {}
  more-prose:
    mixture:
      phases:
        - {name: all, fraction: 1, weights: {web: 1, prose: 4, code: 1}}
  no-release:
    release: null
sizes:
  small: {}
  wide: {training: {model: {dim: 128}}}
seeds: [3, 5]
"""


def load(folder: Path, old: str = "", new: str = "") -> tuple[arms.Experiment, tuple[arms.Arm, ...]]:
    assert old in FILE
    path = folder / "words.yaml"
    path.write_text(FILE.replace(old, new, 1) if old else FILE)
    return arms.load(path, FOLDER)


def test_runs_come_seed_by_seed_with_every_arm_at_every_size(tmp_path: Path) -> None:
    _, runs = load(tmp_path)
    assert [(one.seed, one.size, one.arm) for one in runs][:4] == [
        (3, "small", "plain"),
        (3, "small", "more-prose"),
        (3, "small", "no-release"),
        (3, "wide", "plain"),
    ]
    assert len({one.asset for one in runs}) == len(runs) == 12


def test_overlays_lie_over_the_recipe_in_order(tmp_path: Path) -> None:
    _, runs = load(tmp_path)
    by_name = {(one.arm, one.size, one.seed): one.recipe for one in runs}
    prose = by_name["more-prose", "wide", 5]
    assert (prose.mixture.total_tokens, prose.mixture.seed, prose.training.seed) == (10240, 5, 5)
    assert prose.training.model.dim == 128
    assert [phase.name for phase in prose.mixture.phases] == ["all"]
    assert prose.corpus.protected.sets["prose"].path == "test/prose.jsonl"
    assert by_name["plain", "small", 3].release is not None
    assert by_name["no-release", "small", 3].release is None
    assert prose.name == "words-more-prose"


def test_no_run_needs_a_contract_of_its_own(tmp_path: Path) -> None:
    """A ladder predicts the curve of a contract, so it runs before one can be signed."""
    _, runs = load(tmp_path, "common:", "common:\n  training: {contract: required}")
    assert {one.recipe.training.contract for one in runs} == {"optional"}


def test_cost_is_known_before_anything_runs(tmp_path: Path) -> None:
    _, runs = load(tmp_path)
    small, wide = runs[0], runs[3]
    # tiny: 2 layers of 64, 2 heads and 1 of keys of 32, 176 wide, 512 words, rows of 64
    matrices = 2 * (64 * 64 * 2 + 2 * 64 * 32) + 2 * 3 * 64 * 176 + 512 * 64
    assert small.flops == 10240 * (6 * matrices + 12 * 2 * 2 * 32 * 64)
    assert wide.flops > 2 * small.flops


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("  plain: {}", "  plain: {evaluation: {max_bytes_per_slice: 7}}", r"words\.yaml:\d+  arm .* changes eval"),
        ("release: null", "corpus: {holdout: {fraction: 0.5}}", r"words\.yaml:17  arm no-release changes corpus\.ho"),
        ("release: null", "corpus: {protected: {sets: {own: {path: x}}}}", "changes corpus.protected"),
        ("base: plain", "base: other", "base: there is no arm other"),
        ("[3, 5]", "[3, 3]", "the seed is listed twice"),
        ("more-prose:", "More:", "arms.More"),
        ("release: null", "releases: null", r"words\.yaml:17  releases: unknown key"),
        ("{total_tokens: 10240}", "null", "mixture.total_tokens: missing"),
        ("question: Which words help?", "", "question"),
        ("seeds:", "seed:", "words.yaml"),
    ],
)  # fmt: skip
def test_a_wrong_file_is_refused_with_its_line(tmp_path: Path, old: str, new: str, said: str) -> None:
    with pytest.raises(RecipeError, match=said):
        load(tmp_path, old, new)


def test_the_test_text_cannot_be_taken_from_an_arm(tmp_path: Path) -> None:
    _, runs = load(tmp_path, "release: null", "corpus: {protected: {sets: null}}")
    assert all("prose" in one.recipe.corpus.protected.sets for one in runs)


@pytest.mark.parametrize(
    ("budget", "allowed"), [("tokens: 122880", True), ("tokens: 122879", False), ("flops: 1e6", False)]
)
def test_more_than_the_budget_is_refused_before_it_starts(tmp_path: Path, budget: str, allowed: bool) -> None:
    change = ("seeds: [3, 5]", f"seeds: [3, 5]\nbudget: {{{budget}}}")
    if allowed:
        assert len(load(tmp_path, *change)[1]) == 12
    else:
        with pytest.raises(BudgetError, match="would exceed its budget"):
            load(tmp_path, *change)


def test_packaged_experiments_are_sound() -> None:
    packaged = list(run.FOLDER.glob("*.yaml"))
    assert packaged
    for path in packaged:
        experiment, runs = arms.load(path, FOLDER)
        assert experiment.name == path.stem
        assert len(runs) == len(experiment.arms) * len(experiment.sizes) * len(experiment.seeds)
