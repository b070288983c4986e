"""The key `source` of an experiment's file: its arms at its uses, and questions that mean nothing."""

from pathlib import Path

import pytest

from plinth.errors import BudgetError, RecipeError
from plinth_jobs.recipes import FOLDER
from plinth_lab.experiments import arms
from plinth_lab.source_value.question import ANNEAL, BUCKET, PROXY, WITH, WITHOUT

FILE = """
name: forum
question: Is the forum worth its price?
recipe: tiny
test:
  prose: {path: test/prose.jsonl}
common: {mixture: {total_tokens: 10240}}
source:
  kind: jsonl
  path: forum.jsonl
  licence: CC0-1.0
  terms: {train: true, redistribute: false, commercial: true}
  domain: forum.example
  snapshot: 2026-46
  price: 20000
  share: 0.2
  anneal: {checkpoint: "tiny-abc:20", tokens: 5120, share: 0.5, lr: 2e-3}
seeds: [3]
"""


def load(folder: Path, old: str = "", new: str = "") -> tuple[arms.Experiment, tuple[arms.Arm, ...]]:
    assert old in FILE
    path = folder / "forum.yaml"
    path.write_text(FILE.replace(old, new, 1) if old else FILE)
    return arms.load(path, FOLDER)


def test_arms_without_and_with_at_both_uses(tmp_path: Path) -> None:
    asked, runs = load(tmp_path)
    assert (asked.base, list(asked.arms), list(asked.sizes)) == (WITHOUT, [WITHOUT, WITH], [PROXY, ANNEAL])
    by_name = {(one.arm, one.size): one for one in runs}
    assert len(by_name) == len(runs) == 4
    for size, tokens in ((PROXY, 10240), (ANNEAL, 5120)):
        assert {by_name[arm, size].tokens for arm in (WITHOUT, WITH)} == {tokens}
    plain, ours = (by_name[arm, PROXY].recipe for arm in (WITHOUT, WITH))
    assert BUCKET not in plain.corpus.buckets
    assert ours.corpus.buckets[BUCKET].sources[0].path == "forum.jsonl"
    # the shares of the others stay as they were among them: 2 to 2 to 1, and 1 to 2 to 1
    first, last = (phase.weights for phase in ours.required_mixture().phases)
    assert first == pytest.approx({"web": 0.32, "prose": 0.32, "code": 0.16, BUCKET: 0.2})
    assert last == pytest.approx({"web": 0.2, "prose": 0.4, "code": 0.2, BUCKET: 0.2})
    assert ours.tokenizer.sample_weights == {"web": 1, "prose": 1, "code": 1, BUCKET: 0}
    assert by_name[WITH, PROXY].overlay["mixture"]["phases"][0]["weights"] == first


def test_both_arms_anneal_in_the_last_phase_from_the_checkpoint(tmp_path: Path) -> None:
    by_name = {(one.arm, one.size): one.recipe for one in load(tmp_path)[1]}
    for arm, weights in ((WITHOUT, {"web": 1, "prose": 2, "code": 1}),
                         (WITH, {"web": 0.125, "prose": 0.25, "code": 0.125, BUCKET: 0.5})):  # fmt: skip
        recipe = by_name[arm, ANNEAL]
        (phase,) = recipe.required_mixture().phases
        assert (phase.name, phase.fraction, phase.weights) == ("annealing", 1.0, pytest.approx(weights))
        begun, optimizer = recipe.training.initial, recipe.training.optimizer
        assert begun is not None
        assert (begun.checkpoint, begun.optimizer, recipe.tokenizer.kind) == ("tiny-abc:20", "kept", "initial")
        assert (optimizer.schedule, optimizer.warmup_fraction, optimizer.lr, optimizer.min_lr) == ("linear", 0, 2e-3, 0)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("licence: CC0-1.0", "licence: unknown", r"forum\.yaml:11  source\.licence: .*the license is missing"),
        ("  price: 20000\n", "", r"source\.price: Field required"),
        ("price: 20000", "price: -1", r"source\.price: .*greater than or equal to 0"),
        ("price: 20000", "price: .inf", r"source\.price: .*valid number"),
        ("share: 0.2", "share: 1", r"source\.share: .*less than 1"),
        ("seeds: [3]", "seeds: [3]\nsizes: {anneal: {}}", r"sizes\.anneal: the section `source` defines a size"),
        ("seeds: [3]", "seeds: [3]\narms: {a: {}}", r"`source` already defines the arms"),
        ("  share: 0.2", "  share: 0.2\n  policy: gone", r"gone"),
        ("{total_tokens: 10240}", "{phases: [{name: a, fraction: 1, weights: natural}]}", r"(?s)phase a.*\*"),
        ("{total_tokens: 10240}", "{phases: [{name: a, fraction: 1, weights: {web: 1}, epochs: {prose: 1}}]}",
         r"(?s)phase a.*epochs"),
        ("{total_tokens: 10240}", "{phases: [{name: a, fraction: 1, temperature: 0.5, weights: {web: 1}}]}",
         r"(?s)phase a.*temperature"),
    ],
)  # fmt: skip
def test_questions_that_mean_nothing(tmp_path: Path, old: str, new: str, said: str) -> None:
    with pytest.raises(RecipeError, match=said) as raised:
        load(tmp_path, old, new)
    assert "arms: Field required" not in str(raised.value)


def test_a_recipe_without_a_mixture(tmp_path: Path) -> None:
    gone = ("mixture", "tokenizer", "shards", "training", "evaluation", "release")
    (tmp_path / "unmixed.yaml").write_text("extends: tiny\nname: unmixed\n" + "".join(f"{one}: null\n" for one in gone))
    (tmp_path / "forum.yaml").write_text(
        FILE.replace("recipe: tiny", "recipe: unmixed.yaml")
        .replace("common: {mixture: {total_tokens: 10240}}\n", "")
        .replace('  anneal: {checkpoint: "tiny-abc:20", tokens: 5120, share: 0.5, lr: 2e-3}\n', "")
    )
    with pytest.raises(RecipeError, match="the recipe unmixed has no mixture"):
        arms.load(tmp_path / "forum.yaml", FOLDER)


def test_a_bucket_of_that_name(tmp_path: Path) -> None:
    text = Path(FOLDER / "tiny.yaml").read_text().replace("    prose:\n", "    new:\n").replace("prose: 2", "new: 2")
    (tmp_path / "own.yaml").write_text(text)
    with pytest.raises(RecipeError, match="has a bucket new"):
        load(tmp_path, "recipe: tiny", "recipe: own.yaml")


def test_the_budget_holds(tmp_path: Path) -> None:
    with pytest.raises(BudgetError, match=r"3\.072e\+04|30,720"):
        load(tmp_path, "seeds: [3]", "seeds: [3]\nbudget: {tokens: 30719}")
    load(tmp_path, "seeds: [3]", "seeds: [3]\nbudget: {tokens: 30720}")
