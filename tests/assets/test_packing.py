"""The packed index as a stage: there when the recipe asks, checked before it is published."""

from __future__ import annotations

from pathlib import Path

from plinth.recipe.load import load
from plinth.records import Manifest
from plinth_assets import tokens
from plinth_assets.catalog import stages
from plinth_assets.framework import evaluate

ROOT = Path(__file__).parents[2]
COUNTS = {
    "tokens": 990,
    "sequences": 10,
    "targets": 1000,
    "padding": 8,
    "masked": 2,
    "starts": 30,
    "dropped": 0,
    "documents": 30,
    "split_documents": 2,
    "split_fitting": 0,
}


def test_it_is_made_where_the_recipe_packs_best_fit(tmp_path: Path) -> None:
    path = tmp_path / "packed.yaml"
    tiny = ROOT / "jobs" / "plinth_jobs" / "recipes" / "tiny.yaml"
    path.write_text(f"extends: {tiny}\nmixture: {{packing: best-fit}}\n")
    plain, packed = ({stage.asset: stage for stage in stages(load(one))} for one in (tiny, path))
    buckets = load(path).corpus.buckets
    assert set(packed) - set(plain) == {f"{bucket}/packed" for bucket in buckets}
    assert {f"{bucket}/packed" for bucket in buckets} <= set(packed["mixture"].deps)
    assert all(packed[f"{bucket}/packed"].deps == (f"{bucket}/shards",) for bucket in buckets)
    assert list(packed).index("web/packed") < list(packed).index("mixture")
    other = load(path).model_copy(update={"mixture": load(path).mixture.model_copy(update={"sequence_tokens": 96})})
    changed = {stage.asset: stage for stage in stages(other)}
    assert changed["web/packed"].code_version != packed["web/packed"].code_version
    assert changed["web/shards"].code_version == packed["web/shards"].code_version


def test_what_loses_or_repeats_a_token_is_not_published() -> None:
    def outcome(**changes: int) -> tuple[bool, int]:
        stats = {"streams": {"": COUNTS, "language=de": COUNTS | changes}}
        made = Manifest(asset="web/packed", step="s", version="1", params={}, inputs={}, parts=(), stats=stats)
        found = evaluate(tokens._suite_packing(made, {}))
        return found.blocked, len(found.warnings)

    assert outcome() == (False, 0)
    assert outcome(padding=9) == (True, 0)
    assert outcome(starts=29) == (True, 0)
    assert outcome(split_fitting=1) == (True, 0)
    assert outcome(tokens=900, padding=98) == (False, 1)
