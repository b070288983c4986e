"""The check `marks` of assets: it fails where the asset, or what it was made of, is marked as unfit.

It names the marks; where one was made, what came of it is drawn. Gates and loads ask the log of marks themselves, never
this check. Does not belong here: who asks for it when a mark is made (plinth_jobs.sensors).
"""

from collections.abc import Collection, Iterator

import dagster as dg

from plinth.compute.context import Context
from plinth_assets.framework.present import picture

CHECK = "marks"


def evaluations(ctx: Context, assets: Collection[str]) -> Iterator[dg.AssetCheckEvaluation]:
    """The check of these assets, as it is now.

    Raises:
        SignatureError: the log of marks does not hold.
    """
    from plinth_registry import taint

    marks = taint.records(ctx)
    frozen = [{each.digest: each.steps for each in taint.affected(ctx, mark)} for mark in marks]
    for asset in sorted(assets):
        ref = ctx.refs.ref(asset)
        hit = [n for n, steps in enumerate(frozen) if ref is not None and ref.digest in steps]
        said = [f"{marks[n].kind} {marks[n].target[:16]} is marked by {marks[n].by}: {marks[n].reason}" for n in hit]
        # A picture is some 100 KB: it stands where the mark was made, and the others are in it.
        here = [n for n in hit if ref is not None and frozen[n][ref.digest] == 0]
        yield dg.AssetCheckEvaluation(
            asset_key=asset_key(asset),
            check_name=CHECK,
            passed=not hit,
            description="; ".join(said) or "no mark",
            metadata={f"what came of mark {n + 1}": _drawn(ctx, marks[n].target) for n in here},
        )


def _drawn(ctx: Context, target: str) -> dg.MarkdownMetadataValue:
    from plinth.report.impact_page import figure
    from plinth_registry import impact

    found = impact.contents(impact.impact(ctx, target))
    return picture(figure, found.boxes, found.arrows)


def of_new(ctx: Context, asset: str) -> Iterator[dg.AssetCheckEvaluation]:
    """The check of an asset that was just made: nothing in a workspace where nothing was ever marked.

    Raises:
        SignatureError: the log of marks does not hold.
    """
    from plinth_registry import taint

    if taint.statements(ctx):
        yield from evaluations(ctx, [asset])


def asset_key(asset: str) -> dg.AssetKey:
    return dg.AssetKey(asset.split("/"))
