"""The weights that a run begins from, by name: proved before use, refused when marked, found again by content."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from plinth.compute.context import Context
from plinth.errors import GateError, MissingError
from plinth.model.decoder import build
from plinth.model.parameters import Model
from plinth.recipe.recipe import Recipe
from plinth.records import Manifest
from plinth.storage.workspace import Workspace
from plinth.training.parameters.initial import InitialWeights
from plinth_assets import initial
from plinth_jobs.recipes import load
from plinth_lab.planning.plan import plan
from plinth_registry import taint
from tests.model_folder import byte_level, save_folder

RECIPE = Path(__file__).parents[2] / "jobs" / "plinth_jobs" / "recipes" / "tiny.yaml"
MODEL = Model(layers=2, dim=32, heads=4, kv_heads=2, ffn_dim=64)


@pytest.fixture
def ctx(tmp_path: Path) -> Context:
    return Context(Workspace(tmp_path / "workspace").ensure())


@pytest.fixture
def folder(ctx: Context) -> Path:
    made, where = byte_level(["some words"], 280), Path(ctx.workspace.input) / "llama"
    save_folder(where, build(MODEL, made.get_vocab_size(), 1), MODEL, made, 32)
    return where


def begun(**given: Any) -> tuple[InitialWeights, Any]:
    """The parameters, and the stage of a recipe with them."""
    params = InitialWeights(**given)
    recipe = load(RECIPE)
    training = recipe.training.model_copy(update={"initial": params})
    (stage,) = initial.model_stages(recipe.model_copy(update={"training": training}))
    return params, stage


def made(ctx: Context, **given: Any) -> Manifest:
    return begun(**given)[1].make(ctx, {}, lambda line: None)  # type: ignore[no-any-return]


def test_a_recipe_that_begins_at_random_has_no_such_asset() -> None:
    assert initial.model_stages(load(RECIPE)) == []


def test_no_bucket_is_called_as_replayed_text_is() -> None:
    given = load(RECIPE).model_dump(mode="json", exclude_unset=True)
    given["corpus"]["buckets"]["replay-web"] = given["corpus"]["buckets"]["web"]
    Recipe.model_validate(given)
    given["training"]["initial"] = {"checkpoint": "tiny-1", "replay": 0.1}
    with pytest.raises(ValueError, match="rename the bucket"):
        Recipe.model_validate(given)


def test_a_folder_is_its_content_wherever_it_lies(ctx: Context, folder: Path) -> None:
    first = made(ctx, folder="llama", licence="MIT")
    moved = folder.rename(folder.with_name("elsewhere"))
    assert made(ctx, folder=str(moved), licence="MIT").digest == first.digest
    assert made(ctx, folder=str(moved), licence="Apache-2.0").digest != first.digest
    assert (first.stats["vocab_size"], first.stats["end_of_text"]) == (265, 0)
    assert Model.model_validate(first.stats["model"]).layers == 2
    weights = ctx.refs.load(first.inputs["weights"])
    assert {part.name for part in weights.parts} == {part.name for part in first.parts}


def test_a_changed_folder_is_read_again(ctx: Context, folder: Path) -> None:
    _, stage = begun(folder="llama", licence="MIT")
    before = stage.outside(ctx)
    assert stage.outside(ctx) == before
    with (folder / "model.safetensors").open("ab") as stream:
        stream.write(b" ")
    assert stage.outside(ctx) != before
    with pytest.raises(MissingError, match="no folder"):
        made(ctx, folder="nowhere", licence="MIT")


def test_a_plan_takes_the_vocabulary_of_the_weights(ctx: Context, folder: Path) -> None:
    assert initial.vocabulary(ctx, InitialWeights(folder="llama", licence="MIT")) == 265
    recipe = load(RECIPE)
    planned = plan(recipe, vocab_size=265)
    assert planned.parameters == plan(recipe).parameters - (recipe.tokenizer.vocab_size - 265) * 64
    for target in ("nobody/1", "nobody@champion"):
        with pytest.raises((GateError, MissingError)):
            initial.vocabulary(ctx, InitialWeights(release=target))


def test_marked_weights_are_refused(ctx: Context, folder: Path) -> None:
    first, (_, stage) = made(ctx, folder="llama", licence="MIT"), begun(folder="llama", licence="MIT")
    before = stage.outside(ctx)
    taint.mark(ctx, first.inputs["weights"], "ada", "licence withdrawn")
    with pytest.raises(GateError, match=r"tainted[\s\S]*licence withdrawn"):
        made(ctx, folder="llama", licence="MIT")
    assert stage.outside(ctx) != before  # so that it is evaluated again, and no result from before the mark is reused


def test_a_run_that_is_not_there_is_named(ctx: Context) -> None:
    for target in ("demo-1234", "demo-1234:x"):
        with pytest.raises(MissingError, match=r"plinth run checkpoint list"):
            made(ctx, checkpoint=target)
    with pytest.raises(MissingError, match="no release 'nobody@champion'"):
        made(ctx, release="nobody@champion")
    with pytest.raises(GateError, match="nobody version 1 was never released"):
        made(ctx, release="nobody/1")
