"""Axes as wiring: what shards wait for, what changes when they change, and what a recipe may not ask for."""

from __future__ import annotations

from pathlib import Path

from plinth.recipe.load import check, load
from plinth.records import Blob, Manifest, Part
from plinth_assets import tokens
from plinth_assets.catalog import stages
from plinth_assets.framework import evaluate

ROOT = Path(__file__).parents[2]
TINY = ROOT / "jobs" / "plinth_jobs" / "recipes" / "tiny.yaml"


def _with(tmp_path: Path, axes: str) -> Path:
    path = tmp_path / "axes.yaml"
    path.write_text(f"extends: {TINY}\nshards: {{axes: {axes}}}\n")
    return path


def test_shards_wait_for_what_tells_streams_apart(tmp_path: Path) -> None:
    plain = {stage.asset: stage for stage in stages(load(TINY))}
    cut = {stage.asset: stage for stage in stages(load(_with(tmp_path, "[language, length, licence.permitted]")))}
    more = {"web/documents", "web/language", "web/licence", "web/verdicts"}
    assert set(cut["web/shards"].deps) - set(plain["web/shards"].deps) == more
    assert cut["web/shards"].code_version != plain["web/shards"].code_version
    assert plain["web/shards"].params == {"tokens_per_shard": load(TINY).shards.tokens_per_shard}
    local = {stage.asset: stage for stage in stages(load(_with(tmp_path, "[snapshot, length]")))}
    assert local["web/shards"].deps == plain["web/shards"].deps


def test_an_axis_that_nobody_writes_is_a_problem_of_the_recipe(tmp_path: Path) -> None:
    recipe, problems = check(_with(tmp_path, "[language, perplexity.band]"))
    assert recipe is None
    assert [(problem.key, "no annotator writes" in problem.message) for problem in problems] == [
        ("shards.axes[1]", True)
    ]


def test_uneven_shards_of_a_stream_are_not_published() -> None:
    def blocked(*sizes: int) -> bool:
        parts = [("language=de", 50), *(("language=en", size) for size in sizes)]
        blobs = [
            Part(
                name=f"{label}/shard-{i:05d}.bin",
                blob=Blob(md5=f"{i:032x}", sha256=f"{i:064x}", bytes=2 * size),
                stats={"start": 0, "tokens": size},
            )
            for i, (label, size) in enumerate(parts)
        ]
        streams = {label: {"tokens": sum(n for name, n in parts if name == label)} for label, _ in parts}
        stats = {"bytes_per_token": 2, "tokens": sum(size for _, size in parts), "streams": streams}
        facts = {"step": "s", "version": "1", "params": {}, "inputs": {}}
        made = Manifest(asset="web/shards", parts=tuple(blobs), stats=stats, **facts)
        return evaluate(tokens._suite_shards(made, {})).blocked

    assert not blocked(1000, 1001, 1000)  # streams need not be as large as each other
    assert blocked(1000, 1030)
