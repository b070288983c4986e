"""The asset `comparison`: each new checkpoint is compared with a model that the recipe names, by the same measurements.
The lines of the comparison can be recomputed from the items of both models.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from plinth.compute.context import Context
from plinth.corpus.canaries import BUCKET as CANARIES
from plinth.evaluation.comparison import job
from plinth.evaluation.comparison.differences import in_order, result_text
from plinth.evaluation.comparison.job import MeasuredModel
from plinth.evaluation.comparison.models import ancestry, weights
from plinth.evaluation.measurement import Figures, measurement_of, measurements
from plinth.evaluation.slices.job import ASSET as EVALUATION
from plinth.evaluation.slices.job import of_parent
from plinth.evaluation.slices.tables import with_texts
from plinth.provenance.statements import chain
from plinth.recipe.recipe import Recipe
from plinth.records import Manifest, bucket_of
from plinth.storage.atomic import write_bytes
from plinth.storage.off_limits import place
from plinth.storage.state import resolve
from plinth.training import initial
from plinth_assets.framework import Inputs, Say, Stage, shared_owner
from plinth_assets.framework.present import markdown, page_value, picture, table
from plinth_assets.initial import initial_weights

ASSET = job.ASSET
#: Values of `evaluation.against`: the champion of the recipe's release; the initial weights of the run.
CHAMPION, PARENT = "champion", "initial"


def stages(recipe: Recipe) -> list[Stage]:
    """Return the stage that compares the checkpoint with another model, if the recipe names such a model."""
    against = recipe.evaluation.against
    if not against or (against == CHAMPION and recipe.release is None):
        return []
    own = measuring(recipe)
    deps = dict.fromkeys([*(one.asset for one in own), *(name for one in own for name in one.deps)])
    return [
        Stage(
            asset=ASSET,
            deps=(*deps, *(initial_weights(recipe) if against == PARENT else ())),
            make=partial(_make, recipe, against),
            version=job.VERSION,
            params={},
            outside=partial(_outside, recipe, against),
            group="evaluation",
            description="Paired differences, with intervals, between the checkpoint (a) and the model that the recipe "
            "names (b), with and without contaminated items; differences between their training runs.",
            owner=shared_owner(recipe),
            kinds=("pytorch", "parquet"),
            present=partial(_present, recipe),
            pool="training",
        )
    ]


def measuring(recipe: Recipe) -> list[Stage]:
    """Return the stages that measure a checkpoint and whose results can be paired between two models."""
    paired = (one for one in measurements(recipe) if one.pairs and one.measures_other)
    return [stage for one in paired for stage in one.stages(recipe) if "checkpoint" in stage.deps]


def measure(
    recipe: Recipe, ctx: Context, checkpoint: Manifest, given: Mapping[str, Manifest], say: Say
) -> MeasuredModel:
    """Measure a checkpoint in the same way as the recipe's own checkpoint. Earlier measurements are read from the step
    cache.

    Args:
        given: inputs of the measuring stages, without the checkpoint; a stage with a missing input is skipped.
    """
    ctx.refs.save(checkpoint)
    made = {}
    for stage in measuring(recipe):
        if not reads(stage) <= set(given):
            continue
        inputs = _own_run(ctx, stage, checkpoint, given) if "run" in stage.deps else given
        if inputs is None:
            own = f"checkpoint {checkpoint.digest[:12]}"
            say(f"skipped {stage.asset}: the run of {own} is not on the shards of this workspace, or was deleted")
            continue
        made[stage.asset] = stage.make(ctx, {**inputs, "checkpoint": checkpoint}, say)
        ctx.refs.save(made[stage.asset])
    return MeasuredModel(checkpoint, made)


def reads(stage: Stage) -> set[str]:
    """Return the keys of a stage's inputs, without the checkpoint, its run and its mixture."""
    return set(stage.deps) - {"checkpoint", "run", "mixture"}


def _own_run(
    ctx: Context, stage: Stage, checkpoint: Manifest, given: Mapping[str, Manifest]
) -> dict[str, Manifest] | None:
    """Return the inputs with which a stage measures a checkpoint, including the checkpoint's run. Return None if the
    stage cannot measure the checkpoint.

    A checkpoint that was not trained on these shards is measured on planted texts as a model that never saw them. A
    stage that needs the checkpoint's own run cannot measure this checkpoint, nor a checkpoint with a deleted run.
    """
    own = ancestry(ctx.refs, checkpoint)
    same = [name for name in stage.deps if name.endswith("/shards") or name == "tokenizer"]
    trained = {"run", "mixture"} <= set(own)
    if trained and all(name in own and own[name].digest == given[name].digest for name in same):
        kept = Path(ctx.workspace.runs / own["run"].stats["run_id"] / "config.json").exists()
        return {**given, "run": own["run"], "mixture": own["mixture"]} if kept else None
    made_by = measurement_of(stage.asset)
    return None if made_by and made_by.own_run else {name: one for name, one in given.items() if name != "run"}


def _make(recipe: Recipe, against: str, ctx: Context, inputs: Inputs, say: Say) -> Manifest:
    own = {one.asset: inputs[one.asset] for one in measuring(recipe) if one.asset in inputs}
    ours = MeasuredModel(inputs["checkpoint"], own)
    other = parent_of(ctx, inputs) if against == PARENT else _other(recipe, ctx, against, inputs["checkpoint"].digest)
    if other is None:
        say(f"{recipe.required_release().name} has no champion yet, so the checkpoint is not compared")
        return job.alone(inputs["checkpoint"])
    theirs = measure(recipe, ctx, other, inputs, say)
    if against == PARENT and (curated := text_of(ctx, other)):
        ours, theirs = (_on_parents_text(recipe, ctx, one, curated) for one in (ours, theirs))
    return job.run(ctx, ours, theirs)


def text_of(ctx: Context, parent: Manifest) -> dict[str, Manifest]:
    """Return the curated text on which the parent checkpoint was trained, by bucket, with its held-out text. The result
    is empty for external weights."""
    links = (link for link in chain(ctx.refs, parent).own if link.asset.endswith("/curated"))
    return {bucket_of(one.asset): ctx.refs.load(one.digest) for one in links if bucket_of(one.asset) != CANARIES}


def _on_parents_text(
    recipe: Recipe, ctx: Context, one: MeasuredModel, curated: Mapping[str, Manifest]
) -> MeasuredModel:
    """Return a model's measurements with one more: its evaluation on the held-out text of the parent."""
    made = of_parent(ctx, recipe.evaluation, one.checkpoint, curated)
    ctx.refs.save(made)
    return one._replace(measured={**one.measured, made.asset: made})


def _other(recipe: Recipe, ctx: Context, against: str, own: str) -> Manifest | None:
    """Return the model to compare with. Return None if the recipe names the champion, and no other checkpoint is
    champion."""
    if against == CHAMPION:
        from plinth_registry.evidence import champion

        found = champion(ctx, recipe.required_release().name, own)
        return ctx.refs.load(found) if found else None
    base = ctx.workspace.input
    folder = Path(base, against) if isinstance(base, Path) else Path(against)
    if not folder.is_dir():
        return resolve(ctx.refs, against)
    return weights(ctx, Path(place(str(folder.absolute()), base).path))


def parent_of(ctx: Context, inputs: Inputs) -> Manifest:
    """Return the parent of the run, which is a checkpoint or external weights."""
    (digest,) = inputs[initial.ASSET].inputs.values()
    return ctx.refs.load(digest)


def _outside(recipe: Recipe, against: str, ctx: Context) -> str:
    if against == PARENT:
        return ""  # an input
    published = ctx.refs.ref("checkpoint")
    other = _other(recipe, ctx, against, published.digest if published else "")
    return other.digest if other else ""


def path(ctx: Context, recipe: Recipe, checkpoint: str) -> Path:
    """Return the path of the comparison page of the checkpoint with this digest."""
    return ctx.workspace.reports / page_name(recipe, checkpoint)


def page_name(recipe: Recipe, checkpoint: str) -> str:
    """Return the file name of a checkpoint's comparison page, which is in the folder of the results and evaluation
    pages."""
    return f"{recipe.name}-checkpoint-{checkpoint[:12]}-comparison.html"


def show(ctx: Context, made: Manifest, a: str, b: str, target: Path) -> None:
    """Write the comparison page of two models, with the text of the spans where they differ most."""
    from plinth.report.evaluation import comparison_page

    found = job.spans_of(made)
    if found:
        found = with_texts(ctx.store, ctx.refs, ctx.refs.load(made.inputs[f"a/{EVALUATION}"]), found)
    target.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(target, comparison_page(made, a, b, found).encode())


def _named(name: str, model: Mapping[str, Any]) -> str:
    """Return a model's label on the comparison page: its name and checkpoint, and its step if the step is known."""
    step = f", step {model['step']:,}" if "step" in model else ""
    return f"{name} (checkpoint {model['checkpoint'][:12]}{step})"


def _present(recipe: Recipe, ctx: Context, made: Manifest) -> dict[str, Any]:
    from plinth.report import evaluation

    if not made.stats["lines"]:
        return {"lines": "no comparison: there is no champion yet"}
    target = path(ctx, recipe, made.stats["models"]["a"]["checkpoint"])
    show(ctx, made, _named(recipe.name, made.stats["models"]["a"]), _named(recipe.evaluation.against,
         made.stats["models"]["b"]), target)  # fmt: skip
    lines = in_order(made.stats)
    header = ["measure", "slice", "items", "a", "b", "a - b", "finding"]
    cells = [
        [one.measure, one.slice, one.difference.n, one.a.value, one.b.value, one.difference.value, result_text(one)]
        for one in lines
    ]
    return {
        "page": page_value(ctx, target),
        "differences": picture(evaluation.figure, lines),
        "lines": markdown(table(header, cells)),
    }


def recount(ctx: Context, made: Manifest, found: Mapping[str, Manifest]) -> Figures:
    """Return every line that the comparison states, with its interval, and every line recomputed from the items of both
    models. The items of the recipe's own model must be the attested items."""
    models = {side: made.inputs.get(f"{side}/checkpoint", "none") for side in ("a", "b")}
    ours, theirs = (_measured_of(ctx, made, side) for side in ("a", "b"))
    lines = job.lines(ctx.store, ours, theirs)
    counted = _lines(line.model_dump(mode="json") for line in lines)
    named = dict.fromkeys(models, "none") | {side: one["checkpoint"] for side, one in made.stats["models"].items()}
    read = {name: one.digest for name, one in ours.items() if name in found}
    attested = {name: found[name].digest for name in read}
    stated = {"models": named, "lines": _lines(made.stats["lines"]), "attested": read}
    return stated, {"models": models, "lines": counted, "attested": attested}


def _measured_of(ctx: Context, made: Manifest, side: str) -> dict[str, Manifest]:
    names = (name for name in made.inputs if name.startswith(f"{side}/") and name != f"{side}/checkpoint")
    return {name.removeprefix(f"{side}/"): ctx.refs.load(made.inputs[name]) for name in names}


def _lines(lines: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    return {
        f"{one['kind']} {one['measure']} {one['slice']}": {
            key: one["difference"][key] for key in ("clusters", "value", "low", "high")
        }
        | {"fewer_is_better": one["fewer_is_better"]}
        for one in lines
    }
