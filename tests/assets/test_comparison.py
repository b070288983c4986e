"""Comparison asset: the newest checkpoint against its own run or none, and the links of its pages."""

from pathlib import Path

import pytest

from plinth.compute.context import Context
from plinth.recipe.recipe import Recipe
from plinth.records import Manifest
from plinth.report.page import safe_link
from plinth.storage.workspace import Workspace
from plinth.training.parameters.initial import InitialWeights
from plinth_assets import candidate
from plinth_assets.framework import Stage
from plinth_assets.measurements import comparison_stage
from plinth_audit.canaries import job as canaries
from plinth_audit.extraction import job as extraction
from plinth_jobs.recipes import load

RECIPE = Path(__file__).parents[2] / "jobs" / "plinth_jobs" / "recipes" / "tiny.yaml"


@pytest.fixture
def ctx(tmp_path: Path) -> Context:
    return Context(Workspace(tmp_path / "workspace").ensure())


def stage(asset: str) -> Stage:
    deps = ("checkpoint", "run", "mixture", "canaries/shards")
    made = comparison_stage.stages  # any function: nothing is made here
    return Stage(asset=asset, deps=deps, make=made, version="1", params={}, group="", description="", owner="")  # type: ignore[arg-type]


def saved(ctx: Context, asset: str, stats: dict[str, str] | None = None, **inputs: Manifest) -> Manifest:
    digests = {name.replace("_", "/"): made.digest for name, made in inputs.items()}
    made = Manifest(
        asset=asset, step=asset, version="1", params={}, inputs=digests, parts=(), stats={"of": asset, **(stats or {})}
    )
    ctx.refs.save(made)
    return made


def trained(ctx: Context, shards: Manifest, run_id: str, kept: bool = True) -> Manifest:
    mixture = saved(ctx, "mixture", {"run_id": run_id}, canaries_shards=shards)
    run = saved(ctx, "run", {"run_id": run_id}, mixture=mixture)
    if kept:
        (ctx.workspace.runs / run_id).mkdir(parents=True)
        (ctx.workspace.runs / run_id / "config.json").write_text("{}")
    return saved(ctx, "checkpoint", {"run_id": run_id}, run=run)


def test_a_checkpoint_is_measured_with_its_own_run(ctx: Context) -> None:
    shards, others = saved(ctx, "canaries/shards"), saved(ctx, "canaries/shards", {"seed": "other"})
    newest = trained(ctx, shards, "newest")
    run = ctx.refs.load(newest.inputs["run"])
    given = {"run": run, "mixture": ctx.refs.load(run.inputs["mixture"]), "canaries/shards": shards}

    def found(asset: str, checkpoint: Manifest) -> str | None:
        inputs = comparison_stage._own_run(ctx, stage(asset), checkpoint, given)
        return None if inputs is None else inputs["run"].stats["run_id"] if "run" in inputs else "unseen"

    early = trained(ctx, shards, "early")
    elsewhere, foreign = trained(ctx, others, "elsewhere"), saved(ctx, "weights")
    gone = trained(ctx, shards, "gone", kept=False)
    models = (newest, early, elsewhere, foreign, gone)
    assert [found(canaries.ASSET, one) for one in models] == ["newest", "early", "unseen", "unseen", None]
    assert [found(extraction.ASSET, one) for one in models] == ["newest", "early", None, None, None]


def test_the_pages_lead_to_the_comparison(ctx: Context) -> None:
    given = load(RECIPE)
    plain, against = (
        given.model_copy(update={"evaluation": given.evaluation.model_copy(update={"against": one})})
        for one in ("", "models/theirs")
    )
    for recipe, there in ((plain, False), (against, True)):
        (asked,) = candidate.page_stages(recipe)
        links = [one.link for one in candidate._next(recipe, "ab" * 32 if there else "") if one.link]
        assert ("comparison" in asked.deps) == there
        assert links == ["tiny-checkpoint-abababababab-comparison.html"] * there
    assert comparison_stage.path(ctx, against, "ab" * 32) == ctx.workspace.reports / links[0]
    assert safe_link(links[0])


def test_before_the_first_release_there_is_nothing_to_compare_with(ctx: Context) -> None:
    recipe, own = load(RECIPE), models_of(ctx)
    assert recipe.evaluation.against == comparison_stage.CHAMPION
    said: list[str] = []
    made = comparison_stage._make(recipe, comparison_stage.CHAMPION, ctx, {"checkpoint": own}, said.append)
    assert (made.stats["lines"], made.stats["models"]["a"]["checkpoint"]) == ([], own.digest)
    assert said == ["tiny has no champion yet, so the checkpoint is not compared"]
    assert comparison_stage._present(recipe, ctx, made) == {"lines": "no comparison: there is no champion yet"}
    assert comparison_stage._outside(recipe, comparison_stage.CHAMPION, ctx) == ""


def models_of(ctx: Context) -> Manifest:
    made = Manifest(asset="checkpoint", step="checkpoint", version="1", params={}, inputs={}, parts=())
    ctx.refs.save(made)
    return made


def test_a_run_is_compared_with_what_it_began_from(ctx: Context) -> None:
    checkpoint = saved(ctx, "checkpoint")
    begun = saved(ctx, "initial", checkpoint=checkpoint)
    assert comparison_stage.parent_of(ctx, {"initial": begun}).digest == checkpoint.digest
    recipe = load(RECIPE)
    evaluation = recipe.evaluation.model_copy(update={"against": "initial"})
    training = recipe.training.model_copy(update={"initial": InitialWeights(checkpoint="tiny-1")})
    (stage,) = comparison_stage.stages(recipe.model_copy(update={"evaluation": evaluation, "training": training}))
    assert "initial" in stage.deps
    with pytest.raises(ValueError, match="initial needs"):
        Recipe.model_validate(recipe.model_dump() | {"evaluation": evaluation.model_dump()})


def test_the_text_of_a_parent_is_that_of_its_own_run(ctx: Context) -> None:
    """Neither that of the parent's parent, nor what was planted; of weights from outside none is known."""

    def of_run(seed: str, *more: str, **begun: Manifest) -> tuple[Manifest, dict[str, Manifest]]:
        texts = {}
        for bucket in ("web", *more):
            documents = saved(ctx, f"{bucket}/documents", {"seed": seed}, files=saved(ctx, "inventory"))
            texts[bucket] = saved(ctx, f"{bucket}/curated", {"seed": seed}, documents=documents)
        mixture = saved(ctx, "mixture", {"seed": seed}, **texts)
        return saved(ctx, "checkpoint", {"seed": seed}, run=saved(ctx, "run", mixture=mixture, **begun)), texts

    grand, _ = of_run("1", "books")
    parent, texts = of_run("2", "code", "canaries", initial=saved(ctx, "initial", checkpoint=grand))
    assert comparison_stage.text_of(ctx, parent) == {name: texts[name] for name in ("web", "code")}
    assert comparison_stage.text_of(ctx, saved(ctx, "weights")) == {}
