"""`drift`: the champion on held-out text that came after it, look after look.

It follows the clock and the signed history of releases, not a run of the recipe: its job and schedule make it, and
`plinth model drift --score`; `plinth run` does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from plinth.compute.context import Context
from plinth.recipe.recipe import Recipe
from plinth.records import Manifest
from plinth.report.style import ACCENT, MUTED, WARNING, WIDTH_INCHES
from plinth_assets.comparison import text_of
from plinth_assets.framework.expectations import Suite, between
from plinth_assets.framework.inputs import by_bucket, each, shared_owner
from plinth_assets.framework.present import markdown, picture, table
from plinth_assets.framework.stage import Inputs, Say, Stage
from plinth_audit.drift import job
from plinth_audit.drift.judge import SliceDrift

if TYPE_CHECKING:
    from matplotlib.figure import Figure


ASSET = job.ASSET


def stages(recipe: Recipe) -> list[Stage]:
    """One, of a recipe that releases."""
    if recipe.release is None or recipe.mixture is None:
        return []
    return [
        Stage(
            asset=ASSET,
            deps=(*each(recipe, "curated"), "ledger"),
            make=partial(_make, recipe),
            version=job.VERSION,
            params={"slices": dict(recipe.evaluation.slices)},
            outside=partial(_champion, recipe),
            group="operation",
            description="The champion's bits per byte on held-out documents that came after it, beside those of its "
            "own run, by slice: what has moved, by a test that holds whenever one looks.",
            owner=shared_owner(recipe),
            kinds=("pytorch", "parquet"),
            schema=job.SCHEMA,
            suite=_suite,
            present=_present,
            pool="training",
        )
    ]


def _champion(recipe: Recipe, ctx: Context) -> str:
    from plinth_registry.evidence import champion

    return champion(ctx, recipe.required_release().name, "")


def _make(recipe: Recipe, ctx: Context, inputs: Inputs, say: Say) -> Manifest:
    digest, earlier = _champion(recipe, ctx), ctx.refs.published(ASSET)
    champion = ctx.refs.load(digest) if digest else None
    if champion is None:
        say(f"{recipe.required_release().name} has no champion: nothing to score")
    own = {} if champion is None else text_of(ctx, champion)
    curated = by_bucket(recipe, inputs, "curated")
    return job.run(ctx, recipe.evaluation, champion, own, curated, inputs["ledger"], earlier)


def _suite(made: Manifest, inputs: Inputs) -> Suite:
    """A warning where a slice drifts: it blocks nothing."""
    drifting = sum(one["drifts"] for one in made.stats["slices"])
    return Suite(ASSET, [{"drifting": drifting}], [between("drifting", None, 0, "warning")])


def _present(ctx: Context, made: Manifest) -> dict[str, Any]:
    found = job.slices(made)
    if not found:
        return {"slices": "nothing was scored: there is no champion, or no slice has enough held-out documents"}
    header = ["slice", "reference documents", "later", "reference", "last look", "p, all looks and slices", "drifts"]
    moved = [document for one in found if one.drifts for document in one.moved]
    named = [[each.uri, each.snapshot, each.bytes, each.model, each.excess_bits] for each in moved]
    return {
        "drift": picture(figure, found),
        "drifting": sum(one.drifts for one in found),
        "slices": markdown(table(header, [_row(one) for one in found])),
        "moved": markdown(
            table(["document", "snapshot", "bytes", "bits per byte", "bits above the reference"], named)
        ),
        "proposal": markdown("`plinth model drift --propose continued.yaml` writes a recipe; nothing starts"),
    }


def _row(one: SliceDrift) -> list[Any]:
    latest = "-" if one.latest is None else f"{one.latest[0]:.3f} ({one.latest[1]:.3f} to {one.latest[2]:.3f})"
    reference = f"{one.reference[0]:.3f} ({one.reference[1]:.3f} to {one.reference[2]:.3f})"
    return [
        one.label,
        one.documents,
        one.later,
        reference,
        latest,
        one.adjusted,
        f"since look {one.look}" if one.drifts else "",
    ]


#: Slices that are drawn: those that drift come first.
MOST = 24


def figure(found: Sequence[SliceDrift]) -> Figure:
    """Reference in grey, the last look in colour: orange where the slice drifts, whenever one looks."""
    from matplotlib.figure import Figure

    rows = list(found[:MOST])
    fig = Figure(figsize=(WIDTH_INCHES, 0.32 * max(1, len(rows)) + 0.9), layout="constrained")
    axes = fig.subplots()
    for place, one in enumerate(rows):
        for value, colour, shift in ((one.reference, MUTED, -0.13), (one.latest, _colour(one), 0.13)):
            if value is not None:
                axes.plot(value[1:], [place + shift] * 2, color=colour, alpha=0.4, linewidth=4)
                axes.plot(value[:1], [place + shift], "o", color=colour, markersize=5)
    axes.set_yticks(range(len(rows)), [f"{one.label} ({one.later:,} later)" for one in rows])
    axes.invert_yaxis()
    axes.set_xlabel("bits per byte: grey, the reference; colour, the last look; orange, drifts")
    axes.grid(axis="x")
    axes.set_axisbelow(True)
    axes.tick_params(length=0)
    return fig


def _colour(one: SliceDrift) -> str:
    return WARNING if one.drifts else ACCENT
