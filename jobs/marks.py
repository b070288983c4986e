"""The check `marks` of every asset: it fails where the asset, or what it was made of, is marked as unfit.

The feed's sensor evaluates it for the assets that a new mark or a lifted one concerns; it can be run by hand too.
It names the marks; where one was made, what came of it is drawn.
"""

from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

import dagster as dg

from assets.catalog import stages
from assets.framework.present import picture
from plinth.compute.context import Context
from plinth.recipe.recipe import Recipe
from plinth.storage.workspace import Workspace

CHECK = "marks"
DESCRIPTION = "Neither it nor what it was made of is marked as unfit (`plinth taint list`)."


def check(recipe: Recipe, workspace: Path) -> dg.AssetChecksDefinition:
    """The check of every asset of a recipe."""
    specs = [dg.AssetCheckSpec(CHECK, asset=_key(stage.asset), description=DESCRIPTION) for stage in stages(recipe)]

    @dg.multi_asset_check(name=CHECK, specs=specs, can_subset=True)
    def _marks(context: dg.AssetCheckExecutionContext) -> Iterator[dg.AssetCheckResult]:
        asked = [key.asset_key.to_user_string() for key in context.selected_asset_check_keys]
        for found in evaluations(Context(Workspace(workspace)), asked):
            yield dg.AssetCheckResult(
                asset_key=found.asset_key,
                check_name=CHECK,
                passed=found.passed,
                metadata=found.metadata,
                description=found.description,
            )

    return _marks


def concerned(ctx: Context, entries: Iterable[Any]) -> frozenset[str]:
    """Published assets whose marks some entries of the feed have changed."""
    from registry import taint

    records = {one.number: one.mark for one in taint.statements(ctx)}
    marks = [records[entry.record] for entry in entries if entry.of == "taint"]
    return frozenset(each.asset for mark in marks for each in taint.affected(ctx, mark) if each.state == "published")


def evaluations(ctx: Context, assets: Collection[str]) -> Iterator[dg.AssetCheckEvaluation]:
    """The check of these assets, as it is now.

    Raises:
        SignatureError: the log of marks does not hold.
    """
    from registry import taint

    marks = taint.records(ctx)
    frozen = [{each.digest: each.steps for each in taint.affected(ctx, mark)} for mark in marks]
    for asset in sorted(assets):
        ref = ctx.refs.ref(asset)
        hit = [n for n, steps in enumerate(frozen) if ref is not None and ref.digest in steps]
        said = [f"{marks[n].kind} {marks[n].target[:16]} is marked by {marks[n].by}: {marks[n].reason}" for n in hit]
        # A picture is some 100 KB: it stands where the mark was made, and the others are in it.
        here = [n for n in hit if ref is not None and frozen[n][ref.digest] == 0]
        yield dg.AssetCheckEvaluation(
            asset_key=_key(asset),
            check_name=CHECK,
            passed=not hit,
            description="; ".join(said) or "no mark",
            metadata={f"what came of mark {n + 1}": _drawn(ctx, marks[n].target) for n in here},
        )


def _drawn(ctx: Context, target: str) -> dg.MarkdownMetadataValue:
    from plinth.report.impact_figure import figure
    from registry import impact

    found = impact.contents(impact.impact(ctx, target))
    return picture(figure, found.boxes, found.arrows)


def _key(asset: str) -> dg.AssetKey:
    return dg.AssetKey(asset.split("/"))
