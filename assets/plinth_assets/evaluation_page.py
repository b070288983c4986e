"""`evaluation_page`: every measure of the checkpoint on one self-contained page."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from plinth.compute.context import Context, manifest
from plinth.evaluation.measurement import Stats, measurements
from plinth.evaluation.probes.noise import Worth
from plinth.recipe.recipe import Recipe
from plinth.records import Manifest, Part, Step
from plinth.report.evaluation import CurveGroup, EvaluationData, Section, StepCurve
from plinth.report.page import Fact, Next
from plinth.storage.atomic import write_bytes
from plinth.training import config
from plinth.training.telemetry.timeline import timeline
from plinth.training.validation import probe_curves
from plinth_assets import comparison
from plinth_assets.framework.inputs import shared_owner
from plinth_assets.framework.present import page_value
from plinth_assets.framework.stage import Inputs, Say, Stage

ASSET, VERSION, FILE = "evaluation_page", "3", "evaluation.html"


def stages(recipe: Recipe) -> list[Stage]:
    """One page of the checkpoint."""
    return [
        Stage(
            asset=ASSET,
            deps=("run", *(asset for asset, _ in _measured(recipe)), *(one.asset for one in comparison.stages(recipe))),
            make=partial(_make, recipe),
            version=VERSION,
            params={"name": recipe.name, "description": recipe.description},
            group="report",
            description="Every measure of the checkpoint with its interval, its control and its noise, as one page.",
            owner=shared_owner(recipe),
            kinds=("html",),
            present=partial(_present, recipe),
        )
    ]


def path(ctx: Context, recipe: Recipe, checkpoint: str) -> Path:
    """The file of the page of a checkpoint, by its digest."""
    return ctx.workspace.reports / f"{recipe.name}-checkpoint-{checkpoint[:12]}-evaluation.html"


def show(ctx: Context, recipe: Recipe, made: Manifest) -> Path:
    """Write the page where people find it; returns its path."""
    target = path(ctx, recipe, made.stats["checkpoint"])
    write_bytes(target, ctx.store.read_bytes(made.parts[0].blob))
    return target


def _measured(recipe: Recipe) -> Iterator[tuple[str, Callable[[str, Stats], Any]]]:
    """Assets that have a section, and how that is made."""
    for one in measurements(recipe):
        if one.section:
            yield from ((stage.asset, one.section) for stage in one.stages(recipe) if one.has(stage.asset))


def _make(recipe: Recipe, ctx: Context, inputs: Inputs, say: Say) -> Manifest:
    from plinth.report.evaluation import page
    from plinth_assets.measurements.probes_items import with_worth

    steps, checkpoint = inputs["run"].stats["steps"], inputs["evaluation"].inputs["checkpoint"]
    run = config.load(ctx.workspace.runs / inputs["run"].stats["run_id"] / "config.json")
    looks = timeline(run.directory.events).of("evaluated")
    worth = {name: probe_curves.value(own) for name, own in probe_curves.curves(looks).items()}
    found = [section(asset.partition("/")[2], inputs[asset].stats) for asset, section in _measured(recipe)]
    beside = inputs.get(comparison.ASSET)
    if beside and beside.stats["lines"]:
        from plinth.report.comparison import section as compared

        found.append(compared(beside.stats, recipe.evaluation.against))
    shown = [with_worth(one, worth) if one.key == "probes" else one for one in found]
    text = page(
        EvaluationData(
            title=f"{recipe.name}: evaluation of checkpoint {checkpoint[:12]}, step {steps:,}",
            subtitle=recipe.description,
            headline=_headline(inputs),
            sections=(*shown, *_curves(looks, worth)),
            next=_next(recipe, checkpoint if beside and beside.stats["lines"] else ""),
        )
    )
    part = Part(name=FILE, blob=ctx.store.put_bytes(text.encode()))
    stats = {"sections": [section.key for section in found], "checkpoint": checkpoint}
    return manifest(ASSET, Step(name=ASSET, version=VERSION), dict(inputs), [part], stats)


def _headline(inputs: Inputs) -> tuple[Fact, ...]:
    overall = inputs["evaluation"].stats["overall"]
    note = f"95% interval {overall['low']:.3f} to {overall['high']:.3f}; gzip -9 {overall['gzip']:.2f}"
    tokens = Fact(label="tokens trained", value=f"{inputs['run'].stats['tokens']:,}")
    return (tokens, Fact(label="bits per byte, held out", value=f"{overall['model']:.3f}", note=note))


def _curves(looks: Sequence[Mapping[str, Any]], worth: Mapping[str, Worth]) -> Iterator[Section]:
    """Held-out slices and probes over the run, where it was validated."""
    names = sorted({name for look in looks for name in look["slices"]})
    slices = [_curve(name, [(look["step"], look["slices"].get(name)) for look in looks]) for name in names]
    asked = probe_curves.curves(looks)
    scores = [_curve(name, [(one.step, one.score) for one in own], worth[name].noise) for name, own in asked.items()]
    shown = {"Held-out slices": slices, "Right answers of probes, with the noise of their last looks": scores}
    drawn = {title: tuple(one for one in own if one.steps) for title, own in shown.items()}
    groups = [CurveGroup(title=title, unit="bits per byte", curves=own) for title, own in drawn.items() if own]
    if groups:
        yield Section(
            key="curves",
            title="Over the run",
            lead="The same measures while the run trained: slices on samples of their text, probes on their sample.",
            curves=tuple(groups),
        )


def _curve(name: str, points: Sequence[tuple[int, float | None]], noise: float | None = None) -> StepCurve:
    """The points that were measured, which may be none."""
    known = [(step, value) for step, value in points if value is not None]
    steps, values = tuple(step for step, _ in known), tuple(value for _, value in known)
    return StepCurve(name=name, steps=steps, values=values, noise=noise)


def _next(recipe: Recipe, compared: str) -> tuple[Next, ...]:
    """Commands, and the page of the comparison of the checkpoint `compared`, if there is one."""
    against = f"every slice, item and span compared with {recipe.evaluation.against}"
    pages = (Next(what=against, link=comparison.page_name(recipe, compared)),) if compared else ()
    return (
        *pages,
        Next(what="slices, worst documents, spans where two models differ", command="plinth model evaluation"),
        Next(what="two checkpoints side by side", command="plinth model compare A B"),
        Next(
            what="where a text stands in the training data, and which steps saw it", command="plinth corpus trace TEXT"
        ),
    )


def _present(recipe: Recipe, ctx: Context, made: Manifest) -> dict[str, Any]:
    return {"page": page_value(ctx, show(ctx, recipe, made))}
