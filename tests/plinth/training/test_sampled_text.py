"""Text sampled from a model for a bucket: the same from any writer, read like any other, with the model in its
lineage."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from plinth.compute.context import Context
from plinth.corpus.sources.files import SampledText
from plinth.evaluation.engine.client import SPARE, ModelEngine
from plinth.model.decoder import build
from plinth.model.parameters import Model
from plinth.provenance.statements import chain
from plinth.recipe.recipe import Recipe
from plinth.records import Manifest
from plinth.storage.parts import read_table
from plinth.storage.workspace import Workspace
from plinth.training import initial as beginning
from plinth.training import sampled_text
from plinth_assets import initial, sources
from plinth_assets.framework import Stage
from plinth_jobs.recipes import load
from plinth_registry import taint
from tests.model_folder import byte_level, save_folder

RECIPE = Path(__file__).parents[3] / "jobs" / "plinth_jobs" / "recipes" / "tiny.yaml"
MODEL = Model(layers=1, dim=32, heads=4, kv_heads=2, ffn_dim=48, tied_embeddings=False)
PARAMS = SampledText(documents=5, max_tokens=24)
WORDS = ["the river and the bridge", "a letter to the engine"]


@pytest.fixture
def ctx(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Context:
    monkeypatch.setattr(sampled_text, "BLOCK", 2)
    return Context(Workspace(tmp_path / "workspace").ensure())


@pytest.fixture
def teacher(ctx: Context) -> Manifest:
    """A model of random weights, which ends a document now and then."""
    made, where = byte_level(WORDS, 270), ctx.workspace.root / "model"
    model = build(MODEL, made.get_vocab_size(), 1)
    with torch.no_grad():
        model.lm_head.mul_(5)
    save_folder(where, model, MODEL, made, 32)
    manifest = beginning.of_folder(ctx, where, "MIT", f"web/{beginning.TEACHER}")
    ctx.refs.save(manifest)
    return manifest


def lines(ctx: Context, made: Manifest) -> list[dict[str, str]]:
    return [json.loads(line) for part in made.parts for line in ctx.store.read_bytes(part.blob).splitlines()]


def forgotten(ctx: Context) -> Context:
    """The same workspace before anything was recorded."""
    for path in ctx.workspace.root.joinpath("records").rglob("*"):
        if path.is_file() and len(path.stem) == 64:
            path.unlink()
    SPARE.end()
    return Context(ctx.workspace)


@pytest.mark.exhaustive
@pytest.mark.slow
def test_what_is_written_is_of_seed_and_number_alone(
    ctx: Context, teacher: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = sampled_text.run(ctx, "web", PARAMS, teacher)
    rows = lines(ctx, made)
    assert [part.rows for part in made.parts] == [2, 2, 1]
    assert len({row["text"] for row in rows}) == 5
    assert {row["uri"] for row in rows} == {f"model://{teacher.digest[:16]}/{number}" for number in range(5)}
    assert {row["ended"] for row in rows} <= {"end_of_text", "length"}
    assert made.stats["ended"] == sum(row["ended"] == "end_of_text" for row in rows)
    more = sampled_text.run(ctx, "web", PARAMS.model_copy(update={"documents": 6}), teacher)
    assert lines(ctx, more)[:4] == rows[:4]
    other = sampled_text.run(ctx, "web", PARAMS.model_copy(update={"seed": 2}), teacher)
    assert not {row["text"] for row in lines(ctx, other)} & {row["text"] for row in rows}
    inner, started = ModelEngine.of, []

    def more_threads(*given: Any, **options: Any) -> ModelEngine:
        started.append(given)
        return inner(*given, workers=3, **options)

    monkeypatch.setattr(ModelEngine, "of", more_threads)
    assert sampled_text.run(ctx, "web", PARAMS, teacher).digest == made.digest
    assert not started  # all blocks are recorded
    assert sampled_text.run(forgotten(ctx), "web", PARAMS, teacher).digest == made.digest
    assert len(started) == 1


def recipe() -> Recipe:
    """The tiny recipe, whose web a model writes."""
    whole = load(RECIPE).model_dump(mode="json")
    bucket = whole["corpus"]["buckets"]["web"]
    terms = {key: bucket["sources"][0][key] for key in ("licence", "terms", "domain", "snapshot")}
    options = PARAMS.model_dump(mode="json")
    bucket["sources"] = [{"kind": "teacher", "path": "large@champion", "options": options, **terms}]
    for name in ("mixture", "release", "training", "evaluation", "tokenizer", "shards"):
        whole.pop(name, None)
    return Recipe.model_validate(whole)


def stage_of(stages: list[Stage], asset: str) -> Stage:
    return next(stage for stage in stages if stage.asset == asset)


def test_it_goes_the_way_of_any_text_and_brings_its_lineage(ctx: Context, teacher: Manifest) -> None:
    given = recipe()
    made = {"web/teacher": teacher}
    makers = (initial.sampled_stages, sources.source_stages, sources.document_stages)
    ours = [stage for make in makers for stage in make(given)]
    assert stage_of(ours, "web/teacher").deps == ()
    for asset in ("web/sampled", "web/sources", "web/documents"):
        stage = stage_of(ours, asset)
        made[asset] = stage.make(ctx, {key: made[key] for key in stage.deps}, lambda line: None)
        ctx.refs.save(made[asset])
    table = read_table(ctx.store, made["web/documents"].named("part-")[0])
    assert set(table["uri"].to_pylist()) <= {row["uri"] for row in lines(ctx, made["web/sampled"])}
    assert table.num_rows + made["web/documents"].stats["rejects"].get("empty", 0) == 5
    assert set(table["licence"].to_pylist()) == {"CC0-1.0"}
    found = chain(ctx.refs, made["web/documents"])
    weights = teacher.inputs["weights"]
    assert {made["web/sampled"].digest, teacher.digest, weights} <= found.digests
    assert weights in found.sources.values()
    assert made["web/sampled"].digest not in found.sources.values()
    assert weights not in {link.digest for link in found.own}
    taint.mark(ctx, weights, "ada", "its licence was withdrawn")
    assert "its licence was withdrawn" in taint.marks_on(ctx, found)[0]


def test_a_model_writes_a_bucket_alone() -> None:
    whole = recipe().corpus.buckets["web"].model_dump(mode="json")
    whole["sources"] = [*whole["sources"], {**whole["sources"][0], "kind": "jsonl", "options": {}}]
    with pytest.raises(ValueError, match="only source of its bucket"):
        type(recipe().corpus.buckets["web"]).model_validate(whole)
